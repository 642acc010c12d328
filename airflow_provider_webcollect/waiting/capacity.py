"""Whether the account has capacity for more runs, by its running counts (contract.md, endpoint 16)."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from airflow_provider_webcollect.service.api.records import RunningCounts
from airflow_provider_webcollect.waiting.conditions import Outcome, Verdict


class CapacityWait(msgspec.Struct, frozen=True, kw_only=True):
    """A wait for capacity.

    :ivar max_active_tasks: the wait ends once fewer tasks than this extract or wait; None for no limit.
    :ivar max_active_sub_tasks: the same for sub-tasks. Which of the service's two counts of them is which is
        ambiguous (contract.md, Task running counts); the sum is not.
    """

    max_active_tasks: int | None = None
    max_active_sub_tasks: int | None = None

    def judge(self, counts: RunningCounts, waited: float) -> Verdict:
        """Return how the wait stands."""
        verdicts = [_judge(*each) for each in self._limits(counts)]
        outcomes = [verdict.outcome for verdict in verdicts]
        worst = next((each for each in (Outcome.FAILED, Outcome.WAIT) if each in outcomes), Outcome.DONE)
        return Verdict(worst, ", ".join(verdict.reason for verdict in verdicts))

    def _limits(self, counts: RunningCounts) -> Iterator[tuple[str, int | None, int]]:
        """Yield what is limited, how many of it are active, and the limit."""
        if self.max_active_tasks is not None:
            yield "tasks", _sum(counts.extracting_count, counts.waiting_count), self.max_active_tasks
        if self.max_active_sub_tasks is not None:
            active = _sum(counts.executing_sub_task_count, counts.waiting_sub_task_count)
            yield "sub-tasks", active, self.max_active_sub_tasks


def _judge(what: str, active: int | None, limit: int) -> Verdict:
    if active is None:
        return Verdict(Outcome.FAILED, f"the service does not say how many {what} are active")
    reason = f"{active} {what} are active, there is capacity below {limit}"
    return Verdict(Outcome.DONE if active < limit else Outcome.WAIT, reason)


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second
