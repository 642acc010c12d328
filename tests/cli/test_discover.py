"""``discover``: the account's tasks as a file, in which a merge keeps all that a person has written."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pendulum
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_webcollect.collection_tasks import CollectionTask, read_collection_tasks
from airflow_provider_webcollect.sandbox import Sandbox, demo
from airflow_provider_webcollect.service.threads import Stop
from tests.cli.conftest import Run, contents
from tests.sandbox.plain_client import Client, data

pytestmark = [pytest.mark.webcollect_sandbox(enforce_limits=False), pytest.mark.usefixtures("connected")]

PATH = "/taskanalytics/queries"
GONE = ", which has not run in the last three months"

#: Files before a merge, and the texts that it replaces. The entry of a new task goes to NEW, or to the end.
FORMS = {
    "comments, a person's own keys, and an order of them": (
        "# Our shops.\n\n- name: shop   # the first\n  x-owner:   {team:   shops}\n  # of last month\n"
        "  rows:    4  # so far\n  id: ID\n  tags: [\"a\",   'b']\n\n# The end.\n",
        {
            "  rows:    4  #": "  rows:    ROWS  #",
            "  id: ID\n": "  id: ID\n  service_name: shop\n  last_run: 'DAY'\n  cost: COST\n",
        },
    ),
    "an end that is written out": (
        "---\n- id: ID\n  name: shop\n  service_name: old\n  rows: 4\n"
        "  # of last week\n... # the end\n# more\n",
        {
            "name: shop\n": "name: shop\n  last_run: 'DAY'\n  cost: COST\n",
            "old\n": "shop\n",
            "rows: 4": "rows: ROWS",
            "# of last week\n": "# of last week\nNEW",
        },
    ),
    "entries before the defaults of all": (
        "tasks:\n- id: ID\n  name: shop\n  service_name: old\n  rows: 4\n  columns: [url]\n# of all\n"
        "defaults:\n  tags:\n    - a\n",
        {
            "name: shop\n": "name: shop\n  last_run: 'DAY'\n  cost: COST\n",
            "old\n": "shop\n",
            "rows: 4": "rows: ROWS",
            "# of all\n": "NEW# of all\n",
        },
    ),
    "many comments at the end of lines of Windows": (
        "# x\r\n" * 60 + "tasks:\r\n- id: ID\r\n  name: shop\r\n# of all\r\ndefaults:\r\n  tags: [a]\r\n",
        {
            "name: shop\r\n": "name: shop\r\n  service_name: shop\r\n  last_run: 'DAY'\r\n  rows: ROWS\r\n"
            "  cost: COST\r\n",
            "# of all\r\n": "NEW# of all\r\n",
        },
    ),
    "values of several lines, and none": (
        '- id: ID\n  name: >-\n    shop\n\n  service_name: "sh\\\n    op"\n'
        '  rows:\n  cost: # unknown\n  last_run: "2020\n    01"\n'
        "  x-note: |+\n    - id: no\n\n",
        {"rows:\n": "rows: ROWS\n", "cost: #": "cost: COST #", '"2020\n    01"': "'DAY'"},
    ),
}

Merge = Callable[..., list[str]]
Add = Callable[[str], str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The path of a file of collection tasks, which does not exist yet, in a folder of its own."""
    (tmp_path / "dags").mkdir()
    return tmp_path / "dags" / "collection_tasks.yaml"


@pytest.fixture
def merge(run: Run, file: Path) -> Merge:
    """Merges into the file, and returns the printed messages."""

    def merge(*options: str) -> list[str]:
        ended = run("discover", "--merge", file, *options)
        assert (ended.code, ended.out) == (0, "")
        return ended.err.splitlines()

    return merge


@pytest.fixture
def add(sandbox: Sandbox) -> Add:
    """Adds a task that ran, and returns its id; all other tasks of the account are deleted first."""
    ids = [task["task_id"] for task in sandbox.control.tasks() if task["owner"] == demo.USERNAME]
    data(Client(sandbox).post("/task/deleteTasks", {"taskIds": ids}))
    return lambda name: str(sandbox.control.add_task(lots=[30], name=name)["task_id"])


def truth(sandbox: Sandbox, task_id: str) -> CollectionTask:
    """Return the entry of a task by the service's analytics."""
    today = pendulum.now("UTC").date()
    query = {"start": str(today.subtract(months=3).add(days=1)), "end": str(today), "pageSize": 500}
    rows = data(Client(sandbox).post(PATH, {**query, "taskIds": [task_id]}))["data"]
    return CollectionTask(
        id=task_id,
        name=rows[-1]["taskName"],
        service_name=rows[-1]["taskName"],
        last_run=max(row["dayKey"] for row in rows),
        rows=sum(row["dataVolumeMetrics"]["totalCollected"] for row in rows),
        cost=round(sum(row["resourceUsageMetrics"]["balance"] for row in rows), 6),
    )


