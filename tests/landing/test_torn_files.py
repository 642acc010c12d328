"""Storages that do not replace a file whole: a process that is killed leaves the beginning of it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
from typing import Any

import pytest

from airflow_provider_webcollect.landing.errors import DestinationBusy, StorageError
from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.landing.manifest import PROGRESS
from airflow_provider_webcollect.landing.run import land
from tests.conftest import ALL_HISTORIES
from tests.interruption import Pauses
from tests.landing.cases import ALL, HALF, KINDS
from tests.landing.conftest import Crash, Folder, Store
from tests.landing.pages import Rows, job, true_rows


class TornStore(Store):
    """A store in which the write of a small file is cut short, and the process that has begun it killed.

    :ivar at: the number of that write, from 1; None for none.
    """

    at: int | None = None

    def __init__(self, share: float) -> None:
        super().__init__()
        self._share = share
        self._writes = 0

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        self._writes += 1
        torn = self._writes == self.at
        super().pipe_file(path, value[: int(len(value) * self._share)] if torn else value)
        if torn:
            raise Crash

    def tear(self, at: int | None) -> None:
        """Cut a write short, counted from now on from 1; None for none."""
        self._writes, self.at = 0, at


#: Of this many writes one is cut short.
STRIDE = 1 if ALL_HISTORIES else 3


@pytest.mark.parametrize("share", [0, 0.5, 0.99], ids=["empty", "half", "nearly whole"])
@pytest.mark.parametrize("second", ["the same", *KINDS])
@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("landed", [0, HALF])
def test_the_next_landing_goes_on_wherever_a_write_is_cut_short(
    landed: int, first: str, second: str, share: float
) -> None:
    first_write = random.Random(f"{landed} {first} {second} {share}").randint(1, STRIDE)
    for write in itertools.count(first_write, STRIDE):
        store = TornStore(share)
        folder = Folder(store, "bucket/landing")
        if landed:
            land(job(Rows(landed), folder.destination, "r1", mode="incremental"))
        options = {"run": "a", **KINDS[first]}
        store.tear(write)
        try:
            land(job(Rows(ALL), folder.destination, attempt=1, **options))
        except Crash:
            pass
        else:
            assert write > STRIDE or landed
            return
        store.tear(None)
        if second != "the same":
            options = {"run": "b", **KINDS[second]}
        land(job(Rows(ALL), folder.destination, attempt=2, **options))
        land(job(Rows(ALL + 5), folder.destination, "last", mode="incremental"))
        assert folder.rows() == true_rows(ALL + 5)
        assert PROGRESS not in folder.names()


class FailingStore(Store):
    """A store in which one write of a small file fails, its beginning written or nothing of it.

    :ivar at: the end of the file's path and which of its writes, from 1.
    """

    at: tuple[str, int] = ("", 0)
    torn = True

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        name, left = self.at
        if path.endswith(name):
            self.at = (name, left - 1)
            if left == 1:
                if self.torn:
                    super().pipe_file(path, value[:10])
                raise OSError("connection reset")
        super().pipe_file(path, value)


@pytest.mark.parametrize(
    ("name", "torn"), [("_manifest.json", True), ("_progress.json", False), ("_progress.json", True)]
)
def test_rows_count_once_whichever_write_fails(name: str, torn: bool) -> None:
    for write in itertools.count(1):
        store = FailingStore()
        folder = Folder(store, "bucket/landing")
        store.at, store.torn = (name, write), torn
        committed: list[Landed] = []
        options: dict[str, Any] = {"mark": lambda: None, "on_commit": committed.append}
        with contextlib.suppress(StorageError):
            land(job(Rows(ALL), folder.destination, "a", **options))
        if store.at[1] > 0:
            assert write > 2
            return
        land(job(Rows(ALL), folder.destination, "a", attempt=2, **options))
        assert [
            sum(part.rows for part in landed.newly_committed)
            for landed in committed
            if landed.newly_committed
        ] == [ALL]
        assert folder.rows() == true_rows(ALL)


def killed_landing(folder: Folder) -> bytes:
    """Kill a landing that has written a part, and return its record."""

    def die(rows: int, total: int) -> None:
        if rows > HALF:
            raise Crash

    with pytest.raises(Crash):
        land(job(Rows(ALL), folder.destination, "a", on_progress=die))
    return folder.read(PROGRESS)


def test_a_torn_record_is_watched_before_it_is_taken_over() -> None:
    folder = Folder(Store(), "bucket/landing")
    folder.write(PROGRESS, killed_landing(folder)[:100])
    waits: list[float] = []
    land(dataclasses.replace(job(Rows(ALL), folder.destination, "b"), stop=Pauses(waits.append)))
    assert sum(waits) == 60
    assert folder.rows() == true_rows(ALL)


def test_a_record_that_was_read_while_it_was_written_is_of_a_landing_at_work() -> None:
    folder = Folder(Store(), "bucket/landing")
    record = killed_landing(folder)
    folder.write(PROGRESS, record[:100])
    waits: list[float] = []

    def go_on_writing(seconds: float) -> None:
        waits.append(seconds)
        folder.write(PROGRESS, record.replace(b'"heartbeat": 0', b'"heartbeat": %d' % len(waits)))

    with pytest.raises(DestinationBusy, match=r"attempt 1 of run a of d\.t is landing there, and alive"):
        land(dataclasses.replace(job(Rows(ALL), folder.destination, "b"), stop=Pauses(go_on_writing)))
