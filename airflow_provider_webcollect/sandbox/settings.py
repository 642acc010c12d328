"""The sandbox's settings; Python, the command line and ``Control.configure`` use the same names."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Mapping

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
NotNegativeInt = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Tier = Literal["Flagship", "Flagship+", "Enterprise", "Team"]
Reuse = Literal["refuse", "revoke", "allow"]
LargePages = Literal["cut", "refuse"]
CountedRuns = Literal["started", "ended"]
StaleShows = Literal["executed_times", "start_time"]
EchoIds = Literal["as_sent", "upper", "lower"]
Share = Annotated[float, Meta(ge=0, le=1)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a sandbox; each field has its description."""

    speed: Annotated[Positive, Meta(description="how many times faster than real time tasks run")] = 1.0
    seed: Annotated[int, Meta(description="decides ids, rows and analytics")] = 1
    data: Annotated[
        Path | None, Meta(description="CSV or JSONL file with the rows that runs collect; none: made-up rows")
    ] = None
    tier: Annotated[Tier, Meta(description="plan of the account")] = "Enterprise"
    token_lifetime: Annotated[NotNegative, Meta(description="validity of an access token, real seconds")] = (
        86399.0
    )
    refresh_reuse: Annotated[
        Reuse,
        Meta(description="a refresh token used twice: refuse it, revoke all of its descent, or allow it"),
    ] = "refuse"
    api_key_everywhere: Annotated[
        bool, Meta(description="accept x-api-key on every main-service endpoint, not only on five")
    ] = False
    enforce_limits: Annotated[bool, Meta(description="answer 429 to callers that are too fast")] = True
    general_rate: Annotated[Count, Meta(description="requests per real second and caller address")] = 20
    status_v1_period: Annotated[
        Positive, Meta(description="real seconds between two status queries, version 1")
    ] = 5.0
    status_v2_rate: Annotated[Count, Meta(description="status queries per real second, version 2")] = 5
    subtasks: Annotated[Count, Meta(description="sub-tasks of a task without a number of its own")] = 4
    rows_per_item: Annotated[Count, Meta(description="rows that one loop item yields per run")] = 40
    row_bytes: Annotated[
        NotNegativeInt, Meta(description="pad made-up rows to about this size; 0: as they come")
    ] = 0
    wait_seconds: Annotated[
        NotNegative, Meta(description="a started task waits this long, sandbox seconds")
    ] = 30.0
    run_seconds: Annotated[
        NotNegative, Meta(description="and then collects for this long, sandbox seconds")
    ] = 240.0
    stale_seconds: Annotated[
        NotNegative,
        Meta(description="after a start, status queries show the previous run this long, sandbox seconds"),
    ] = 20.0
    stale_shows: Annotated[
        tuple[StaleShows, ...],
        Meta(description="what the new run already decides in such a status: executed_times, start_time"),
    ] = ()
    counted_runs: Annotated[
        CountedRuns, Meta(description="executedTimes counts the runs that were started, or those that ended")
    ] = "started"
    executed_times_offset: Annotated[
        int, Meta(description="is added to executedTimes, which is never less than 0")
    ] = 0
    hide_end_times: Annotated[bool, Meta(description="leave endExecuteTime out of status records")] = False
    echo_ids: Annotated[
        EchoIds,
        Meta(description="letter case of ids in status answers; with upper or lower, requests may use any"),
    ] = "as_sent"
    empty_after_finish_seconds: Annotated[
        NotNegative,
        Meta(description="if not 0, a run's rows are readable only so long after its end, sandbox seconds"),
    ] = 0.0
    hide_unexecuted: Annotated[bool, Meta(description="leave tasks that never ran out of status answers")] = (
        False
    )
    hide_unexecuted_subtasks: Annotated[
        bool, Meta(description="list and count no sub-tasks of a task that never ran")
    ] = False
    execution_times: Annotated[
        bool,
        Meta(description="show ExecutingTime and startExecuteTimeSeconds in status records, version 2"),
    ] = False
    execution_seconds_text: Annotated[
        str | None,
        Meta(description="with execution_times: the text of startExecuteTimeSeconds; none: the seconds"),
    ] = None
    null_metrics: Annotated[
        Share, Meta(description="share of the analytics metrics that are null, 0 to 1")
    ] = 0.0
    long_lotnos: Annotated[
        bool, Meta(description="batch numbers of 18 digits, as the service's, instead of 000001, 000002, ...")
    ] = False
    large_pages: Annotated[
        LargePages,
        Meta(description="pages of more than 4 or 8 MB: cut them, or refuse them with LimitTraffic"),
    ] = "cut"
    offset_jump: Annotated[
        NotNegativeInt,
        Meta(description="how far the offset jumps in every 1000 rows; 0: offsets are row numbers"),
    ] = 924
    latency: Annotated[NotNegative, Meta(description="real seconds added to every answer")] = 0.0
    cache_mb: Annotated[Count, Meta(description="memory for rows kept ready to send, MB")] = 128


def descriptions() -> dict[str, str]:
    """Return the description of each setting, by name."""
    hints = get_type_hints(Settings, include_extras=True)
    return {name: hint.__metadata__[-1].description for name, hint in hints.items()}


def make_settings(values: Mapping[str, Any]) -> Settings:
    """
    Create settings from loosely typed values, such as JSON or command-line text.

    :param values: names and values; omitted settings have their defaults.
    :raises ValueError: a name is unknown or a value is invalid; the message names it.
    """
    unknown = set(values) - {field.name for field in dataclasses.fields(Settings)}
    if unknown:
        raise ValueError(f"unknown setting: {', '.join(sorted(unknown))}")
    return msgspec.convert(dict(values), Settings, strict=False, dec_hook=lambda kind, value: kind(value))


def as_json(settings: Settings) -> dict[str, Any]:
    """Return settings as plain JSON values, which :func:`make_settings` accepts."""
    return {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(settings).items()}
