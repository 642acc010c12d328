"""Many waits on two triggerers, of which one is killed."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable

from airflow_provider_webcollect.sandbox import demo
from tests.system.cluster import Cluster
from tests.system.conftest import Say, Service, StartService

STATUS = "/cloudextraction/statuses/v2"
DAG_ID = "waits"
#: Waits of one DAG run. The first half of the DAG runs ends before the others.
PER_RUN = 20
DAG_RUNS = 30
POLL_INTERVAL, BATCH = 10.0, 100
#: Seconds for which the queries are counted.
COUNTED = 20.0
LONG = 100_000.0
#: The share of queries that may be answered 429; with idle cores none is.
MOST_REFUSED = 0.02


def start_tasks(service: Service, run_seconds: float) -> list[str]:
    service.control.configure(run_seconds=run_seconds, wait_seconds=0)
    return [service.control.add_task(state="Extracting")["task_id"] for _ in range(PER_RUN)]


def count(cluster: Cluster, runs: Iterable[str], state: str) -> int:
    """Return how many waits of these DAG runs are in a state; none may have failed."""
    counts = cluster.postgres.query(
        "select state, count(*) from task_instance where run_id = any(%s) group by state", list(runs)
    )
    by_state = dict(counts)
    assert not by_state.keys() & {"failed", "up_for_retry", "upstream_failed"}
    return int(by_state.get(state, 0))


def fewest_queries(cluster: Cluster) -> int:
    """Return the smallest number of queries for a poll of all tasks, as spread over the triggerers."""
    rows = cluster.postgres.query(
        "select count(*) from trigger where triggerer_id is not null group by triggerer_id"
    )
    return sum(-(-waits // BATCH) for (waits,) in rows)


def test_600_waits_and_a_killed_triggerer(cluster: Cluster, start_service: StartService, seen: Say) -> None:
    # a token that outlasts the test: otherwise, the triggerer might be killed while it renews the token
    service = start_service("waits", {"access_token": demo.ACCESS_TOKEN}, token_lifetime=100 * LONG)
    begun = time.monotonic()
    early = {}
    for number in range(DAG_RUNS):
        is_early = number < DAG_RUNS // 2
        ids = start_tasks(service, LONG if is_early else 10 * LONG)
        early[cluster.trigger(DAG_ID, {"conn_id": service.conn_id, "ids": ids})] = is_early
    waits = len(early) * PER_RUN
    cluster.wait_for(lambda: count(cluster, early, "deferred") == waits, 1800, "all waits to be in flight")
    seen(f"{waits} in flight after {time.monotonic() - begun:.0f} s")

    fewest = fewest_queries(cluster)
    cluster.wait_for(lambda: service.answers(STATUS).get(200, 0) > fewest, 120, "the triggerers to poll")
    # waits that began at different times are queried together from the second query on
    time.sleep(POLL_INTERVAL)
    service_before = sum(service.answers(STATUS).values())
    until = time.monotonic() + COUNTED
    slots = 0
    while time.monotonic() < until:
        slots = max(slots, count(cluster, early, "running") + count(cluster, early, "queued"))
        time.sleep(1)
    queries = sum(service.answers(STATUS).values()) - service_before
    assert slots == 0
    seen(f"{queries * 60 / COUNTED:.0f} queries a minute, {fewest * 60 / POLL_INTERVAL:.0f} are the fewest")
    # each triggerer may have a poll at either edge of the counted time
    polls = COUNTED / POLL_INTERVAL
    assert fewest * (polls - 1) <= queries <= fewest * (polls + 1)

    first_end = time.time()
    service.control.advance(2 * LONG)
    time.sleep(3)
    cluster.kill("triggerer-a")
    finished = waits // 2
    cluster.wait_for(lambda: count(cluster, early, "success") >= finished, 400, "the first half to end")
    cluster.start("triggerer-a")
    assert count(cluster, early, "success") == finished
    assert count(cluster, early, "deferred") == waits - finished
    second_end = time.time()
    service.control.advance(20 * LONG)
    cluster.wait_for(lambda: count(cluster, early, "success") == waits, 400, "the rest to end")
    seen(f"all ended right {time.time() - second_end:.0f} s after the last task, none early")
    for run_id, is_early in early.items():
        for ti in cluster.get(f"dags/{DAG_ID}/dagRuns/{run_id}/taskInstances")["task_instances"]:
            end = datetime.datetime.fromisoformat(ti["end_date"]).timestamp()
            assert end >= (first_end if is_early else second_end)
            assert ti["try_number"] <= 1
    # on a machine with other load, spaced queries may arrive late, and then together
    assert service.refused_for_rate() <= sum(service.answers(STATUS).values()) * MOST_REFUSED
    seen(f"answers 429: {service.refused_for_rate()}")
