"""Two landings that take turns at chosen operations of the storage: no test needs luck to meet a gap."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.landing.manifest import Manifest

if TYPE_CHECKING:
    import pytest

    from tests.landing.conftest import Folder

Outcome = Manifest | Exception


@dataclass
class Interleaving:
    """The second landing begins before an operation of the first, which goes on before one of the second.

    :param at: before the so many-th operation of the first the second begins.
    :param until: before the so many-th operation of the second the first goes on, to its end, and the second
        after that; None lets the second end first.
    """

    at: int
    until: int | None
    met: bool = field(init=False, default=False)
    _first: int | None = field(init=False, default=None)
    _second: int | None = field(init=False, default=None)
    _reached: threading.Event = field(init=False, default_factory=threading.Event)
    _ended: threading.Event = field(init=False, default_factory=threading.Event)
    _go_on: threading.Event = field(init=False, default_factory=threading.Event)

    def run(
        self, first: Callable[[Folder], Manifest], second: Callable[[Folder], Manifest], folder: Folder
    ) -> tuple[Outcome, Outcome]:
        """Land in the folder and return how both have ended; ``met`` says whether the first came so far."""
        with ThreadPoolExecutor(1) as thread:
            ended = thread.submit(self._run_first, first, folder)
            self._reached.wait()
            self._second = threading.get_ident()
            try:
                outcome = outcome_of(second, folder)
            finally:
                self._go_on.set()
            return ended.result(), outcome

    def _run_first(self, first: Callable[[Folder], Manifest], folder: Folder) -> Outcome:
        self._first = threading.get_ident()
        try:
            return outcome_of(first, folder)
        finally:
            self._reached.set()
            self._ended.set()

    def step(self) -> None:
        """Hand over, if this is the operation for it."""
        if threading.get_ident() == self._first:
            self.at -= 1
            if self.at == 0:
                self.met = True
                self._reached.set()
                self._go_on.wait()
        elif threading.get_ident() == self._second and self.until is not None:
            self.until -= 1
            if self.until == 0:
                self._go_on.set()
                self._ended.wait()


def outcome_of(land: Callable[[Folder], Manifest], folder: Folder) -> Outcome:
    try:
        return land(folder)
    except Exception as error:
        return error


def watch(folder: Folder, step: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call ``step`` before every operation of the folder's filesystem."""
    from tests.landing.conftest import StoreFile

    def watched(operation: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            step()
            return operation(*arguments, **options)

        return run

    kind = type(folder.fs)
    for name in ("_open", "mv", "rm_file", "ls", "cat_file", "pipe_file"):
        monkeypatch.setattr(kind, name, watched(getattr(kind, name)))
    monkeypatch.setattr(StoreFile, "commit", watched(StoreFile.commit))
