"""The service's results as frozen structs: camelCase on the wire, snake_case in Python.

Reading is tolerant, since the contract's tables and samples disagree: keys may be camelCase or PascalCase,
integers may arrive as strings, and times have no zone. An optional string, number or time that cannot be read
is None. Fields that the contract does not name are kept in ``unknown_fields``. Values that are later sent
back to the service have a type that checks them: `Integer`, `Identifier` or `Token`.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Self, TypeAlias, TypeVar

import msgspec
import pendulum

from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.errors import MalformedResponse, escaped

log = logging.getLogger(__name__)

#: An integer that a later request may send.
Integer: TypeAlias = Annotated[int, msgspec.Meta(ge=arguments.LOWEST, le=arguments.HIGHEST)]
#: A string that a later request may send; white space around it is dropped.
Identifier: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\S")]
#: A string that is valid in a header; white space around it is dropped.
Token: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[!-~]+$")]


class _AnyCase(StrEnum):
    """Words of the contract; looking one up ignores letter case and surrounding white space."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return next((word for word in cls if word.lower() == str(value).strip().lower()), None)

    @classmethod
    def spelled(cls, value: str) -> str:
        """Return ``value`` in the contract's spelling; of an unknown word, only unprintable parts change."""
        try:
            return str(cls(value))
        except ValueError:
            return escaped(value)


class TaskState(_AnyCase):
    """State of a task's cloud extraction (contract.md, Task status)."""

    UNEXECUTED = "Unexecuted"
    WAITING = "Waiting"
    EXTRACTING = "Extracting"
    STOPPED = "Stopped"
    FINISHED = "Finished"


class SubTaskState(_AnyCase):
    """State of a sub-task (contract.md, Sub-task status)."""

    WAITING = "Waiting"
    SENT = "Sent"
    EXTRACTING = "Extracting"
    STOPPED = "Stopped"
    FINISHED = "Finished"


class LoopType(_AnyCase):
    """Kind of a loop list (contract.md, Step record); responses also have ``URLList``."""

    TEXT_LIST = "TextList"
    URL_LIST = "UrlList"


class ActionType(StrEnum):
    """Kind of a step (contract.md, Step record)."""

    LOOP = "LoopAction"
    NAVIGATE = "NavigateAction"
    ENTER_TEXT = "EnterTextAction"


class CollectionMethod(StrEnum):
    """Where the rows of an analytics query were collected (contract.md, endpoint 2)."""

    CLOUD = "Cloud"
    LOCAL = "Local"
    ALL = "All"


class TimeGranularity(StrEnum):
    """Length of an analytics bucket (contract.md, endpoint 2)."""

    DAY = "Day"
    WEEK = "Week"
    MONTH = "Month"


#: A task in one of these states has an active run.
ACTIVE_STATES = (TaskState.WAITING, TaskState.EXTRACTING)
#: A task in one of these states has a run that has ended.
FINAL_STATES = (TaskState.FINISHED, TaskState.STOPPED)
#: Sub-tasks in these states are running, or about to run; they must not be started again.
ACTIVE_SUBTASK_STATES = frozenset({SubTaskState.WAITING, SubTaskState.SENT, SubTaskState.EXTRACTING})


R = TypeVar("R", bound="Record")

#: Number of decimal places of metrics, which are rounded because floating-point 1 - 0.7 is more than 0.3.
DIGITS = 6
#: Number of seconds from which on a token's lifetime counts as unknown: ten years.
LONGEST_LIFE = 10 * 365 * 86_400.0


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the results that are read field by field.

    :ivar unknown_fields: the response's fields that are not in the contract, unchanged.
    """

    unknown_fields: dict[str, Any] = {}

    def as_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON, with snake_case keys and without absent fields."""
        return {
            name: _jsonable(value)
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None and not (name == "unknown_fields" and not value)
        }


