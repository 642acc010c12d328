"""A table of the service's operations: how each is called, what is then sent, and what it changes.

The tests of the client, the hook, the operators and the command line all go through the table, so the effect
of an operation is defined once. What only one of these interfaces does is tested with that interface.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import airflow_provider_webcollect
from airflow_provider_webcollect.sandbox import Sandbox, demo
from airflow_provider_webcollect.service import endpoints, models
from airflow_provider_webcollect.service.endpoints import Call
from airflow_provider_webcollect.service.url_file import url_list

TODAY = datetime.datetime.now(datetime.UTC).date()
URLS = ["https://shop.example/1", "http://shop.example/ü"]
#: The package's names by their lower-case form: operators are named like their endpoints in another spelling.
OPERATORS = {name.lower(): name for name in dir(airflow_provider_webcollect)}


class Scene:
    """Two tasks that ran once, each in a group of its own, and a file of URLs.

    :param folder: folder for the file of URLs; None for no file.
    :ivar words: the values for which the words in capitals of the table stand, by word.
    """

    def __init__(self, sandbox: Sandbox, folder: Path | None = None) -> None:
        self.control = sandbox.control
        self.task = self.control.add_task(lots=[30], subtasks=3, loop_items=["one", "two"], name="Shop")
        self.other = self.control.add_task(lots=[20], subtasks=2, group_id=7)
        self.before = self.ids()
        if folder:
            (folder / "urls.txt").write_text("\n".join(URLS))
        loop, _, text = (step["action_id"] for step in self.task["actions"])
        self.words = {
            "TASK": self.task["task_id"],
            "OTHER": self.other["task_id"],
            "LOOP": loop,
            "TEXT": text,
            "FIRST": self.task["subtasks"][0]["subtask_id"],
            "FILE": f"{folder}/urls.txt",
            "TODAY": str(TODAY),
            "WEEK_AGO": str(TODAY - datetime.timedelta(days=7)),
            "REFRESH": sandbox.refresh_token,
        }

    def fill(self, value: Any, **instead: str) -> Any:
        """Return a value in which each word in capitals is replaced by what it stands for.

        :param instead: other values for some words.
        """
        match value:
            case str():
                for word, meaning in {**self.words, **instead}.items():
                    value = value.replace(word, meaning)
                return value
            case list():
                return [self.fill(entry, **instead) for entry in value]
            case dict():
                return {name: self.fill(entry, **instead) for name, entry in value.items()}
        return value

    def words_of(self, command: str, **instead: str) -> list[str]:
        return [self.fill(word, **instead) for word in command.split()]

    def ids(self) -> set[str]:
        return {task["task_id"] for task in self.control.tasks()}

    def steps(self) -> list[dict[str, Any]]:
        """Return the task's loop, page and text steps, as the service now has them."""
        steps: list[dict[str, Any]] = self.control.task(self.words["TASK"])["actions"]
        return steps

    def copies(self) -> list[int]:
        """Return the group ids of the tasks that have been added."""
        return sorted(self.control.task(id_)["group_id"] for id_ in self.ids() - self.before)

    def sent(self, name: str) -> dict[str, Any]:
        """Return the query or body of the only request that an endpoint has received."""
        (request,) = self.control.requests(PATHS[name])
        return {**request["query"], **json.loads(request["body"] or "{}")}


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A row of the table. Words in capitals stand for values of a :class:`Scene`.

    :ivar name: name of the endpoint, of its function and of the hook's method.
    :ivar arguments: arguments of the function and the method.
    :ivar returns: type of their result, or of its entries if it is a list.
    :ivar sent: the query or JSON body of the only request to the endpoint; None for a form.
    :ivar then: returns whether the service has the operation's effect, which it has not before; None if it
        has no effect.
    :ivar operator: the operator's arguments; None where there is no operator.
    :ivar result: the operator's result, or the known part of it, see :func:`holds`.
    :ivar doubt: what the operator says when a lost response leaves open whether the operation took effect;
        empty if the operation may be repeated.
    :ivar command: the words after ``webcollect``; empty where there is no command.
    :ivar rows: the rows that the command shows, or the known part of each, see :func:`holds`.
    :ivar question: what the command asks before a change that cannot be undone; empty where it does not ask.
    """

    name: str
    arguments: dict[str, Any]
    returns: type[Any]
    sent: dict[str, Any] | None = None
    then: Callable[[Scene], object] | None = None
    operator: dict[str, Any] | None = None
    result: Any = None
    doubt: str = ""
    command: str = ""
    rows: list[dict[str, str]] = field(default_factory=list)
    question: str = ""

    def call(self, scene: Scene) -> Call[Any]:
        arguments = scene.fill(self.arguments)
        if urls := arguments.pop("urls", None):
            arguments["file"] = url_list(urls)
        call: Call[Any] = getattr(endpoints, self.name)(**arguments)
        return call

    def make_operator(self, scene: Scene, *, words: Mapping[str, str] | None = None, **arguments: Any) -> Any:
        """Return the operator of this operation.

        :param words: other values for some words.
        :param arguments: arguments that replace the table's.
        """
        usual = scene.fill(self.operator, **(words or {}))
        return operator_of(self.name)(**{"task_id": self.name, **usual, **arguments})

    def received(self, scene: Scene) -> int:
        """Return the number of requests that the endpoint has received."""
        return len(scene.control.requests(PATHS[self.name]))

    def check(self, scene: Scene, *, sent_more: bool = True) -> None:
        """Check what was sent, and what the service has.

        :param sent_more: whether the request may have fields that the row does not name.
        """
        if self.sent is not None:
            sent = scene.sent(self.name)
            assert holds(sent, scene.fill(self.sent))
            assert sent_more or sent.keys() == self.sent.keys()
        assert self.then is None or self.then(scene)


def holds(value: Any, known: Any) -> bool:
    """Return whether a value is as known; dicts in it, at any depth, may have further entries."""
    match known:
        case dict():
            return all(holds(value[name], entry) for name, entry in known.items())
        case list():
            return len(value) == len(known) and all(map(holds, value, known))
    return bool(value == known)


_ONE, _OTHERS = {"task_id": "TASK"}, {"task_ids": ["OTHER"]}
_LOOP = {"action_id": "LOOP", "loop_type": "TextList"}
_SENT_LOOP = {"actionId": "LOOP", "loopType": "TextList"}
_WEEK = {"start": "WEEK_AGO", "end": "TODAY"}
_STEP = {"action_type": "EnterTextAction", "action_id": "TEXT"}
_SENT_STEP = {"actionType": "EnterTextAction", "actionId": "TEXT"}

#: The rows, in an order in which all operations succeed one after another.
OPERATIONS = [
    Operation(
        name="refresh_token",
        arguments={"refresh_token": "REFRESH"},
        returns=models.TokenRecord,
        # the sandbox masks it in its log
        sent={"grant_type": "refresh_token", "refresh_token": "***"},
    ),
    Operation(
        name="query_analytics",
        arguments={**_WEEK, "task_ids": ["TASK"], "time_granularity": "Week"},
        returns=models.AnalyticsPage,
        sent={**_WEEK, "taskIds": ["TASK"], "timeGranularity": "Week"},
        operator={**_WEEK, "collection_task_ids": ["TASK"], "time_granularity": "Week"},
        command="analytics --from WEEK_AGO --to TODAY --by week --task TASK",
    ),
    Operation(
        name="update_loop_items",
        arguments={**_ONE, **_LOOP, "loop_items": ["a", ""]},
        returns=str,
        sent={"taskId": "TASK", **_SENT_LOOP, "loopItems": ["a", ""], "isAppend": False},
        then=lambda scene: scene.steps()[0]["loop_items"] == ["a", ""],
        operator={"collection_task_id": "TASK", **_LOOP, "loop_items": ["a", ""]},
        result={"collection_task_id": "TASK", "action_id": "LOOP", "count": 2},
        command="task set-loop TASK LOOP --type textlist --item a --item=",
        rows=[{"action_id": "LOOP", "values": "2"}],
        question="Overwrite all values of step LOOP with 2 values?",
    ),
    Operation(
        name="update_loop_items",
        arguments={**_ONE, **_LOOP, "loop_items": ["x"], "is_append": True},
        returns=str,
        sent={"taskId": "TASK", **_SENT_LOOP, "loopItems": ["x"], "isAppend": True},
        then=lambda scene: scene.steps()[0]["loop_items"] == ["one", "two", "x"],
        operator={"collection_task_id": "TASK", **_LOOP, "loop_items": ["x"], "is_append": True},
        result={"count": 1},
        doubt="The values may already have been appended to step LOOP of task TASK.",
        command="task set-loop TASK LOOP --type TextList --item x --append",
        rows=[{"action_id": "LOOP", "values": "1"}],
    ),
    Operation(
        name="update_task_parameters",
        arguments={**_ONE, "actions": [{**_STEP, "properties": {"TextToSet": "a=b", "Delay": ""}}]},
        returns=models.ParameterUpdate,
        sent={
            "taskId": "TASK",
            "actions": [
                {
                    **_SENT_STEP,
                    "properties": [{"name": "TextToSet", "value": "a=b"}, {"name": "Delay", "value": ""}],
                }
            ],
        },
        then=lambda scene: scene.steps()[2]["properties"] == {"TextToSet": "a=b", "Delay": ""},
        operator={
            "collection_task_id": "TASK",
            "actions": [{**_STEP, "properties": {"TextToSet": "a=b", "Delay": ""}}],
        },
        result={"actions": [{"action_id": "TEXT", "properties": ["TextToSet", "Delay"]}], "loop_items": []},
        command="task set-params TASK TEXT TextToSet=a=b Delay=",
        rows=[{"task": "TASK", "action_id": "TEXT", "property": name} for name in ("TextToSet", "Delay")],
    ),
    Operation(
        name="update_task_parameters",
        arguments={**_ONE, "loop_items": [{**_LOOP, "loop_items": ["x"], "is_append": True}]},
        returns=models.ParameterUpdate,
        sent={"taskId": "TASK", "loopItems": [{**_SENT_LOOP, "loopItems": ["x"], "isAppend": True}]},
        then=lambda scene: scene.steps()[0]["loop_items"][-1] == "x",
        operator={
            "collection_task_id": "TASK",
            "loop_items": [{**_LOOP, "loop_items": ["x"], "is_append": True}],
        },
        result={"actions": [], "loop_items": [{"action_id": "LOOP", "count": 1, "is_append": True}]},
        doubt="The values may already have been appended to step LOOP of task TASK.",
    ),
    Operation(
        name="get_actions",
        arguments={"task_ids": ["TASK"], "action_types": ["LoopAction"]},
        returns=models.TaskActions,
        sent={"taskIds": ["TASK"], "actionTypes": ["LoopAction"]},
        operator={"collection_task_ids": ["TASK"], "action_types": ["LoopAction"]},
        result=[{"task_id": "TASK", "actions": [{"action_id": "LOOP", "action_type": "LoopAction"}]}],
        command="task actions TASK --type LoopAction",
        rows=[{"task": "TASK", "action_id": "LOOP", "action_type": "LoopAction", "loop_type": "TextList"}],
    ),
    Operation(
        name="replace_urls",
        arguments={**_ONE, "urls": URLS},
        returns=int,
        then=lambda scene: scene.control.task(scene.words["TASK"])["urls"] == URLS,
        operator={"collection_task_id": "TASK", "urls": URLS},
        result={"collection_task_id": "TASK", "count": 2},
        command="task replace-urls TASK FILE",
        rows=[{"task": "TASK", "urls": "2"}],
        question="Overwrite all URLs of task TASK with 2?",
    ),
    Operation(
        name="copy_task",
        arguments={**_ONE, "group_id": 2},
        returns=models.CopiedTask,
        sent={"taskId": "TASK", "taskGroupId": "2"},
        then=lambda scene: scene.copies() == [2],
        operator={"collection_task_id": "TASK", "task_group_id": "2"},
        result={"task_name": "Shop (copy)"},
        doubt="A copy of task TASK may be in group 2 by now.",
        command="task copy TASK --group 2",
        rows=[{"task": "TASK", "group": "2", "name": "Shop (copy)"}],
    ),
    Operation(
        name="copy_task",
        arguments={"task_id": "OTHER"},
        returns=models.CopiedTask,
        sent={"taskId": "OTHER"},
        then=lambda scene: scene.copies() == [7],
        operator={"collection_task_id": "OTHER"},
        doubt="A copy of task OTHER may be in the task's own group by now.",
        command="task copy OTHER",
        rows=[{"task": "OTHER"}],
    ),
    Operation(
        name="copy_tasks",
        arguments={"task_ids": ["TASK", "OTHER"], "group_ids": [2, 3]},
        returns=models.CopyResult,
        sent={"taskIds": ["TASK", "OTHER"], "groupIds": [2, 3]},
        then=lambda scene: scene.copies() == [2, 2, 3, 3],
        operator={"collection_task_ids": ["TASK", "OTHER"], "task_group_ids": [2, 3]},
        result={"request_count": 4, "success_count": 4, "failed_tasks": []},
        doubt="Copies of the tasks may be in these groups by now: 2, 3.",
    ),
    Operation(
        name="move_task",
        arguments={**_ONE, "group_id": 7},
        returns=bool,
        sent={"taskId": "TASK", "taskGroupId": "7"},
        then=lambda scene: scene.control.task(scene.words["TASK"])["group_id"] == 7,
        operator={"collection_task_id": "TASK", "task_group_id": "7"},
        result={"collection_task_id": "TASK", "task_group_id": 7},
        command="task move TASK --group 7",
        rows=[{"task": "TASK", "group": "7"}],
    ),
    Operation(
        name="get_task_statuses",
        arguments={"task_ids": ["TASK"]},
        returns=models.TaskStatus,
        sent={"taskIds": ["TASK"]},
    ),
    Operation(
        name="get_task_statuses_v2",
        arguments={"task_ids": ["TASK", "OTHER"]},
        returns=models.TaskStatus,
        sent={"taskIds": ["TASK", "OTHER"]},
        command="status TASK OTHER",
        rows=[
            {"task": "TASK", "status": "Finished", "sub_tasks": "3", "runs": "1", "collected": "30"},
            {"task": "OTHER", "status": "Finished", "sub_tasks": "2", "runs": "1", "collected": "20"},
        ],
    ),
    Operation(
        name="get_subtasks",
        arguments={**_ONE, "page": 1, "size": 20},
        returns=models.SubTask,
        sent={"taskId": "TASK", "page": "1", "size": "20"},
        command="subtasks TASK",
        rows=[{"task": "TASK", "status": "Finished"}] * 3,
    ),
    Operation(
        name="start_subtasks",
        arguments={**_ONE, "subtask_ids": ["FIRST"]},
        returns=type(None),
        sent={"taskId": "TASK", "subTaskIds": ["FIRST"]},
        then=lambda scene: (
            [run["started_subtasks"] for run in scene.control.task(scene.words["TASK"])["runs"][1:]] == [1]
        ),
        operator={"collection_task_id": "TASK", "sub_task_ids": ["FIRST"]},
        result={"collection_task_id": "TASK", "started": ["FIRST"], "already_active": []},
        doubt="The status of task TASK shows whether its sub-tasks run.",
        command="task start TASK --subtask FIRST",
        rows=[{"task": "TASK", "sub_task": "FIRST"}],
    ),
    Operation(
        name="get_running_counts",
        arguments={},
        returns=models.RunningCounts,
        sent={},
        operator={},
        result={"extracting_count": 0, "finished_count": 3, "waiting_sub_task_count": 0},
        command="capacity",
        rows=[{"extracting_count": "0", "finished_count": "3", "waiting_sub_task_count": "0"}],
    ),
    Operation(
        name="read_data",
        arguments={**_ONE, "offset": 5, "size": 20},
        returns=models.DataPage,
        sent={"taskId": "TASK", "offset": "5", "size": "20"},
    ),
    Operation(
        name="read_batch_data",
        arguments={**_ONE, "lotno": "000001", "offset": 5, "size": 20},
        returns=models.DataPage,
        sent={"taskId": "TASK", "lotno": "000001", "offset": "5", "size": "20"},
    ),
    Operation(
        name="mark_exported",
        arguments=_ONE,
        returns=type(None),
        sent={"taskId": "TASK"},
        then=lambda scene: scene.control.task(scene.words["TASK"])["exported"],
        operator={"collection_task_id": "TASK"},
        result={"collection_task_id": "TASK"},
        command="task mark-exported TASK",
        rows=[{"task": "TASK"}],
        question="Confirm that all rows of task TASK are exported?",
    ),
    Operation(
        name="delete_tasks",
        arguments=_OTHERS,
        returns=type(None),
        sent={"taskIds": ["OTHER"]},
        then=lambda scene: scene.words["OTHER"] not in scene.ids(),
        operator={"collection_task_ids": ["OTHER"]},
        result=["OTHER"],
        command="task delete OTHER OTHER",
        rows=[{"task": "OTHER"}],
        question="Delete 1 task (OTHER)?",
    ),
    Operation(
        name="delete_task_groups",
        arguments={"group_ids": [7, 2]},
        returns=type(None),
        sent={"groupIds": [7, 2]},
        then=lambda scene: not {7, 2} & {int(group) for group in scene.control.groups()},
        operator={"task_group_ids": ["7", 2]},
        result=[7, 2],
        command="group delete 7 2",
        rows=[{"group": "7"}, {"group": "2"}],
        question="Delete 2 task groups (7, 2)?",
    ),
    Operation(
        name="deprecate_data_app",
        arguments={"app_id": demo.APP_ID},
        returns=models.DeprecatedApp,
        sent={},
        operator={"app_id": demo.APP_ID},
        result={"app_name": "Price watch", "status": "deprecated", "version": "1.2.0"},
        command=f"app deprecate {demo.APP_ID}",
        rows=[{"app_name": "Price watch", "version": "1.2.0", "missing_secrets": "SHOP_TOKEN"}],
        question=f"Deprecate the data app {demo.APP_ID}?",
    ),
]
PATHS = {endpoint.name: endpoint.path for endpoint in endpoints.ENDPOINTS}
WITH_OPERATOR = [operation for operation in OPERATIONS if operation.operator is not None]
WITH_COMMAND = [operation for operation in OPERATIONS if operation.command]


def each(operations: list[Operation]) -> pytest.MarkDecorator:
    """Run a test with each of the operations, as its argument ``operation``."""
    return pytest.mark.parametrize("operation", operations, ids=lambda operation: operation.name)


def one_call_of_each(scene: Scene) -> list[Call[Any]]:
    """Return a successful call of every endpoint, in an order in which all succeed."""
    return [operation.call(scene) for operation in OPERATIONS]


def operator_of(name: str) -> type[Any]:
    """Return the operator of an endpoint."""
    operator: type[Any] = getattr(
        airflow_provider_webcollect, OPERATORS[f"webcollect{name.replace('_', '')}operator"]
    )
    return operator
