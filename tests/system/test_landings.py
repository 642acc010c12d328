"""Every row lands on S3 once: with 200 tasks, with workers that are killed, with one that was suspended."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_webcollect.landing import MANIFEST
from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.log.names import commit_name
from airflow_provider_webcollect.landing.reader import read_landing
from demo.airflow_api import FINAL_RUN_STATES, TaskInstance
from tests.interruption import PATIENCE
from tests.landing.conftest import Folder
from tests.system.cluster import WORKERS, Cluster
from tests.system.conftest import S3, Say, Service, StartService

PIPELINES, PIPELINES_OF_A_RUN = 200, 10
#: Seconds that a run of a collection task takes, and seconds for which the service still shows the end of the
#: run before: long enough that, even on a slow machine, waits begin within them.
RUN_SECONDS, STALE_SECONDS = 40, 30
#: Counts the waits that have ended before the run of their collection task can have ended.
EARLY_WAITS = """
    select count(*) from task_instance as wait join task_instance as start
    on wait.dag_id = start.dag_id and wait.run_id = start.run_id
    and wait.task_id = replace(start.task_id, 'start', 'wait')
    where start.dag_id = %s and start.task_id like 'start%%'
    and wait.end_date < start.start_date + make_interval(secs => %s)
"""
SOURCES = 8
SEED = 13


@dataclass(frozen=True)
class Landings:
    """The landings of collection tasks, each in a folder named for its task.

    :param ids: ids of the collection tasks.
    :param root: the parent of these folders, with the bucket.
    """

    service: Service
    s3: S3
    ids: Sequence[str]
    root: str

    def conf(self, ids: Sequence[str]) -> dict[str, object]:
        return {"conn_id": self.service.conn_id, "ids": ids, "destination": f"s3://{self.root}"}

    def folder(self, task_id: str) -> Folder:
        return Folder(self.s3.storage.fs, f"{self.root}/{task_id}")

    def committed(self, task_id: str) -> tuple[bytes, bytes]:
        """Return the manifest and the only commit of a landing."""
        folder = self.folder(task_id)
        assert commit_name(2) not in folder.names()
        return folder.read(MANIFEST), folder.read(commit_name(1))

    def check(self) -> dict[str, set[str]]:
        """Check that each landing has each of the task's rows once and in order.

        :return: by task, the files that are neither commits nor listed by the manifest; only for tasks that
            have any.
        """
        unlisted = {}
        for task_id in self.ids:
            landed = read_landing(f"s3://{self.root}/{task_id}", self.s3.storage.options)
            landed.verify()
            rows, wanted = list(landed.iter_rows()), self.service.control.true_rows(task_id)
            exact = rows == wanted
            # not `assert rows == wanted`: pytest would look for the differences for many minutes
            assert exact, f"{len(rows)} rows of task {task_id} landed, which are not its {len(wanted)}"
            commits = map(commit_name, range(1, landed.manifest.commit + 1))
            parts = (part.name for part in landed.manifest.parts)
            names = self.folder(task_id).names() - {MANIFEST, *commits, *parts}
            if names:
                unlisted[task_id] = names
        return unlisted

    def cleaned(self) -> int:
        """Remove files that no landing needs, and return how many landings had such files."""
        left = self.check()
        for task_id in left:
            clean(self.folder(task_id).location, older_than=0)
        assert self.check() == {}
        return len(left)


class SourcesRun:
    """A DAG run with an Airflow task for each source, side by side on both workers."""

    dag_id = "land_sources"

    def __init__(self, cluster: Cluster, landings: Landings) -> None:
        self._cluster, self._landings = cluster, landings
        self._run_id = cluster.trigger(self.dag_id, landings.conf(landings.ids))

    def tasks(self) -> dict[str, TaskInstance]:
        task_instances = self._cluster.task_instances(self.dag_id, self._run_id)
        return {self._landings.ids[int(task.task_id.removeprefix("land_"))]: task for task in task_instances}

    def copied(self, worker: str, since: float) -> Counter[str]:
        """Return the number of pages read from each source that a worker is copying.

        :param since: Unix time from which pages count.
        """
        pages = Counter(
            request["query"]["taskId"]
            for request in self._landings.service.control.requests("/data/all")
            if request["status"] == 200 and request["time"] >= since
        )
        return Counter(
            {
                source: pages[source]
                for source, task in self.tasks().items()
                if (task.hostname, task.state) == (worker, "running")
                and pages[source]
                and MANIFEST not in self._landings.folder(source).names()
            }
        )

    def wait_until_copying(self, worker: str, since: float, pages: int) -> None:
        """Wait until a worker has read this number of pages from each source, on average."""

        def is_copying() -> bool:
            copied = self.copied(worker, since)
            return bool(copied) and copied.total() >= pages * len(copied)

        self._cluster.wait_for(is_copying, 120, f"{worker} to have copied {pages} pages per source")

    def wait_for_retries(self, sources: Iterable[str], worker: str) -> None:
        """Wait until another worker has begun to land these sources once more."""

        def are_there() -> bool:
            tasks = self.tasks()
            return all(
                tasks[source].hostname == worker and tasks[source].state in {"running", "success"}
                for source in sources
            )

        self._cluster.wait_for(are_there, 180, f"retries on {worker}")

    def wait(self) -> None:
        assert self._cluster.wait(self.dag_id, self._run_id, 240) == "success"


def test_200_tasks_are_started_waited_for_landed_and_marked(
    cluster: Cluster, start_service: StartService, s3: S3, seen: Say
) -> None:
    # at first the service shows the run before as Finished
    service = start_service("pipelines", wait_seconds=0, run_seconds=RUN_SECONDS, stale_seconds=STALE_SECONDS)
    control = service.control
    ids = [control.add_task(rows=100 + number, lots=[50])["task_id"] for number in range(PIPELINES)]
    landings = Landings(service, s3, ids, s3.storage.new_folder())
    dag_id = "collect_and_land"
    cluster.unpause(dag_id)
    began = time.monotonic()
    for first in range(0, PIPELINES, PIPELINES_OF_A_RUN):
        cluster.trigger(dag_id, landings.conf(ids[first : first + PIPELINES_OF_A_RUN]))
    cluster.wait_for(lambda: FINAL_RUN_STATES.issuperset(cluster.runs(dag_id).values()), 700, "the landings")
    seconds = time.monotonic() - began

    assert set(cluster.runs(dag_id).values()) == {"success"}
    assert landings.check() == {}
    once = dict.fromkeys(ids, 1)
    starts, marks = done(service, "/cloudextraction/subtasks:start"), done(service, "/data/markexported")
    assert {task_id: len(times) for task_id, times in starts.items()} == once
    assert {task_id: len(times) for task_id, times in marks.items()} == once
    written = [
        request for request in reversed(s3.requests) if (request.method, request.status) == ("PUT", 200)
    ]
    committed = {request.path: request.time for request in written}
    for task_id in ids:
        manifest = landings.folder(task_id).manifest()
        assert committed[f"{landings.root}/{task_id}/{MANIFEST}"] < marks[task_id][0]
        assert manifest["exported_at"]
        assert control.task(task_id)["executed_times"] == 2
    tasks = cluster.task_instances(dag_id, "~")
    assert cluster.postgres.query(EARLY_WAITS, dag_id, RUN_SECONDS) == [(0,)]
    retries = sum(task.try_number > 1 for task in tasks)
    requests = sum(sum(counts.values()) for counts in control.counters().values())
    seen(
        f"{PIPELINES} landings in {seconds:.0f} s, {PIPELINES / seconds * 3600:.0f} per hour; {requests} "
        f"requests, {service.refused_for_rate()} answered 429; {retries} tasks needed a retry"
    )


def test_workers_are_killed_three_times_while_they_land(
    cluster: Cluster, start_service: StartService, s3: S3, seen: Say
) -> None:
    chance = random.Random(SEED)
    landings = make_sources(start_service("killed", latency=0.5), s3, 30_000)
    control = landings.service.control
    run = SourcesRun(cluster, landings)
    worker, since, killed = chance.choice(WORKERS), 0.0, []
    for _ in range(3):
        run.wait_until_copying(worker, since, chance.randint(1, 6))
        cluster.kill(worker)
        try:
            sources, since = run.copied(worker, since), control.now()
            assert sources
            killed.append(f"{len(sources)} on {worker} after {sources.total()} pages")
            run.wait_for_retries(sources, other_than(worker))
        finally:
            cluster.start(worker)
        worker = other_than(worker)
    run.wait()

    # a killed landing leaves parts that it had not recorded as staged
    left = landings.cleaned()
    seen(
        f"seed {SEED}; landings killed in mid-copy: {', '.join(killed)}; retried on the other worker; "
        f"{left} left files for `clean`"
    )


def test_a_suspended_worker_changes_nothing_after_a_takeover(
    cluster: Cluster, start_service: StartService, s3: S3, seen: Say
) -> None:
    chance = random.Random(SEED)
    landings = make_sources(start_service("suspended", latency=0.5), s3, 15_000)
    run = SourcesRun(cluster, landings)
    worker = chance.choice(WORKERS)
    run.wait_until_copying(worker, 0.0, chance.randint(2, 6))
    cluster.suspend(worker)
    try:
        sources = run.copied(worker, 0.0)
        assert sources
        run.wait_for_retries(sources, other_than(worker))
        run.wait()
        landed = {source: landings.committed(source) for source in sources}
        landings.check()

        before = len(s3.requests)
        commits = {f"{landings.root}/{source}/{commit_name(1)}" for source in sources}

        def committed() -> set[str]:
            """Return the commits that were requested since: to create them again, or to look for them."""
            return commits.intersection(request.path for request in s3.requests[before:])

        # without their supervisors, which would learn that Airflow has replaced them, and end them
        cluster.resume_tasks(worker)
        cluster.wait_for(lambda: committed() == commits, PATIENCE, "the landings to commit")
    finally:
        cluster.resume(worker)
    cluster.wait_for(lambda: not cluster.runs_tasks(worker), PATIENCE, f"the tasks on {worker} to end")

    assert {source: landings.committed(source) for source in sources} == landed
    # a landing that finds its rows committed leaves the files that it has written since
    left = landings.cleaned()
    seen(
        f"seed {SEED}; {len(sources)} landings on {worker} taken over, then refused; "
        f"{left} left files for `clean`"
    )


def make_sources(service: Service, s3: S3, rows: int) -> Landings:
    ids = [service.control.add_task(lots=[rows])["task_id"] for _ in range(SOURCES)]
    return Landings(service, s3, ids, s3.storage.new_folder())


def other_than(worker: str) -> str:
    return next(other for other in WORKERS if other != worker)


def done(service: Service, path: str) -> dict[str, list[float]]:
    """Return the Unix times of the requests that the sandbox has carried out, by collection task.

    :param path: a path of the contract whose requests name a task in their body.
    """
    times: dict[str, list[float]] = {}
    for request in service.control.requests(path):
        if request["status"] == 200:
            times.setdefault(json.loads(request["body"])["taskId"], []).append(request["time"])
    return times
