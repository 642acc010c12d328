"""The file of collection tasks: what is read, and errors that name the file, line, value and rule."""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

import airflow_provider_webcollect
from airflow_provider_webcollect.collection_tasks import (
    CollectionTask,
    CollectionTasks,
    configured,
    described,
    read_collection_tasks,
    task_id_of,
)
from airflow_provider_webcollect.landing.options import LoadOptions, SourceOptions
from airflow_provider_webcollect.service.errors import InvalidArgument
from tests.airflow.executions import loop_of

PACKAGE = Path(airflow_provider_webcollect.__file__).parent
SCHEMA = json.loads((PACKAGE / "collection_tasks.schema.json").read_text())
Read = Callable[..., CollectionTasks]
Write = Callable[..., Path]
UUID = "5a9d0b0e-0000-4000-8000-000000000001"
SHOP = "- id: a\n  name: Shop\n"

#: Texts that follow `SHOP` in a file, and the values that they add to the task `a` named `Shop`.
RIGHT: dict[str, tuple[str, dict[str, Any]]] = {
    "the least": ("", {}),
    "a batch of digits is a text": ("  lotno: 0012\n", {"lotno": "0012"}),
    "a batch that looks like a date": ("  lotno: 2026-01-02\n", {"lotno": "2026-01-02"}),
    "words that YAML takes for booleans, dates, numbers": (
        "  tags: [yes, 2026-01-02, 1_000, 0x10, 1:30]\n",
        {"tags": ("yes", "2026-01-02", "1_000", "0x10", "1:30")},
    ),
    "a template as destination": ("  destination: 's3://b/{{ ds }}'\n", {"destination": "s3://b/{{ ds }}"}),
    "a table as destination": ("  destination: lake.shops.prices\n", {"destination": "lake.shops.prices"}),
    "checks": (
        "  checks: {rows: {min: 3, min_of_usual: 0.5}, missing_columns: fail}\n",
        {"options": {"checks": {"rows": {"min": 3, "min_of_usual": 0.5}, "missing_columns": "fail"}}},
    ),
    "texts of checks": (
        "  checks:\n    columns: {country: {values: [DE, NO]}, size: {values: [2.50, 010], pattern: 1+}}\n"
        "    inputs: {column: NO, action_id: 0123}\n",
        {
            "options": {
                "checks": {
                    "columns": {
                        "country": {"values": ["DE", "NO"]},
                        "size": {"values": ["2.50", "010"], "pattern": "1+"},
                    },
                    "inputs": {"column": "NO", "action_id": "0123"},
                }
            }
        },
    ),
    "options of the landing": (
        "  columns: [url, 2024]\n  page_size: 500\n  mark_exported: yes\n  whole_runs_key: url\n"
        "  file_format: parquet\n  column_types: {2024: float64}\n  compression: none\n",
        {
            "options": {
                "columns": ["url", "2024"],
                "page_size": 500,
                "mark_exported": True,
                "whole_runs_key": "url",
                "file_format": "parquet",
                "column_types": {"2024": "float64"},
                "compression": "none",
            }
        },
    ),
    "a partition of the day": ("  partition: dt={{ ds }}\n", {"options": {"partition": "dt={{ ds }}"}}),
    "options of the load": (
        "  load: {table: 'shops.{name}', primary_key: [url, 2024], write_disposition: merge}\n",
        {"load": {"table": "shops.{name}", "primary_key": ["url", "2024"], "write_disposition": "merge"}},
    ),
    "no load": ("  load: false\n", {"load": False}),
    "loop items": (
        "  loop_items:\n  - {action_id: x, loop_type: TextList, loop_items: [1, 2026-01], is_append: on}\n",
        {"loop_items": ({**loop_of("x", "1", "2026-01"), "is_append": True},)},
    ),
    "what discovery writes": (
        "  last_run: 2026-01-02T03:04:05Z\n  rows: 1000\n  cost: 0.5\n",
        {"last_run": "2026-01-02T03:04:05Z", "rows": 1000, "cost": 0.5},
    ),
    "a number without a zero": (
        "  late_rows_delay: .5\n  checks: {rows: {min_of_usual: 1., max_wrong: +.5e-1}}\n",
        {"options": {"late_rows_delay": 0.5, "checks": {"rows": {"min_of_usual": 1.0, "max_wrong": 0.05}}}},
    ),
    "zeros before a number": ("  rows: 010\n", {"rows": 10}),
    "a small cost": ("  cost: 1e-05\n", {"cost": 0.00001}),
    "a person's own keys": ("  x-team: [prices, {of: Ann}]\n  x-empty:\n", {}),
    "keys without a value": ("  lotno: ~\n  tags:\n  checks: null\n", {}),
    "an anchor that nothing uses": ("  tags: &these [b]\n", {"tags": ("b",)}),
    "comments and blank lines": ("\n  # of the shop\n  lotno: x # the first\n\n", {"lotno": "x"}),
}

