"""The base of all operators and sensors: how long retries wait, and how mapped tasks are named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

if TYPE_CHECKING or AIRFLOW_V_3_3_PLUS:
    from airflow.providers.common.compat.sdk import RetryPolicy

    from airflow_provider_webcollect.common.retry import RETRY_AFTER

#: The arguments that identify what a task works on; at most this many characters of them are shown.
NAMING = (
    "collection_task_id",
    "collection_task_ids",
    "lotno",
    "sources",
    "task_group_id",
    "task_group_ids",
    "app_id",
)
LONGEST_NAME = 100


class ProviderOperator(BaseOperator):
    """Base of the operators and sensors that call the service: their retries respect ``Retry-After``.

    When a mapped task has ended, Airflow shows what it worked on (id of the task, batch, ...) as its name,
    unless ``map_index_template`` is given, or none of these arguments is mapped.

    :param retry_policy: Airflow's argument, only available on Airflow 3.3 and later. By default a retry waits
        as long as the service requests (``Retry-After``) if that is longer than the task's own delay; None
        for only the task's own delay. Before Airflow 3.3.2, mapped tasks get None unless it is given.
    """

    if TYPE_CHECKING or AIRFLOW_V_3_3_PLUS:
        # an explicit parameter: Airflow reads the default for mapped tasks here, and `default_args` can set
        # it
        def __init__(self, *, retry_policy: RetryPolicy | None = RETRY_AFTER, **kwargs: Any) -> None:
            super().__init__(retry_policy=retry_policy, **kwargs)

    else:
        # otherwise Airflow would insert BaseOperator's, and sensors would skip BaseSensorOperator's
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)

    def pre_execute(self, context: Any) -> None:
        """Let Airflow show what a mapped task works on, unless ``map_index_template`` is set."""
        super().pre_execute(context)
        # not in the constructor: Airflow takes the template from the mapped operator, not from this one
        if context["ti"].map_index < 0 or context.get("map_index_template") is not None:
            return
        if name := self._name(context["dag"]):
            # a native-object template would turn digits into numbers, and Airflow stores only strings
            is_native = context["dag"].render_template_as_native_obj
            context["webcollect_map_index"] = repr(name) if is_native else name
            context["map_index_template"] = "{{ webcollect_map_index }}"

    def _name(self, dag: Any) -> str:
        """Return what a mapped task works on; an empty string if all its siblings work on the same."""
        shown = {name: text for name in NAMING if (text := _shown(getattr(self, name, None)))}
        shared = getattr(dag.task_dict[self.task_id], "partial_kwargs", {})
        return "" if shown.keys() <= shared.keys() else ", ".join(shown.values())[:LONGEST_NAME]


def _shown(value: Any) -> str:
    """Return an argument as readable text; lists and dicts without brackets and keys."""
    match value:
        case str() | int():
            return str(value)
        case dict():
            return " ".join(filter(None, map(_shown, value.values())))
        case list() | tuple():
            return ", ".join(filter(None, map(_shown, value)))
    # None, or a value that would have to be read first, such as the results of a mapped task
    return ""
