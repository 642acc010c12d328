"""The task group: what it adds to a DAG, what it refuses, and what its runs land."""

from __future__ import annotations

import itertools
import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pendulum
import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowException, TaskGroup, literal
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS, AIRFLOW_V_3_1_PLUS

from airflow_provider_webcollect import WebCollectMarkExportedOperator, WebCollectTaskGroup, read_landing
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.airflow.dag_runs import edges, make_dag, passed, run_dag, serialized
from tests.airflow.executions import Said, loop_of, on_sandbox

EACH, TOGETHER = {"arrangement": "each"}, {"arrangement": "together"}
both = pytest.mark.parametrize("how", [EACH, TOGETHER], ids=["each", "together"])
ITEMS = [loop_of("step", "tea")]
SHOPS: list[Any] = [
    {"id": "a-1", "name": "Shop search", "tags": ["daily"], "loop_items": ITEMS},
    {"id": "b-2", "name": "Bücher", "lotno": "7", "checks": {"rows": {"min": 3}}},
    {"id": "c3", "destination": "s3://other/prices"},
]
IDS = ["a-1", "b-2", "c3"]
FOLDERS = ["s3://lake/Shop~_search", "s3://lake/B~c3~bccher", "s3://other/prices"]
#: Loop values that Jinja or Python would change if they evaluated them.
AS_WRITTEN = [
    *("{{ 7 * 7 }}", "50 {# off #}", "{% sale %}", "https://shop.example/s?f={%22color%22:%22red%22}"),
    *('"exact words"', "4006381333931"),
]
STEPS = ("set_loop_items", "start", "wait", "land", "load")
TABLES = ["shops.shop_search", "shops.bucher_a74462df", "shops.c3"]
LOAD = {"table": "shops.{name}", "warehouse_conn_id": "warehouse"}
UUID = "5a9d0b0e-0000-4000-8000-000000000001"


def make_group(dag: DAG, **arguments: Any) -> Any:
    """Add a group ``prices`` of three shops to a DAG."""
    with dag:
        usual = {"collection_tasks": SHOPS, "destination": "s3://lake/{name}"}
        return WebCollectTaskGroup("prices", **{**usual, **arguments})


def quick(collection_tasks: Any, destination: str) -> dict[str, Any]:
    """Return arguments of a group that waits no longer than the sandbox needs."""
    return {
        "collection_tasks": collection_tasks,
        "destination": destination,
        "wait": {"poke_interval": 0.2},
        "late_rows_delay": 0,
    }


def chain(*steps: str, prefix: str) -> set[tuple[str, str]]:
    """Return the edges of a chain of tasks."""
    return {(f"{prefix}{first}", f"{prefix}{second}") for first, second in itertools.pairwise(steps)}


def nameless(log: str, ids: dict[str, str]) -> list[str]:
    """Return the log records with an id but not its name, except records of the sandbox and Airflow."""
    records = re.split(r"^(?=\d{4}-\d\d-\d\dT|[A-Z]+ +[\w.]+:)", log, flags=re.MULTILINE)
    ours = [record for record in records if not re.search("uvicorn.access|airflow.datasets", record)]
    return [record for name, id_ in ids.items() for record in ours if id_ in record and name not in record]


class TestEach:
    def test_each_collection_task_has_its_own_group_called_like_it(self) -> None:
        dag = make_dag()
        group = make_group(dag, load=LOAD)

        assert [*group.children] == ["prices.Shop_search", "prices.Bucher_a74462df", "prices.c3"]
        assert edges(dag) == {
            *chain(*STEPS, prefix="prices.Shop_search."),
            *chain(*STEPS[1:], prefix="prices.Bucher_a74462df."),
            *chain(*STEPS[1:], prefix="prices.c3."),
        }
        assert group.tooltip == "3 collection tasks, each (for hundreds, together is cheaper)"

    def test_the_tasks_get_what_the_entries_say(self) -> None:
        group = make_group(make_dag(), checks={"rows": {"min": 1}}, load=LOAD)
        shops = [*group.children.values()]

        assert [shop.tooltip for shop in shops] == ["Shop search (a-1), daily", "Bücher (b-2)", "c3 (c3)"]
        assert passed(shops[0].get_child_by_label("set_loop_items").loop_items) == ITEMS
        starts, waits, lands, loads = (
            [shop.get_child_by_label(step) for shop in shops] for step in STEPS[1:]
        )
        for tasks in (starts, waits, lands):
            assert [passed(task.collection_task_id) for task in tasks] == IDS
        assert all(wait.deferrable for wait in waits)
        assert [wait.after for wait in waits] == [start.output for start in starts]
        assert [land.destination for land in lands] == [load.landing for load in loads] == FOLDERS
        assert [passed(land.lotno) for land in lands] == [None, "7", None]
        assert [passed(land.checks)["rows"]["min"] for land in lands] == [1, 3, 1]
        assert {land.mode for land in lands} == {"incremental"}
        assert [load.table for load in loads] == TABLES