#: Wrong texts of a file, which follow `SHOP` if they begin with spaces; and what the error says: the line,
#: the key, the value and the rule.
WRONG: dict[str, tuple[str, str]] = {
    "nothing": ("", "it must be a list of collection tasks, at least one"),
    "a text": ("Shop\n", "a list of collection tasks, at least one"),
    "an entry that is a text": (SHOP + "- Other\n", "line 3` is 'Other'; it must be a mapping"),
    "no name": (SHOP + "- id: b\n", "line 3, name` is None; it must be a non-empty string"),
    "no id": ("- name: b\n", "line 1, id` is None; it must be a non-empty string"),
    "an empty name": ("- id: a\n  name: ' '\n", "line 2, name` is ' '; it must be a non-empty string"),
    "a list as name": ("- id: a\n  name: [b]\n", "line 2, name` is ['b']; it must be a non-empty string"),
    "an unknown key": ("  tag: b\n", "line 3, tag` is 'b'; a collection task has no such key"),
    "a key twice": ("  name: Other\n", "line 3` is 'name'; the mapping has this key already"),
    "a key twice in a value": (
        "  checks:\n    rows: {min: 3}\n    rows: {min: 4}\n",
        "line 5` is 'rows'; the mapping has this key already",
    ),
    "a key that is no text": ("  ? [b]\n  : c\n", "line 3` is '…'; a key must be a text"),
    "two with one id": (SHOP + "- id: a\n  name: Other\n", "line 3, id` is 'a'; it must be unique"),
    "two with one name": (SHOP + "- id: b\n  name: Shop\n", "line 4, name` is 'Shop'; it must be unique"),
    "two with one name in another letter case": (
        SHOP + "- id: b\n  name: SHOP\n",
        "line 4, name` is 'SHOP'; it must be unique:",
    ),
    "two with one name in another encoding": (
        "- id: a\n  name: Z\u00fcrich\n- id: b\n  name: Zu\u0308rich\n",
        "line 4, name` is 'Zu\u0308rich'; it must be unique",
    ),
    "two with one folder": (
        "  destination: s3://b/x\n- id: b\n  name: Other\n  destination: s3://b/x/\n",
        "line 6, destination` is 's3://b/x/'; it must be unique",
    ),
    "a name that is the id of another": (
        SHOP + "- id: b\n  name: A\n",
        "line 4, name` is 'A'; it must be unique",
    ),
    "a name that is a UUID": (f"- id: a\n  name: {UUID}\n", f"line 2, name` is '{UUID}'; a UUID is always"),
    "a name with a template": (
        "- id: a\n  name: 'Shop {{ ds }}'\n",
        "line 2, name` is 'Shop {{ ds }}'; it must have at most 200 printable",
    ),
    "a template without quotes": ("- id: a\n  name: {{ x }}\n", "line 2` is '…'; a key must be a text"),
    "an id with a template": (
        "- id: '{{ conn.other.password }}'\n  name: b\n",
        "line 1, id` is '{{ conn.other.password }}'; it must have at most 200 printable",
    ),
    "an id of two lines": ('- id: "a\\nb"\n  name: b\n', "line 1, id` is 'a\\nb'; it must have"),
    "a name of two lines": ('- id: a\n  name: "b\\nc"\n', "line 2, name` is 'b\\nc'; it must have"),
    "a long name": (f"- id: a\n  name: {'b' * 201}\n", "it must have at most 200 printable characters"),
    "a merge key": ("  <<: {lotno: b}\n", "line 3, <<` is {'lotno': 'b'}; a collection task has no"),
    "aliases that would grow": (
        "  x-a: &b [c, c]\n  x-b: &d [*b, *b]\n  x-c: &e [*d, *d]\n",
        "line 3` is '&…'; anchors and aliases are not supported",
    ),
    "a tag of Python": ("  rows: !!python/name:os.system\n", "line 3, rows` is ''; it must be an integer"),
    "a tab": ("- id: a\n\tname: b\n", "line 2` is 'name: b'; it cannot be read"),
    "two documents": (SHOP + "---\n" + SHOP, "line 3` is '---'; it cannot be read"),
    "half a character": ('- id: a\n  name: "\\ud83d"\n', "it cannot be read: found invalid Unicode"),
    "a control character": ("  lotno: b\x07\n", "line 3` is '\\x07'; YAML and JSON have no"),
    "deep lists": (f"  x-a: {'[' * 5000}{']' * 5000}\n", "line 3` is 'x-a: [[["),
    "deep mappings": ("{a: " * 60_000, "line 1` is '{a: {a: "),
    "deep blocks": ("- " * 60_000, "line 1` is '- - -"),
    "an empty batch": ("  lotno: ''\n", "line 3, lotno` is ''; it must be a non-empty string"),
    "a destination with a field": (
        "  destination: s3://b/{name}\n",
        "line 3, destination` is 's3://b/{name}'; {name} and {id} are not filled in",
    ),
    "a relative destination": ("  destination: b/c\n", "line 3, destination` is 'b/c'; it needs"),
    "a check of nothing": (
        "  checks:\n    rows:\n      min: -3\n",
        "line 3, checks: checks['rows']['min']` is -3; it must be an integer of 1 or more",
    ),
    "an option of the wrong kind": (
        "  page_size: many\n",
        "line 3, page_size` is 'many'; it must be an integer from 1 to 1000",
    ),
    "a type that there is not": (
        "  column_types: {price: money}\n",
        "line 3, column_types['price']` is 'money'; it must be one of",
    ),
    "a load without options": ("  load: yes\n", "line 3, load` is True; it must be a mapping"),
    "an unknown option of the load": (
        "  load: {key: url}\n",
        "line 3, load: key` is 'url'; there is no such option; the options are write_disposition",
    ),
    "a table that dlt would rename": (
        "  load: {table: Shops.prices}\n",
        "line 3, load: table` is 'Shops.prices'; it must be dataset.table",
    ),
    "a table with a template": (
        "  load: {table: 'shops.{name}_{{ ds }}'}\n",
        "line 3, load: table` is 'shops.name_{{ ds }}'; it must be dataset.table",
    ),
    "a mapping without entries": ("defaults: {tags: [a]}\n", "it must be a list of collection tasks"),
    "a mapping of something else": ("shops: []\n", "a mapping must have `tasks`, a list of collection tasks"),
    "defaults that are a list": (f"defaults: [a]\ntasks:\n{SHOP}", "line 1, defaults` is '[…]'; it must"),
    "a default that only an entry can have": (
        f"defaults:\n  name: Shop\ntasks:\n{SHOP}",
        "line 2, name` is 'Shop'; only an entry can have this key, not the `defaults` of all",
    ),
    "an unknown default": (f"defaults:\n  tag: b\ntasks:\n{SHOP}", "line 2, tag` is 'b'; a collection task"),
    "tags that are a text": ("  tags: b\n", "line 3, tags` is 'b'; it must be a list"),
    "a tag that is nothing": ("  tags: [b, ~]\n", "line 3, tags[1]` is None; it must be a non-empty"),
    "loop items that are texts": ("  loop_items: [b]\n", "line 3, loop_items: loop_items[0]"),
    "no loop items": ("  loop_items: []\n", "line 3, loop_items` is []; it must hold at least one"),
    "an unknown loop": (
        "  loop_items: [{action_id: x, loop_type: y, loop_items: [z]}]\n",
        "line 3, loop_items: loop_items[0].loop_type` is 'y'; it must be one of TextList, UrlList",
    ),
    "rows below nothing": ("  rows: -1\n", "line 3, rows` is -1; it must be an integer of 0"),
    "a cost in quotes": ("  cost: '3.5'\n", "line 3, cost` is '3.5'; it must be a number"),
    "a cost that is no number": ("  cost: .nan\n", "line 3, cost` is '.nan'; it must be a number"),
}
#: Wrong files that a schema cannot refuse: it compares no entries, an editor reads some YAML differently, and
#: it lacks some rules of landings.
BEYOND_A_SCHEMA = {name for name in WRONG if name.startswith(("two with one", "aliases"))} | {
    *("a name that is the id of another", "a name that is a UUID", "a key twice", "a key twice in a value"),
    *("a destination with a field", "a relative destination", "a check of nothing"),
    *("a type that there is not", "a table that dlt would rename", "a table with a template"),
    *("a tag of Python", "a name of two lines", "an id of two lines"),
    *("a merge key", "a cost that is no number"),
}
UNREADABLE = {"a key that is no text", "a template without quotes", "a tab"} | {
    *("two documents", "half a character", "a control character"),
    *("deep lists", "deep mappings", "deep blocks"),
}