def entry(task: CollectionTask) -> str:
    """Return the lines of a new entry whose name needs no quotes."""
    return (
        f"- id: {task.id}\n  name: {task.name}\n  service_name: {task.service_name}\n"
        f"  last_run: '{task.last_run}'\n  rows: {task.rows}\n  cost: {task.cost:g}\n"
    )


def test_the_tasks_that_ran_are_written_by_name(run: Run, sandbox: Sandbox, file: Path) -> None:
    sandbox.control.add_task(name="Never ran")
    added = [sandbox.control.add_task(lots=[30], name=name)["task_id"] for name in ("shoes", "Bags: all")]
    ended = run("discover")
    file.write_text(ended.out)
    tasks = read_collection_tasks(file).tasks
    assert (ended.code, ended.err) == (0, f"{len(tasks)} tasks\n")
    ran = [task for task in sandbox.control.tasks() if task["owner"] == demo.USERNAME and task["runs"]]
    assert {task["task_id"] for task in ran} >= {*added}
    expected = [truth(sandbox, task["task_id"]) for task in ran]
    assert list(tasks) == sorted(expected, key=lambda task: task.name.casefold())


def test_an_account_without_runs_has_nothing_to_write(run: Run, add: Add, file: Path, merge: Merge) -> None:
    assert run("discover").out == ""
    assert merge() == ["0 new, 0 gone, 0 renamed"]
    assert not file.exists()


def test_a_merge_says_what_is_new_or_gone(sandbox: Sandbox, add: Add, file: Path, merge: Merge) -> None:
    kept, renamed = add("kept"), add("before")
    assert merge() == [f"new: before ({renamed})", f"new: kept ({kept})", "2 new, 0 gone, 0 renamed"]
    assert file.read_text() == entry(truth(sandbox, renamed)) + entry(truth(sandbox, kept))

    sandbox.control.rename_task(renamed, "after")
    never = sandbox.control.add_task(name="Never")["task_id"]
    before = f"{file.read_text()}- id: {never}\n  name: Never\n- id: deleted\n  name: Deleted\n"
    # a name that a person has chosen is not reported
    before = before.replace("name: kept\n", "name: mine\n", 1)
    file.write_text(before)
    new, first, gone = add("new"), add("Another"), {"Never": never, "Deleted": "deleted"}
    assert merge() == [
        *(f"new: Another ({first})", f"new: new ({new})"),
        *(f"gone: {name} ({id_}){GONE}" for name, id_ in gone.items()),
        f"renamed: before ({renamed}), which the service calls 'after'",
        "2 new, 2 gone, 1 renamed",
    ]
    after = before.replace("service_name: before", "service_name: after")
    assert file.read_text() == after + entry(truth(sandbox, first)) + entry(truth(sandbox, new))
    assert merge() == [
        *(f"gone: {name} ({id_}){GONE}" for name, id_ in gone.items()),
        "0 new, 2 gone, 0 renamed",
    ]


@pytest.mark.parametrize("form", FORMS)
def test_a_merge_keeps_all_other_bytes(
    sandbox: Sandbox, add: Add, file: Path, merge: Merge, form: str
) -> None:
    before, changes = FORMS[form]
    shop, other = (truth(sandbox, add(name)) for name in ("shop", "other"))
    after = before
    for old, new in changes.items():
        assert after.count(old) == 1
        after = after.replace(old, new)
    new = entry(other).replace("\n", "\r\n" if "\r\n" in before else "\n")
    after = after.replace("NEW", new) if "NEW" in after else after + new
    values = {"ID": shop.id, "DAY": shop.last_run, "ROWS": str(shop.rows), "COST": f"{shop.cost:g}"}
    for name, value in values.items():
        before, after = before.replace(name, str(value)), after.replace(name, str(value))
    file.write_bytes(before.encode())

    merge()
    assert file.read_bytes().decode() == after
    assert {task.id: task.rows for task in read_collection_tasks(file).tasks} == {
        shop.id: shop.rows,
        other.id: other.rows,
    }


