"""The trigger that waits for capacity, on one shared poll of the running counts."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_provider_webcollect.triggers.webcollect import _payload, _StatusTrigger
from airflow_provider_webcollect.waiting.capacity import CapacityWait
from airflow_provider_webcollect.waiting.conditions import Watch
from airflow_provider_webcollect.waiting.feed import ACCOUNT

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.api.records import RunningCounts
    from airflow_provider_webcollect.waiting.feed import StatusFeed


class WebCollectCapacityTrigger(_StatusTrigger):
    """Waits until there is capacity. ``wait`` is a :class:`~.waiting.capacity.CapacityWait`."""

    def _outcome(self, feed: StatusFeed) -> Awaitable[dict[str, Any]]:
        watch = Watch(msgspec.convert(self.wait, CapacityWait), self.began, self.logger())

        def see(seen: Mapping[str, RunningCounts | None]) -> dict[str, Any] | None:
            counts = seen[ACCOUNT]
            assert counts is not None, "the poll's answers leave out no account"
            return _payload(watch.judge(counts), (counts,))

        return feed.counts.until((ACCOUNT,), self.poke_interval, see)