def wrong_file(case: str) -> str:
    text, _ = WRONG[case]
    return SHOP + text if text.startswith("  ") else text


@pytest.fixture
def read(write_tasks: Write) -> Read:
    return lambda *content: read_collection_tasks(write_tasks(*content))


class TestReading:
    @pytest.mark.parametrize("case", RIGHT)
    def test_what_is_written_is_read(self, read: Read, case: str) -> None:
        text, values = RIGHT[case]
        assert read(SHOP + text).tasks == (CollectionTask(id="a", name="Shop", **values),)

    @pytest.mark.parametrize("case", WRONG)
    def test_what_is_wrong_is_refused_by_place_and_rule(self, write_tasks: Write, case: str) -> None:
        path, said = write_tasks(wrong_file(case)), WRONG[case][1]
        with pytest.raises(InvalidArgument) as refused:
            read_collection_tasks(path)
        assert said in str(refused.value)
        assert str(path) in str(refused.value)

    @pytest.mark.parametrize(
        "content",
        [
            pytest.param(SHOP.replace("\n", "\r\n"), id="line ends of Windows"),
            pytest.param("\ufeff" + SHOP, id="byte order mark"),
            pytest.param("[{id: a, name: Shop}]", id="flow style"),
            pytest.param(f"%YAML 1.1\n---\n{SHOP}...\n", id="one document"),
            pytest.param("- id: a\n  name: ' Shop '\n", id="white space around a name"),
            pytest.param("- id: a\n  name: >-\n    Shop\n", id="block of text"),
        ],
    )
    def test_other_spellings_are_read_alike(self, read: Read, content: str) -> None:
        assert read(content).tasks == (CollectionTask(id="a", name="Shop"),)

    @pytest.mark.parametrize(
        "content",
        [
            pytest.param('[{"id":"a","name":"\\ud83d\\ude00","cost":1E3,"rows":3}]', id="on one line"),
            pytest.param(
                '[\n\t{\n\t"id":\t"a",\n\t"name": "\N{GRINNING FACE}", "cost": 1000.0, "rows": 3}\n]',
                id="with tabs",
            ),
        ],
    )
    @pytest.mark.parametrize("suffix", [".json", ".JSON"])
    def test_json_beyond_yaml_is_read(self, read: Read, content: str, suffix: str) -> None:
        assert json.loads(content)
        expected = CollectionTask(id="a", name="\N{GRINNING FACE}", cost=1000, rows=3)
        assert read(content, suffix).tasks == (expected,)

    @pytest.mark.parametrize(
        ("suffix", "content", "said"),
        [
            (
                ".json",
                '[{"id": "a", "name": "b",\n"name": "c"}]',
                "line 2` is 'name'; the mapping has this key",
            ),
            (".json", '[{"id": "a", "name": "b"}', "it cannot be read"),
            (".json", '{"id": "a", "name": "b"}', "a list of collection tasks"),
            (".json", '[{"id": "a", "name": "\\ud83d"}]', "it cannot be read"),
            (".yaml", b"- id: a\n  name: Z\xfcrich\n", "line 2` is 'name: Z\ufffdrich'; it is not UTF-8"),
            (".yaml", SHOP.encode("utf-16"), "line 1` is '"),
        ],
    )
    def test_json_that_is_wrong_and_another_encoding_are_refused(
        self, read: Read, suffix: str, content: str | bytes, said: str
    ) -> None:
        with pytest.raises(InvalidArgument) as refused:
            read(content, suffix)
        assert said in str(refused.value)

    def test_what_is_no_file_is_refused(self, tmp_path: Path) -> None:
        for path, said in {tmp_path / "none.yaml": "No such file", tmp_path: "Is a directory"}.items():
            with pytest.raises(InvalidArgument) as refused:
                read_collection_tasks(path)
            assert said in str(refused.value)
            assert str(path) in str(refused.value)

    def test_each_of_five_thousand_entries_is_found(self, read: Read) -> None:
        ids = [f"5a9d0b0e-0000-4000-8000-{number:012}" for number in range(5000)]
        names = [f"Shop {number}" for number in range(5000)]
        tasks = read("".join(f"- id: {id_}\n  name: {name}\n" for id_, name in zip(ids, names, strict=True)))
        assert [task.id for task in tasks.tasks] == ids
        assert [getattr(tasks.find(name), "id", None) for name in names] == ids
        assert [getattr(tasks.find(id_.upper()), "name", None) for id_ in ids] == names
        with pytest.raises(InvalidArgument, match="the nearest: 'Shop 4711'"):
            tasks.get("collection_task_id", "Shop-4711")

    def test_an_entry_overrides_the_defaults_key_by_key(self, read: Read) -> None:
        tasks = read(
            "defaults:\n  checks: {rows: {min: 3}, missing_columns: fail}\n  columns: [url]\n"
            "  tags: [daily]\n"
            "  load: {table: 'shops.{name}', write_disposition: merge}\n"
            "tasks:\n- id: a\n  name: A\n- id: b\n  name: B\n  checks: {rows: {min: 9}}\n  columns:\n"
            "  load: {primary_key: url, on_gone: }\n- id: c\n  name: C\n  load: false\n"
        ).tasks
        checks = {"rows": {"min": 3}, "missing_columns": "fail"}
        assert [task.options for task in tasks] == [
            {"checks": checks, "columns": ["url"]},
            {"checks": {"rows": {"min": 9}}},
            {"checks": checks, "columns": ["url"]},
        ]
        load = {"table": "shops.{name}", "write_disposition": "merge"}
        assert [task.load for task in tasks] == [load, {**load, "primary_key": "url"}, False]
        assert {task.tags for task in tasks} == {("daily",)}


