"""What one more run of a landing costs on S3, however many have landed: requests, and bytes that are sent."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_webcollect.landing.manifest import MANIFEST, Manifest, decode, encode
from airflow_provider_webcollect.landing.storage.object_stores import S3
from tests.conftest import ALL_HISTORIES
from tests.landing.costs import EACH, Landing, Runs, rows_of, with_rating
from tests.landing.storages import Storage

pytestmark = pytest.mark.xdist_group("s3")

#: Runs that have landed before: enough to show a cost that grows with them.
MANY = 1000 if ALL_HISTORIES else 50


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests have found out of a bucket stays as it is."""
    monkeypatch.setattr(S3, "known", {})


@pytest.fixture(scope="module")
def grown(storage_of: Callable[[str], Storage]) -> Callable[[int, str], Landing]:
    """Gives a landing of that many runs, and more that tests have added."""
    made: dict[tuple[int, str], Landing] = {}

    def grown(runs: int, file_format: str) -> Landing:
        key = runs, file_format
        if key not in made:
            made[key] = Landing(storage_of("s3"), Runs(*key))
        return made[key]

    return grown


@pytest.fixture(params=[pytest.param(10, marks=pytest.mark.at_night), MANY], ids="{} runs".format)
def runs(request: pytest.FixtureRequest) -> int:
    """How many runs have landed before."""
    count: int = request.param
    return count


@pytest.mark.by_day(1)
@pytest.mark.parametrize("file_format", ["jsonl", "csv"])
class TestOneMoreRun:
    def test_it_sends_the_part_once_and_little_more_than_the_manifest_in_eleven_requests(
        self, grown: Callable[[int, str], Landing], runs: int, file_format: str
    ) -> None:
        landing = grown(runs, file_format)
        bill = landing.land(rows_of(landing.runs))

        [part] = bill.landed.new
        assert part.rows == EACH
        assert bill.parts == [f"PUT {part.name}"]
        assert len(bill.requests) <= 11, bill.requests
        assert bill.bytes <= 1.3 * len(landing.manifest)

    def test_with_nothing_new_it_only_reads_in_five_requests(
        self, grown: Callable[[int, str], Landing], runs: int, file_format: str
    ) -> None:
        bill = grown(runs, file_format).land([])

        assert bill.landed.new == ()
        assert bill.parts == []
        assert len(bill.requests) <= 5, bill.requests
        assert bill.bytes == 0


@pytest.mark.by_day(1)
@pytest.mark.parametrize("file_format", ["jsonl", "csv"])
def test_what_a_run_leaves_is_a_whole_landing(storage_of: Callable[[str], Storage], file_format: str) -> None:
    """The proof that what is measured here is what landings write."""
    landing = Landing(storage_of("s3"), Runs(10, file_format))
    assert landing.read() == landing.rows
    before = landing.manifest
    landing.land(rows_of(10))

    assert landing.read() == landing.rows
    # lines of keys and of parts: one more of these
    assert landing.manifest.count(b"\n") == before.count(b"\n") + 1


def test_a_column_that_is_new_costs_no_more_and_old_parts_are_not_touched(
    grown: Callable[[int, str], Landing], runs: int
) -> None:
    landing = grown(runs, "csv")
    usual = landing.land(rows_of(landing.runs))
    bill = landing.land(with_rating(rows_of(landing.runs)))

    manifest = decode(landing.manifest, MANIFEST, Manifest)
    [part] = bill.landed.new
    assert (manifest.columns or ())[-1] == "rating"
    assert part.columns in (None, len(manifest.columns))
    assert bill.parts == [f"PUT {part.name}"]
    assert len(bill.requests) == len(usual.requests)


#: The most bytes of a part's entry, with the profile of eight columns. One of CSV also says how many columns
#: the part has.
ENTRY = {"jsonl": 505, "csv": 515}


@pytest.mark.by_day(1)
@pytest.mark.parametrize("file_format", ENTRY)
def test_the_manifest_of_a_thousand_runs_is_small(file_format: str) -> None:
    content = encode(Runs(1000, file_format).manifest())
    entries = [line.strip().rstrip(b",") for line in content.splitlines() if b'"name"' in line]

    assert len(entries) == 1000
    assert max(map(len, entries)) <= ENTRY[file_format]
    assert len(content) <= 515 * 1024
