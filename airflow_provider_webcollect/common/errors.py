"""How errors end a task: with the retries that it has, or without any where they cannot help."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from airflow_provider_webcollect.landing.errors import LandingError
from airflow_provider_webcollect.service.errors import WebCollectError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator

#: What Airflow 2 must get unchanged: Ctrl-C ends a `dag.test()`, and after a SIGTERM Airflow checks whether
#: the task's state was set by a user. Airflow 3 handles them as any failure, or raises nothing at all.
INTERRUPTS: tuple[type[BaseException], ...] = ()
if not AIRFLOW_V_3_0_PLUS:
    from airflow.exceptions import AirflowTaskTerminated

    INTERRUPTS = (KeyboardInterrupt, AirflowTaskTerminated)


@contextlib.contextmanager
def airflow_errors() -> Iterator[None]:
    """Fail the task without retries where a retry cannot help; leave other errors to its retries.

    :raises AirflowFailException: for an error that is permanent.
    """
    try:
        yield
    except Exception as error:
        fail_if_permanent(error)
        raise


def fail_if_permanent(error: BaseException) -> None:
    """Raise ``AirflowFailException`` for an error that a retry cannot help."""
    if isinstance(error, WebCollectError | LandingError) and error.permanent:
        raise AirflowFailException(str(error)) from error


def fail_without_retries(operator: BaseOperator, message: str, error: BaseException) -> None:
    """Have the task fail without retries, by an error that the caller raises again if this returns.

    :raises AirflowFailException: unless Airflow must get ``error`` unchanged.
    """
    if not isinstance(error, INTERRUPTS):
        raise AirflowFailException(message) from error
    operator.log.error("%s", message)
    # all that Airflow 2 checks after an interrupt is whether the operator has retries
    operator.retries = 0