class TestChanges:
    def test_a_changed_file_is_read_again(self, write_tasks: Write) -> None:
        path = write_tasks(SHOP)
        assert read_collection_tasks(path) is read_collection_tasks(path)
        # the same size, but a later modification time
        path.write_text(SHOP.replace("Shop", "Deli"))
        os.utime(path, (1, 2))
        assert read_collection_tasks(path).find("Deli")
        path.write_text(SHOP.replace("name", "title"))
        os.utime(path, (1, 3))
        for _ in range(2):
            with pytest.raises(InvalidArgument) as refused:
                read_collection_tasks(path)
            assert not hasattr(refused.value, "__notes__")
            refused.value.add_note("of who has read it")

    @pytest.mark.parametrize(
        ("written", "follows"), [("- id: b\n  na", "me: Deli\n"), ("", "- id: b\n  name: Deli\n")]
    )
    def test_a_file_that_is_being_written_is_read_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, follows: str
    ) -> None:
        path, sleep = tmp_path / "tasks.yaml", time.sleep
        rest = [follows]

        def write_and_sleep(seconds: float) -> None:
            with path.open("a") as file:
                file.write(rest.pop() if rest else "")
            sleep(seconds)

        path.write_text(SHOP + written)
        monkeypatch.setattr("time.sleep", write_and_sleep)
        assert [task.name for task in read_collection_tasks(path).tasks] == ["Shop", "Deli"]

    def test_readers_of_a_replaced_file_get_one_whole_version(self, tmp_path: Path) -> None:
        path, is_over = tmp_path / "tasks.yaml", threading.Event()
        texts = ["".join(f"- id: {n}\n  name: {shop} {n}\n" for n in range(40)) for shop in ("Shop", "Deli")]

        def replace() -> None:
            for text in itertools.cycle(texts):
                other = tmp_path / "other.yaml"
                other.write_text(text)
                other.replace(path)
                if is_over.wait(0.06):
                    return

        path.write_text(texts[0])
        writer = threading.Thread(target=replace)
        writer.start()
        try:
            for _ in range(5):
                names = {task.name.split()[0] for task in read_collection_tasks(path).tasks}
                assert len(names) == 1
        finally:
            is_over.set()
            writer.join()
        expected = path.read_text()
        assert read_collection_tasks(path).tasks[0].name in expected

    def test_a_file_that_stays_wrong_is_refused_after_a_second(self, tmp_path: Path) -> None:
        path = tmp_path / "tasks.yaml"
        path.write_text("- id: a\n")
        with pytest.raises(InvalidArgument, match="line 1, name"):
            read_collection_tasks(path)


