"""Two landings that meet in a folder: one is held at each of its operations in turn, while the other runs.

Whatever they do, both end well, commits and manifest have the exact rows, and the next run brings all.
"""

from __future__ import annotations

import functools
import itertools
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_provider_webcollect.landing.commits import Part
from airflow_provider_webcollect.landing.errors import LogContended
from airflow_provider_webcollect.landing.job import Landed
from airflow_provider_webcollect.landing.log import TRIES
from airflow_provider_webcollect.landing.run import run_job
from airflow_provider_webcollect.landing.storage.folder import Folder as Destination
from airflow_provider_webcollect.service.pages import PageReader
from airflow_provider_webcollect.service.settings import ClientTiming
from tests.conftest import ALL_HISTORIES, SEED
from tests.interruption import PATIENCE
from tests.landing.cases import ALL, HALF, KINDS, STATES, Case, landing_of
from tests.landing.conftest import SERVERS, Folder
from tests.landing.interleaving import Held, outcome_of, stepping
from tests.landing.pages import PAGE, Rows, changed, job, true_rows, unreachable
from tests.service.servers import answer, client_of, query_number, serving
from tests.storages import Storage, local

pytestmark = pytest.mark.usefixtures("each_part_is_staged")

#: Of this many operations a landing is held at one.
STRIDE = 1 if ALL_HISTORIES else 20


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


def test_harm_is_found_where_a_commit_is_created_though_it_is_there(tmp_path: Path) -> None:
    """The proof of the proof: of two that commit the same number, one is lost to who has read it."""
    case = Case(local(tmp_path), STATES["a commit"])
    harmed = 0
    for operation in itertools.count(1):
        folder = case.new_folder()
        held = Held(landing_of("next", "a"), folder.destination, operation, unconditional=True)
        if not held.met:
            break
        other = outcome_of(landing_of("overwrite", "b"), folder.destination)
        try:
            case.check(folder, ("next", "a", held.end()), ("overwrite", "b", other))
        except AssertionError:
            harmed += 1
    assert harmed


def names(parts: Iterable[Part]) -> list[str]:
    """Return the names of parts."""
    return [part.name for part in parts]


class TestRunsThatMeet:
    """What runs say that they have landed, whatever has landed between their attempts."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Folder:
        return Folder.new(local(tmp_path))

    def test_one_of_two_has_read_in_vain_and_the_log_says_what_spares_it(
        self, folder: Folder, caplog: pytest.LogCaptureFixture
    ) -> None:
        late = Held(landing_of("next", "r1"), folder.destination, ("create", "00000001.json"))
        early = landing_of("next", "r2")(folder.destination)
        landed = late.end()
        assert isinstance(landed, Landed)
        assert (landed.new, landed.committed) == ((), ())
        assert names(early.new) == names(early.manifest.parts)
        assert "Another landing has committed to" in caplog.text
        assert "`max_active_runs=1`" in caplog.text

    def test_a_landing_that_others_overtake_again_and_again_gives_up_for_now(self, folder: Folder) -> None:
        rows, others = Rows(PAGE), itertools.count(1)

        def overtake(operation: str, path: str) -> None:
            if operation == "create":
                run_job(job(rows, folder.destination, f"other {next(others)}", mode="incremental"))
                rows.count += PAGE

        with pytest.raises(LogContended, match="other landings keep committing to") as error:
            run_job(job(rows, stepping(folder.destination, overtake), "r1", mode="incremental"))
        assert not error.value.permanent
        assert folder.rows() == true_rows(rows.count - PAGE)
        assert next(others) == TRIES + 1

    @pytest.mark.parametrize("count", [ALL, ALL + 5], ids=["nothing new", "more rows"])
    def test_a_run_that_fails_after_its_commit_keeps_its_rows(self, folder: Folder, count: int) -> None:
        with pytest.raises(ConnectionError):
            run_job(job(Rows(ALL), folder.destination, "r1", mode="incremental", mark=unreachable))
        options: dict[str, Any] = {"mode": "incremental", "mark": lambda: None}
        second = run_job(job(Rows(count), folder.destination, "r2", **options))
        assert sum(part.rows for part in second.new) == count - ALL
        retry = run_job(job(Rows(count), folder.destination, "r1", **options))
        assert (sum(part.rows for part in retry.new), retry.committed) == (ALL, ())

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
                ("create", "00000002.json"),
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

    @pytest.mark.by_day(1)
    @pytest.mark.parametrize("kill", [True, False], ids=["killed", "given up"])
    @pytest.mark.parametrize("options", [{}, {"mark": lambda: None}], ids=["", "marks"])
    def test_rows_count_once_whenever_a_retry_meets_its_first_attempt(
        self, tmp_path: Path, options: dict[str, Any], kill: bool
    ) -> None:
        for operation in itertools.count(1):
            committed: list[Landed] = []
            make = functools.partial(job, Rows(ALL), run="r1", on_commit=committed.append, **options)
            destination = Folder.new(local(tmp_path)).destination
            held = Held(lambda folder, make=make: run_job(make(folder)), destination, operation)
            if not held.met:
                break
            landed = run_job(make(destination))
            held.end(kill=kill)
            assert names(landed.new) == names(landed.manifest.parts)
            counted = sum(part.rows for landed in committed for part in landed.committed)
            assert counted == ALL
        assert operation > 15

    @pytest.mark.parametrize("form", ["{}//landing", "{}/./landing", "{}/landing/"])
    def test_a_folder_may_be_spelt_in_any_way(self, tmp_path: Path, form: str) -> None:
        fs = local(tmp_path).fs
        for run in ("r1", "r2"):
            run_job(job(Rows(ALL), Destination(fs, form.format(tmp_path)), run, mode="incremental"))
        assert Folder(fs, f"{tmp_path}/landing").rows() == true_rows(ALL)
