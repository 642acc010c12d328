"""Two landings that meet in a folder: one is held at each of its operations in turn, while the other runs.

Whatever they do, the manifest lists what is there, its rows are exact, and the next run brings all.
"""

from __future__ import annotations

import functools
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from airflow_provider_webcollect.landing.errors import LeaseLost
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.landing.manifest import MANIFEST, PROGRESS
from airflow_provider_webcollect.landing.run import run_job
from airflow_provider_webcollect.landing.storage.folder import Folder as Destination
from airflow_provider_webcollect.service.models import DataPage
from airflow_provider_webcollect.service.pages import PageReader
from airflow_provider_webcollect.service.settings import ClientTiming
from tests.conftest import ALL_HISTORIES, SEED
from tests.interruption import PATIENCE
from tests.landing.cases import ALL, HALF, KINDS, STATES, Case, landing_of
from tests.landing.conftest import SERVERS, Crash, Folder, listed
from tests.landing.interleaving import Held, outcome_of
from tests.landing.pages import PAGE, Rows, changed, job, true_rows
from tests.landing.storages import Storage, local
from tests.service.servers import answer, client_of, query_number, serving

if TYPE_CHECKING:
    from pathlib import Path

#: All conditions.
EVERY = [(operation, name) for operation in ("replace", "remove") for name in (MANIFEST, PROGRESS)]
#: Of this many operations a landing is held at one.
STRIDE = 1 if ALL_HISTORIES else 20


@pytest.fixture(params=["disk", *(pytest.param(kind, marks=pytest.mark.at_night) for kind in SERVERS)])
def storage(request: pytest.FixtureRequest, storage_of: Callable[[str], Storage]) -> Storage:
    """A real storage of each kind."""
    return storage_of(request.param)


PAIRS = list(itertools.product(KINDS, repeat=2))
#: Storages and states: a server takes too long for all of them.
PLACES = [("disk", state) for state in STATES]
if ALL_HISTORIES:
    PLACES += [(kind, "a commit") for kind in SERVERS]


@pytest.mark.by_day(16)
@pytest.mark.parametrize(("storage", "state"), PLACES, indirect=["storage"])
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_landings_that_meet_do_each_other_no_harm(
    request: pytest.FixtureRequest,
    storage: Storage,
    state: str,
    first: str,
    second: str,
    record_property: Callable[[str, object], None],
) -> None:
    case = Case(storage, STATES[state])
    count = 0
    for operation, kill in operations(state, first, second):
        if not case.interleave(first, second, operation, kill=kill):
            break
        count += 1
    record_property(f"interleavings on {request.node.callspec.params['storage']}", count)


def operations(state: str, first: str, second: str) -> Iterator[tuple[int, bool]]:
    """Yield the operations to hold a landing at, and whether it is killed there."""
    chance = random.Random(f"{SEED} {state} {first} {second}")
    for operation in itertools.count(chance.randint(1, STRIDE), STRIDE):
        for kill in (False, True) if ALL_HISTORIES else (chance.random() < 0.5,):
            yield operation, kill


@pytest.mark.parametrize("number", range(10 if ALL_HISTORIES else 2))
def test_landings_that_meet_anywhere_do_each_other_no_harm(storage: Storage, number: int) -> None:
    """Two and three of them, of any kinds in any state, held at any operation."""
    chance = random.Random(f"{SEED} {number}")
    case = Case(storage, STATES[chance.choice(list(STATES))])
    case.interleave(*chance.choice(PAIRS), chance.randint(5, 20), kill=chance.random() < 0.5)
    folder = case.new_folder()
    kinds = chance.choices(list(KINDS), k=3)
    landings = [landing_of(kind, f"run {number}", number) for number, kind in enumerate(kinds)]
    held = [Held(each, folder.destination, chance.randint(1, 30)) for each in landings[:2]]
    outcomes = [outcome_of(landings[2], folder.destination)]
    outcomes += [each.end(kill=chance.random() < 0.5) for each in reversed(held)]
    case.check(folder, list(zip(reversed(kinds), outcomes, strict=True)), held=2)


def test_harm_is_found_where_the_conditions_of_writes_are_left_off(tmp_path: Path) -> None:
    """The proof of the proof: of two that commit, one lists parts that the other has replaced and deleted."""
    case = Case(local(tmp_path), STATES["a commit"])
    found = 0
    for operation in itertools.count(1):
        folder = case.new_folder()
        held = Held(landing_of("next", "a", 1), folder.destination, operation, EVERY)
        if not held.met:
            break
        overwriting = outcome_of(landing_of("overwrite", "b", 2), folder.destination)
        outcomes = [("next", held.end()), ("overwrite", overwriting)]
        if {part["name"] for part in folder.manifest()["parts"]} - folder.names():
            assert all(isinstance(outcome, Landed) for _, outcome in outcomes)
            with pytest.raises(FileNotFoundError, match="part-00001-"):
                case.check(folder, outcomes, held=1)
            found += 1
    assert found