def _jsonable(value: Any) -> Any:
    match value:
        case Record():
            return value.as_dict()
        case tuple() | list():
            return [_jsonable(item) for item in value]
        case datetime.datetime():
            return value.isoformat()
        case _:
            return value


class NameValue(Record, frozen=True):
    """A property of a step."""

    name: str
    value: str | None = None


class Action(Record, frozen=True):
    """A step of a task (contract.md, Step record).

    :ivar loop_type: always in the spelling of requests (``UrlList``), so that it can be sent back; responses
        may use another one (``URLList``).
    """

    action_id: str | None = None
    action_type: str | None = None
    name: str | None = None
    loop_type: str | None = None
    loop_items: tuple[str, ...] | None = None
    properties: tuple[NameValue, ...] | None = None
    is_append: bool | None = None

    def __post_init__(self) -> None:
        if self.loop_type is not None:
            msgspec.structs.force_setattr(self, "loop_type", LoopType.spelled(self.loop_type))


class TaskActions(Record, frozen=True):
    """The steps of one task (contract.md, endpoint 5)."""

    task_id: Identifier
    actions: tuple[Action, ...] = ()


class UpdatedParameters(Record, frozen=True):
    """The steps that an update changed, as the service returns them (contract.md, endpoint 4)."""

    actions: tuple[Action, ...] | None = None
    loop_items: tuple[Action, ...] | None = None


class ParameterUpdate(Record, frozen=True):
    """Response to an update of parameters (contract.md, endpoint 4)."""

    task_id: str | None = None
    updated_parameters: UpdatedParameters | None = None


class CopiedTask(Record, frozen=True):
    """A task that was created as a copy (contract.md, endpoint 7)."""

    task_id: Identifier
    task_name: str | None = None


class FailedCopy(Record, frozen=True):
    """A task that could not be copied, and why (contract.md, endpoint 8)."""

    task_id: str | None = None
    reason: str | None = None


class CopyResult(Record, frozen=True):
    """Outcome of copying tasks to groups (contract.md, endpoint 8)."""

    request_count: int
    success_count: int
    failed_tasks: tuple[FailedCopy, ...] = ()

    def __post_init__(self) -> None:
        # one object can stand for a list of one, so an empty object can stand for an empty list
        named = tuple(failed for failed in self.failed_tasks if failed != FailedCopy())
        msgspec.structs.force_setattr(self, "failed_tasks", named)

    @property
    def shortfall(self) -> str | None:
        """One line that says which copies were not made, and why; None if all were made."""
        if not self.failed_tasks and self.success_count >= self.request_count:
            return None
        reasons = escaped("; ".join(f"{failed.task_id}: {failed.reason}" for failed in self.failed_tasks))
        return (
            f"{self.success_count} of {self.request_count} copies were made; these were not: "
            f"{reasons or 'the service does not say which'}"
        )


class TaskStatus(Record, frozen=True):
    """State of a task's cloud extraction (contract.md, endpoints 12 and 13).

    Version 1 has ``task_id``, ``task_name`` and ``status``; version 2 has all fields but ``task_name``. The
    service sends times without a zone: they are naive, or in the connection's ``timezone``.

    :ivar status: the state in the contract's spelling, whatever the letter case of the response.
    :ivar current_total_extract_count: rows collected in this run, before the service removes duplicates.
    :ivar executed_times: number of runs started so far.
    :ivar start_execute_time_seconds: collection time in seconds.
    """

    task_id: Identifier
    status: str
    task_name: str | None = None
    current_total_extract_count: int | None = None
    executed_times: int | None = None
    sub_task_count: int | None = None
    next_execute_time: pendulum.DateTime | None = None
    start_execute_time: pendulum.DateTime | None = None
    executing_time: pendulum.DateTime | None = None
    end_execute_time: pendulum.DateTime | None = None
    start_execute_time_seconds: float | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "status", TaskState.spelled(self.status))

    def overview(self) -> dict[str, Any]:
        """Return the state and the latest run with short names, for tables."""
        return {
            "status": self.status,
            "rows": self.current_total_extract_count,
            "sub_tasks": self.sub_task_count,
            "runs": self.executed_times,
            "started": self.start_execute_time,
            "ended": self.end_execute_time,
            "next_run": self.next_execute_time,
        }