class TestTogether:
    def test_there_is_one_of_each_task(self) -> None:
        dag = make_dag()
        group = make_group(dag, **TOGETHER, load=LOAD, checks={"rows": {"min": 1}})
        items, start, wait, land, load = map(group.get_child_by_label, STEPS)

        assert group.tooltip == "3 collection tasks, together"
        assert edges(dag) == chain(*STEPS, prefix="prices.")
        assert passed(start.collection_task_ids) == passed(wait.collection_task_ids) == IDS
        assert passed(items.updates) == [{"collection_task_id": "a-1", "loop_items": ITEMS}]
        assert wait.after == start.output
        usual: dict[str, Any] = {"lotno": None}
        own = [usual, {"lotno": "7", "checks": {"rows": {"min": 3}}}, usual]
        assert passed(land.sources) == [
            {"collection_task_id": task_id, "destination": folder, **options}
            for task_id, folder, options in zip(IDS, FOLDERS, own, strict=True)
        ]
        assert land.checks == {"rows": {"min": 1}}
        assert passed(load.sources) == [
            {"landing": folder, "collection_task_name": name, "table": table}
            for folder, name, table in zip(FOLDERS, ("Shop search", "Bücher", None), TABLES, strict=True)
        ]

    @pytest.mark.parametrize(
        ("options", "destination"),
        [
            ({}, "s3://lake"),
            ({"destination": "s3://{name}/prices"}, "s3://Shop~_search/prices"),
            ({"destination": "lake.shops.{name}", "table_format": "iceberg"}, "lake.shops.shop_search"),
        ],
    )
    def test_the_landing_has_the_common_folder(self, options: dict[str, Any], destination: str) -> None:
        group = make_group(make_dag(), collection_tasks=SHOPS[:2], **TOGETHER, **options)
        assert group.get_child_by_label("land").destination == destination


class TestOptionsOfAnEntry:
    STREAMS: ClassVar[list[dict[str, Any]]] = [
        {
            "id": "a",
            "columns": ["url", "price"],
            "column_types": {"price": "float64"},
            "whole_runs_key": "url",
            "partition": "dt={{ ds }}",
            "load": {"table": "own.{name}", "primary_key": ["url"], "write_disposition": "merge"},
        },
        {"id": "b", "file_format": "jsonl", "page_size": 7, "load": False},
        {"id": "c"},
    ]
    OF_ALL: ClassVar[dict[str, Any]] = {"collection_tasks": STREAMS, "file_format": "parquet", "load": LOAD}

    def test_they_override_the_groups(self) -> None:
        group = make_group(make_dag(), **self.OF_ALL)
        lands, loads = (
            [shop.children.get(f"{shop.group_id}.{step}") for shop in group.children.values()]
            for step in ("land", "load")
        )
        assert [passed(land.columns) for land in lands] == [["url", "price"], None, None]
        assert [passed(land.file_format) for land in lands] == ["parquet", "jsonl", "parquet"]
        assert [land.page_size for land in lands] == [1000, 7, 1000]
        # of an entry's options, only a folder may be a template
        assert lands[0].partition == "dt={{ ds }}"
        assert isinstance(lands[0].column_types, type(literal(None)))
        assert [load and passed(load.table) for load in loads] == ["own.a", None, "shops.c"]
        assert [load and passed(load.primary_key) for load in loads] == [["url"], None, None]

    def test_together_each_source_has_its_own(self) -> None:
        group = make_group(make_dag(), **self.OF_ALL, **TOGETHER)
        land, load = group.get_child_by_label("land"), group.get_child_by_label("load")
        assert land.file_format == "parquet"
        options = [{**entry} for entry in self.STREAMS]
        for entry in options:
            entry.pop("load", None)
            entry["collection_task_id"] = entry.pop("id")
        assert passed(land.sources) == [
            {**entry, "lotno": None, "destination": f"s3://lake/{entry['collection_task_id']}"}
            for entry in options
        ]
        assert isinstance(load.sources[0]["primary_key"], type(literal(None)))
        assert passed(load.sources) == [
            {
                "landing": "s3://lake/a",
                "collection_task_name": None,
                **self.STREAMS[0]["load"],
                "table": "own.a",
            },
            {"landing": "s3://lake/c", "collection_task_name": None, "table": "shops.c"},
        ]

    @both
    @pytest.mark.parametrize(
        ("entries", "options", "said"),
        [
            # only CSV files have formulas, and the group lands JSON lines
            (
                [{"id": "b"}, {"id": "a", "sanitize_formulas": True}],
                {},
                ("collection task 'a': sanitize_formulas", "it requires file_format='csv'"),
            ),
            (
                [{"id": "a", "columns": ["url"], "column_types": {"price": "float64"}}],
                {"file_format": "parquet"},
                ("column_types", "price"),
            ),
            (
                [{"id": "b", "load": False}, {"id": "a", "load": {"primary_key": "url"}}],
                {"load": LOAD},
                ("collection task 'a': primary_key", "merge"),
            ),
            (
                [{"id": "a"}],
                {"load": {"warehouse_conn_id": "warehouse"}},
                ("load.table", "'a' has no table of its own"),
            ),
            (
                [{"id": name, "load": {"table": "shops.all"}} for name in "ab"],
                {"load": LOAD},
                (
                    "load.table",
                    "collection task 'a' has the same table: loads into one table need a primary_key",
                ),
            ),
        ],
        ids=["formulas-of-json", "a-column-left-out", "a-key-of-no-merge", "no-table", "one-table"],
    )
    def test_what_does_not_fit_the_group_is_refused_while_parsing(
        self,
        how: dict[str, Any],
        entries: list[dict[str, Any]],
        options: dict[str, Any],
        said: tuple[str, str],
    ) -> None:
        with pytest.raises(InvalidArgument) as raised:
            make_group(make_dag(), collection_tasks=entries, **options, **how)
        assert said[0] in raised.value.argument
        assert said[1] in str(raised.value)


