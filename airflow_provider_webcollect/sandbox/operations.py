"""The contract's twenty endpoints: path, permissions, limits and handler of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

from airflow_provider_webcollect.sandbox import (
    account_endpoints,
    cloud_endpoints,
    data_endpoints,
    task_endpoints,
)
from airflow_provider_webcollect.sandbox.bodies import decode_query
from airflow_provider_webcollect.sandbox.errors import ServiceError, invalid
from airflow_provider_webcollect.sandbox.limits import STATUS_V1, STATUS_V2

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox.state import Call, State

DATAHUB_PREFIX = "/datahub"

_ALL = ("Flagship", "Flagship+", "Enterprise", "Team")
_ANALYTICS = ("Flagship", "Flagship+", "Enterprise")
_TASKS = ("Flagship+", "Enterprise", "Team")


@dataclass(frozen=True)
class Operation:
    """
    One endpoint.

    :param path: the contract's path.
    :param tiers: plans that include it.
    :param takes: where its arguments are; arguments elsewhere are refused.
    :param takes_api_key: whether ``x-api-key`` may replace the token.
    :param status_limit: its additional rate limit besides the general one.
    """

    handle: Callable[[State, Call], object]
    method: str
    path: str
    tiers: tuple[str, ...] = _TASKS
    takes: Literal["json", "form", "query", "nothing"] = "json"
    takes_api_key: bool = False
    needs_token: bool = True
    status_limit: str | None = None
    data_app: bool = False


OPERATIONS = (
    Operation(account_endpoints.refresh_token, "POST", "/token", _ALL, needs_token=False),
    Operation(account_endpoints.query_analytics, "POST", "/taskanalytics/queries", _ANALYTICS),
    Operation(task_endpoints.update_loop_items, "POST", "/task/updateLoopItems", takes_api_key=True),
    Operation(task_endpoints.update_task_parameters, "POST", "/task/updateTaskParameters"),
    Operation(task_endpoints.get_actions, "POST", "/task/getActions"),
    Operation(task_endpoints.replace_urls, "POST", "/task/urls:file", takes="form"),
    Operation(task_endpoints.copy_task, "POST", "/task/copy", takes="query", takes_api_key=True),
    Operation(task_endpoints.copy_tasks, "POST", "/task/copies"),
    Operation(task_endpoints.move_task, "POST", "/task/moveToGroup", takes="query"),
    Operation(task_endpoints.delete_tasks, "POST", "/task/deleteTasks"),
    Operation(task_endpoints.delete_task_groups, "POST", "/taskGroup/deleteGroups", ("Enterprise", "Team")),
    Operation(cloud_endpoints.get_task_statuses, "POST", "/cloudextraction/statuses", status_limit=STATUS_V1),
    Operation(
        cloud_endpoints.get_task_statuses_v2, "POST", "/cloudextraction/statuses/v2", status_limit=STATUS_V2
    ),
    Operation(cloud_endpoints.get_subtasks, "GET", "/cloudextraction/task/subtasks", takes="query"),
    Operation(cloud_endpoints.start_subtasks, "POST", "/cloudextraction/subtasks:start", takes_api_key=True),
    Operation(
        cloud_endpoints.get_running_counts,
        "GET",
        "/cloudextraction/task/stats",
        ("Enterprise",),
        takes="nothing",
    ),
    Operation(data_endpoints.read_data, "GET", "/data/all", _ALL, takes="query"),
    Operation(
        data_endpoints.read_batch_data, "GET", "/data/lotno/all", _ALL, takes="query", takes_api_key=True
    ),
    Operation(data_endpoints.mark_exported, "POST", "/data/markexported", _ALL, takes_api_key=True),
    Operation(
        account_endpoints.deprecate_data_app,
        "POST",
        "/v1/data-apps/{app_id}/deprecate",
        _ALL,
        takes="nothing",
        data_app=True,
    ),
)

_BY_PATH = {operation.path: operation for operation in OPERATIONS if not operation.data_app}
_DEPRECATE = next(operation for operation in OPERATIONS if operation.data_app)


def find_operation(raw_path: str) -> tuple[Operation | None, str]:
    """
    Return the operation at a path, and the identifier in that path.

    :param raw_path: path as sent, still percent-encoded, so that an encoded slash stays inside its segment.
    """
    match raw_path.split("/"):
        case ["", "datahub", "v1", "data-apps", app_id, "deprecate"] if app_id:
            return _DEPRECATE, unquote(app_id)
    # A colon may be sent plain or percent-encoded; nothing else in the paths is ever encoded.
    return _BY_PATH.get(raw_path.replace("%3A", ":").replace("%3a", ":")), ""


def check_method(operation: Operation, method: str) -> None:
    """
    Accept only the contract's method.

    :raises ServiceError: HTTP 405.
    """
    if method != operation.method:
        raise ServiceError("MethodNotAllowed", f"Use {operation.method}.", 405, {"Allow": operation.method})


def check_tier(operation: Operation, tier: str) -> None:
    """
    Check that the account's plan includes the endpoint.

    :raises ServiceError: ``PermissionDenied``, HTTP 403.
    """
    if tier not in operation.tiers:
        raise ServiceError("PermissionDenied", f"The plan {tier} does not include this.", status=403)


def check_arguments(operation: Operation, query: bytes, body: bytes) -> None:
    """
    Accept a query or a body only if the operation takes one.

    :raises ServiceError: ``InvalidParameter``.
    """
    if operation.takes != "query":
        decode_query(query, needed=())
    if operation.takes in ("query", "nothing") and body:
        raise invalid("This endpoint takes no body.")