class SubTask(Record, frozen=True):
    """A sub-task of a task's latest batch (contract.md, endpoint 14).

    :ivar status: the state in the contract's spelling, whatever the letter case of the response.
    """

    sub_task_id: Identifier
    status: str

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "status", SubTaskState.spelled(self.status))


def active_subtask_ids(subtasks: Iterable[SubTask]) -> set[str]:
    """Return the ids of the active sub-tasks, in lower case, since the service may change the case."""
    return {subtask.sub_task_id.lower() for subtask in subtasks if subtask.status in ACTIVE_SUBTASK_STATES}


class RunningCounts(Record, frozen=True):
    """Running counts of the account (contract.md, endpoint 16).

    The contract's description swaps the two sub-task counts, so their meaning is ambiguous; the fields keep
    the service's names.
    """

    extracting_count: int | None = None
    waiting_count: int | None = None
    finished_count: int | None = None
    waiting_sub_task_count: int | None = None
    executing_sub_task_count: int | None = None


class DataVolumeMetrics(Record, frozen=True):
    """Rows collected (contract.md, Analytics row); None means no data."""

    total_collected: float | None = None
    deduplicated_volume: float | None = None


class ExecutionMetrics(Record, frozen=True):
    """Counts of runs, durations in seconds, and rates from 0 to 1 (contract.md, Analytics row)."""

    run_count: float | None = None
    success_count: float | None = None
    failure_count: float | None = None
    duration_per_run_seconds: float | None = None
    total_execution_seconds: float | None = None
    success_rate: float | None = None
    failure_rate: float | None = None

    def runs_and_successes(self) -> tuple[float, float] | None:
        """Return the number of runs and the number of successful runs; None if either is not known."""
        runs, successes, failures = self.run_count, self.success_count, self.failure_count
        if runs is None:
            return None if successes is None or failures is None else (successes + failures, successes)
        if successes is not None or runs == 0:
            return runs, successes or 0
        if failures is not None:
            return runs, runs - failures
        if self.success_rate is not None:
            return runs, runs * self.success_rate
        return None if self.failure_rate is None else (runs, runs * (1 - self.failure_rate))


class ResourceUsageMetrics(Record, frozen=True):
    """The resources that the runs used; ``balance`` is the cost (contract.md, Analytics row)."""

    captcha_count: float | None = None
    simple_template_count: float | None = None
    proxy_ip_count: float | None = None
    balance: float | None = None