@pytest.mark.parametrize("number", [1, 300])
def test_the_ids_of_tasks_do_not_depend_on_how_many_there_are(number: int) -> None:
    group = make_group(make_dag(), collection_tasks=[f"task-{index}" for index in range(number)])
    assert [*group.children] == [f"prices.task_{index}" for index in range(number)]


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({}, 3),
        ({"destination": "{{ var.value.lake }}/{name}"}, 1),
        ({"destination": "s3://lake/prices/{name}/{{ ds }}", "collection_tasks": SHOPS[:2]}, 0),
        ({"outlets": []}, 3),
    ],
    ids=["folders", "one-of-its-own", "templates", "none-given"],
)
def test_both_arrangements_have_the_same_outlets(options: dict[str, Any], number: int) -> None:
    separate, together = (make_group(make_dag(), **how, **options) for how in (EACH, TOGETHER))
    outlets = [
        outlet for shop in separate.children.values() for outlet in shop.get_child_by_label("land").outlets
    ]
    assert [outlet.uri for outlet in together.get_child_by_label("land").outlets] == [
        outlet.uri for outlet in outlets
    ]
    assert len(outlets) == number


@both
@pytest.mark.parametrize("options", [{}, {"load": LOAD}], ids=["", "load"])
def test_airflow_stores_and_reads_it(how: dict[str, Any], options: dict[str, Any]) -> None:
    dag = make_dag()
    group = make_group(dag, **how, **options)
    stored = serialized(dag)

    assert edges(stored) == edges(dag)
    groups = stored.task_group.get_task_group_dict()
    assert {name: subgroup.tooltip for name, subgroup in groups.items() if name} == {
        name: subgroup.tooltip for name, subgroup in dag.task_group.get_task_group_dict().items() if name
    }
    assert {*groups["prices"].children} == {*group.children}


@both
def test_every_option_of_an_operator_can_be_given(how: dict[str, Any]) -> None:
    group = make_group(
        make_dag(),
        set_loop_items={"retries": 1},
        start={"retries": 2, "retry_unknown_outcome": True},
        wait={"retries": 3, "poke_interval": 7, "deferrable": False},
        land={"retries": 4, "page_size": 100},
        load={**LOAD, "retries": 5, "write_disposition": "merge", "primary_key": "id"},
        webcollect_conn_id="other",
        file_format="parquet",
        object_storage_conn_id="storage",
        pool="lands",
        mode="full",
        **how,
    )
    tasks = {
        task.task_id.rpartition(".")[2]: task for task in group if "Shop" in task.task_id or how == TOGETHER
    }
    options = {
        name: getattr(task, "partial_kwargs", None) or vars(task) for name, task in sorted(tasks.items())
    }

    assert [options[name]["retries"] for name in STEPS] == [1, 2, 3, 4, 5]
    for name in STEPS[:4]:
        assert options[name]["webcollect_conn_id"] == "other"
    assert options["start"]["retry_unknown_outcome"]
    assert (options["wait"]["poke_interval"], options["wait"]["deferrable"]) == (7, False)
    land, load = options["land"], options["load"]
    assert (land["page_size"], land["file_format"], land["pool"]) == (100, "parquet", "lands")
    assert land["mode"] == "full"
    assert (load["object_storage_conn_id"], load["write_disposition"]) == ("storage", "merge")


