"""Inputs without rows: what a landing reports, and a task group that collects only these inputs again."""

from __future__ import annotations

import itertools
import json
from collections import UserList
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pendulum
import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSkipException
from airflow.providers.common.compat.version_compat import (
    AIRFLOW_V_3_0_PLUS,
    AIRFLOW_V_3_1_PLUS,
    AIRFLOW_V_3_3_PLUS,
)

from airflow_provider_webcollect import WebCollectTaskGroup, WebCollectToObjectStorageOperator, read_landing
from airflow_provider_webcollect.assets import LandingEvent
from airflow_provider_webcollect.operators.webcollect import (
    WebCollectReplaceUrlsOperator,
    WebCollectSetMissingInputsOperator,
    WebCollectUpdateLoopItemsOperator,
)
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.airflow.dag_runs import edges, make_dag, passed, run_dag
from tests.airflow.executions import Connect, Said, Task, execute, loop_of, on_sandbox
from tests.airflow.landings import GROWING, landed, reported, transfer

pytestmark = on_sandbox(speed=300, rows_per_item=3)

CHECK: dict[str, Any] = {"inputs": {"column": "keyword"}}
WORDS = [f"word {number}" for number in range(100)]
SILENT = [WORDS[number] for number in (0, 7, 23, 42, 66, 98, 99)]
#: The tasks that collect missing inputs again.
RETRY = ["set_missing_inputs", "start", "wait", "land"]
LIMIT = {"start": "2026-11-01", "end": "2026-11-28", "max_volume": 10}
#: Arrangement, the task that is killed, and whether the list is put back in the same run.
KILLS = [
    pytest.param(
        *(arrangement, step, is_restored),
        marks=() if is_by_day else pytest.mark.at_night,
        id=f"{arrangement}-{step}-{'restored' if is_restored else 'not restored'}",
    )
    for arrangement in ("each", "together")
    for step in RETRY
    for is_restored in (True, False)
    for is_by_day in [(arrangement, step) == ("together", "start")]
]
Make = Callable[..., Any]
Tasks = list[Task]
both = pytest.mark.parametrize("arrangement", ["each", "together"])


def loops(sandbox: Sandbox, task_id: str) -> list[str]:
    items: list[str] = sandbox.control.task(task_id)["actions"][0]["loop_items"]
    return items


