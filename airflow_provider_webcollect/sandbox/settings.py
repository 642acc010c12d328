"""The sandbox's settings; Python, the command line and ``Control.configure`` use the same names."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Mapping

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
NotNegativeInt = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Tier = Literal["Flagship", "Flagship+", "Enterprise", "Team"]

T = TypeVar("T")


def _option(default: T, description: str) -> T:
    field: T = dataclasses.field(default=default, metadata={"description": description})
    return field


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a sandbox; each field's metadata has its ``description``."""

    speed: Positive = _option(1.0, "how many times faster runs are")
    seed: int = _option(1, "decides ids, rows and analytics")
    data: str | None = _option(
        None,
        "CSV or JSONL file with the rows that runs collect; products: the same products in each run, whose "
        "prices move; by default made-up rows",
    )
    tier: Tier = _option("Enterprise", "plan of the account")
    token_lifetime: NotNegative = _option(86399.0, "validity of an access token, seconds")
    refresh_reuse: Literal["refuse", "revoke", "allow"] = _option(
        "refuse", "a refresh token used twice: refuse it, revoke all of its descent, or allow it"
    )
    api_key_everywhere: bool = _option(
        False, "accept x-api-key on every main-service endpoint, not only on five"
    )
    enforce_limits: bool = _option(True, "answer 429 to callers that are too fast")
    general_rate: Count = _option(20, "requests per second and caller address")
    subtasks: Count = _option(4, "sub-tasks of a task without a number of its own")
    rows_per_item: Count = _option(40, "rows that one loop item yields per run")
    row_bytes: NotNegativeInt = _option(0, "pad made-up rows to about this size; 0: as they come")
    wait_seconds: NotNegative = _option(30.0, "a started task waits this long, seconds at speed 1")
    run_seconds: NotNegative = _option(240.0, "and then collects for this long, seconds at speed 1")
    stale_seconds: NotNegative = _option(
        20.0, "after a start, status queries show the previous run this long, seconds at speed 1"
    )
    stale_shows: tuple[Literal["executed_times", "start_time"], ...] = _option(
        (), "what the new run already decides in such a status: executed_times, start_time"
    )
    counted_runs: Literal["started", "ended"] = _option(
        "started", "executedTimes counts the runs that were started, or those that ended"
    )
    executed_times_offset: int = _option(0, "is added to executedTimes, which is never less than 0")
    hide_end_times: bool = _option(False, "leave endExecuteTime out of status records")
    echo_ids: Literal["as_sent", "upper"] = _option(
        "as_sent", "letter case of ids in status responses; with upper, requests may use any"
    )
    empty_after_finish_seconds: NotNegative = _option(
        0.0, "if not 0, a run's rows are readable only this long after its end, seconds at speed 1"
    )
    hide_unexecuted: bool = _option(False, "leave tasks that never ran out of status responses")
    hide_unexecuted_subtasks: bool = _option(False, "list and count no sub-tasks of a task that never ran")
    hide_url_files: bool = _option(False, "show no list of a loop whose URLs were given as a file")
    null_metrics: bool = _option(False, "leave all metrics of analytics open, as null")
    latency: NotNegative = _option(0.0, "seconds added to every response")


def make_settings(values: Mapping[str, Any]) -> Settings:
    """Create settings from loosely typed values, such as values from JSON or the command line.

    :param values: values by the names of settings; omitted settings have their defaults.
    :raises ValueError: a name is unknown or a value is invalid; the message names it.
    """
    unknown = set(values) - {field.name for field in dataclasses.fields(Settings)}
    if unknown:
        raise ValueError(f"unknown setting: {', '.join(sorted(unknown))}")
    plain = {k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in values.items()}
    return msgspec.convert(plain, Settings, strict=False)