@both
@pytest.mark.parametrize(
    ("defaults", "options", "conn_id"),
    [
        ({"object_storage_conn_id": "storage"}, {}, "storage"),
        (
            {"iceberg_conn_id": "catalog"},
            {"destination": "lake.shops.{name}", "table_format": "iceberg"},
            "catalog",
        ),
        ({"object_storage_conn_id": "storage"}, {"load": {**LOAD, "object_storage_conn_id": "own"}}, "own"),
    ],
    ids=["storage", "iceberg", "own"],
)
def test_the_load_has_the_connection_of_the_landing(
    how: dict[str, Any], defaults: dict[str, Any], options: dict[str, Any], conn_id: str
) -> None:
    shops = {"collection_tasks": SHOPS[:2]}
    group = make_group(make_dag(), default_args=defaults, **shops, **how, **{"load": LOAD, **options})
    loads = [task for task in group if task.task_id.endswith("load")]
    conn_ids = {
        (getattr(load, "partial_kwargs", None) or vars(load))["object_storage_conn_id"] for load in loads
    }
    assert conn_ids == {conn_id}


@both
def test_a_destination_of_its_own_may_name_another_connection(how: dict[str, Any]) -> None:
    shops = [{"id": "a", "destination": "s3://minio@other/a"}, {"id": "b"}]
    group = make_group(make_dag(), collection_tasks=shops, object_storage_conn_id="storage", load=LOAD, **how)
    if how == EACH:
        for name, conn_id in {"a": "minio", "b": "storage"}.items():
            shop = group.children[f"prices.{name}"]
            land, load = map(shop.get_child_by_label, ("land", "load"))
            assert passed(land.object_storage_conn_id) == passed(load.object_storage_conn_id) == conn_id
    else:
        assert group.get_child_by_label("load").object_storage_conn_id == "storage"


@pytest.mark.parametrize("destination", ["s3://lake/{name}", "s3://{name}/x"])
def test_the_first_destination_may_name_another_connection_too(destination: str) -> None:
    shops = [{"id": "a", "destination": "s3://minio@other/a"}, {"id": "b"}]
    named = {"collection_tasks": shops, "object_storage_conn_id": "storage", "destination": destination}
    land = make_group(make_dag(), **named, **TOGETHER).get_child_by_label("land")
    assert land.sources[0]["destination"] == "s3://minio@other/a"
    alone = make_group(make_dag(), **{**named, "collection_tasks": shops[:1], "outlets": []}, **TOGETHER)
    assert alone.get_child_by_label("land").sources[0]["destination"] == "s3://minio@other/a"


@both
@pytest.mark.parametrize(
    ("defaults", "options", "deferrable"),
    [
        ({}, {}, True),
        ({"deferrable": False}, {}, False),
        ({"mode": "reschedule"}, {}, False),
        ({}, {"wait": {"mode": "reschedule"}}, False),
        ({}, {"wait": {"mode": "reschedule", "deferrable": True}}, True),
    ],
)
def test_waits_are_deferred_unless_the_dag_says_otherwise(
    how: dict[str, Any], defaults: dict[str, Any], options: dict[str, Any], deferrable: bool
) -> None:
    group = make_group(make_dag(default_args=defaults), **options, **how)
    waits = [task for task in group if task.task_id.endswith("wait")]
    assert {wait.deferrable for wait in waits} == {deferrable}


@both
def test_one_folder_is_refused_wherever_its_connection_is_named(how: dict[str, Any]) -> None:
    shops = [{"id": "a", "destination": "s3://storage@lake/b"}, {"id": "b"}]
    rule = "collection task 'a'` .* must not be in the folder of collection task 'b'"
    with pytest.raises(InvalidArgument, match=rule):
        make_group(make_dag(), collection_tasks=shops, object_storage_conn_id="storage", **how)


@both
@pytest.mark.parametrize("of_the_dag", [True, False])
def test_default_args_count_as_arguments(how: dict[str, Any], of_the_dag: bool) -> None:
    def make(defaults: dict[str, Any], **options: Any) -> Any:
        dag = make_dag(default_args=defaults if of_the_dag else {})
        return make_group(dag, default_args={} if of_the_dag else defaults, **{**how, **options})

    shops = [{"id": "a", "destination": "s3://storage@lake/b"}, {"id": "b"}]
    with pytest.raises(InvalidArgument, match="must not be in the folder of collection task 'b'"):
        make({"object_storage_conn_id": "storage"}, collection_tasks=shops)

    make({"table_format": "iceberg"}, destination="lake.shops.{name}", collection_tasks=["a", "b"])

    keyed = {"primary_key": "url", "write_disposition": "merge"}
    make(keyed, load={**LOAD, "table": "shops.all"})

    inputs = {"checks": {"inputs": {"column": "word"}}}
    group = make(inputs, collection_tasks=[{"id": "a", "loop_items": ITEMS}], retry_missing_inputs=1)
    assert any(task.task_id.endswith("set_missing_inputs") for task in group)


