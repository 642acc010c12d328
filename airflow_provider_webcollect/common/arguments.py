"""Operators' arguments: checks while the DAG is parsed, and special values for triggers."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator

#: The only key of a mapping that represents another task's result in the arguments of a trigger.
XCOM_PULL = "xcom_pull"
#: How long after the timeout Airflow ends a wait in the triggerer, if the trigger fails to end it in time.
GRACE = datetime.timedelta(seconds=60)
#: Why a triggerer cannot begin a wait with ``after="now"``.
NOW_NEEDS_WORKER = "only a worker can query what the status shows now"


def check_now(operator: BaseOperator, check: Callable[[], Any], names: Iterable[str] | None = None) -> None:
    """Run ``check`` while the DAG is parsed, if all arguments that it reads are literal.

    Templated and mapped arguments are checked when the task runs; an error then fails it without retries.
    Generators and other iterators among the arguments become lists, see :func:`kept`.

    :param names: the arguments that it reads; by default all template fields of the operator.
    :raises InvalidArgument: if an argument breaks a rule; Airflow shows it as an import error.
    """
    names = operator.template_fields if names is None else tuple(names)
    # only the provider's own: Airflow 2.11 keeps a weak proxy of the task group, which passes for an iterator
    for name in {*operator.template_fields, *names}:
        if _holds_iterator(value := getattr(operator, name, None)):
            setattr(operator, name, kept(value))
    if not is_unmapped(operator) and all(_is_literal(getattr(operator, name, None)) for name in names):
        check()


def kept(value: Any) -> Any:
    """Return an argument with lists in place of iterators, since those can be read only once."""
    if isinstance(value, Iterator):
        value = list(value)
    if not _holds_iterator(value):
        return value
    if isinstance(value, dict):
        return {name: kept(item) for name, item in value.items()}
    return [kept(item) for item in value]


def _holds_iterator(value: Any) -> bool:
    match value:
        case dict():
            return any(_holds_iterator(item) for item in value.values())
        case list() | tuple():
            return any(_holds_iterator(item) for item in value)
    return isinstance(value, Iterator)


def is_unmapped(operator: BaseOperator) -> bool:
    """Return whether Airflow creates the operator from a mapped one, which happens in a worker.

    An error in its constructor would use up a retry, and skip ``on_failure_callback`` on Airflow 2.
    """
    dag = operator.get_dag()
    # the mapped operator remains the one in the DAG
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
        # Airflow also renders object storage paths
        return _is_literal(str(value))
    # an XComArg, a mapped argument, or another value that exists only when the task runs
    return not hasattr(value, "resolve")
