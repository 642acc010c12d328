"""The sensor that waits for capacity: poking, rescheduling or deferred, with the same decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from airflow_provider_webcollect.common.arguments import check_now
from airflow_provider_webcollect.sensors.base import WaitSensor
from airflow_provider_webcollect.service.api import validation
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.waiting.capacity import CapacityWait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
    from airflow_provider_webcollect.operators.waiting import Records
    from airflow_provider_webcollect.triggers.capacity import WebCollectCapacityTrigger
    from airflow_provider_webcollect.waiting.conditions import Verdict, Watch


class WebCollectCapacitySensor(WaitSensor):
    """Waits until the account has capacity for more runs, by its running counts (contract.md, endpoint 16).

    All waits end once there is capacity; if they must not all start runs at once, give them an Airflow pool.

    Returns the last counts: ``{"extracting_count", "waiting_count", "finished_count",
    "waiting_sub_task_count", "executing_sub_task_count"}``.

    ``timeout``, ``poke_interval``, ``mode`` and ``soft_fail`` are as for all sensors of Airflow.

    :param max_active_tasks: wait until fewer of the account's tasks than this are Extracting or Waiting; None
        for no limit. (templated)
    :param max_active_sub_tasks: the same for sub-tasks; at least one of both, and both count. (templated)
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
        check_now(self, self._wait)

    def _wait(self) -> CapacityWait:
        limits = {
            name: validation.integer(name, limit, 1)
            for name in ("max_active_tasks", "max_active_sub_tasks")
            if (limit := getattr(self, name)) is not None
        }
        if not limits:
            raise InvalidArgument(
                "max_active_tasks", None, "`max_active_tasks`, `max_active_sub_tasks` or both must be given"
            )
        return CapacityWait(**limits)

    def _poll(self, hook: WebCollectHook, watch: Watch[Any]) -> tuple[Verdict, Records]:
        counts = hook.get_running_counts()
        return watch.judge(counts), [counts.as_dict()]

    def _trigger(self) -> WebCollectCapacityTrigger:
        from airflow_provider_webcollect.triggers.capacity import WebCollectCapacityTrigger

        return WebCollectCapacityTrigger(
            wait=msgspec.to_builtins(self._wait()),
            poke_interval=self.poke_interval,
            webcollect_conn_id=self.webcollect_conn_id,
        )

    def _xcom(self, records: Records) -> dict[str, Any]:
        return records[0]