def test_an_unchanged_file_is_not_written(add: Add, file: Path, merge: Merge, tmp_path: Path) -> None:
    shop = add("shop")
    target = tmp_path / "repository.yaml"
    target.write_text(f"- id: {shop}\n  name: shop\n")
    target.chmod(0o640)
    file.symlink_to(target)
    merge()
    merged = target.stat()
    assert "rows" in target.read_text()
    assert (file.is_symlink(), merged.st_mode & 0o777) == (True, 0o640)

    merge()
    assert target.stat() == merged
    assert {path.name for path in tmp_path.rglob("*.yaml*")} == {file.name, target.name}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to others")
def test_a_file_stays_that_of_its_owner_when_root_merges(add: Add, file: Path, merge: Merge) -> None:
    file.write_text(f"- id: {add('shop')}\n  name: shop\n")
    os.chown(file, 1234, 4321)
    file.chmod(0o640)
    merge()
    merged = file.stat()
    assert "rows" in file.read_text()
    assert (merged.st_uid, merged.st_gid, merged.st_mode & 0o777) == (1234, 4321, 0o640)


def test_a_dry_run_says_the_same_and_writes_nothing(add: Add, file: Path, merge: Merge) -> None:
    add("shop")
    said = merge("--dry-run")
    assert not file.exists()
    assert merge() == said
    add("other")
    before = file.read_bytes()
    assert merge("--dry-run")[-1] == "1 new, 0 gone, 0 renamed"
    assert file.read_bytes() == before


def test_unacceptable_names_are_changed_and_said(
    run: Run, sandbox: Sandbox, add: Add, file: Path, merge: Merge
) -> None:
    odd = {
        "Shop {{ ds }}": "Shop { { ds }}",
        "a{%b": "a{ %b",
        "a{#b": "a{ #b",
        "two\nlines\x1b[2J": "two lines [2J",
        "x" * 300: "x" * 200,
        demo.TASK_ID: f"{demo.TASK_ID} ({{id}})",
        "yes: #1": "yes: #1",
        "null": "null",
    }
    ids = {add(name): name for name in odd}
    said = "\n".join(merge())
    for task in read_collection_tasks(file).tasks:
        service_name = ids[task.id]
        assert task.name == odd[service_name].replace("{id}", task.id[:8])
        is_said = f"({task.id}), which the service calls {service_name!r}" in said
        assert is_said == (task.name != service_name)
    # the next merge does not take the changed names for renamed tasks
    assert merge() == ["0 new, 0 gone, 0 renamed"]


@pytest.mark.parametrize(
    "task_id", ["{{ conn.other.password }}", "{% raw %}", "{# x", "a\nb", pytest.param("a" * 201, id="long")]
)
def test_a_task_with_an_unacceptable_id_is_left_out_and_said(
    sandbox: Sandbox, run: Run, add: Add, file: Path, merge: Merge, caplog: Any, task_id: str
) -> None:
    shop = add("shop")
    sandbox.control.add_task(task_id, lots=[3])

    assert merge()[-1] == "1 new, 0 gone, 0 renamed"
    said = f"A task of the service is left out: `taskId` is {task_id!r}"[:120]
    assert [message for message in caplog.messages if message.startswith(said)]
    assert [task.id for task in read_collection_tasks(file).tasks] == [shop]
    assert task_id not in run("discover").out


