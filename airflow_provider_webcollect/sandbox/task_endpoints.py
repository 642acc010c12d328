"""Endpoints 3 to 11: tasks, their steps and their groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.sandbox import bodies, demo
from airflow_provider_webcollect.sandbox.errors import ServiceError, invalid, required
from airflow_provider_webcollect.sandbox.world import ENTER_TEXT_ACTION, LOOP_ACTION, Action, Task

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox.state import Call, State

_LOOP_TYPES = {"urllist": "UrlList", "textlist": "TextList"}
_SHOWN_LOOP_TYPES = {"UrlList": "URLList", "TextList": "TextList"}


def update_loop_items(state: State, call: Call) -> object:
    """Endpoint 3."""
    body = bodies.decode_body(call.content_type, call.body, bodies.TaskLoopItems)
    task = state.world.own(call.user, body.task_id)
    _set_loop_items(_step(task, body.action_id, LOOP_ACTION), body.loop_type, body.loop_items, body.is_append)
    return {"message": "The loop items were updated."}


def update_task_parameters(state: State, call: Call) -> object:
    """Endpoint 4."""
    if _updates_nothing(call):
        raise ServiceError("RequestModelNull", "The request has no parameters.")
    body = bodies.decode_body(call.content_type, call.body, bodies.TaskParameters)
    task = state.world.own(call.user, body.task_id)
    # All steps are looked up before any is changed, so that a refused request changes nothing.
    steps = [_step(task, entry.action_id, entry.action_type) for entry in body.actions]
    loops = [_step(task, entry.action_id, LOOP_ACTION) for entry in body.loop_items]
    for step, parameters in zip(steps, body.actions, strict=True):
        step.properties |= {entry.name: entry.value for entry in parameters.properties}
    for loop, items in zip(loops, body.loop_items, strict=True):
        _set_loop_items(loop, items.loop_type, items.loop_items, bool(items.is_append))
    echoed = [
        {"actionId": loop.action_id, "loopType": items.loop_type, "loopItems": loop.loop_items}
        for loop, items in zip(loops, body.loop_items, strict=True)
    ]
    return {"taskId": task.task_id, "updatedParameters": {"actions": body.actions, "loopItems": echoed}}


def get_actions(state: State, call: Call) -> object:
    """Endpoint 5."""
    body = bodies.decode_body(call.content_type, call.body, bodies.ActionsQuery)
    return [
        {
            "taskId": task.task_id,
            "actions": [_step_record(step) for step in task.actions if step.action_type in body.action_types],
        }
        for task in state.world.owned(call.user, body.task_ids)
    ]


def replace_urls(state: State, call: Call) -> object:
    """Endpoint 6."""
    if call.form.keys() - {"taskId", "file"}:
        raise invalid("The form has a field that is neither taskId nor file.")
    task_id, file = call.form.get("taskId"), call.form.get("file")
    if not isinstance(task_id, str) or not task_id:
        raise required("taskId")
    if not isinstance(file, bytes):
        raise required("file")
    task = state.world.own(call.user, task_id)
    if task.running(state.clock.now()):
        raise ServiceError("TaskExecuting", "The task is running.")
    _set_loop_items(task.loop, "UrlList", _urls(file), append=False)
    return None


def copy_task(state: State, call: Call) -> object:
    """Endpoint 7."""
    query = bodies.decode_query(call.query, needed=("taskId",), optional=("taskGroupId",))
    task = state.world.own(call.user, query["taskId"])
    group = bodies.integer(query, "taskGroupId") if "taskGroupId" in query else task.group_id
    copy = state.world.copy_task(task, state.world.known_group(group))
    return {"taskId": copy.task_id, "taskName": copy.name}


def copy_tasks(state: State, call: Call) -> object:
    """Endpoint 8."""
    body = bodies.decode_body(call.content_type, call.body, bodies.Copies)
    world, failed = state.world, []
    if not world.owned(call.user, body.task_ids):
        raise ServiceError("InvalidTaskId", "None of the task ids is valid.")
    for task_id in body.task_ids:
        for group_id in body.group_ids:
            try:
                world.copy_task(world.own(call.user, task_id), world.known_group(group_id))
            except ServiceError as refusal:
                failed.append({"taskId": task_id, "reason": refusal.message})
    count = len(body.task_ids) * len(body.group_ids)
    answer = {"requestCount": count, "successCount": count - len(failed)}
    return {**answer, "failedTasks": failed} if failed else answer


def move_task(state: State, call: Call) -> object:
    """Endpoint 9."""
    query = bodies.decode_query(call.query, needed=("taskId", "taskGroupId"))
    group_id = bodies.integer(query, "taskGroupId")
    task = state.world.own(call.user, query["taskId"])
    task.group_id = state.world.known_group(group_id)
    return {"moved": True}


def delete_tasks(state: State, call: Call) -> object:
    """Endpoint 10; unknown ids are ignored, so that repeating it has no effect."""
    body = bodies.decode_body(call.content_type, call.body, bodies.TaskIds)
    for task in state.world.owned(call.user, body.task_ids):
        del state.world.tasks[task.task_id.lower()]
    return []


def delete_task_groups(state: State, call: Call) -> object:
    """Endpoint 11; like endpoint 10."""
    body = bodies.decode_body(call.content_type, call.body, bodies.GroupIds)
    if demo.DEFAULT_GROUP_ID in body.group_ids:
        raise invalid("The default group cannot be deleted.")
    for group_id in body.group_ids:
        state.world.delete_group(group_id)
    return []


def _updates_nothing(call: Call) -> bool:
    if call.body.strip() in (b"", b"null"):
        return True
    fields = bodies.decode_object(call.content_type, call.body)
    known = fields.keys() <= {"taskId", "actions", "loopItems"}
    return known and not fields.get("actions") and not fields.get("loopItems")


def _step(task: Task, action_id: str, action_type: str) -> Action:
    action = task.action(action_id)
    if action is None or action.action_type != action_type:
        raise ServiceError("TaskSettingsNotFound", "The task has no such step.")
    return action


def _set_loop_items(loop: Action, loop_type: str, items: list[str], append: bool) -> None:
    loop.loop_type = _LOOP_TYPES[loop_type.lower()]
    loop.loop_items = [*loop.loop_items, *items] if append else list(items)


def _step_record(step: Action) -> dict[str, Any]:
    record: dict[str, Any] = {"actionType": step.action_type, "actionId": step.action_id, "name": step.name}
    if step.action_type == LOOP_ACTION:
        record |= {"loopType": _SHOWN_LOOP_TYPES[step.loop_type], "loopItems": step.loop_items}
    elif step.action_type == ENTER_TEXT_ACTION:
        record["properties"] = [{"name": name, "value": value} for name, value in step.properties.items()]
    return record


def _urls(file: bytes) -> list[str]:
    try:
        urls = [line.strip() for line in file.decode("utf-8-sig").rstrip().splitlines()]
    except UnicodeDecodeError as error:
        raise invalid("The file is not UTF-8 text.") from error
    if not urls or not all(url.lower().startswith(("http://", "https://")) for url in urls):
        raise invalid("The file must have one URL per line.")
    return urls