class TestRunsThatMeet:
    """What runs report, whatever has landed between their attempts."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Folder:
        storage = local(tmp_path)
        return Folder(storage.fs, storage.new_folder())

    @staticmethod
    def broken() -> None:
        raise ConnectionError("the service is down")

    @pytest.mark.parametrize("count", [ALL, ALL + 5], ids=["nothing new", "more rows"])
    def test_the_next_run_reports_the_rows_of_one_that_fails_after_its_commit(
        self, folder: Folder, count: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(ConnectionError):
            run_job(job(Rows(ALL), folder.destination, "r1", mode="incremental", mark=self.broken))
        options: dict[str, Any] = {"mode": "incremental", "mark": lambda: None}
        with caplog.at_level("INFO"):
            second = run_job(job(Rows(count), folder.destination, "r2", **options))
        assert f"run r1 of d.t has not finished its report of {ALL} rows" in caplog.text
        assert second.new == second.manifest.parts == second.manifest.new()
        assert sum(part.rows for part in second.committed) == count - ALL
        retry = run_job(job(Rows(count), folder.destination, "r1", attempt=2, **options))
        assert (retry.new, retry.committed) == ((), ())

    def test_a_landing_that_was_taken_over_marks_nothing(self, tmp_path: Path) -> None:
        storage = local(tmp_path)
        taken_over = 0
        for operation in itertools.count(1):
            marked: list[str] = []
            slow = functools.partial(
                job, Rows(HALF), run="r1", mode="incremental", mark=functools.partial(marked.append, "r1")
            )
            destination = Destination(storage.fs, storage.new_folder())
            held = Held(lambda folder, make=slow: run_job(make(folder)), destination, operation)
            if not held.met:
                break
            run_job(job(Rows(ALL), destination, "r2", mode="incremental"))
            before = list(marked)
            if isinstance(held.end(), LeaseLost):
                taken_over += 1
                assert marked == before, operation
            assert Folder(storage.fs, destination.root).rows() == true_rows(ALL)
        assert taken_over > 5

    def test_a_page_asked_ahead_is_forgotten_once_another_run_has_landed(self, folder: Folder) -> None:
        rows = Rows(HALF + 2)
        ahead = threading.Event()

        def respond(request: bytes) -> bytes:
            page = rows.fetch(offset := query_number(request))
            if offset == HALF:
                ahead.set()
            data = [msgspec.json.decode(row) for row in page.rows]
            numbers = {"offset": page.offset, "total": page.total, "restTotal": page.rest_total}
            return answer({**numbers, "data": data})

        run_job(job(Rows(PAGE), folder.destination, "r0", mode="incremental"))
        with serving(respond) as server, client_of(server, ClientTiming(slow_response=0.0)) as client:
            reader = PageReader(client, "t", size=PAGE)
            slow = functools.partial(job, rows, run="r1", mode="incremental", on_reset="full")
            held = Held(
                lambda place: run_job(
                    changed(slow(destination=place), fetch=reader.read, on_replan=reader.forget)
                ),
                folder.destination,
                ("replace", "_progress.json"),
            )
            assert held.met
            assert ahead.wait(PATIENCE)
            # the page that this run lands last is the one that the other has prefetched
            rows.count = HALF + PAGE
            run_job(job(rows, folder.destination, "r2", mode="incremental"))
            late = held.end()
        assert isinstance(late, Landed)
        assert late.new == ()
        assert folder.rows() == true_rows(HALF + PAGE)

    def test_rows_count_once_though_a_retry_adds_to_them(self, folder: Folder) -> None:
        pages = [
            DataPage(offset=1, total=1, rest_total=0, rows=[msgspec.Raw(b'{"a":1}')]),
            DataPage(offset=2, total=2, rest_total=0, rows=[msgspec.Raw(b'{"a":1,"b":2}')]),
        ]
        committed: list[Landed] = []
        options: dict[str, Any] = {
            "mode": "incremental",
            "file_format": make_format("csv"),
            "on_commit": committed.append,
        }
        before = job(Rows(0), folder.destination, "r1", mark=self.broken, **options)
        with pytest.raises(ConnectionError):
            run_job(changed(before, fetch=listed(pages[:1])))
        again = msgspec.structs.replace(pages[0], total=2, rest_total=1)
        after = changed(before, attempt=2, mark=lambda: None, fetch=listed([again, pages[1]]))
        assert run_job(after).new == run_job(after).manifest.parts
        assert [sum(part.rows for part in landed.committed) for landed in committed] == [1, 1]

    @pytest.mark.by_day(1)
    @pytest.mark.parametrize("kill", [True, False], ids=["killed", "given up"])
    @pytest.mark.parametrize("options", [{}, {"mark": lambda: None}], ids=["", "marks"])
    def test_rows_count_once_whenever_a_retry_takes_over(
        self, tmp_path: Path, options: dict[str, Any], kill: bool
    ) -> None:
        storage = local(tmp_path)
        counts = []
        for operation in itertools.count(1):
            committed: list[Landed] = []
            attempts = [
                functools.partial(
                    job, Rows(ALL), run="r1", attempt=attempt, on_commit=committed.append, **options
                )
                for attempt in (1, 2)
            ]
            destination = Destination(storage.fs, storage.new_folder())
            held = Held(lambda folder, make=attempts[0]: run_job(make(folder)), destination, operation)
            if not held.met:
                break
            run_job(attempts[1](destination))
            held.end(kill=kill)
            counts.append(sum(part.rows for landed in committed for part in landed.committed))
        assert counts == [ALL] * (operation - 1)

    def test_a_run_that_is_deleted_and_made_again_is_not_refused(self, folder: Folder) -> None:
        """It counts its attempts from 1 again."""
        held = Held(lambda place: run_job(job(Rows(ALL), place, "r1", attempt=3)), folder.destination, 12)
        assert isinstance(held.end(kill=True), Crash)
        assert folder.progress().owner
        assert run_job(job(Rows(ALL), folder.destination, "r1", attempt=1)).manifest.rows == ALL

    @pytest.mark.parametrize("form", ["{}//landing", "{}/./landing", "{}/landing/"])
    def test_a_folder_may_be_spelt_in_any_way(self, tmp_path: Path, form: str) -> None:
        fs = local(tmp_path).fs
        for run in ("r1", "r2"):
            run_job(job(Rows(ALL), Destination(fs, form.format(tmp_path)), run, mode="incremental"))
        assert Folder(fs, f"{tmp_path}/landing").rows() == true_rows(ALL)
