"""Landings of which one is held at a chosen operation of the storage: no test needs luck to meet a gap."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from airflow_provider_webcollect.landing.storage import Exists, Storage
from airflow_provider_webcollect.landing.storage.folder import Folder
from airflow_provider_webcollect.landing.write.job import Landed
from tests.interruption import PATIENCE


class Crash(BaseException):
    """The process ends here."""


Outcome = Landed | BaseException
Land = Callable[[Folder], Any]
#: Called with an operation and the path that it is about.
Step = Callable[[str, str], object]


class Stepping:
    """A storage that calls ``step`` before each of its operations; writing a part has two, begin and end.

    :param unconditional: whether a file is created whether it is there or not.
    """

    def __init__(self, storage: Storage, step: Step, *, unconditional: bool = False) -> None:
        self.step = step
        self._storage = storage
        self._is_unconditional = unconditional

    def read(self, path: str) -> bytes | None:
        self.step("read", path)
        return self._storage.read(path)

    def create(self, path: str, content: bytes) -> None:
        self.step("create", path)
        if self._is_unconditional:
            self._storage.write(path, content)
        else:
            self._storage.create(path, content)

    def write(self, path: str, content: bytes) -> None:
        self.step("write", path)
        self._storage.write(path, content)

    def files(self, folder: str) -> dict[str, int]:
        self.step("files", folder)
        return self._storage.files(folder)

    @contextlib.contextmanager
    def upload(self, path: str) -> Iterator[Any]:
        self.step("upload", path)
        with self._storage.upload(path) as file:
            yield file
            self.step("publish", path)

    def open(self, path: str, ahead: int | None = None) -> Any:
        self.step("open", path)
        return self._storage.open(path, ahead)

    def is_linked(self, path: str) -> bool:
        return self._storage.is_linked(path)

    def delete(self, path: str) -> None:
        self.step("delete", path)
        self._storage.delete(path)


class Losing(Stepping):
    """A storage of which the answer of one change is lost.

    :param at: the number of the change, from 1; 0 for none.
    :param error: what the caller hears: a failure, or the refusal of a request that its client has repeated.
    :ivar lost: whether it has come so far.
    """

    def __init__(self, storage: Storage, at: int, error: Callable[[], Exception]) -> None:
        super().__init__(storage, lambda operation, path: None)
        self.lost = False
        self.at = at
        self._error = error

    def lose(self, path: str) -> None:
        """Lose the answer of a change, if it is the one."""
        self.at -= 1
        if self.at == 0:
            self.lost = True
            raise self._error()

    def create(self, path: str, content: bytes) -> None:
        super().create(path, content)
        self.lose(path)

    def write(self, path: str, content: bytes) -> None:
        super().write(path, content)
        self.lose(path)

    @contextlib.contextmanager
    def upload(self, path: str) -> Iterator[Any]:
        with super().upload(path) as file:
            yield file
        self.lose(path)


#: What a caller hears whose answer was lost.
LOST = {"failed": functools.partial(OSError, "connection reset"), "refused": functools.partial(Exists, "412")}


class Held:
    """A landing in a thread of its own that stops before one of its operations until it may go on.

    :param land: what it does.
    :param folder: where.
    :param at: the number of the operation, from 1; or its name and the end of the path that it is about.
    :param unconditional: see :class:`Stepping`.
    :ivar met: the operation that it has come to, and the path that this is about; None if it has ended.
    """

    def __init__(
        self, land: Land, folder: Folder, at: int | tuple[str, str] | None, *, unconditional: bool = False
    ) -> None:
        self._at = at
        self._count = 0
        self._killed = False
        self._going_on = threading.Event()
        self._stopped = threading.Event()
        self._outcome: list[Outcome] = []
        self.met: tuple[str, str] | None = None
        self._thread = threading.Thread(target=self._run, args=(land, folder, unconditional), daemon=True)
        self._thread.start()
        assert self._stopped.wait(PATIENCE)

    def go_on(self, at: int) -> None:
        """Let it go on to the operation of that number, counted from where it is, or to its end."""
        self._at, self._count, self.met = at, 0, None
        self._stopped.clear()
        self._going_on.set()
        assert self._stopped.wait(PATIENCE)

    def end(self, *, kill: bool = False) -> Outcome:
        """Let it go on to its end, or end in the place of the operation; return how it has ended."""
        self._killed = kill
        self._at = None
        self._going_on.set()
        self._thread.join(PATIENCE)
        return self._outcome[0]

    def _run(self, land: Land, folder: Folder, unconditional: bool) -> None:
        self._outcome.append(outcome_of(land, stepping(folder, self._step, unconditional=unconditional)))
        self._stopped.set()

    def _step(self, operation: str, path: str) -> None:
        if self._at is None or threading.current_thread() is not self._thread:
            # several commits are read in threads of their own
            return
        self._count += 1
        if self._count == self._at or (operation, path[path.rindex("/") + 1 :]) == self._at:
            self._going_on.clear()
            self._at = None
            self.met = (operation, path)
            self._stopped.set()
            assert self._going_on.wait(PATIENCE)
            if self._killed:
                raise Crash


def kill(land: Land, folder: Folder, at: tuple[str, str]) -> None:
    """Let a landing come to one of its operations, and end in its place."""
    held = Held(land, folder, at)
    assert held.met
    assert isinstance(held.end(kill=True), Crash)


def stepping(folder: Folder, step: Step, *, unconditional: bool = False) -> Folder:
    """Return the same folder, with ``step`` before each operation of its storage."""
    return with_storage(folder, Stepping(folder._storage, step, unconditional=unconditional))


def with_storage(folder: Folder, storage: Stepping) -> Folder:
    """Return the same folder with another storage."""
    same = copy.copy(folder)
    same._storage = storage
    return same


def outcome_of(land: Land, folder: Folder) -> Outcome:
    """Return how a landing ends."""
    try:
        return land(folder)
    except BaseException as error:
        return error
