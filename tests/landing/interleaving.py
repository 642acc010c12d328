"""Landings of which one is held at a chosen operation of the storage: no test needs luck to meet a gap."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.landing.storage.folder import Folder
from tests.landing.conftest import Crash

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.storage.conditional import Storage, Stored

Outcome = Landed | BaseException
Land = Callable[[Folder], Landed]
#: Called with an operation and the path that it is about.
Step = Callable[[str, str], object]


class Stepping:
    """A storage that calls ``step`` before each of its operations; writing a part has two, begin and end.

    :param conditions: whether the conditions of writes are passed on. Without them, any writer wins.
    """

    def __init__(self, storage: Storage, step: Step, *, conditions: bool = True) -> None:
        self._storage = storage
        self._step = step
        self._conditions = conditions

    def try_out(self, folder: str) -> bool:
        self._step("try_out", folder)
        return self._storage.try_out(folder)

    def read(self, path: str) -> Stored | None:
        self._step("read", path)
        return self._storage.read(path)

    def replace(self, path: str, content: bytes, expected: str | None) -> str:
        self._step("replace", path)
        return self._storage.replace(path, content, self._condition(path, expected))

    def remove(self, path: str, expected: str) -> bool:
        self._step("remove", path)
        return self._storage.remove(path, self._condition(path, expected) or "")

    def files(self, folder: str) -> dict[str, int]:
        self._step("files", folder)
        return self._storage.files(folder)

    @contextlib.contextmanager
    def upload(self, path: str) -> Iterator[Any]:
        self._step("upload", path)
        with self._storage.upload(path) as file:
            yield file
            self._step("publish", path)

    def open(self, path: str) -> Any:
        self._step("open", path)
        return self._storage.open(path)

    def delete(self, path: str) -> None:
        self._step("delete", path)
        self._storage.delete(path)

    def _condition(self, path: str, expected: str | None) -> str | None:
        if self._conditions:
            return expected
        there = self._storage.read(path)
        return there and there.version


class Held:
    """A landing in a thread of its own that stops before one of its operations until it may go on.

    :param land: what it does.
    :param folder: where.
    :param at: the number of the operation, from 1; or its name and the end of the path that it is about.
    :ivar met: the operation that it has come to, and the path that this is about; None if it has ended.
    """

    def __init__(
        self, land: Land, folder: Folder, at: int | tuple[str, str], *, conditions: bool = True
    ) -> None:
        self._at = at
        self._count = 0
        self._killed = False
        self._go_on = threading.Event()
        self._stopped = threading.Event()
        self._outcome: list[Outcome] = []
        self.met: tuple[str, str] | None = None
        self._thread = threading.Thread(target=self._run, args=(land, folder, conditions), daemon=True)
        self._thread.start()
        assert self._stopped.wait(60)

    def end(self, *, kill: bool = False) -> Outcome:
        """Let it go on to its end, or end in the place of the operation; return how it has ended."""
        self._killed = kill
        self._go_on.set()
        self._thread.join(60)
        return self._outcome[0]

    def _run(self, land: Land, folder: Folder, conditions: bool) -> None:
        self._outcome.append(outcome_of(land, stepping(folder, self._step, conditions=conditions)))
        self._stopped.set()

    def _step(self, operation: str, path: str) -> None:
        if self.met or threading.current_thread() is not self._thread:
            # a heartbeat comes from another thread
            return
        self._count += 1
        if self._count == self._at or (operation, path[path.rindex("/") + 1 :]) == self._at:
            self.met = (operation, path)
            self._stopped.set()
            assert self._go_on.wait(60)
            if self._killed:
                raise Crash


def stepping(folder: Folder, step: Step, *, conditions: bool = True) -> Folder:
    """Return the same folder, with ``step`` before each operation of its storage."""
    copy = Folder.__new__(Folder)
    copy.__dict__.update(folder.__dict__)
    copy._storage = Stepping(folder._storage, step, conditions=conditions)
    return copy


def outcome_of(land: Land, folder: Folder) -> Outcome:
    """Return how a landing ends."""
    try:
        return land(folder)
    except BaseException as error:
        return error
