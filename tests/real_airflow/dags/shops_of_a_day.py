"""The shops of :mod:`test_asset_partitions`, and the consumers of their assets."""

import os
from functools import reduce
from operator import and_, or_
from typing import Any

from airflow.sdk import DAG, Asset, PartitionedAssetTimetable, task

from airflow_provider_webcollect import WebCollectToObjectStorageOperator

FOLDER = os.environ["AIRFLOW_VAR_WEBCOLLECT_LANDING"]
SHOPS = ["shop_a", "shop_b", "shop_c"]
WITHOUT_KEY = "shop_without_key"


def fail_first_try(context: Any, result: Any) -> None:
    if context["ti"].try_number == 1:
        raise RuntimeError("after the commit")


for shop in [*SHOPS, WITHOUT_KEY]:
    with DAG(shop, schedule=None, params={"day": ""}):
        WebCollectToObjectStorageOperator(
            task_id="land",
            collection_task_id=shop,
            destination=f"{FOLDER}/{shop}",
            late_rows_delay=0,
            asset_partition=None if shop == WITHOUT_KEY else "{{ params.day }}",
            post_execute=fail_first_try if shop == "shop_b" else None,
            retries=1,
            retry_delay=0,
        )

assets = {shop: Asset(f"{FOLDER}/{shop}") for shop in [*SHOPS, WITHOUT_KEY]}
whole_day = PartitionedAssetTimetable(assets=reduce(and_, [assets[shop] for shop in SHOPS]))
each_landing = PartitionedAssetTimetable(assets=assets["shop_a"])
for name, schedule in {
    "whole_day": whole_day,
    "each_landing": each_landing,
    "plain": reduce(or_, assets.values()),
}.items():
    with DAG(name, schedule=schedule):

        @task
        def consume() -> None:
            pass

        consume()
