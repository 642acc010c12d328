"""The service's words: states of tasks and sub-tasks, loop types, action types and so on.

The one place that knows which states are final. Words not listed here are kept as they come and count
as "still going on" (contract.md, States and transitions).
"""

from __future__ import annotations

from enum import StrEnum


class TaskState(StrEnum):
    """State of a task's cloud extraction (contract.md, Task status)."""

    UNEXECUTED = "Unexecuted"
    WAITING = "Waiting"
    EXTRACTING = "Extracting"
    STOPPED = "Stopped"
    FINISHED = "Finished"


class SubTaskState(StrEnum):
    """State of a sub-task (contract.md, Sub-task status)."""

    WAITING = "Waiting"
    SENT = "Sent"
    EXTRACTING = "Extracting"
    STOPPED = "Stopped"
    FINISHED = "Finished"


class LoopType(StrEnum):
    """Kind of a loop list, as requests spell it; answers say ``URLList`` too (contract.md, Step record).

    ``LoopType(…)`` takes any letter case.
    """

    TEXT_LIST = "TextList"
    URL_LIST = "UrlList"

    @classmethod
    def _missing_(cls, value: object) -> LoopType | None:
        return next((kind for kind in cls if kind.lower() == str(value).lower()), None)


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


#: Tasks in these states have a run that is going on.
ACTIVE_STATES = (TaskState.WAITING, TaskState.EXTRACTING)
#: Tasks in these states have a run that is over.
FINAL_STATES = (TaskState.FINISHED, TaskState.STOPPED)
#: Sub-tasks in these states run or are about to; starting them again would be wrong.
ACTIVE_SUBTASK_STATES = frozenset({SubTaskState.WAITING, SubTaskState.SENT, SubTaskState.EXTRACTING})
