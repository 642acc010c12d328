"""Writes ``docs/reference/endpoints.md`` from the declarations of the endpoints; ``make docs`` runs it."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_webcollect.service.endpoints import (
    ENDPOINTS,
    Endpoint,
    Retry,
)

PAGE = Path(__file__).parent / "reference" / "endpoints.md"

#: What each endpoint is used through, beside the hook.
USED_BY = {
    "refresh_token": "`WebCollectRefreshTokenOperator`",
    "query_analytics": "`WebCollectQueryAnalyticsOperator`, `WebCollectMetricsCheckOperator`, "
    "`WebCollectDiscoverOperator`",
    "update_loop_items": "`WebCollectUpdateLoopItemsOperator`",
    "update_task_parameters": "`WebCollectUpdateTaskParametersOperator`, "
    "`WebCollectSetMissingInputsOperator`",
    "get_actions": "`WebCollectGetActionsOperator`, the check of inputs",
    "replace_urls": "`WebCollectReplaceUrlsOperator`",
    "copy_task": "`WebCollectCopyTaskOperator`",
    "copy_tasks": "`WebCollectCopyTasksOperator`",
    "move_task": "`WebCollectMoveTaskOperator`",
    "delete_tasks": "`WebCollectDeleteTasksOperator`",
    "delete_task_groups": "`WebCollectDeleteTaskGroupsOperator`",
    "get_task_statuses_v2": "`WebCollectTaskStatusSensor`, `WebCollectTaskStatusTrigger`",
    "get_subtasks": "`WebCollectSubTaskStatusSensor`, `WebCollectSubTaskStatusTrigger`",
    "start_subtasks": "`WebCollectStartSubTasksOperator`",
    "get_running_counts": "`WebCollectGetRunningCountsOperator`, `WebCollectCapacitySensor`",
    "read_data": "`WebCollectToObjectStorageOperator`",
    "read_batch_data": "`WebCollectToObjectStorageOperator` with `lotno`",
    "mark_exported": "`WebCollectMarkExportedOperator`, `WebCollectToObjectStorageOperator`",
    "deprecate_data_app": "`WebCollectDeprecateDataAppOperator`",
}
#: The command that calls each endpoint.
COMMANDS = {
    "refresh_token": "token refresh",
    "query_analytics": "analytics",
    "update_loop_items": "task set-loop",
    "update_task_parameters": "task set-params",
    "get_actions": "task actions",
    "replace_urls": "task replace-urls",
    "copy_task": "task copy",
    "move_task": "task move",
    "delete_tasks": "task delete",
    "delete_task_groups": "group delete",
    "get_task_statuses_v2": "status",
    "get_subtasks": "subtasks",
    "start_subtasks": "task start",
    "get_running_counts": "capacity",
    "read_data": "read",
    "read_batch_data": "read --lotno",
    "mark_exported": "task mark-exported",
    "deprecate_data_app": "app deprecate",
}
#: Endpoints of which only some uses are safe to repeat.
APPENDING = {"update_loop_items", "update_task_parameters"}

HEAD = """# The twenty endpoints

If a response is lost, the client repeats a call that is safe to repeat, and raises `OutcomeUnknown` for any
other. What did not take effect (no connection, 429, 401) is always repeated. Arguments and results: [the
hook](api/hook.md); credentials, requests and responses: [the contract](../contributing/contract.md).

| # | Endpoint | Hook method | Operator, sensor | Command | Safe to repeat | Own errors | Plans |
|---|---|---|---|---|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    return "".join((HEAD, *map(_row, ENDPOINTS)))


def _row(endpoint: Endpoint) -> str:
    cells = (
        str(endpoint.number),
        f"`{endpoint.method} {endpoint.path}`",
        f"`{endpoint.name}`",
        USED_BY.get(endpoint.name, ""),
        f"`{COMMANDS[endpoint.name]}`" if endpoint.name in COMMANDS else "",
        _repeat(endpoint),
        ", ".join(f"`{code}`" for code in endpoint.errors),
        "not stated" if endpoint.tiers is None else ", ".join(endpoint.tiers) or "all",
    )
    return f"| {' | '.join(cells)} |\n"


def _repeat(endpoint: Endpoint) -> str:
    if endpoint.name in APPENDING:
        return "unless it appends"
    return "yes" if endpoint.retry is Retry.SAFE else "no"


if __name__ == "__main__":
    PAGE.write_text(page())