class TestAsATaskGroup:
    @both
    def test_it_takes_the_arguments_of_one(self, how: dict[str, Any]) -> None:
        look = {"tooltip": "Shops", "ui_color": "#fff", "ui_fgcolor": "#111"}
        dag = make_dag(default_args={"retries": 1, "owner": "ada"})
        group = make_group(dag, prefix_group_id=False, default_args={"retries": 2}, **look, **how)

        assert {name: getattr(group, name) for name in look} == look
        assert {(task.retries, task.owner) for task in dag.tasks} == {(2, "ada")}
        first = dag.task_dict["start" if how == TOGETHER else "Shop_search.start"]
        assert first.task_group
        assert first.task_group.group_id == ("prices" if how == TOGETHER else "Shop_search")

    @both
    def test_it_stands_between_tasks_and_in_groups(self, how: dict[str, Any]) -> None:
        with make_dag() as dag:
            before, after = (
                WebCollectMarkExportedOperator(task_id=name, collection_task_id="a")
                for name in ("one", "two")
            )
            with TaskGroup("outer"):
                tasks: Any = {"collection_tasks": ["a", "b"], "destination": "s3://lake/{name}"}
                group = WebCollectTaskGroup("prices", **tasks, **how)
            before >> group >> after

        names = [""] if how == TOGETHER else ["a.", "b."]
        assert before.downstream_task_ids == {f"outer.prices.{name}start" for name in names}
        assert after.upstream_task_ids == {f"outer.prices.{name}land" for name in names}
        assert serialized(dag).task_group.get_task_group_dict().keys() >= {"outer", "outer.prices"}

    def test_it_is_added_to_the_dag_that_it_is_given(self) -> None:
        dag = make_dag()
        WebCollectTaskGroup("prices", collection_tasks=["a"], destination="s3://lake/{id}", dag=dag)
        assert [*dag.task_dict] == ["prices.a.start", "prices.a.land", "prices.a.wait"]


