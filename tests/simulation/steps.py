"""Landings that stop before a chosen step, are killed there, or lose an answer.

A step is an operation of the storage, a call of a table's library, or whatever a test declares to be one. The
test decides which landing goes on, so the number of a step is all that is needed to repeat a failure.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from greenlet import getcurrent, greenlet

from airflow_provider_webcollect.landing.storage import Exists, Storage
from airflow_provider_webcollect.landing.storage.folder import Folder

#: Work in a folder: a landing, a decision, a cleaning.
Work = Callable[[Folder], object]
#: Called with an operation and the path that it is about.
Step = Callable[[str, str], object]


class Crash(BaseException):
    """The process ends here."""


class Stepping(Storage):
    """A storage that calls ``step`` before each of its operations; an upload has two steps, begin and end."""

    def __init__(self, storage: Storage, step: Step = lambda operation, path: None) -> None:
        self._storage = storage
        self._step = step

    def step(self, operation: str, path: str) -> None:
        """Make a step that is not an operation of the storage, also for the storages below."""
        self._step(operation, path)
        if isinstance(self._storage, Stepping):
            self._storage.step(operation, path)

    def done(self, operation: str, path: str) -> None:
        """Called after each change."""

    def read(self, path: str) -> bytes | None:
        self._step("read", path)
        return self._storage.read(path)

    def create(self, path: str, content: bytes) -> None:
        self._step("create", path)
        self._storage.create(path, content)
        self.done("create", path)

    def write(self, path: str, content: bytes) -> None:
        self._step("write", path)
        self._storage.write(path, content)
        self.done("write", path)

    def files(self, folder: str) -> dict[str, int]:
        self._step("files", folder)
        return self._storage.files(folder)

    @contextlib.contextmanager
    def upload(self, path: str) -> Iterator[Any]:
        self._step("upload", path)
        with self._storage.upload(path) as file:
            yield file
            self._step("publish", path)
        self.done("upload", path)

    def open(self, path: str, ahead: int | None = None) -> BinaryIO:
        self._step("open", path)
        return self._storage.open(path, ahead)

    def is_linked(self, path: str) -> bool:
        return self._storage.is_linked(path)

    def delete(self, path: str) -> None:
        self._step("delete", path)
        self._storage.delete(path)
        self.done("delete", path)


class Unconditional(Stepping):
    """A storage that creates a file even if it exists."""

    def create(self, path: str, content: bytes) -> None:
        self._storage.write(path, content)


class Losing(Stepping):
    """A storage that loses the answer to one change; deletions do not count as changes.

    :param at: the number of the change, from 1; 0 for none.
    :param error: key in :data:`LOST` of the error that the caller gets.
    :ivar left: the number of changes until then.
    """

    def __init__(self, storage: Storage, at: int, error: str) -> None:
        super().__init__(storage)
        self.left = at
        self._error = error

    def done(self, operation: str, path: str) -> None:
        if operation != "delete":
            self.left -= 1
            if self.left == 0:
                raise LOST[self._error]()


#: Errors of a caller whose answer was lost: a failure, or a refusal, since its client repeated the request.
LOST: dict[str, Callable[[], Exception]] = {
    "failed": functools.partial(OSError, "connection reset"),
    "refused": functools.partial(Exists, "412"),
}


class Held:
    """Work in a folder that stops before one of its steps until it may go on.

    :param at: the number of the step, from 1; or its name and the end of the path that it is about.
    :ivar met: the name and the path of the step at which it has stopped; None if it has ended.
    """

    def __init__(self, work: Work, folder: Folder, at: int | tuple[str, str]) -> None:
        self.met: tuple[str, str] | None = None
        self._work = greenlet(functools.partial(outcome_of, work, stepping(folder, self._step)))
        self.go_on(at)

    def go_on(self, at: int | tuple[str, str]) -> None:
        """Let it go on to the step ``at``, counted from where it is, or to its end."""
        self._at: int | tuple[str, str] | None = at
        self._count, self.met = 0, None
        self._outcome: object = self._work.switch()

    def end(self, *, kill: bool = False) -> object:
        """Let it go on to its end, or kill it at the step; return what it has returned or raised."""
        self._at = None
        if not self._work.dead:
            self._outcome = self._work.throw(Crash) if kill else self._work.switch()
        return self._outcome

    def _step(self, operation: str, path: str) -> None:
        if getcurrent() is not self._work:
            # threads that read several commits do not stop
            return
        self._count += 1
        if self._count == self._at or (operation, path[path.rindex("/") + 1 :]) == self._at:
            self.met = (operation, path)
            self._work.parent.switch()


def kill(work: Work, folder: Folder, at: tuple[str, str]) -> None:
    """Let work go on to one of its steps, and kill it there."""
    held = Held(work, folder, at)
    assert held.met
    assert isinstance(held.end(kill=True), Crash)


def step(folder: Folder, operation: str, name: str = "") -> None:
    """Make a step that is not an operation of a folder's storage."""
    if isinstance(folder._storage, Stepping):
        folder._storage.step(operation, f"{folder.root}/{name}")


def stepping(folder: Folder, step: Step) -> Folder:
    """Return the same folder, with ``step`` before each operation of its storage."""
    return with_storage(folder, Stepping(folder._storage, step))


def with_storage(folder: Folder, storage: Storage) -> Folder:
    """Return the same folder with another storage."""
    same = copy.copy(folder)
    same._storage = storage
    return same


def outcome_of(work: Work, folder: Folder) -> object:
    """Return what work returns or raises."""
    try:
        return work(folder)
    except BaseException as error:
        return error
