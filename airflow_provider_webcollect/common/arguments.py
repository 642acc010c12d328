"""Operators' arguments: checked while the DAG is parsed, if they are known by then, or given to triggers."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator

#: In arguments that a triggerer gets, the one key of a mapping that stands for a result of another task.
XCOM_PULL = "xcom_pull"
#: The triggerer ends a zero-slot wait at its timeout; so long after it Airflow does, should that fail.
GRACE = datetime.timedelta(seconds=60)
#: Why no triggerer begins a wait with ``after="now"``.
NOW_NEEDS_WORKER = "only a worker can query what the status shows now"


def check_now(operator: BaseOperator, check: Callable[[], Any], names: Iterable[str] | None = None) -> None:
    """Run ``check`` while the DAG is parsed, if all arguments that it reads are literal.

    Templated and mapped arguments are checked when the task runs; an error then fails it without retries.

    :param names: the arguments that it reads; by default all template fields of the operator.
    :raises InvalidArgument: if an argument breaks a rule; Airflow shows it as an import error.
    """
    names = operator.template_fields if names is None else names
    if not is_unmapped(operator) and all(_is_literal(getattr(operator, name, None)) for name in names):
        check()


def is_unmapped(operator: BaseOperator) -> bool:
    """Return whether Airflow makes the operator of a mapped one, which it does in a worker.

    An error in its constructor would cost the task a retry, and on Airflow 2 its ``on_failure_callback``.
    """
    dag = operator.get_dag()
    # the mapped one keeps the place in the DAG
    return dag is not None and dag.task_dict.get(operator.task_id) is not operator


def _is_literal(value: Any) -> bool:
    match value:
        case str():
            return "{{" not in value and "{%" not in value
        case Mapping():
            return all(_is_literal(item) for item in value.values())
        case list() | tuple() | set():
            return all(_is_literal(item) for item in value)
    if hasattr(type(value), "fs"):
        # Airflow renders paths on object storage too
        return _is_literal(str(value))
    # an XComArg, a mapped argument, or another value that exists only when the task runs
    return not hasattr(value, "resolve")
