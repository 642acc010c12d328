"""A rolling upgrade: what the version before has begun is continued by this one, while both are running."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_webcollect import __version__
from tests.system.cluster import TRIGGERERS, WORKERS
from tests.system.runs import PATIENCE, Runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.system.cluster import Cluster
    from tests.system.conftest import Service

PACKAGE = "airflow_provider_webcollect"
BEFORE = Path(os.environ.get("WEBCOLLECT_BEFORE", ".cache/before")).resolve()
UPGRADED = (*WORKERS, *TRIGGERERS, "dag-processor")
WAITS = ("waits_deferrable", "waits_start_from_trigger")
STARTS, LANDINGS = "start_and_wait", "landings"
STATUSES, STATS = "/cloudextraction/statuses/v2", "/cloudextraction/task/stats"
DATA, TOKEN = "/data/all", "/token"
#: Seconds after which the runs of the first seven of twenty collection tasks end, and those of the others.
SOON, LATER = 1_000, 5_000
ROWS = 8_000

pytestmark = pytest.mark.skipif(not (BEFORE / PACKAGE).is_dir(), reason="the history has no version before")


@pytest.fixture
def version_before(cluster: Cluster) -> Iterator[str]:
    """The version before, which workers, triggerers and DAG processor run at first."""
    for name in UPGRADED:
        cluster.replace(name, BEFORE)
    yield runpy.run_path(str(BEFORE / PACKAGE / "__init__.py"))["__version__"]
    for name in tuple(cluster.versions):
        cluster.replace(name)


def versions(service: Service, path: str, since: float = 0.0) -> set[str]:
    """Return the versions of the provider that have sent requests for a path."""
    return {
        request["headers"]["user-agent"].rpartition("/")[2]
        for request in service.control.requests(path)
        if request["time"] >= since
    }


def first_offset(service: Service, task_id: str, version: str) -> int:
    """Return the lowest offset at which a version has read the rows of a collection task."""
    return min(
        int(request["query"]["offset"])
        for request in service.control.requests(DATA)
        if request["query"]["taskId"] == task_id and request["headers"]["user-agent"].endswith(f"/{version}")
    )


def test_the_version_before_is_replaced_while_its_waits_are_deferred(
    cluster: Cluster,
    version_before: str,
    start_service: Callable[..., Service],
    folder: Path,
    seen: Callable[[str], None],
) -> None:
    service = start_service(
        "upgrade", refresh_reuse="revoke", latency=1, wait_seconds=0, run_seconds=SOON, stale_seconds=0
    )
    control, runs = service.control, Runs(cluster, service, folder / "landed" / "upgrade")
    waited = runs.add_tasks(7, state="Extracting")
    control.configure(run_seconds=LATER)
    waited += runs.add_tasks(13, state="Extracting")
    started, landed = runs.add_tasks(2), runs.add_tasks(2, rows=ROWS, state="Finished")
    ids = {**dict.fromkeys(WAITS, waited), STARTS: started, LANDINGS: landed}
    for dag_id in ids:
        runs.start(dag_id, ids[dag_id])
    runs.wait_for(lambda: runs.states(*WAITS, STARTS) == {"deferred": 42}, "all waits to be deferred")
    runs.wait_for(lambda: service.answers(DATA).get(200, 0) > 10, "the landings to have parts")
    control.fail(DATA, kind="slow", seconds=10, times=None)  # they must not end before the upgrade
    assert versions(service, STATUSES) | versions(service, DATA) == {version_before}

    cluster.replace("triggerer-a")
    cluster.replace("worker-a")
    runs.wait_for(cluster.is_up, "the new components")
    control.expire_tokens()
    call = cluster.trigger("calls", {"conn_id": service.conn_id})
    assert cluster.wait("calls", call, PATIENCE) == "success"
    assert versions(service, STATS) == {version_before, __version__}
    assert runs.states(*WAITS, STARTS) == {"deferred": 42}

    control.advance(SOON)
    runs.wait_for(lambda: runs.states(*WAITS)["success"] == 14, "the first third to end")
    ended = {task.task_id for task in runs.tasks(*WAITS) if task.state == "success"}
    assert ended == {f"wait_{number}" for number in range(7)}

    for name in ("dag-processor", "worker-b", "triggerer-b"):
        cluster.replace(name)
    last_at = control.now()
    control.expire_tokens()
    runs.wait_for(lambda: versions(service, STATUSES, last_at) == {__version__}, "triggers of this version")
    assert runs.states(*WAITS, STARTS) == {"deferred": 28, "success": 14}
    assert runs.states(LANDINGS)["success"] == 0
    control.configure(latency=0.2)
    control.clear_faults()
    control.advance(LATER)
    assert runs.wait() == {"success"}

    assert {task.try_number for task in runs.tasks(*WAITS, STARTS)} == {1}
    assert [len(control.task(task_id)["runs"]) for task_id in started] == [1, 1]
    assert service.answers(STATUSES).keys() <= {200, 401}
    assert service.answers(TOKEN).keys() == {200}
    for task_id in landed:
        runs.check_landed(task_id, ROWS)
        assert first_offset(service, task_id, __version__) > 0
    seen(f"{version_before}, both, {__version__}; {service.refused_for_rate()} answers 429")