def test_tasks_with_one_name_get_parts_of_ids(sandbox: Sandbox, add: Add, file: Path, merge: Merge) -> None:
    first, second = sorted((add("Shop"), add("shop")), key=lambda id_: truth(sandbox, id_).name + id_)
    file.write_text("- id: elsewhere\n  name: SHOP\n")
    merge()
    names = {task.id: task.name for task in read_collection_tasks(file).tasks}
    assert names == {"elsewhere": "SHOP", first: f"Shop ({first[:8]})", second: f"shop ({second[:8]})"}
    merge()
    assert names == {task.id: task.name for task in read_collection_tasks(file).tasks}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("f.txt", "", "it must be a .yaml file"),
        ("f.json", "", "it must be a .yaml file with a line for each key"),
        ("f.json", '[{"id": "a", "name": "b"}]', "it must be a .yaml file with a line for each key"),
        ("f.yaml", "- id: a\n  name: b\n- {id: c, name: d}\n", "no entry in { }"),
        ("f.yaml", "- id: a\n  title: b\n", "line 2, title` is 'b'; a collection task has no such key"),
        ("f.yaml", "- id: a\n  name: \udcff\n", "it is not UTF-8"),
        ("f.yaml", None, "Is a directory"),
    ],
)
def test_a_file_that_cannot_be_merged_is_refused_first(
    run: Run, sandbox: Sandbox, tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    if text is None:
        (tmp_path / name).mkdir()
    elif text:
        (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    before = contents(tmp_path)
    run("discover", "--merge", tmp_path / name).refused(2, said)
    assert contents(tmp_path) == before
    assert sandbox.control.requests(PATH) == []


def test_a_file_that_cannot_be_added_to_is_refused_and_stays(run: Run, add: Add, file: Path) -> None:
    file.write_text(f"- ? id\n  : {add('shop')}\n  ? name\n  : shop\n")
    before = contents(file.parent)
    said = f"--merge is {str(file)!r}; discovered tasks cannot be added to a file of this form"
    run("discover", "--merge", file).refused(2, said)
    assert contents(file.parent) == before


def test_a_folder_that_is_not_there_is_an_error_and_is_not_made(run: Run, add: Add, tmp_path: Path) -> None:
    add("shop")
    missing = tmp_path / "missing" / "f.yaml"
    run("discover", "--merge", missing).refused(2, "it cannot be written: No such file or directory")
    assert not missing.parent.exists()


def test_a_file_that_changes_meanwhile_is_left_alone(
    run: Run, sandbox: Sandbox, add: Add, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("shop")
    file.write_text("- id: a\n  name: b\n")
    sandbox.control.fail(PATH, status=503)
    # a person changes the file in the pause before another attempt
    monkeypatch.setattr(Stop, "sleep", lambda *_: file.write_text("- id: a\n  name: c\n"))
    run("discover", "--merge", file).refused(4, "has changed meanwhile, so nothing was written")
    assert contents(file.parent) == {file: b"- id: a\n  name: c\n"}


#: A line whose value a merge updates; the groups leave the value out.
OURS = re.compile(r"^( *(?:- )?)(service_name|last_run|rows|cost): *[^ #\n]*", re.MULTILINE)


@given(drawn=st.data())
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_whatever_a_person_has_written_stays(
    run: Run, sandbox: Sandbox, add: Add, file: Path, drawn: st.DataObject
) -> None:
    ran = sorted(task["task_id"] for task in sandbox.control.tasks() if task["owner"] == demo.USERNAME)
    ids = ran or [add("one"), add("two")]
    note = st.sampled_from(["", "\n", "# note\n", "  # note\n", "    # - id: x\n"])
    odd = st.text("ab:#'\"-{}[]|>&*!?,% 1é😀", max_size=8)
    before, indent = drawn.draw(note), drawn.draw(st.sampled_from(["", "  "]))
    for task_id in drawn.draw(st.lists(st.sampled_from([*ids, "gone"]), unique=True, min_size=1)):
        values = {"id": task_id, "name": f"'name of {task_id}'"}
        values |= drawn.draw(
            st.fixed_dictionaries({}, optional={"rows": st.just("1"), "cost": st.just("2.5")})
        )
        values |= {
            "x-own": json.dumps(drawn.draw(odd), ensure_ascii=False),
            "x-list": f"\n{indent}  - a\n{indent}  - b",
        }
        for number, key in enumerate(drawn.draw(st.permutations([*values]))):
            comment = drawn.draw(st.sampled_from(["", " # why", "   #"])) if key != "x-list" else ""
            before += f"{indent}{'  ' if number else '- '}{key}: {values[key]}{comment}\n{drawn.draw(note)}"
    # sometimes with a byte order mark, and sometimes without the last line end
    before = drawn.draw(st.sampled_from(["", "\ufeff"])) + before.removesuffix(
        drawn.draw(st.sampled_from("\n#"))
    )
    line_end = drawn.draw(st.sampled_from(["\n", "\r\n"]))
    file.write_bytes(before.replace("\n", line_end).encode())

    assert run("discover", "--merge", file).code == 0
    after = file.read_bytes().decode()
    assert after.count("\n") == after.count(line_end)
    # the byte order mark may stand before a line that the merge has changed
    before, after = (text.replace("\r\n", "\n").removeprefix("\ufeff") for text in (before, after))
    lines = iter(OURS.sub(r"\1\2", after).splitlines())
    assert all(line in lines for line in OURS.sub(r"\1\2", before).splitlines())
    ours = {"service_name", "last_run", "rows", "cost"}
    old, new = yaml.safe_load(before), yaml.safe_load(after)
    for entry in (*old, *new):
        for key in ours & {*entry}:
            del entry[key]
    assert new[: len(old)] == old
    assert {entry["id"] for entry in new} >= {*ids}
    line_of_ours = f"{indent}(- id: |  (name|service_name|last_run|rows|cost))"
    assert not [line for line in lines if not re.match(line_of_ours, line)]
