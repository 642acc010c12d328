"""Which folders the sources of a transfer go to, and which ones are refused while the DAG is parsed."""

from __future__ import annotations

import random

import pytest

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
