"""The exactly-once move: all rows, each once, in order, or nothing that a reader could take for them."""

from __future__ import annotations

import functools
import gc
import json
import tracemalloc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pendulum
import pytest
import time_machine

import airflow_provider_webcollect
from airflow_provider_webcollect.landing.errors import (
    DestinationTaken,
    DestinationUnreadable,
    PartsMissing,
    RowsMissing,
)
from airflow_provider_webcollect.landing.formats import CastFailed, make_format
from airflow_provider_webcollect.landing.lease import Lease
from airflow_provider_webcollect.landing.manifest import (
    Manifest,
    PageFingerprint,
    Progress,
    RecordedPart,
    Source,
)
from airflow_provider_webcollect.service import pauses
from airflow_provider_webcollect.service.api.endpoints import read_data
from airflow_provider_webcollect.service.api.records import DataPage
from airflow_provider_webcollect.service.client.responses import Response, read_response
from airflow_provider_webcollect.service.errors import RequestRejected, ServiceFailure, WebCollectError
from tests.landing.conftest import (
    OTHER_RUN,
    RUN,
    Crash,
    Folder,
    Landed,
    StoreFile,
    crashing_at,
    listed,
    offsets_asked,
)
from tests.landing.pages import counted_page, page

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)


@pytest.fixture
def task(sandbox: Sandbox) -> str:
    """A task with 1000 rows in two batches."""
    task_id: str = sandbox.control.add_task(rows=500, lots=2)["task_id"]
    return task_id


