"""Which folders a transfer's rows go to, and which ones are refused while the DAG is parsed."""

from __future__ import annotations

import random

import pytest

from airflow_provider_webcollect.landing.job import check_partition
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.transfers.sources import places


class TestFoldersInOneAnother:
    @pytest.mark.parametrize("seed", range(5))
    def test_both_are_named_in_whatever_order_they_come(self, seed: int) -> None:
        sources = [
            {"collection_task_id": "a", "destination": "s3://b/prices"},
            {"collection_task_id": "b", "destination": "s3://b/prices/old/"},
            *({"collection_task_id": f"c{number}"} for number in range(20)),
            # sorts between the two
            {"collection_task_id": "d", "destination": "s3://b/prices-old"},
        ]
        random.Random(seed).shuffle(sources)
        outer, inner = (
            next(index for index, source in enumerate(sources) if source["collection_task_id"] == task)
            for task in "ab"
        )

        with pytest.raises(InvalidArgument) as refused:
            places(sources, "s3://b/others")

        assert str(refused.value) == str(
            InvalidArgument(
                f"sources[{inner}]",
                "s3://b/prices/old/",
                f"its folder must not be in that of sources[{outer}]; give one its own `destination`",
            )
        )

    def test_names_that_begin_alike_are_no_folders_in_one_another(self) -> None:
        assert len(places(["a", "a-1", "a1", "a.1"], "s3://b")) == 4

    def test_fifty_thousand_sources_can_be_checked(self) -> None:
        # comparing each with each would outlast the time that a test has
        assert len(places(map(str, range(50_000)), "s3://b")) == 50_000


class TestPartition:
    @pytest.mark.parametrize(
        "partition",
        ["dt=2026-01-01", "dt=2026-01-01/hour=07", "a.b-c_d=E", "d=20260101T000000"],
    )
    def test_names_of_folders_are_taken(self, partition: str) -> None:
        assert check_partition(partition) == partition

    @pytest.mark.parametrize("nothing", [None, ""])
    def test_an_empty_one_means_none(self, nothing: str | None) -> None:
        assert check_partition(nothing) is None

    @pytest.mark.parametrize(
        "partition",
        [
            *(
                "2026/01/01",
                "dt=",
                20260101,
                "/",
                "dt=1/",
                "/dt=1",
                "a//b",
                ".",
                "..",
                "a/..",
                "../a",
                "...",
                "_dt=1",
                ".dt=1",
                "a/_b",
            ),
            *("dt=2026-01-01T00:00:00", "run=a+b", "dt=1 2", "a\\b", "größe", "dt=1\n", "a::b", "dt=*", " "),
            *(["dt=1"], 1.5, True),
        ],
    )
    def test_what_a_reader_might_not_find_is_refused(self, partition: object) -> None:
        with pytest.raises(InvalidArgument, match="`partition`"):
            check_partition(partition)

    def test_the_error_says_what_to_give_instead_of_a_run_id(self) -> None:
        with pytest.raises(InvalidArgument, match=r"run ids hold: give the day of the run, such as dt=\{\{"):
            check_partition("run=scheduled__2026-01-01T00:00:00+00:00")
