"""The service's enumerations: states of tasks and sub-tasks, loop types, action types and others.

Only this module defines which states are final. The service's letter case varies (assumptions.md, Status).
Values that are not listed here are kept unchanged and count as "still running" (contract.md, States and
transitions).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class _AnyCase(StrEnum):
    """Words of the contract; looking one up ignores letter case and surrounding white space."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return next((word for word in cls if word.lower() == str(value).strip().lower()), None)

    @classmethod
    def spelled(cls, value: str) -> str:
        """Return ``value`` in the contract's spelling; unchanged if it is none of these words."""
        try:
            return str(cls(value))
        except ValueError:
            return value


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
