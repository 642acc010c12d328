"""Two landings that take turns at chosen operations of the storage: no test needs luck to meet a gap."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.landing.manifest import Manifest
from tests.landing.conftest import StoreFile

if TYPE_CHECKING:
    import pytest

    from tests.landing.conftest import Folder

Outcome = Manifest | Exception


class Interleaving:
    """Two landings, of which one at a time goes on: each for some operations, then to its end.

    :param operations: how many of the first come before the second begins, how many of the second before the
        first goes on, and so on.
    """

    def __init__(self, *operations: int) -> None:
        self.met = False
        self._left = list(operations)
        self._names: dict[int, int] = {}
        self._whose = 0
        self._handed_over = threading.Condition()

    def run(
        self, first: Callable[[Folder], Manifest], second: Callable[[Folder], Manifest], folder: Folder
    ) -> tuple[Outcome, Outcome]:
        """Land in the folder and return how both have ended; ``met`` says whether the first came so far."""
        with ThreadPoolExecutor(2) as threads:
            ended = [
                threads.submit(self._run, name, each, folder) for name, each in enumerate([first, second])
            ]
            return ended[0].result(), ended[1].result()

    def _run(self, name: int, land: Callable[[Folder], Manifest], folder: Folder) -> Outcome:
        with self._handed_over:
            self._names[threading.get_ident()] = name
            self._handed_over.wait_for(lambda: self._whose == name)
        try:
            return outcome_of(land, folder)
        finally:
            with self._handed_over:
                self._left.clear()
                self._hand_over(name)

    def step(self) -> None:
        """Hand over, if this is the operation for it, and wait for the other to hand back."""
        name = self._names.get(threading.get_ident())
        with self._handed_over:
            if name is None or not self._left:
                return
            self._left[0] -= 1
            if self._left[0] == 0:
                self.met = True
                del self._left[0]
                self._hand_over(name)
                self._handed_over.wait_for(lambda: self._whose == name)

    def _hand_over(self, name: int) -> None:
        self._whose = 1 - name
        self._handed_over.notify_all()


def outcome_of(land: Callable[[Folder], Manifest], folder: Folder) -> Outcome:
    try:
        return land(folder)
    except Exception as error:
        return error


def watch(folder: Folder, step: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call ``step`` before every operation of the folder's filesystem."""

    def watched(operation: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            step()
            return operation(*arguments, **options)

        return run

    kind = type(folder.fs)
    for name in ("_open", "mv", "rm_file", "ls", "cat_file", "pipe_file"):
        monkeypatch.setattr(kind, name, watched(getattr(kind, name)))
    monkeypatch.setattr(StoreFile, "commit", watched(StoreFile.commit))
