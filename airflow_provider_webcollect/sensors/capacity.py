"""The sensor that waits for capacity: poking, rescheduling or deferred, with the same decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.common.arguments import check_now
from airflow_provider_webcollect.sensors.base import WaitSensor
from airflow_provider_webcollect.waiting.arguments import capacity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_webcollect.triggers.capacity import WebCollectCapacityTrigger
    from airflow_provider_webcollect.waiting.conditions import Capacity
    from airflow_provider_webcollect.waiting.outcome import Records


class WebCollectCapacitySensor(WaitSensor):
    """Waits until the account has capacity for more runs (contract.md, endpoint 16).

    All waits end when there is capacity. If they must not all start runs at once, use an Airflow pool.

    Returns the last counts: ``{"extracting_count", "waiting_count", "finished_count",
    "waiting_sub_task_count", "executing_sub_task_count"}``.

    ``timeout``, ``poke_interval``, ``mode`` and ``soft_fail`` work as in all Airflow sensors.

    :param max_active_tasks: wait until fewer of the account's tasks than this are Extracting or Waiting; None
        for no limit. (templated)
    :param max_active_sub_tasks: the same for sub-tasks; at least one limit is required, and both apply.
        (templated)
    :param deferrable: wait in the triggerer; by default as ``[operators] default_deferrable`` says.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for a plan below Enterprise.
    :raises AirflowSensorTimeout: after ``timeout`` seconds.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields: Sequence[str] = ("max_active_tasks", "max_active_sub_tasks", "webcollect_conn_id")

    def __init__(
        self,
        *,
        max_active_tasks: int | str | None = None,
        max_active_sub_tasks: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_active_tasks = max_active_tasks
        self.max_active_sub_tasks = max_active_sub_tasks
        check_now(self, self._condition)

    def _condition(self) -> Capacity:
        return capacity(
            max_active_tasks=self.max_active_tasks, max_active_sub_tasks=self.max_active_sub_tasks
        )

    def _trigger_class(self) -> type[WebCollectCapacityTrigger]:
        from airflow_provider_webcollect.triggers.capacity import WebCollectCapacityTrigger

        return WebCollectCapacityTrigger

    def _result(self, records: Records) -> dict[str, Any]:
        return records[0]
