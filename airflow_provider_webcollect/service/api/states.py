"""The service's enumerations: states of tasks and sub-tasks, loop types, action types and others.

Only this module defines which states are final. Values that are not listed here are kept unchanged and count
as "still running" (contract.md, States and transitions).
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
    """Kind of a loop list, as spelled in requests; responses also use ``URLList`` (contract.md, Step record).

    ``LoopType(…)`` accepts any letter case.
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


#: A task in one of these states has an active run.
ACTIVE_STATES = (TaskState.WAITING, TaskState.EXTRACTING)
#: A task in one of these states has a run that has ended.
FINAL_STATES = (TaskState.FINISHED, TaskState.STOPPED)
#: Sub-tasks in these states are running, or about to run; they must not be started again.
ACTIVE_SUBTASK_STATES = frozenset({SubTaskState.WAITING, SubTaskState.SENT, SubTaskState.EXTRACTING})
