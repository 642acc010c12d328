"""What all operators and sensors share: how long retries wait, and how mapped tasks are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

if TYPE_CHECKING or AIRFLOW_V_3_3_PLUS:
    from airflow.providers.common.compat.sdk import RetryPolicy

    from airflow_provider_webcollect.common.retry import RETRY_AFTER

#: The arguments that say what a task works on, and the most characters of them that are shown.
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
    """Base of what calls the service: its retries wait at least as long as the service asks for.

    A mapped task is shown by what it works on (id of the task, batch, ...) from its end on, unless
    ``map_index_template`` is given, or none of that is mapped.

    :param retry_policy: Airflow's argument, on Airflow 3.3 and later alone. By default a retry waits as long
        as the service asks for (``Retry-After``) where that is longer than the task's own delay; None for
        the task's own delay alone. Before Airflow 3.3.2, mapped tasks get None unless it is given.
    """

    if TYPE_CHECKING or AIRFLOW_V_3_3_PLUS:
        # where Airflow finds the default for mapped tasks, and that `default_args` may set it
        def __init__(self, *, retry_policy: RetryPolicy | None = RETRY_AFTER, **kwargs: Any) -> None:
            super().__init__(retry_policy=retry_policy, **kwargs)

    else:
        # without it, Airflow puts the one of BaseOperator here, and sensors skip that of BaseSensorOperator
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)

    def pre_execute(self, context: Any) -> None:
        """Have Airflow show a mapped task by what it works on, if ``map_index_template`` says nothing."""
        super().pre_execute(context)
        # not in the constructor: Airflow takes the template from the mapped operator, not from this one
        if context["ti"].map_index < 0 or context.get("map_index_template") is not None:
            return
        if name := self._name(context["dag"]):
            # a template that gives native objects makes numbers of digits, and Airflow stores texts alone
            is_native = context["dag"].render_template_as_native_obj
            context["webcollect_map_index"] = repr(name) if is_native else name
            context["map_index_template"] = "{{ webcollect_map_index }}"

    def _name(self, dag: Any) -> str:
        """Return what a mapped task works on; nothing if all of its siblings work on the same."""
        shown = {name: text for name in NAMING if (text := _shown(getattr(self, name, None)))}
        shared = getattr(dag.task_dict[self.task_id], "partial_kwargs", {})
        return "" if shown.keys() <= shared.keys() else ", ".join(shown.values())[:LONGEST_NAME]


def _shown(value: Any) -> str:
    """Return an argument as people read it: what is in lists and dicts, without their brackets and keys."""
    match value:
        case str() | int():
            return str(value)
        case dict():
            return " ".join(filter(None, map(_shown, value.values())))
        case list() | tuple():
            return ", ".join(filter(None, map(_shown, value)))
    # None, or what would first have to be read, such as the results of a mapped task
    return ""