class TestSelection:
    FILE = f"- id: {UUID}\n  name: Shop search\n- id: b-2\n  name: Bücher\n  lotno: 0012\n"

    @pytest.fixture
    def configured(self, configure_tasks: Callable[..., Path]) -> None:
        configure_tasks(self.FILE)

    def selected(self, given: Any) -> list[tuple[str, str, str | None]]:
        group = make_group(make_dag(), collection_tasks=given)
        lands = [shop.get_child_by_label("land") for shop in group.children.values()]
        return [(passed(land.collection_task_id), land.destination, passed(land.lotno)) for land in lands]

    def test_a_file_is_found_beside_that_of_the_dag(self, tmp_path: Path) -> None:
        (tmp_path / "shops").mkdir()
        (tmp_path / "shops/tasks.yml").write_text(self.FILE)
        (tmp_path / "dag.py").write_text(
            "import pendulum\n"
            "from airflow.providers.common.compat.sdk import DAG\n"
            "from airflow_provider_webcollect import WebCollectTaskGroup\n"
            'with DAG("shops", schedule=None, start_date=pendulum.datetime(2026, 1, 1)) as dag:\n'
            '    WebCollectTaskGroup("prices", collection_tasks="shops/tasks.yml", destination="s3://b/{id}")\n'
        )
        dag = runpy.run_path(str(tmp_path / "dag.py"))["dag"]
        assert "prices.Shop_search.land" in dag.task_dict

    @pytest.mark.parametrize("place", ["", "lib"])
    def test_it_is_found_there_too_if_another_module_makes_the_dag(self, tmp_path: Path, place: str) -> None:
        """A file that is only beside the other module is found there."""
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib/tasks.yml").write_text("- id: c-3\n  name: Other\n")
        (tmp_path / place / "tasks.yml").write_text(self.FILE)
        (tmp_path / "lib/factory.py").write_text(
            "import pendulum\n"
            "from airflow.providers.common.compat.sdk import DAG\n"
            "from airflow_provider_webcollect import WebCollectTaskGroup\n"
            "def make():\n"
            '    with DAG("shops", schedule=None, start_date=pendulum.datetime(2026, 1, 1)) as dag:\n'
            '        WebCollectTaskGroup("prices", collection_tasks="tasks.yml", destination="s3://b/{id}")\n'
            "    return dag\n"
        )
        (tmp_path / "dag.py").write_text(
            f"import runpy\ndag = runpy.run_path('{tmp_path}/lib/factory.py')['make']()\n"
        )
        dag = runpy.run_path(str(tmp_path / "dag.py"))["dag"]
        assert "prices.Shop_search.land" in dag.task_dict

    @pytest.mark.usefixtures("configured")
    def test_all_of_the_configured_file_are_meant_by_none(self) -> None:
        books = ("b-2", "s3://lake/B~c3~bccher", "0012")
        assert self.selected(None) == [(UUID, "s3://lake/Shop~_search", None), books]

    @pytest.mark.usefixtures("configured")
    def test_a_name_stands_for_its_entry_and_a_uuid_for_the_task(self) -> None:
        assert self.selected(["BÜCHER", UUID]) == [
            ("b-2", "s3://lake/B~c3~bccher", "0012"),
            (UUID, f"s3://lake/{UUID}", None),
        ]

    @pytest.mark.usefixtures("configured")
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (["Shops search"], r"`collection_tasks\[0\]` is 'Shops search'; .*nearest: 'Shop search'"),
            (
                ["Bücher", "b-2"],
                r"`collection_tasks\[1\]\.(id|name)` is 'b-2'; .*tasks\[0\].id has the same value",
            ),
            ([{"id": "x", "label": "n"}], r"`collection_tasks\[0\].label` is 'n'; a collection task has no"),
            (["{{ conn.other.password }}"], r"`collection_tasks\[0\]` is '{{ conn.*and no template"),
            ([], "`collection_tasks` is"),
            ("Bücher", "`collection_tasks` is 'Bücher'; it must be a file "),
            (
                [{"id": "x", "name": "a b"}, {"id": "y", "name": "a-b"}],
                "`collection_tasks` is 'a-b'; its Airflow id or its table would be the same as that of 'a b'",
            ),
            (
                [{"id": "x", "name": "1"}, {"id": "y", "name": "t 1"}],
                "`collection_tasks` is 't 1'; .* the same as that of '1'",
            ),
        ],
    )
    def test_what_is_wrong_is_refused_by_name(self, given: Any, said: str) -> None:
        with pytest.raises(InvalidArgument, match=said):
            self.selected(given)

    def test_one_entry_may_have_the_destination_of_the_group(self) -> None:
        own = {"id": "b", "destination": "s3://lake/own"}
        group = make_group(make_dag(), collection_tasks=["a", own], destination="s3://lake/rest")
        assert {each.get_child_by_label("land").destination for each in group.children.values()} == {
            "s3://lake/own",
            "s3://lake/rest",
        }

    def test_without_a_file_there_must_be_something(self) -> None:
        with pytest.raises(InvalidArgument, match=r"since \[webcollect\] collection_tasks names no file"):
            self.selected(None)


@both
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"destination": "s3://lake/a"}, "`destination` is 's3://lake/a'; it must have {name} or {id} in"),
        (
            {"collection_tasks": [*SHOPS, {"id": "d", "destination": "s3://lake/Shop~_search/old"}]},
            "`collection task 'd'` is 's3://lake/Shop~_search/old'; .* in the folder of .*'Shop search'",
        ),
        (
            {"collection_tasks": [{"id": "a", "name": "商" * 29}]},
            f"`collection_tasks` is '{'商' * 29}'; as a folder it has more than 255 characters; give it its",
        ),
        ({"destination": ""}, "`destination` is ''; it must be a text, since 'Shop search' has no"),
        ({"load": "shops"}, "`load` is 'shops'; it must be a dict of an operator's arguments"),
        ({"destination": "s3://lake/{day}"}, "`destination` is 's3://lake/{day}'; .* and {id}, not {day}"),
        ({"load": {**LOAD, "table": "shops.{Name}"}}, "`load.table` is 'shops.{Name}'; .*, not {Name}"),
        ({"arrangement": "both"}, "`arrangement` is 'both'"),
        ({"load": {"warehouse_conn_id": "w"}}, "`load.table` is None"),
        ({"load": {**LOAD, "table": "{name}"}, "arrangement": "each"}, "`table` is 'shop_search'"),
        ({"file_format": "xml"}, "`file_format` is 'xml'"),
        # likely mistakes
        ({"poke_interval": 5}, r"`poke_interval` is 5; .*: wait={'poke_interval': …}"),
        ({"primary_key": "url"}, r"`primary_key` is 'url'; .*: load={'primary_key': …}"),
        ({"failure_states": []}, r"`failure_states` is \[\]; .*: wait={'failure_states': …}"),
        ({"retry_unknown_outcome": True}, r"`retry_unknown_outcome` is True; .*: start={'retry_unknown"),
        ({"conn_id": "x"}, "`conn_id` is 'x'; the argument is called webcollect_conn_id"),
        ({"default_args": {"conn_id": "x"}}, "the argument is called webcollect_conn_id"),
    ],
)
def test_what_is_wrong_is_an_import_error(how: dict[str, Any], arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        make_group(make_dag(), **{**how, **arguments})


def test_a_long_name_does_not_matter_for_a_folder_of_the_id() -> None:
    tasks = [{"id": "a", "name": "商" * 29}]
    group = make_group(make_dag(), collection_tasks=tasks, destination="s3://lake/{id}", **TOGETHER)
    assert group.get_child_by_label("land").sources[0]["destination"] == "s3://lake/a"


@both
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ["no_such_option", "task_id"])
def test_unknown_and_reserved_options_are_refused(how: dict[str, Any], step: str, name: str) -> None:
    options = {"load": LOAD, step: {**(LOAD if step == "load" else {}), name: "x"}}
    with pytest.raises((AirflowException, TypeError), match=name):
        make_group(make_dag(), **how, **options)