class AnalyticsRow(Record, frozen=True):
    """Metrics of one task in one time bucket (contract.md, Analytics row)."""

    task_id: Identifier
    day_key: str
    user_id: str | None = None
    task_name: str | None = None
    week_start_date: str | None = None
    week_end_date: str | None = None
    collection_method: str | None = None
    data_volume_metrics: DataVolumeMetrics = DataVolumeMetrics()
    execution_metrics: ExecutionMetrics = ExecutionMetrics()
    resource_usage_metrics: ResourceUsageMetrics = ResourceUsageMetrics()

    @staticmethod
    def names(rows: Iterable[AnalyticsRow]) -> dict[str, str | None]:
        """Return the latest name of each task by its id; None if no row names it.

        :param rows: in any order, with time buckets of one length.
        """
        names: dict[str, str | None] = {}
        for row in sorted(rows, key=lambda row: row.day_key):
            names[row.task_id] = row.task_name or names.get(row.task_id)
        return names

    @staticmethod
    def total(rows: Sequence[AnalyticsRow]) -> dict[str, float | None]:
        """Return the metrics of several rows together, with short names.

        Each metric is computed from the rows that have its number: the service leaves out some numbers, and
        they do not count as 0. A metric is None if no row has its number. ``succeeded`` is the share of
        successful runs among the runs whose outcomes are known; ``seconds_per_run`` is the average duration.

        :param rows: rows of one or several tasks, in any time buckets; without rows, the sums are 0.
        """
        ends = [counts for row in rows if (counts := row.execution_metrics.runs_and_successes())]
        judged, successes = sum(runs for runs, _ in ends), sum(successes for _, successes in ends)
        runs = _total(row.execution_metrics.run_count for row in rows)
        seconds = _total(row.execution_metrics.total_execution_seconds for row in rows)
        return {
            "rows": _total(row.data_volume_metrics.total_collected for row in rows),
            "rows_without_duplicates": _total(row.data_volume_metrics.deduplicated_volume for row in rows),
            "runs": runs,
            "succeeded": round(successes / judged, DIGITS) if judged else None,
            "seconds_per_run": round(seconds / runs, 1) if runs and seconds is not None else None,
            "cost": _total(row.resource_usage_metrics.balance for row in rows),
        }


def _total(numbers: Iterable[float | None]) -> float | None:
    """Return the sum of the numbers, leaving out each None; None if all of one or more entries are None."""
    values = list(numbers)
    present = [number for number in values if number is not None]
    total = round(sum(present), DIGITS)
    return (int(total) if total == int(total) else total) if present or not values else None


class AnalyticsPage(Record, frozen=True):
    """A page of an analytics query (contract.md, endpoint 2). ``total`` counts all matching rows."""

    total: int
    rows: tuple[AnalyticsRow, ...] = msgspec.field(default=(), name="data")


class TokenRecord(Record, frozen=True):
    """The tokens in a response of the service (contract.md, Token record). Its repr hides them.

    :ivar expires_in: lifetime of the access token in seconds; None if the service sent no valid number.
    """

    access_token: Token
    # a higher number may be something else, such as a time in milliseconds
    expires_in: Annotated[float, msgspec.Meta(gt=0, lt=LONGEST_LIFE)] | None = None
    token_type: str | None = None
    refresh_token: Identifier | None = None

    def __repr__(self) -> str:
        mask = "***" if self.refresh_token else None
        return f"TokenRecord(expires_in={self.expires_in}, refresh_token={mask})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("expires_in", self.expires_in)]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are not secret, without the tokens."""
        return {"expires_in": self.expires_in, "token_type": self.token_type}


class DeprecatedApp(Record, frozen=True):
    """A data app after its deprecation (contract.md, Data-app deprecation result)."""

    app_name: str
    status: str
    namespace: str | None = None
    version: str | None = None
    missing_secrets: tuple[str, ...] | None = None


class Message(Record, frozen=True):
    """Response to an update of loop items (contract.md, endpoint 3)."""

    message: str | None = None


class Moved(Record, frozen=True):
    """Response to a move (contract.md, endpoint 9)."""

    moved: bool


class DataPage(msgspec.Struct, frozen=True):
    """A page of collected rows (contract.md, endpoints 17 and 18).

    :ivar offset: the offset of the next page; send it unchanged, since it need not be the previous offset
        plus the size.
    :ivar total: number of all rows.
    :ivar rest_total: number of rows after this page; 0 for the last page.
    :ivar rows: the rows as raw JSON slices of the response, each a single line; they can be copied without
        building dicts.
    """

    offset: int
    total: int
    rest_total: int
    rows: list[msgspec.Raw]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as dicts, field names to values.

        :raises MalformedResponse: if Python cannot decode a value: a number with thousands of digits, or a
            value that is nested too deeply.
        """
        try:
            return [msgspec.json.decode(row) for row in self.rows]
        except (msgspec.DecodeError, RecursionError) as error:
            raise MalformedResponse(f"a row cannot be read: {error}") from error