class TestTheConfiguredFile:
    def test_names_are_found_whatever_their_letter_case(self, configure_tasks: Write) -> None:
        configure_tasks(f"- id: {UUID}\n  name: Büro Shop\n- id: 0012\n  name: Deli\n")
        decomposed = unicodedata.normalize("NFD", "Büro Shop")
        for key in ("Büro Shop", "BÜRO SHOP", " büro shop\n", decomposed, UUID):
            assert task_id_of("collection_task_id", key) == UUID
        assert [task_id_of("collection_task_id", key) for key in ("0012", "deli")] == ["0012", "0012"]
        assert described(UUID) == f"Büro Shop ({UUID})"

    def test_an_unknown_name_is_refused_with_the_nearest(self, configure_tasks: Write) -> None:
        path = configure_tasks(SHOP + "- id: b\n  name: Shop search\n- id: c\n  name: Other\n")
        with pytest.raises(InvalidArgument) as refused:
            task_id_of("collection_task_id", "Shop-search")
        assert str(refused.value) == (
            f"`collection_task_id` is 'Shop-search'; no collection task in {path} has this name or id; "
            "the nearest: 'Shop search', 'Shop'"
        )

    def test_a_uuid_is_an_id_even_if_the_file_is_wrong(self, configure_tasks: Write) -> None:
        configure_tasks("not a list")
        assert task_id_of("collection_task_id", UUID) == UUID
        assert described(UUID) == UUID
        with pytest.raises(InvalidArgument, match="at least one"):
            task_id_of("collection_task_id", "Shop")

    def test_a_relative_path_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW__WEBCOLLECT__COLLECTION_TASKS", "tasks.yaml")
        with pytest.raises(InvalidArgument, match=r"\[webcollect\] collection_tasks.*an absolute path"):
            configured()

    def test_a_home_folder_of_nobody_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW__WEBCOLLECT__COLLECTION_TASKS", "~nobody-here/tasks.yaml")
        with pytest.raises(InvalidArgument, match="it cannot be read: Could not determine home directory"):
            configured()
        assert described(UUID) == UUID

    @pytest.mark.parametrize("path", ["", None])
    def test_without_one_every_text_is_an_id(self, monkeypatch: pytest.MonkeyPatch, path: str | None) -> None:
        if path is not None:
            monkeypatch.setenv("AIRFLOW__WEBCOLLECT__COLLECTION_TASKS", path)
        assert configured() is None
        assert task_id_of("collection_task_id", "Shop") == described("Shop") == "Shop"