class TestLanding:
    def test_every_row_lands_once_and_in_order(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        manifest = landing(task)
        assert folder.rows() == sandbox.control.true_rows(task)
        assert manifest.rows == 1000
        assert folder.names() == {"_manifest.json", manifest.parts[0].name}
        assert len(sandbox.control.requests()) == 10

    def test_one_batch_lands_alone(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        landing(task, "000002")
        assert folder.rows() == sandbox.control.true_rows(task, "000002")
        assert folder.manifest()["source"] == {"collection_task_id": task, "lotno": "000002"}

    def test_parts_end_with_the_page_that_reaches_the_size(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        manifest = landing(task, size=70, max_part_bytes=20_000)
        assert folder.rows() == sandbox.control.true_rows(task)
        assert len(manifest.parts) > 5
        assert all(part.bytes >= 20_000 for part in manifest.parts[:-1])
        assert all(part.bytes < 40_000 for part in manifest.parts)
        assert sorted(part.name for part in manifest.parts) == [part.name for part in manifest.parts]
        cursors = [part.start_offset for part in manifest.parts] + [manifest.next_offset]
        assert cursors[0] == 0
        assert [part.next_offset for part in manifest.parts] == cursors[1:]
        assert folder.names() == {"_manifest.json", *(part.name for part in manifest.parts)}

    def test_a_part_per_page_is_possible(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        assert len(landing(task, max_part_bytes=1).parts) == 10
        assert folder.rows() == sandbox.control.true_rows(task)

    def test_the_manifest_says_what_where_whence_and_when(
        self, landing: Landed, folder: Folder, task: str
    ) -> None:
        landing(task)
        manifest = folder.manifest()
        assert set(manifest) == {
            *("version", "landing_id", "source", "rows", "bytes", "format", "compression", "encoding"),
            *("columns", "parts", "new_parts", "next_offset", "total", "run", "started_at", "finished_at"),
            *("exported_at", "provider_version"),
        }
        (part,) = manifest["parts"]
        assert set(part) == {
            *("name", "rows", "bytes", "sha256", "start_offset", "next_offset", "last_page", "run"),
        }
        assert set(part["last_page"]) == {"offset", "rows", "sha256"}
        assert manifest["version"] == 1
        assert manifest["format"] == "jsonl"
        assert manifest["compression"] is manifest["columns"] is None
        assert manifest["run"] == {"dag_id": "d", "task_id": "t", "run_id": "r1", "map_index": -1}
        assert manifest["provider_version"] == airflow_provider_webcollect.__version__
        assert manifest["started_at"] <= manifest["finished_at"]

    def test_progress_is_told(self, landing: Landed, task: str) -> None:
        reported: list[tuple[int, int]] = []
        landing(task, size=400, on_progress=lambda rows, total: reported.append((rows, total)))
        assert reported == [(400, 1000), (800, 1000), (1000, 1000)]

    def test_an_empty_source_is_committed_as_such(
        self, landing: Landed, folder: Folder, sandbox: Sandbox
    ) -> None:
        empty = sandbox.control.add_task()["task_id"]
        manifest = landing(empty)
        assert (manifest.rows, manifest.parts) == (0, ())
        assert folder.rows() == []
        assert folder.names() == {"_manifest.json"}

    def test_rows_that_appear_late_are_waited_for(
        self, landing: Landed, folder: Folder, sandbox: Sandbox
    ) -> None:
        sandbox.control.configure(empty_after_finish_seconds=3600, stale_seconds=0)
        late = sandbox.control.add_task(rows=50, lots=1)["task_id"]
        sandbox.control.advance(-60)
        slept: list[float] = []

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 3:
                sandbox.control.configure(empty_after_finish_seconds=0)

        landing(late, settle=15, sleep=sleep)
        assert slept == [2, 2, 2]
        assert len(folder.rows()) == 50

    @pytest.mark.parametrize(("settle", "waits"), [(0, []), (1, [1]), (5, [2, 2, 1])])
    def test_an_empty_source_is_not_waited_for_longer_than_asked_and_a_long_wait_is_announced(
        self,
        landing: Landed,
        sandbox: Sandbox,
        settle: float,
        waits: list[float],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level("INFO")
        empty = sandbox.control.add_task()["task_id"]
        slept: list[float] = []
        landing(empty, settle=settle, sleep=slept.append)
        assert slept == waits
        assert caplog.text.count("Waiting up to 5 s for all rows to be shown") == (settle == 5)

    def test_a_long_wait_says_how_much_of_it_is_left(
        self,
        landing: Landed,
        sandbox: Sandbox,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        caplog.set_level("INFO")
        monkeypatch.setattr(pauses, "LINES_APART", 0.0)
        landing(sandbox.control.add_task()["task_id"], settle=7, sleep=lambda seconds: None)
        said = [message for message in caplog.messages if message.startswith("Waiting up to")]
        assert [message.split(" for ")[0] for message in said] == [
            "Waiting up to 7 s",
            "Waiting up to 5 s",
            "Waiting up to 3 s",
        ]

    def test_rows_that_are_added_while_reading_are_landed_too(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        def growing(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for number, each in enumerate(pages):
                if number == 2:
                    sandbox.control.grow(task, 130)
                yield each

        assert landing(task, read=growing).rows == 1130
        assert folder.rows() == sandbox.control.true_rows(task)

    def test_a_total_that_has_grown_beyond_the_last_page_is_read_up_to(
        self, landing: Landed, folder: Folder, sandbox: Sandbox
    ) -> None:
        task = sandbox.control.add_task(rows=30, state="Finished")["task_id"]

        def told_early(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for each in pages:
                if each.total == 30:
                    sandbox.control.grow(task, 20)
                    each = msgspec.structs.replace(each, total=50)
                yield each

        assert landing(task, read=told_early).rows == 50
        assert folder.rows() == sandbox.control.true_rows(task)

    def test_pretty_printed_rows_take_a_line_each(self, landing: Landed, folder: Folder, task: str) -> None:
        rows = [{"a": "x\ny", "b": [1, {"c": "\u2028"}]}, {}, {"d": "\r"}, {"e": 1}]
        page = {"data": {"offset": 9, "total": 4, "restTotal": 0, "data": rows}}
        pretty = json.dumps(page, indent=2, ensure_ascii=False).replace("\n", "\r\n").encode()
        pages = [read_response(read_data(task), Response(200, {}, pretty))]
        landing(task, fetch=listed(pages))
        assert folder.rows() == rows

    # the other kinds keep the files themselves in memory
    @pytest.mark.parametrize("folder", ["local"], indirect=True)
    def test_memory_does_not_grow_with_the_rows(
        self, landing: Landed, sandbox: Sandbox, folder: Folder
    ) -> None:
        body = [msgspec.Raw(b'{"id":%d,"text":"%s"}' % (n, b"x" * 100)) for n in range(1000)]

        def give(count: int, offset: int) -> DataPage:
            rows = [msgspec.Raw(bytes(row)) for row in body]
            end = offset + 1000
            return DataPage(offset=end, total=count * 1000, rest_total=count * 1000 - end, rows=rows)

        def peak(count: int) -> int:
            tracemalloc.start()
            try:
                landing(
                    "t",
                    fetch=functools.partial(give, count),
                    max_part_bytes=1_000_000,
                    if_exists="overwrite",
                    run=msgspec.structs.replace(RUN, run_id=str(count)),
                )
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        peak(5)
        # one page more or less may be held at a time
        assert peak(200) < 2 * peak(20)


class TestResuming:
    def test_it_goes_on_after_the_last_recorded_part_and_rereads_its_last_page_only(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        sandbox.control.fail("/data/all", after=6, times=1, status=400, code="Odd")
        with pytest.raises(RequestRejected, match="Odd"):
            landing(task, max_part_bytes=40_000)
        progress = json.loads(folder.read("_progress.json"))
        recorded = progress["parts"]
        assert recorded
        assert "_manifest.json" not in folder.names()
        sandbox.control.clear_requests()
        manifest = landing(task, max_part_bytes=40_000)
        assert min(offsets_asked(sandbox)) == recorded[-1]["last_page"]["offset"] > 0
        assert offsets_asked(sandbox)[:2] == [
            recorded[-1]["last_page"]["offset"],
            recorded[-1]["next_offset"],
        ]
        assert [part.name for part in manifest.parts[: len(recorded)]] == [part["name"] for part in recorded]
        assert folder.rows() == sandbox.control.true_rows(task)
        assert folder.names() == {"_manifest.json", *(part.name for part in manifest.parts)}
        assert manifest.started_at == progress["started_at"]

    @pytest.mark.parametrize("number", range(14))
    def test_it_survives_a_crash_at_every_page(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str, number: int
    ) -> None:
        try:
            landing(task, size=90, max_part_bytes=30_000, read=crashing_at(number))
        except Crash:
            assert "_manifest.json" not in folder.names()
        landing(task, size=90, max_part_bytes=30_000)
        assert folder.rows() == sandbox.control.true_rows(task)

    @pytest.mark.parametrize("step", range(30))
    def test_it_survives_a_crash_at_every_change_of_the_destination(
        self,
        landing: Landed,
        folder: Folder,
        sandbox: Sandbox,
        task: str,
        step: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Crashes before the n-th opening, renaming, publishing or removal of a file, and in the retry."""
        crash_at(step, folder, monkeypatch)
        for _ in range(2):
            try:
                landing(task, size=200, max_part_bytes=30_000)
            except Crash:
                if "_manifest.json" in folder.names():
                    assert folder.rows() == sandbox.control.true_rows(task)
        monkeypatch.undo()
        manifest = landing(task, size=200, max_part_bytes=30_000)
        assert folder.rows() == sandbox.control.true_rows(task)
        assert folder.names() == {"_manifest.json", *(part.name for part in manifest.parts)}

    def test_a_part_that_was_not_finished_is_never_seen(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        seen: set[str] = set()

        def observed(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for number, each in enumerate(pages):
                seen.update(name for name in folder.names() if name.startswith("part-"))
                if number == 4:
                    raise ServiceFailure("in mid-read")
                yield each

        with pytest.raises(ServiceFailure):
            landing(task, read=observed)
        assert seen == set()
        assert folder.names() == set()

    @pytest.mark.parametrize("folder", ["store"], indirect=True)
    def test_an_upload_that_was_begun_is_aborted(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        sandbox.control.fail("/data/all", after=6, status=400, code="Odd")
        with pytest.raises(RequestRejected, match="Odd"):
            landing(task)
        gc.collect()
        *_, last = folder.fs.operations
        assert last.startswith("discard bucket/landing/part-00001-")
        assert not [each for each in folder.fs.operations if each.startswith("commit bucket/landing/part-")]

    def test_another_run_resumes_what_is_unfinished(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        sandbox.control.fail("/data/all", after=6, status=400, code="Odd")
        with pytest.raises(RequestRejected, match="Odd"):
            landing(task, max_part_bytes=1)
        sandbox.control.clear_faults()
        sandbox.control.clear_requests()
        assert landing(task, max_part_bytes=1, run=OTHER_RUN).run == OTHER_RUN
        assert len(offsets_asked(sandbox)) < 10
        assert folder.rows() == sandbox.control.true_rows(task)

    def test_what_was_read_but_not_committed_is_committed_by_the_next_try(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def crash(*arguments: Any) -> None:
            raise Crash

        with monkeypatch.context() as patch:
            patch.setattr(Lease, "commit", crash)
            with pytest.raises(Crash):
                landing(task)
        sandbox.control.clear_requests()
        landing(task)
        assert len(sandbox.control.requests()) == 1
        assert folder.rows() == sandbox.control.true_rows(task)

    def test_a_recorded_part_that_has_vanished_is_read_again(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        sandbox.control.fail("/data/all", after=6, status=400, code="Odd")
        with pytest.raises(RequestRejected, match="Odd"):
            landing(task, max_part_bytes=1)
        names = [part["name"] for part in json.loads(folder.read("_progress.json"))["parts"]]
        folder.fs.rm_file(f"{folder.root}/{names[1]}")
        folder.write(names[3], b"cut")
        landing(task, max_part_bytes=1)
        assert folder.rows() == sandbox.control.true_rows(task)

    def test_a_part_that_vanishes_meanwhile_is_noticed_before_the_commit(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        def vanishing(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for number, each in enumerate(pages):
                if number == 8:
                    (first, *_) = sorted(name for name in folder.names() if name.startswith("part-"))
                    folder.fs.rm_file(f"{folder.root}/{first}")
                yield each

        with pytest.raises(PartsMissing, match="does anything else write to it"):
            landing(task, max_part_bytes=1, read=vanishing)
        assert "_manifest.json" not in folder.names()
        landing(task)
        assert folder.rows() == sandbox.control.true_rows(task)


def crash_at(step: int, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the filesystem end the process before its ``step``-th change, and again in the retry."""
    left = step

    def crashing(change: Any) -> Any:
        def changed(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if change.__name__ != "_open" or "w" in options["mode"]:
                left -= 1
                if left == 0:
                    left = step // 2
                    raise Crash
            return change(*arguments, **options)

        return changed

    kind = type(folder.fs)
    for name in ("_open", "mv", "rm_file"):
        monkeypatch.setattr(kind, name, crashing(getattr(kind, name)))
    monkeypatch.setattr(StoreFile, "commit", crashing(StoreFile.commit))


class TestWhatIsThereAlready:
    def test_the_same_run_again_asks_for_no_data_and_changes_nothing(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        first = landing(task)
        sandbox.control.clear_requests()
        sandbox.control.grow(task, 10)
        assert landing(task) == first
        assert sandbox.control.requests() == []

    def test_what_a_crash_after_the_commit_has_left_is_tidied_up(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def crash(*arguments: Any) -> None:
            raise Crash

        landing(task, max_part_bytes=1)
        with monkeypatch.context() as patch:
            patch.setattr(Lease, "finish", crash)
            with pytest.raises(Crash):
                landing(task, run=OTHER_RUN, if_exists="overwrite")
        assert len(folder.names()) == 13
        second = landing(task, run=OTHER_RUN)
        assert folder.rows() == sandbox.control.true_rows(task)
        assert folder.names() == {"_manifest.json", *(part.name for part in second.parts)}

    def test_files_whose_origin_nothing_tells_are_left(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        landing(task, mode="incremental")
        leftovers = {"part-00009-0123abcd.jsonl", ".tmp-part-00009-0123abcd.jsonl-ffffffff"}
        for name in leftovers:
            folder.write(name, b"x")
        sandbox.control.grow(task, 10)
        landing(task, mode="incremental", run=OTHER_RUN)
        assert leftovers < folder.names()

    @pytest.mark.parametrize("mode", ["full", "incremental"])
    def test_parts_of_its_own_commit_that_have_vanished_are_read_again(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str, mode: str
    ) -> None:
        first = landing(task, mode=mode, max_part_bytes=1)
        folder.fs.rm_file(f"{folder.root}/{first.parts[6].name}")
        sandbox.control.clear_requests()
        second = landing(task, mode=mode, max_part_bytes=1)
        assert offsets_asked(sandbox)[0] == first.parts[5].page_fingerprint.offset
        assert second.parts[:6] == first.parts[:6]
        assert second.added() == second.parts
        assert folder.rows() == sandbox.control.true_rows(task)
        assert folder.names() == {"_manifest.json", *(part.name for part in second.parts)}

    def test_another_run_is_refused_unless_told_otherwise(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        landing(task)
        sandbox.control.clear_requests()
        before = folder.manifest()
        with pytest.raises(DestinationTaken, match=r"run r1 landed.*mode='incremental'") as refusal:
            landing(task, run=OTHER_RUN)
        assert refusal.value.permanent
        assert folder.manifest() == before
        assert sandbox.control.requests() == []

    def test_another_run_may_skip(self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str) -> None:
        first = landing(task)
        sandbox.control.clear_requests()
        assert landing(task, run=OTHER_RUN, if_exists="skip") == first
        assert sandbox.control.requests() == []

    def test_another_run_may_overwrite_and_the_old_rows_stay_readable_until_then(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        first = landing(task, max_part_bytes=1)
        old = sandbox.control.true_rows(task)
        sandbox.control.grow(task, 100)

        def observed(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for each in pages:
                assert folder.rows() == old
                yield each

        second = landing(task, max_part_bytes=1, run=OTHER_RUN, if_exists="overwrite", read=observed)
        assert folder.rows() == sandbox.control.true_rows(task)
        assert {part.name for part in first.parts}.isdisjoint(part.name for part in second.parts)
        assert folder.names() == {"_manifest.json", *(part.name for part in second.parts)}

    def test_what_a_committed_landing_has_left_is_not_taken_for_an_unfinished_one(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        first = landing(task)
        left = Progress(source=first.source, parts=first.parts, started_at=first.started_at)
        folder.write("_progress.json", msgspec.json.encode(left))
        sandbox.control.clear_requests()
        second = landing(task, run=OTHER_RUN, if_exists="overwrite")
        assert offsets_asked(sandbox)[0] == 0
        assert {part.name for part in first.parts}.isdisjoint(part.name for part in second.parts)
        assert folder.rows() == sandbox.control.true_rows(task)

    @pytest.mark.parametrize("if_exists", ["fail", "overwrite", "skip"])
    def test_another_source_is_refused(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str, if_exists: str
    ) -> None:
        landing(task)
        for lotno, other in (("000001", task), (None, sandbox.control.add_task()["task_id"])):
            with pytest.raises(DestinationTaken, match=f"holds task {task}, not task"):
                landing(other, lotno, if_exists=if_exists)
        assert folder.rows() == sandbox.control.true_rows(task)

    def test_an_unfinished_landing_of_another_source_is_refused(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        part = RecordedPart(
            name="part-00001-01234567.jsonl",
            rows=1,
            bytes=2,
            sha256="",
            start_offset=0,
            next_offset=1,
            page_fingerprint=PageFingerprint(),
        )
        other = Progress(source=Source(collection_task_id="other"), parts=(part,), started_at="")
        folder.write("_progress.json", msgspec.json.encode(other))
        with pytest.raises(DestinationTaken, match="a part of task other"):
            landing(task)
        assert sandbox.control.requests() == []

    @pytest.mark.parametrize("if_exists", ["fail", "overwrite"])
    def test_a_try_that_landed_nothing_of_another_source_is_not_in_the_way(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str, if_exists: str
    ) -> None:
        for typo in (("typo", None), (task, "999999")):
            with pytest.raises(WebCollectError):
                landing(*typo, if_exists=if_exists)
        landing(task, run=OTHER_RUN, if_exists=if_exists)
        assert folder.rows() == sandbox.control.true_rows(task)

    def test_one_that_was_killed_is_taken_over_by_another_run_after_a_minute(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        with pytest.raises(Crash):
            landing(task, "000001", read=crashing_at(2), max_part_bytes=10**9)
        slept: list[float] = []
        landing(task, run=OTHER_RUN, sleep=slept.append)
        assert sum(slept) == 60
        assert folder.rows() == sandbox.control.true_rows(task)

    def test_a_landing_that_is_refused_leaves_nothing(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        for typo in (("typo", None), (task, "999999")):
            with pytest.raises(WebCollectError):
                landing(*typo)
        sandbox.control.fail("/data/all", status=401, times=None)
        with pytest.raises(WebCollectError):
            landing(task)
        assert folder.names() == set()

    def test_the_clock_of_another_host_does_not_matter(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        with time_machine.travel(pendulum.now("UTC").add(hours=2)), pytest.raises(Crash):
            landing(task, read=crashing_at(5), max_part_bytes=1)
        slept: list[float] = []
        landing(task, run=OTHER_RUN, sleep=slept.append)
        assert sum(slept) == 60
        assert folder.rows() == sandbox.control.true_rows(task)

    @pytest.mark.parametrize("max_part_bytes", [1, 10**9], ids=["parts landed", "nothing landed"])
    @pytest.mark.parametrize(
        "remedy", [{"on_cast_error": "null"}, {"column_types": None}], ids=["lenient", "as texts"]
    )
    @pytest.mark.parametrize("if_exists", ["fail", "overwrite"])
    def test_other_format_options_are_a_way_out_of_a_value_that_is_not_of_its_type(
        self,
        landing: Landed,
        folder: Folder,
        max_part_bytes: int,
        remedy: dict[str, Any],
        if_exists: str,
    ) -> None:
        values = ["1", "2", "x"]
        pages = [page([{"a": value}], before, 3) for before, value in enumerate(values)]
        options: dict[str, Any] = {"column_types": {"a": "int64"}}

        def land(**changes: Any) -> Manifest:
            return landing(
                "t",
                fetch=listed(pages),
                file_format=make_format("parquet", **{**options, **changes}),
                max_part_bytes=max_part_bytes,
                if_exists=if_exists,
            )

        with pytest.raises(CastFailed):
            land()
        left = {name for name in folder.names() if name.startswith("part-")}
        assert len(left) == (2 if max_part_bytes == 1 else 0)
        manifest = land(**remedy)
        assert manifest.rows == 3
        assert manifest.encoding["column_types"] == ({"a": "int64"} if "on_cast_error" in remedy else {})
        assert left.isdisjoint(part.name for part in manifest.parts)
        assert folder.names() == {"_manifest.json", *(part.name for part in manifest.parts)}

    @pytest.mark.parametrize(
        "name", ["data.csv", "part-1.jsonl", "part-00001-xyz.jsonl", "landing", "_SUCCESS", "sub/file"]
    )
    def test_foreign_files_are_refused_and_left_alone(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str, name: str
    ) -> None:
        if "/" in name:
            folder.fs.makedirs(f"{folder.root}/sub", exist_ok=True)
        folder.write(name, b"mine")
        with pytest.raises(DestinationTaken, match="no landing wrote"):
            landing(task)
        assert folder.read(name) == b"mine"
        assert sandbox.control.requests() == []

    def test_a_foreign_file_beside_the_commit_does_not_disturb_a_retry(
        self, landing: Landed, folder: Folder, task: str
    ) -> None:
        first = landing(task)
        folder.write("_SUCCESS", b"")
        assert landing(task) == first
        assert folder.read("_SUCCESS") == b""

    # a record that is no JSON is taken over, see test_torn_files.py
    @pytest.mark.parametrize(
        ("name", "content", "said"),
        [
            ("_manifest.json", b"", "not readable"),
            ("_manifest.json", b"{", "not readable"),
            ("_manifest.json", b"\xff", "not readable"),
            *(
                (name, content, said)
                for name in ("_manifest.json", "_progress.json")
                for content, said in (
                    (b"[]", "not readable"),
                    (b'{"version": 1}', "not readable"),
                    (
                        b'{"version": 2, "parts": {"of": "another kind"}}',
                        "of version 2, this provider knows version 1",
                    ),
                )
            ),
        ],
    )
    def test_what_cannot_be_read_or_is_newer_is_refused_and_left_alone(
        self,
        landing: Landed,
        folder: Folder,
        sandbox: Sandbox,
        task: str,
        name: str,
        content: bytes,
        said: str,
    ) -> None:
        folder.write(name, content)
        with pytest.raises(DestinationUnreadable, match=said) as refusal:
            landing(task, if_exists="overwrite")
        assert refusal.value.permanent
        assert folder.read(name) == content
        assert sandbox.control.requests() == []


class TestCounts:
    @pytest.mark.parametrize(("total", "rest"), [(5, 0), (1, 0)], ids=["fewer", "more"])
    def test_rows_that_are_not_as_many_as_announced_are_not_committed(
        self, landing: Landed, folder: Folder, task: str, total: int, rest: int
    ) -> None:
        pages = [counted_page([{"a": 1}, {"a": 2}], 9, total, rest)]
        with pytest.raises(RowsMissing, match=f"task {task}: .* announced {total} rows, and 2 came"):
            landing(task, fetch=listed(pages))
        assert "_manifest.json" not in folder.names()

    def test_a_source_that_shrinks_while_it_is_read_is_read_anew(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str
    ) -> None:
        def gone(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for each in pages:
                yield msgspec.structs.replace(each, total=300, rest_total=0)
                return

        with pytest.raises(RowsMissing):
            landing(task, size=500, read=gone)
        assert "_manifest.json" not in folder.names()
        landing(task)
        assert folder.rows() == sandbox.control.true_rows(task)

    @pytest.mark.parametrize("grown", [40, 2000])
    def test_rows_that_were_landed_in_part_and_then_reset_are_read_anew(
        self, landing: Landed, folder: Folder, sandbox: Sandbox, task: str, grown: int
    ) -> None:
        sandbox.control.fail("/data/all", after=6, times=1, status=400, code="Odd")
        with pytest.raises(RequestRejected, match="Odd"):
            landing(task, max_part_bytes=1)
        sandbox.control.reset_data(task)
        sandbox.control.grow(task, grown)
        landing(task, max_part_bytes=1)
        assert folder.rows() == sandbox.control.true_rows(task)
        assert len(folder.rows()) == grown
