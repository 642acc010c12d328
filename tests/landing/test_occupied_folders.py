"""What a landing does with what is in its folder already: it is kept, skipped, overwritten or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pendulum
import pytest
import time_machine

from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import (
    CastFailed,
    DestinationTaken,
    DestinationUnreadable,
)
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.lease import Lease
from airflow_provider_webcollect.landing.manifest import Manifest, Part, Progress, Source
from airflow_provider_webcollect.service.errors import WebCollectError
from airflow_provider_webcollect.service.models import DataPage
from tests.landing.conftest import (
    OTHER_RUN,
    Crash,
    Folder,
    Landed,
    Landing,
    Store,
    Task,
    crashing_at,
    listed,
)
from tests.landing.pages import page, widening

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)


class TestWhatIsThereAlready:
    @pytest.mark.parametrize("mode", ["full", "incremental"])
    def test_the_same_run_again_asks_for_no_data_and_changes_nothing(self, task: Task, mode: str) -> None:
        first = task.land(mode=mode)
        task.control.clear_requests()
        task.grow(10)
        assert task.land(mode=mode) == first
        assert task.control.requests() == []

    def test_what_a_crash_after_the_commit_has_left_is_cleaned_up(
        self, task: Task, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def crash(*arguments: Any) -> None:
            raise Crash

        task.land(max_part_bytes=1)
        with monkeypatch.context() as patch:
            patch.setattr(Lease, "tidy", crash)
            with pytest.raises(Crash):
                task.land(run=OTHER_RUN, if_exists="overwrite")
        assert len(task.folder.names()) == 13
        second = task.land(run=OTHER_RUN)
        assert task.folder.rows() == task.rows()
        if not isinstance(task.folder.fs, Store):
            with time_machine.travel(pendulum.now("UTC").add(minutes=2)):
                clean(task.folder.location, older_than=60)
            assert task.folder.names() == {"_manifest.json", *(part.name for part in second.parts)}

    def test_files_whose_origin_nothing_tells_are_left(self, task: Task, folder: Folder) -> None:
        task.land(mode="incremental")
        leftovers = {"part-00009-0123abcd.jsonl", ".tmp-part-00009-0123abcd.jsonl-ffffffff"}
        for name in leftovers:
            folder.write(name, b"x")
        task.grow(10)
        task.land(mode="incremental", run=OTHER_RUN)
        assert leftovers < folder.names()

    @pytest.mark.parametrize("mode", ["full", "incremental"])
    def test_parts_of_its_own_commit_that_have_vanished_are_read_again(self, task: Task, mode: str) -> None:
        first = task.land(mode=mode, max_part_bytes=1)
        task.folder.fs.rm_file(f"{task.folder.root}/{first.parts[6].name}")
        task.control.clear_requests()
        second = task.land(mode=mode, max_part_bytes=1)
        assert task.offsets()[0] == 0
        assert second.new() == second.parts
        assert task.folder.rows() == task.rows()
        assert task.folder.names() == {"_manifest.json", *(part.name for part in second.parts)}

    def test_another_run_is_refused_unless_told_otherwise(self, task: Task, folder: Folder) -> None:
        task.land()
        task.control.clear_requests()
        before = folder.manifest()
        with pytest.raises(DestinationTaken, match=r"run r1 of .* landed.*mode='incremental'") as refusal:
            task.land(run=OTHER_RUN)
        assert refusal.value.permanent
        assert folder.manifest() == before
        assert task.control.requests() == []

    def test_another_run_may_skip(self, task: Task) -> None:
        first = task.land()
        task.control.clear_requests()
        assert task.land(run=OTHER_RUN, if_exists="skip") == first
        assert task.control.requests() == []

    def test_another_run_may_overwrite_and_the_old_rows_stay_readable_until_then(self, task: Task) -> None:
        first = task.land(max_part_bytes=1)
        old = task.rows()
        task.grow(100)

        def observed(pages: Iterator[DataPage]) -> Iterator[DataPage]:
            for each in pages:
                assert task.folder.rows() == old
                yield each

        second = task.land(max_part_bytes=1, run=OTHER_RUN, if_exists="overwrite", read=observed)
        assert task.folder.rows() == task.rows()
        assert {part.name for part in first.parts}.isdisjoint(part.name for part in second.parts)
        assert task.folder.names() == {"_manifest.json", *(part.name for part in second.parts)}

    def test_what_a_committed_landing_has_left_is_not_taken_for_an_unfinished_one(self, task: Task) -> None:
        first = task.land()
        left = Progress(source=first.source, parts=first.parts, started_at=first.started_at)
        task.folder.write("_progress.json", msgspec.json.encode(left))
        task.control.clear_requests()
        second = task.land(run=OTHER_RUN, if_exists="overwrite")
        assert task.offsets()[0] == 0
        assert {part.name for part in first.parts}.isdisjoint(part.name for part in second.parts)
        assert task.folder.rows() == task.rows()

    @pytest.mark.parametrize("if_exists", ["fail", "overwrite", "skip"])
    def test_another_source_is_refused(self, task: Task, landing: Landed, if_exists: str) -> None:
        task.land()
        for lotno, other in (("000001", task.id), (None, task.control.add_task()["task_id"])):
            with pytest.raises(DestinationTaken, match=f"holds task {task.id}, not task"):
                landing(other, lotno, if_exists=if_exists)
        assert task.folder.rows() == task.rows()

    def test_an_unfinished_landing_of_another_source_is_refused(self, task: Task, folder: Folder) -> None:
        part = Part(
            name="part-00001-01234567.jsonl", rows=1, bytes=2, sha256="", start_offset=0, next_offset=1
        )
        other = Progress(source=Source(collection_task_id="other"), parts=(part,), started_at="")
        folder.write("_progress.json", msgspec.json.encode(other))
        with pytest.raises(DestinationTaken, match="a part of task other"):
            task.land()
        assert task.control.requests() == []

    @pytest.mark.parametrize("if_exists", ["fail", "overwrite"])
    def test_a_try_that_landed_nothing_of_another_source_is_not_in_the_way(
        self, task: Task, landing: Landed, if_exists: str
    ) -> None:
        for typo in (("typo", None), (task.id, "999999")):
            with pytest.raises(WebCollectError):
                landing(*typo, if_exists=if_exists)
        task.land(run=OTHER_RUN, if_exists=if_exists)
        assert task.folder.rows() == task.rows()

    def test_a_landing_that_is_refused_leaves_nothing(self, task: Task, landing: Landed) -> None:
        for typo in (("typo", None), (task.id, "999999")):
            with pytest.raises(WebCollectError):
                landing(*typo)
        task.control.fail("/data/all", status=401, times=None)
        with pytest.raises(WebCollectError):
            task.land()
        assert task.folder.names() == set()

    def test_one_that_was_killed_is_taken_over_after_a_minute_whatever_its_clock(
        self, task: Task, folder: Folder
    ) -> None:
        with time_machine.travel(pendulum.now("UTC").add(hours=2)), pytest.raises(Crash):
            task.land(read=crashing_at(5), max_part_bytes=1)
        slept: list[float] = []
        task.land(run=OTHER_RUN, sleep=slept.append)
        assert sum(slept) == 60
        assert folder.rows() == task.rows()

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
        "name", ["data.csv", "part-1.jsonl", "part-00001-xyz.jsonl", "landing", "_SUCCESS.csv", "sub/file"]
    )
    def test_foreign_files_are_refused_and_left_alone(self, task: Task, landing: Landed, name: str) -> None:
        if "/" in name:
            task.folder.fs.makedirs(f"{task.folder.root}/sub", exist_ok=True)
        task.folder.write(name, b"mine")
        with pytest.raises(DestinationTaken, match="no landing wrote"):
            task.land()
        assert task.folder.read(name) == b"mine"
        assert task.control.requests() == []

    @pytest.mark.parametrize(
        "name",
        [
            ".nfs000000000002b4c100000001",
            "_SUCCESS",
            "dt=2026-11-25/_SUCCESS",
            "prices_$folder$",
            ".part-00001-0badcafe.jsonl.crc",
            ".DS_Store",
        ],
    )
    def test_markers_that_other_tools_leave_are_no_foreign_files(self, task: Task, name: str) -> None:
        if "/" in name:
            task.folder.fs.makedirs(f"{task.folder.root}/dt=2026-11-25", exist_ok=True)
        task.folder.write(name, b"mark")
        assert task.land().rows == 1000
        assert task.folder.read(name) == b"mark"

    @pytest.mark.parametrize("partition", ["dt=2026-11-25", "dt=2026-11-25/hour=07"])
    @pytest.mark.parametrize("left", ["_manifest.json", "_progress.json"])
    def test_a_landing_inside_a_partition_of_another_is_refused(
        self, task: Task, land_job: Landing, partition: str, left: str
    ) -> None:
        if left == "_manifest.json":
            land_job(task.id, mode="incremental")
        else:
            with pytest.raises(Crash):
                land_job("t", fetch=listed(widening(3)), read=crashing_at(2), max_part_bytes=1)
        inner = Folder(task.folder.fs, f"{task.folder.root}/{partition}")
        with pytest.raises(DestinationTaken, match=r"is inside the landing at .*/landing"):
            land_job(task.id, folder=inner.destination)
        assert inner.names() == set()

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
        self, task: Task, name: str, content: bytes, said: str
    ) -> None:
        task.folder.write(name, content)
        with pytest.raises(DestinationUnreadable, match=said) as refusal:
            task.land(if_exists="overwrite")
        assert refusal.value.permanent
        assert task.folder.read(name) == content
        assert task.control.requests() == []

    def test_a_record_that_names_a_file_outside_is_refused_and_the_file_kept(
        self, landing: Landed, folder: Folder
    ) -> None:
        with pytest.raises(Crash):
            landing("t", fetch=listed(widening(3)), read=crashing_at(2), max_part_bytes=1)
        record = json.loads(folder.read("_progress.json"))
        victim = Folder(folder.fs, folder.root.rpartition("/")[0])
        victim.write("victim.txt", b"mine")
        record["parts"][0]["name"] = "../victim.txt"
        folder.write("_progress.json", json.dumps(record).encode())
        with pytest.raises(DestinationUnreadable, match=r"'\.\./victim\.txt' is not the name of a part"):
            landing("t", fetch=listed(widening(3)))
        assert victim.read("victim.txt") == b"mine"
