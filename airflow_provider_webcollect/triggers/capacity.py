"""The trigger that waits for capacity, with one shared poll of the running counts."""

from __future__ import annotations

from airflow_provider_webcollect.triggers.webcollect import WaitTrigger
from airflow_provider_webcollect.waiting.conditions import Capacity


class WebCollectCapacityTrigger(WaitTrigger):
    """Waits until there is capacity. ``wait`` is a :class:`~.waiting.conditions.Capacity`."""

    _condition = Capacity