def events_by_folder(run_id: str) -> dict[str, list[dict[str, Any]]]:
    """Return the extras of a DAG run's asset events, in order, by the last name in the asset's URI."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    found: dict[str, list[dict[str, Any]]] = {}
    with create_session() as session:
        query = select(AssetEvent).where(AssetEvent.source_run_id == run_id).order_by(AssetEvent.id)
        for event in session.scalars(query):
            found.setdefault(event.uri.rpartition("/")[2], []).append(event.extra)
    return found


def task_lot(sandbox: Sandbox, task: Task) -> str:
    return str(sandbox.control.task(task["task_id"])["runs"][-1]["lotno"])


class TestLanding:
    @pytest.fixture
    def task(self, sandbox: Sandbox) -> Task:
        """A task that has collected a hundred words, seven of which have no row."""
        task = sandbox.control.add_task(loop_items=WORDS)
        sandbox.control.silence(task["task_id"], SILENT)
        sandbox.control.start_task(task["task_id"])
        sandbox.control.advance(3600)
        return task

    def test_the_event_has_what_is_missing(self, sandbox: Sandbox, task: Task, destination: str) -> None:
        extra = reported(destination, task, checks=CHECK, on_failed_checks="warn", **GROWING)
        missing = {"count": 7, "inputs": SILENT}
        assert (extra["rows"], extra["missing_inputs"]) == (279, missing)
        event = LandingEvent.of(extra)
        assert event
        (source,) = event.sources()
        assert source.missing_inputs
        assert source.missing_inputs.inputs == SILENT
        (outcome,) = extra["checks"]
        assert outcome["found"].startswith("7 of 100 inputs have no row: 'word 0', 'word 7', 'word 23'")
        requests = sandbox.control.requests("/task/getActions")
        # the second request, right before the verdict, shows that nobody has changed the list
        assert [request["body"] for request in requests] == [
            f'{{"taskIds":["{task["task_id"]}"],"actionTypes":["LoopAction"]}}'
        ] * 2

    def test_several_sources_have_their_own(self, sandbox: Sandbox, task: Task, destination: str) -> None:
        other = sandbox.control.add_task(state="Finished")["task_id"]
        sources = [{"collection_task_id": task["task_id"], "checks": CHECK}, other]
        extra = reported(destination, sources=sources, on_failed_checks="warn", mode=None)
        event = LandingEvent.of(extra)
        assert event
        assert [each.missing_inputs and each.missing_inputs.count for each in event.sources()] == [7, None]

    def test_repeated_inputs_are_no_whole_run(self, sandbox: Sandbox, destination: str) -> None:
        task = sandbox.control.add_task(loop_items=["tea", "coffee"])
        task_id = task["task_id"]
        options: dict[str, Any] = {"checks": CHECK, "on_failed_checks": "warn", "late_rows_delay": 0}

        def land(name: str, run: int) -> dict[str, Any]:
            sandbox.control.start_task(task_id)
            sandbox.control.advance(3600)
            operator = WebCollectToObjectStorageOperator(
                task_id=name, collection_task_id=task_id, destination=destination, **options
            )
            return dict(execute(operator, run_id=f"run {run}"))

        for run in range(5):
            sandbox.control.silence(task_id, ["coffee"])
            assert land("land", run)["missing_inputs"]["count"] == 1
        words = loop_of(task, "coffee")
        execute(WebCollectUpdateLoopItemsOperator(task_id="set", collection_task_id=task_id, **words))
        repeated = land("again", 4)
        assert (repeated["rows"], repeated["missing_inputs"]["count"]) == (3, 0)
        assert repeated["usual_rows"] is None
        assert [record.rows for record in read_landing(destination).manifest.history] == [3, 3, 3, 3, 6]

    def test_urls_of_a_file_are_seen_if_shown(self, sandbox: Sandbox, destination: str) -> None:
        urls = [f"https://shop.example/{number}" for number in range(5)]
        task = sandbox.control.add_task(loop_items=[])
        execute(WebCollectReplaceUrlsOperator(task_id="u", collection_task_id=task["task_id"], urls=urls))
        sandbox.control.silence(task["task_id"], urls[:1])
        sandbox.control.start_task(task["task_id"])
        sandbox.control.advance(3600)
        checks = {"inputs": {"column": "keyword", "match": "url", "missing": 0.5}}
        summary = transfer(f"{destination}/shown", task, checks=checks, **GROWING)
        assert summary["missing_inputs"] == {"count": 1, "inputs": urls[:1]}
        sandbox.control.configure(hide_url_files=True)
        summary = transfer(f"{destination}/hidden", task, checks=checks, **GROWING)
        assert (summary["missing_inputs"], summary["checks"][0]["state"]) == (None, "skipped")

    @pytest.mark.parametrize("limit", ["plan", "key"])
    def test_without_permission_to_read_the_list_it_is_skipped(
        self, sandbox: Sandbox, task: Task, destination: str, set_connection: Connect, limit: str
    ) -> None:
        if limit == "plan":
            sandbox.control.configure(tier="Flagship")
        else:
            set_connection(extra={"api_key": sandbox.api_key})
        summary = transfer(destination, task, lotno=task_lot(sandbox, task), checks=CHECK)
        (check,) = summary["checks"]
        assert (summary["rows"], summary["missing_inputs"], check["state"]) == (279, None, "skipped")
        assert check["found"].startswith("the list cannot be read: get_actions: ")


@pytest.mark.by_day(1)
class TestGroup:
    """A task group that collects missing inputs again."""

    @pytest.fixture
    def shops(self, sandbox: Sandbox) -> Tasks:
        """Two shops with a list of their own and a check, and one without."""
        shops = []
        for name, words in (("Long", WORDS), ("Short", ["tea", "coffee"])):
            task = sandbox.control.add_task(name=name, loop_items=[])
            items = [loop_of(task, *words)]
            shops.append({"id": task["task_id"], "name": name, "loop_items": items, "checks": CHECK})
        return [*shops, {"id": sandbox.control.add_task()["task_id"], "name": "No list"}]

    @pytest.fixture
    def make(self, shops: Tasks, tmp_path: Path) -> Callable[..., Any]:
        def make(**arguments: Any) -> Any:
            with make_dag() as dag:
                usual = {
                    "collection_tasks": shops,
                    "destination": f"file://{tmp_path}/{{name}}",
                    "wait": {"poke_interval": 0.2},
                    "late_rows_delay": 0,
                    "retry_missing_inputs": 1,
                }
                WebCollectTaskGroup("shops", **{**usual, **arguments})
            return dag

        return make

    @both
    def test_only_missing_inputs_are_collected_again(
        self, sandbox: Sandbox, shops: Tasks, make: Make, tmp_path: Path, arrangement: str
    ) -> None:
        sandbox.control.silence(shops[0]["id"], SILENT)
        run = run_dag(make(arrangement=arrangement))

        assert run.state == "success"
        rows = landed(f"file://{tmp_path}/Long")
        assert rows == sandbox.control.true_rows(shops[0]["id"])
        assert [row["keyword"] for row in rows[279:]] == [word for word in SILENT for _ in range(3)]
        assert {*WORDS} == {row["keyword"] for row in rows}
        # tasks without missing inputs are neither started nor read again
        assert [len(sandbox.control.task(shop["id"])["runs"]) for shop in shops] == [2, 1, 1]
        assert [loops(sandbox, shop["id"]) for shop in shops[:2]] == [WORDS, ["tea", "coffee"]]
        (outcome,) = read_landing(f"file://{tmp_path}/Long").manifest.checks
        assert (outcome.state, outcome.found) == ("passed", "0 of 100 inputs have no row")

    @both
    def test_what_stays_silent_fails_once_all_has_landed(
        self, sandbox: Sandbox, shops: Tasks, make: Make, tmp_path: Path, said: Said, arrangement: str
    ) -> None:
        sandbox.control.silence(shops[0]["id"], SILENT[:2], runs=3)
        sandbox.control.silence(shops[0]["id"], SILENT[2:])
        run = run_dag(make(arrangement=arrangement, retry_missing_inputs=2))

        assert run.state == "failed"
        assert landed(f"file://{tmp_path}/Long") == sandbox.control.true_rows(shops[0]["id"])
        assert loops(sandbox, shops[0]["id"]) == WORDS
        assert [name for name, state in run.states.items() if state == "failed"] == [
            "shops.retry_2.land" if arrangement == "together" else "shops.Long.retry_2.land"
        ]
        assert (
            "inputs: 2 of 100 inputs have no row: 'word 0', 'word 7'; expected: a row of each input" in said()
        )

    @pytest.mark.skipif(not AIRFLOW_V_3_0_PLUS, reason="Airflow 2 names the tables otherwise")
    @both
    def test_only_what_is_collected_again_has_a_second_event(
        self, sandbox: Sandbox, shops: Tasks, make: Make, arrangement: str
    ) -> None:
        sandbox.control.silence(shops[0]["id"], SILENT)
        run = run_dag(make(arrangement=arrangement))
        rows = {
            name: [event.rows for event in map(LandingEvent.of, extras) if event]
            for name, extras in events_by_folder(run.run_id).items()
        }
        assert rows == {"Long": [279, 21], "Short": [6], "No~_list": [rows["No~_list"][0]]}

    @pytest.mark.skipif(AIRFLOW_V_3_0_PLUS, reason="Airflow 3 repeats no run by `dag.test()`")
    def test_a_cleared_run_collects_nothing_again(self, sandbox: Sandbox, shops: Tasks, make: Make) -> None:
        sandbox.control.silence(shops[1]["id"], ["tea"])
        dag = make(collection_tasks=shops[1:2])
        first, again = (
            run_dag(dag, execution_date=pendulum.datetime(2026, 1, 2, tz="UTC")) for _ in range(2)
        )
        assert first.run_id == again.run_id
        assert again.states["shops.Short.retry_1.land"] == "skipped"
        assert len(sandbox.control.task(shops[1]["id"])["runs"]) == 3

    @pytest.mark.skipif(not AIRFLOW_V_3_1_PLUS, reason="older versions have no page")
    @both
    @pytest.mark.parametrize("verdict", ["warn", pytest.param("fail", marks=pytest.mark.at_night)])
    def test_the_page_shows_what_is_missing_in_the_end(
        self, sandbox: Sandbox, shops: Tasks, make: Make, arrangement: str, verdict: str
    ) -> None:
        from airflow.utils.session import create_session

        from airflow_provider_webcollect.ui.landings import read_landings

        sandbox.control.silence(shops[0]["id"], SILENT[:2], runs=2)
        sandbox.control.silence(shops[0]["id"], SILENT[2:])
        dag = make(arrangement=arrangement, on_failed_checks=verdict)
        run_dag(dag)
        with create_session() as session:
            page = read_landings(session, {dag.dag_id}, pendulum.now("UTC"))
        assert {series["task_id"].count("retry") for series in page["series"]} == {0}
        (series,) = (series for series in page["series"] if series["asset"]["uri"].endswith("/Long"))
        assert series["marks"] == (["checks"] if verdict == "warn" else ["failed"])
        if verdict == "fail":
            return
        (source,) = (each for each in series["sources"] if each["collection_task_id"] == shops[0]["id"])
        assert source["missing_inputs"] == {"inputs": SILENT[:2], "left_out": 0}
        run = series["runs"][-1]
        assert source["rows"] == run["rows"] == run["total_rows"] == 294
        assert (run["commit"], run["is_odd"]) == (source["commit"], False)
        assert [check["text"] for check in source["checks"]] == [
            "inputs: 2 of 100 inputs have no row: 'word 0', 'word 7'; expected: a row of each input"
        ]

    @both
    def test_without_missing_inputs_nothing_is_repeated(
        self, sandbox: Sandbox, shops: Tasks, make: Make, arrangement: str
    ) -> None:
        run = run_dag(make(arrangement=arrangement))
        assert run.state == "success"
        skipped = {name for name, state in run.states.items() if state == "skipped"}
        groups = ["shops"] if arrangement == "together" else ["shops.Long", "shops.Short"]
        steps = ["restore_loop_items", *(f"retry_1.{step}" for step in RETRY)]
        assert skipped == {f"{group}.{step}" for group in groups for step in steps}
        assert {state for name, state in run.states.items() if name not in skipped} == {"success"}
        assert all(len(sandbox.control.task(shop["id"])["runs"]) == 1 for shop in shops)

    def test_inputs_are_no_templates(self, sandbox: Sandbox, shops: Tasks, make: Make) -> None:
        words = ["{{ 7 * 7 }}", "50 {# off #}", "['tea']"]
        sandbox.control.silence(shops[1]["id"], words, runs=2)
        shops[1]["loop_items"][0]["loop_items"] = ["tea", *words]
        run = run_dag(make(collection_tasks=shops[1:], on_failed_checks="warn"))
        assert run.xcoms["shops.Short.retry_1.land"]["missing_inputs"] == {"count": 3, "inputs": words}
        set_again = sandbox.control.requests("/task/updateTaskParameters")[1]
        assert json.loads(set_again["body"])["loopItems"][0]["loopItems"] == words
        assert loops(sandbox, shops[1]["id"]) == ["tea", *words]

    @pytest.mark.parametrize(("arrangement", "step", "is_restored"), KILLS)
    def test_killed_at_any_step_the_list_is_that_of_the_file_again(
        self,
        sandbox: Sandbox,
        shops: Tasks,
        make: Make,
        tmp_path: Path,
        arrangement: str,
        step: str,
        is_restored: bool,
    ) -> None:
        def killed(*_: object) -> None:
            raise AirflowFailException

        sandbox.control.silence(shops[0]["id"], SILENT)
        dag = make(arrangement=arrangement)
        for task in dag.tasks:
            if task.label == step and "retry_1" in task.task_id:
                task._post_execute_hook = killed
            elif task.label == "restore_loop_items" and not is_restored:
                task._pre_execute_hook = killed
        assert run_dag(dag).state == "failed"
        if is_restored and step != "set_missing_inputs":
            assert loops(sandbox, shops[0]["id"]) == WORDS
        sandbox.control.advance(3600)
        assert run_dag(make(arrangement=arrangement)).state == "success"
        assert loops(sandbox, shops[0]["id"]) == WORDS
        assert landed(f"file://{tmp_path}/Long") == sandbox.control.true_rows(shops[0]["id"])


class TestTasksOfAGroup:
    """What ``retry_missing_inputs`` adds to a DAG, and what it refuses."""

    ENTRY: ClassVar[dict[str, Any]] = {
        "id": "a-1",
        "name": "A",
        "loop_items": [loop_of("step", "tea")],
        "checks": CHECK,
    }

    def group(self, dag: Any, *entries: dict[str, Any], **arguments: Any) -> Any:
        usual = {
            "collection_tasks": list(entries or (self.ENTRY,)),
            "destination": "s3://lake/{name}",
            "retry_missing_inputs": 1,
        }
        with dag:
            return WebCollectTaskGroup("g", **{**usual, **arguments})

    def test_a_retry_is_a_group_before_the_load(self) -> None:
        dag = make_dag()
        load = {"table": "shops.{name}", "warehouse_conn_id": "w"}
        self.group(dag, retry_missing_inputs=2, arrangement="together", limit=LIMIT, load=load)
        first = ["limit", "set_loop_items", "start", "wait", "land"]
        again = ["set_missing_inputs", "limit", "start", "wait", "land"]
        rounds = [first, *([f"retry_{number}.{step}" for step in again] for number in (1, 2))]
        landings = [steps[-1] for steps in rounds]
        setups = [steps[0] for steps in rounds[1:]]
        expected = {
            *itertools.pairwise(itertools.chain(*rounds)),
            *((setup, setup.replace("set_missing_inputs", "start")) for setup in setups),
            *((setup, setup.replace("set_missing_inputs", "wait")) for setup in setups),
            *((setup, setup.replace("set_missing_inputs", "land")) for setup in setups),
            *((setup, "restore_loop_items") for setup in setups),
            # the second retry takes the result of the first landing, too
            ("land", "retry_2.set_missing_inputs"),
            *((landing, "landed") for landing in landings),
            (landings[-1], "restore_loop_items"),
            ("landed", "load"),
        }
        assert {(one.removeprefix("g."), other.removeprefix("g.")) for one, other in edges(dag)} == expected
        restore = dag.get_task("g.restore_loop_items")
        assert (restore.is_teardown, restore.on_failure_fail_dagrun) == (True, True)

    def test_default_args_and_options_keep_the_order_of_tasks(self) -> None:
        dag = make_dag(default_args={"trigger_rule": "all_done"})
        step = {"action_type": "EnterTextAction", "action_id": "t", "properties": {"TextToSet": "x"}}
        limit = {**LIMIT, "trigger_rule": "one_done"}
        group = self.group(dag, set_loop_items={"actions": [step]}, limit=limit)
        shop = group.get_child_by_label("A")
        assert {task.trigger_rule for task in shop.get_child_by_label("retry_1")} == {"all_success"}
        assert shop.get_child_by_label("set_loop_items").actions == [step]
        dag.validate_setup_teardown()

    def test_the_guard_of_the_bill_may_have_templates(self) -> None:
        group = self.group(make_dag(), limit={**LIMIT, "collection_task_ids": ["{{ params.id }}"]})
        shop = group.get_child_by_label("A")
        for place in (group, shop.get_child_by_label("retry_1")):
            assert place.get_child_by_label("limit").collection_task_ids == ["{{ params.id }}"]

    @pytest.mark.skipif(not AIRFLOW_V_3_3_PLUS, reason="it has no partitions of assets")
    def test_a_partition_of_an_alias_is_refused_while_parsing(self) -> None:
        with pytest.raises(InvalidArgument, match=r"`asset_partition` is '2026-01-01'; .* set `outlets`"):
            self.group(make_dag(), arrangement="together", asset_partition="2026-01-01")

    def test_only_the_last_landing_can_fail(self) -> None:
        group = self.group(make_dag(), retry_missing_inputs=2, checks={"rows": {"min": 1}})
        shop = group.get_child_by_label("A")
        groups = [shop, *(shop.get_child_by_label(f"retry_{number}") for number in (1, 2))]
        warned = {"inputs": {"column": "keyword", "on_missing": "warn"}}
        checks = [passed(each.get_child_by_label("land").checks) for each in groups]
        assert checks == [warned, warned, CHECK]

    def test_the_checks_may_be_those_of_all(self) -> None:
        entry = {name: value for name, value in self.ENTRY.items() if name != "checks"}
        group = self.group(make_dag(), entry, {"id": "b"}, checks=CHECK, arrangement="together")
        (first, second) = passed(group.get_child_by_label("land").sources)
        assert first["checks"]["inputs"]["on_missing"] == "warn"
        assert "checks" not in second
        sources = passed(group.get_child_by_label("retry_1").get_child_by_label("set_missing_inputs").sources)
        assert [source["collection_task_id"] for source in sources] == ["a-1"]

    @pytest.mark.parametrize(
        ("entry", "arguments", "said"),
        [
            ({}, {"retry_missing_inputs": 4}, "`retry_missing_inputs` is 4; it must be an integer from 0"),
            (
                {"loop_items": None},
                {},
                "`retry_missing_inputs` is 1; no collection task has `loop_items` and",
            ),
            ({"checks": {"rows": {"min": 1}}}, {}, "`retry_missing_inputs` is 1; no collection task has"),
            ({"lotno": "7"}, {}, "collection task 'A': mode` is 'incremental'; .* `lotno` not set"),
            ({"mode": "full"}, {}, "collection task 'A': mode` is 'full'; .* must be 'incremental'"),
            ({}, {"skip_if_nothing_new": True}, "skip_if_nothing_new` is True; .* must be false"),
            (
                {"checks": {"inputs": {"column": "keyword", "action_id": "other"}}},
                {},
                r"checks\['inputs'\]\['action_id'\]` is 'other'; .* must be the loop of one of the lists",
            ),
            (
                {"loop_items": [loop_of("step", "tea"), loop_of("second", "tea")]},
                {},
                r"checks\['inputs'\]\['action_id'\]` is None; .* must be the loop of one of the lists",
            ),
            (
                {"loop_items": [{**loop_of("step", "tea"), "is_append": True}]},
                {},
                "loop_items: is_append` is True; .* must be false",
            ),
            ({"checks": None}, {"checks": {"inputs": "keyword"}}, "inputs.*` is 'keyword'; it must be"),
            ({"checks": None}, {"checks": {**CHECK, "rows": {"min": "{{ 1 }}"}}}, "`.*checks.* no template"),
        ],
    )
    def test_what_cannot_be_repeated_is_refused(
        self, entry: dict[str, Any], arguments: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(InvalidArgument, match=said):
            self.group(make_dag(), {**self.ENTRY, **entry}, **arguments)


class TestSetMissingInputs:
    @pytest.fixture
    def updates(self, sandbox: Sandbox) -> Tasks:
        tasks = [sandbox.control.add_task(loop_items=["tea", "coffee"]) for _ in range(2)]
        return [
            {"collection_task_id": task["task_id"], "loop_items": [loop_of(task, "tea", "coffee")]}
            for task in tasks
        ]

    def set_missing(self, updates: Tasks, *missing: Any, **arguments: Any) -> Any:
        """Execute the operator for the result of a landing with a source for each task."""
        sources = [
            self.landed(missing_inputs=of_one, collection_task_id=update["collection_task_id"])
            for update, of_one in zip(updates, missing, strict=True)
        ]
        return execute(self.operator(updates, self.landed(sources=sources), **arguments))

    def landed(self, *, rows: int = 5, **facts: Any) -> dict[str, Any]:
        """Return the result of a landing, or the part of it about a source."""
        return {"rows": rows, "quarantined_rows": 0, **facts}

    def operator(self, updates: Tasks, landed: Any, **arguments: Any) -> WebCollectSetMissingInputsOperator:
        return WebCollectSetMissingInputsOperator(task_id="set", updates=updates, landed=landed, **arguments)

    def test_of_tasks_that_lack_none_the_lists_stay(self, sandbox: Sandbox, updates: Tasks) -> None:
        ids = [update["collection_task_id"] for update in updates]
        sources = [{"collection_task_id": id_, "destination": f"s3://lake/{id_}"} for id_ in ids]
        missing = {"count": 1, "inputs": ["tea"]}
        result = self.set_missing(updates, {"count": 0, "inputs": []}, missing, sources=sources)
        assert result == {"collection_task_ids": ids[1:], "sources": sources[1:]}
        assert [loops(sandbox, id_) for id_ in ids] == [["tea", "coffee"], ["tea"]]

    def test_tasks_may_be_named_and_spelled_differently(
        self, sandbox: Sandbox, updates: Tasks, configure_tasks: Callable[[str], object]
    ) -> None:
        ids = [update["collection_task_id"] for update in updates]
        configure_tasks("".join(f"- {{id: {id_}, name: Shop {number}}}\n" for number, id_ in enumerate(ids)))
        landed = [
            self.landed(missing_inputs={"count": 1, "inputs": ["tea"]}, collection_task_id=id_.upper())
            for id_ in ids
        ]
        for sources in (
            [{"collection_task_id": "Shop 0"}, {"collection_task_id": "shop 1"}],
            [{"collection_task_id": id_.upper()} for id_ in ids],
        ):
            result = execute(self.operator(updates, self.landed(sources=landed), sources=sources))
            assert result == {"collection_task_ids": ids, "sources": sources}
        assert [loops(sandbox, id_) for id_ in ids] == [["tea"], ["tea"]]

    def test_the_results_of_a_mapped_landing_are_taken(self, sandbox: Sandbox, updates: Tasks) -> None:
        landed = self.landed(missing_inputs={"count": 1, "inputs": ["tea"]})
        operator = self.operator(updates[:1], "{{ x }}")
        operator.landed = UserList([landed])
        execute(operator)
        assert loops(sandbox, updates[0]["collection_task_id"]) == ["tea"]

    @pytest.mark.parametrize("missing", [None, {"count": 0, "inputs": []}])
    def test_without_missing_inputs_it_is_skipped(self, updates: Tasks, missing: Any) -> None:
        with pytest.raises(AirflowSkipException, match="No input is missing"):
            self.set_missing(updates, None, missing)

    def test_if_an_update_fails_lists_are_put_back(self, sandbox: Sandbox, updates: Tasks) -> None:
        updates[1]["loop_items"][0]["action_id"] = "gone"
        missing = {"count": 1, "inputs": ["tea"]}
        with pytest.raises(AirflowException, match="1 of 2 collection tasks failed"):
            self.set_missing(updates, missing, missing)
        bodies = [
            json.loads(request["body"]) for request in sandbox.control.requests("/task/updateTaskParameters")
        ]
        assert [body["loopItems"][0]["loopItems"] for body in bodies][::2] == [["tea"], ["tea", "coffee"]]
        assert loops(sandbox, updates[0]["collection_task_id"]) == ["tea", "coffee"]

    def test_if_nothing_has_landed_of_a_long_list_it_is_not_cut(self, updates: Tasks) -> None:
        landed = self.landed(rows=0, missing_inputs={"count": 1200, "inputs": ["a"] * 1000})
        with pytest.raises(AirflowFailException, match="the result names only 1000 of 1200"):
            execute(self.operator(updates[:1], landed))

    @pytest.mark.parametrize(
        "landed",
        [
            "x",
            {"rows": 5},
            {"rows": 5, "quarantined_rows": 0, "missing_inputs": {"count": 1}},
            {"rows": 5, "quarantined_rows": 0, "missing_inputs": 5},
            {"rows": 5, "quarantined_rows": 0, "sources": ["x"]},
            [{"rows": 5, "quarantined_rows": 0}, 5],
        ],
    )
    def test_what_is_no_result_of_a_landing_is_refused(self, updates: Tasks, landed: Any) -> None:
        said = "it must be the result of a WebCollectToObjectStorageOperator"
        with pytest.raises(InvalidArgument, match=said):
            self.operator(updates, landed)

    def test_a_result_of_another_task_is_refused(self, updates: Tasks) -> None:
        landed = self.landed(missing_inputs={"count": 1, "inputs": ["tea"]})
        with pytest.raises(InvalidArgument, match="it must be the result of a landing with `sources`"):
            self.operator(updates, landed)

    def test_of_several_landings_the_last_one_counts(self, sandbox: Sandbox, updates: Tasks) -> None:
        landed = [
            self.landed(missing_inputs={"count": 1200, "inputs": ["tea", "coffee"]}),
            self.landed(rows=0, missing_inputs={"count": 1200, "inputs": ["tea"]}),
            None,
        ]
        execute(self.operator(updates[:1], landed))
        assert loops(sandbox, updates[0]["collection_task_id"]) == ["tea"]

    def test_wrong_arguments_are_refused(self, updates: Tasks) -> None:
        with pytest.raises(InvalidArgument, match="it must be a dict with `collection_task_id`"):
            self.operator(updates, self.landed(), sources=[{}])
        updates[0]["loop_items"][0]["is_append"] = True
        with pytest.raises(InvalidArgument, match="it must have one loop, without"):
            self.operator(updates, self.landed())