@pytest.mark.by_day(1)
class TestRuns:
    pytestmark = on_sandbox(speed=300)

    @pytest.fixture
    def shops(self, sandbox: Sandbox) -> list[dict[str, Any]]:
        tasks = [
            sandbox.control.add_task(name=name, rows=rows, lots=[5])
            for name, rows in (("A b", 10), ("Ć", 20))
        ]
        return [
            {"id": tasks[0]["task_id"], "name": "A b", "loop_items": [loop_of(tasks[0], "tea")]},
            {"id": tasks[1]["task_id"], "name": "Ć"},
        ]

    @pytest.fixture
    def arguments(self, shops: list[dict[str, Any]], tmp_path: Path) -> dict[str, Any]:
        return quick(shops, f"file://{tmp_path}/{{name}}")

    @both
    def test_every_row_lands_and_is_loaded_once(
        self,
        sandbox: Sandbox,
        shops: list[dict[str, Any]],
        arguments: dict[str, Any],
        tmp_path: Path,
        database: str,
        how: dict[str, Any],
    ) -> None:
        dag = make_dag()
        load = {**LOAD, "max_active_tis_per_dag": 1}
        make_group(dag, **arguments, **how, mark_exported=True, load=load)
        assert sandbox.control.requests() == []
        name = "logical_date" if AIRFLOW_V_3_0_PLUS else "execution_date"
        days = [pendulum.datetime(2026, 1, day, tz="UTC") for day in (1, 2, 2, 3)]
        dates: list[dict[str, Any]] = [{name: day} for day in days]
        runs = [run_dag(dag, **date) for date in dates]

        # on Airflow 3, `dag.test()` repeats a run only as another run of the same date
        assert AIRFLOW_V_3_0_PLUS or runs[1].run_id == runs[2].run_id
        assert all({*run.states.values()} == {"success"} for run in runs)
        # the next run lands what a cleared run has collected again
        with duckdb.connect(database) as db:
            for shop, folder, table in zip(shops, ("A~_b", "~c4~86"), ("a_b", "c_317d8f53"), strict=True):
                rows = sandbox.control.true_rows(shop["id"])
                assert [*read_landing(f"file://{tmp_path}/{folder}").iter_rows()] == rows
                ids = db.execute(f"select id from shops.{table} order by _webcollect_row").fetchall()
                assert [id_ for (id_,) in ids] == [row["id"] for row in rows]
        assert sandbox.control.task(shops[0]["id"])["actions"][0]["loop_items"] == ["tea"]
        assert all(sandbox.control.task(shop["id"])["exported"] for shop in shops)
        if how == TOGETHER:
            assert runs[0].states.keys() == {f"prices.{step}" for step in STEPS}

    @both
    @pytest.mark.parametrize(
        "is_native",
        [pytest.param(False, marks=pytest.mark.at_night, id="texts"), pytest.param(True, id="native")],
    )
    def test_texts_of_the_entries_are_no_templates(
        self, sandbox: Sandbox, arguments: dict[str, Any], how: dict[str, Any], is_native: bool
    ) -> None:
        # as a native object, this id would be the number 1000
        task = sandbox.control.add_task("1_000", rows=3, lots=[3])
        shop = {
            "id": task["task_id"],
            "lotno": task["runs"][0]["lotno"],
            "checks": {"columns": {"title": {"pattern": "[^{#]+"}}, "new_columns": "warn"},
            "loop_items": [loop_of(task, *AS_WRITTEN)],
        }
        other = {"id": sandbox.control.add_task(rows=3, lots=[3])["task_id"], "lotno": "{{ 7 * 7 }}"}
        dag = make_dag(render_template_as_native_obj=is_native)
        arguments["land"] = {"mode": "full", "if_exists": "overwrite"}
        make_group(dag, **{**arguments, "collection_tasks": [shop, other]}, **how)
        run = run_dag(dag)

        assert sandbox.control.task(shop["id"])["actions"][0]["loop_items"] == AS_WRITTEN
        assert {request["query"]["lotno"] for request in sandbox.control.requests("/data/lotno/all")} == {
            *(shop["lotno"], "{{ 7 * 7 }}"),
        }
        # the service does not have this batch
        group = "prices" if how == TOGETHER else f"prices.{other['id'].replace('-', '_')}"
        assert [name for name, state in run.states.items() if state != "success"] == [f"{group}.land"]


