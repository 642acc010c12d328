"""Two landings on one destination, interleaved at every operation of the storage."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
import pytest

from airflow_provider_webcollect.landing.errors import DestinationTaken, PartsMissing
from airflow_provider_webcollect.landing.manifest import Manifest
from tests.landing.conftest import OTHER_RUN, Folder, Landed
from tests.landing.interleaving import Interleaving, Outcome, watch

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox

Land = Callable[[Folder], Manifest]

pytestmark = [
    pytest.mark.webcollect_sandbox(enforce_limits=False),
    # how many operations of the second landing come before the first goes on, and of the first before the
    # second does; without any, each goes on to its end. In memory, the same is done as on a disk.
    pytest.mark.parametrize(
        ("folder", "then"),
        [
            ("local", ()),
            ("local", (8,)),
            ("local", (11, 1)),
            ("store", ()),
            ("store", (7,)),
            ("store", (7, 1)),
            ("store", (7, 4)),
            ("store", (14,)),
        ],
        indirect=["folder"],
    ),
]
THIRD_RUN = msgspec.structs.replace(OTHER_RUN, run_id="r3")


@pytest.fixture
def task(sandbox: Sandbox) -> str:
    """A task with rows for two pages."""
    task_id: str = sandbox.control.add_task(rows=20, lots=1)["task_id"]
    return task_id


@dataclasses.dataclass
class Two:
    """Lands twice, in a new folder for every operation of the first before which the second begins."""

    folder: Folder
    then: tuple[int, ...]
    monkeypatch: pytest.MonkeyPatch

    def interleaved(
        self,
        first: Land,
        second: Land,
        prepare: Callable[[Folder], object] = lambda folder: None,
        start: int = 1,
    ) -> Iterator[tuple[Folder, Outcome, Outcome]]:
        for at in itertools.count(start):
            folder = dataclasses.replace(self.folder, root=f"{self.folder.root}-{at}")
            prepare(folder)
            interleaving = Interleaving(at, *self.then)
            with self.monkeypatch.context() as patch:
                watch(folder, interleaving.step, patch)
                outcomes = interleaving.run(first, second, folder)
            if not interleaving.met:
                assert at > 10
                return
            yield folder, *outcomes


@pytest.fixture
def two(folder: Folder, then: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> Two:
    return Two(folder, then, monkeypatch)


def check(folder: Folder, rows: list[object]) -> None:
    """All rows are there for a reader, and nothing is there that he need not know."""
    assert folder.rows() == rows
    assert folder.names() == {"_manifest.json", *(part["name"] for part in folder.manifest()["parts"])}


@pytest.mark.parametrize("marks", [False, True], ids=["", "marks"])
def test_a_try_that_was_given_up_and_still_runs_does_no_harm_and_the_retry_lands(
    landing: Landed, two: Two, sandbox: Sandbox, task: str, marks: bool
) -> None:
    """Airflow may start the retry while the first process, cut off from it, goes on."""
    marked: list[str] = []

    def land(folder: Folder) -> Manifest:
        mark = (lambda: marked.append(folder.root)) if marks else None
        return landing(task, size=10, max_part_bytes=1, destination=folder.destination, mark=mark)

    # before that, the slow one may claim the destination later than its own retry
    claimed = 6 if two.folder.fs.protocol == "store" else 10
    for folder, slow, retry in two.interleaved(land, land, start=claimed):
        assert isinstance(retry, Manifest), retry
        assert isinstance(slow, Manifest | DestinationTaken | PartsMissing), slow
        assert folder.rows() == sandbox.control.true_rows(task)
        assert (folder.root in marked) is marks
        # a third try finds all done, or tidies up
        land(folder)
        check(folder, sandbox.control.true_rows(task))
        assert bool(folder.manifest()["exported_at"]) is marks


def test_another_run_that_takes_over_and_the_one_it_took_over_from_do_each_other_no_harm(
    landing: Landed, two: Two, sandbox: Sandbox, task: str
) -> None:
    def land(folder: Folder) -> Manifest:
        return landing(task, size=10, max_part_bytes=1, destination=folder.destination)

    def take_over(folder: Folder) -> Manifest:
        return landing(
            task,
            size=10,
            max_part_bytes=1,
            destination=folder.destination,
            run=OTHER_RUN,
            abandoned_after=0,
        )

    for folder, *outcomes in two.interleaved(land, take_over):
        landed = [each for each in outcomes if isinstance(each, Manifest)]
        assert landed, outcomes
        assert all(isinstance(each, Manifest | DestinationTaken | PartsMissing) for each in outcomes), (
            outcomes
        )
        assert folder.manifest()["run"]["run_id"] in {each.run.run_id for each in landed}
        assert folder.rows() == sandbox.control.true_rows(task)


def test_growing_landings_of_two_runs_do_each_other_no_harm(
    landing: Landed, two: Two, sandbox: Sandbox
) -> None:
    tasks: dict[str, str] = {}

    def grow(folder: Folder, **options: object) -> Manifest:
        return landing(
            tasks[folder.root],
            size=10,
            max_part_bytes=1,
            destination=folder.destination,
            mode="incremental",
            **options,
        )

    def take_over(folder: Folder) -> Manifest:
        return grow(folder, run=THIRD_RUN, abandoned_after=0)

    def prepare(folder: Folder) -> None:
        tasks[folder.root] = sandbox.control.add_task(rows=10, lots=1)["task_id"]
        grow(folder)
        sandbox.control.grow(tasks[folder.root], 10)

    for folder, *outcomes in two.interleaved(lambda folder: grow(folder, run=OTHER_RUN), take_over, prepare):
        assert any(isinstance(each, Manifest) for each in outcomes), outcomes
        assert all(isinstance(each, Manifest | DestinationTaken | PartsMissing) for each in outcomes), (
            outcomes
        )
        assert folder.rows() == sandbox.control.true_rows(tasks[folder.root])
        # the next landing tidies up
        sandbox.control.grow(tasks[folder.root], 10)
        grow(folder)
        check(folder, sandbox.control.true_rows(tasks[folder.root]))