class TestTheSchema:
    @pytest.fixture
    def fits(self) -> Callable[[str], bool]:
        """Returns whether a text fits the schema if it is read as YAML 1.2, as an editor does."""

        class Loader(yaml.SafeLoader):
            pass

        Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: node.value)
        Loader.add_implicit_resolver(
            "tag:yaml.org,2002:float", re.compile("[0-9]+e-?[0-9]+"), [*"0123456789"]
        )
        validator = jsonschema.Draft202012Validator(SCHEMA)
        return lambda text: validator.is_valid(yaml.load(text, Loader))

    def test_it_is_one(self) -> None:
        jsonschema.Draft202012Validator.check_schema(SCHEMA)

    def test_it_has_the_keys_that_are_read(self) -> None:
        definitions = SCHEMA["$defs"]
        known = {*definitions["options"]["properties"], *definitions["entry"]["properties"]}
        fields = {field.name for field in msgspec.structs.fields(CollectionTask)} - {"options"}
        assert known == fields | {*SourceOptions.__struct_fields__}
        load = definitions["options"]["properties"]["load"]["anyOf"][0]["properties"]
        assert {*load} == {"table", *LoadOptions.__struct_fields__}

    @pytest.mark.parametrize("case", RIGHT)
    def test_what_is_read_fits_it(self, fits: Callable[[str], bool], case: str) -> None:
        assert fits(SHOP + RIGHT[case][0])

    @pytest.mark.parametrize("case", sorted(WRONG.keys() - UNREADABLE - BEYOND_A_SCHEMA))
    def test_what_is_refused_by_its_form_does_not(self, fits: Callable[[str], bool], case: str) -> None:
        assert not fits(wrong_file(case))