@pytest.mark.by_day(1)
class TestNames:
    """Names of the group's own file, which the deployment does not know."""

    pytestmark = on_sandbox(speed=300)

    @pytest.fixture
    def ids(self, sandbox: Sandbox) -> dict[str, str]:
        """The ids of two collection tasks, by their names in the file."""
        return {
            name: sandbox.control.add_task(subtasks=1, lots=[5])["task_id"] for name in ("Shop search", "Ć")
        }

    @pytest.fixture
    def arguments(self, ids: dict[str, str], sandbox: Sandbox, tmp_path: Path) -> dict[str, Any]:
        (shop, *_) = ids.values()
        entries: list[dict[str, Any]] = [{"id": id_, "name": name} for name, id_ in ids.items()]
        entries[0]["loop_items"] = [loop_of(sandbox.control.task(shop), "tea")]
        file = tmp_path / "shops.json"
        file.write_text(json.dumps(entries))
        return quick(file, f"file://{tmp_path}/{{id}}")

    @pytest.mark.usefixtures("database")
    @both
    def test_logs_and_results_have_names_beside_ids(
        self, ids: dict[str, str], arguments: dict[str, Any], said: Said, how: dict[str, Any]
    ) -> None:
        dag = make_dag()
        make_group(dag, **arguments, **how, load=LOAD)
        run = run_dag(dag)
        assert {*run.states.values()} == {"success"}
        log = said()
        assert nameless(log, ids) == []
        for name, id_ in ids.items():
            told = f"{name} ({id_})"
            assert f"Started 1 sub-task of task {told}" in log
            assert f"{told} is Finished" in log
            assert f"task {told}: " in log
            assert f"{name}: 1 part of" in log

        steps = ("set_loop_items", "start", "land", "load")
        results = {name: run.xcoms[name] for name in run.xcoms if name.endswith(steps)}
        assert len(results) == (4 if how == TOGETHER else 7)
        for step, result in results.items():
            entries = result if isinstance(result, list) else result.get("sources", [result])
            for entry in entries:
                own = ids[entry["collection_task_name"]]
                assert entry.get("collection_task_id", own) == own, step
        if AIRFLOW_V_3_1_PLUS:
            from airflow.utils.session import create_session

            from airflow_provider_webcollect.ui.landings import read_landings

            with create_session() as session:
                page = read_landings(session, {dag.dag_id}, pendulum.now("UTC"))
            assert len(page["series"]) == 2
            assert page["names"] == {id_: name for name, id_ in ids.items()}

    @both
    def test_errors_have_names_beside_ids(
        self,
        ids: dict[str, str],
        arguments: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch,
        said: Said,
        how: dict[str, Any],
    ) -> None:
        # loads into a database in memory fail
        monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "duckdb", "host": ":memory:"}))
        ids["Gone"] = "0" * 8 + "-0000-4000-8000-" + "0" * 12
        entries = [{"id": id_, "name": name, "checks": {"rows": {"min": 10**6}}} for name, id_ in ids.items()]
        errors: list[str] = []
        dag = make_dag()
        make_group(dag, **{**arguments, "collection_tasks": entries}, **how, load=LOAD)
        for task in dag.tasks:
            # each task runs and fails, even if the tasks before it have failed
            task.trigger_rule = "all_done"
            task.on_failure_callback = [lambda context: errors.append(str(context["exception"]))]
        run = run_dag(dag)

        assert run.state == "failed"
        assert len(errors) == [*run.states.values()].count("failed") == (4 if how == TOGETHER else 8)
        told = "\n".join(errors)
        assert [nameless(each, ids) for each in (said(), *errors)] == [[]] * (1 + len(errors))
        for name, id_ in ids.items():
            assert f"1 check failed for task {name} ({id_}) at" in told or name == "Gone"
