"""How errors fail a task: with its retries, or without retries where they cannot help."""

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

#: Errors that Airflow 2 must receive unchanged: Ctrl-C ends a `dag.test()`, and after a SIGTERM Airflow
#: checks whether a user has set the task's state. Airflow 3 treats them as other failures, or does not raise
#: them.
INTERRUPTS: tuple[type[BaseException], ...] = ()
if not AIRFLOW_V_3_0_PLUS:
    from airflow.exceptions import AirflowTaskTerminated

    INTERRUPTS = (KeyboardInterrupt, AirflowTaskTerminated)


@contextlib.contextmanager
def airflow_errors() -> Iterator[None]:
    """Fail the task without retries where a retry cannot help; re-raise other errors unchanged.

    :raises AirflowFailException: for a permanent error.
    """
    try:
        yield
    except Exception as error:
        fail_if_permanent(error)
        raise


def fail_if_permanent(error: BaseException) -> None:
    """Raise ``AirflowFailException`` if a retry cannot help against the error."""
    if isinstance(error, WebCollectError | LandingError) and error.permanent:
        raise AirflowFailException(str(error)) from error


def fail_without_retries(operator: BaseOperator, message: str, error: BaseException) -> None:
    """Fail the task without retries; if this returns, the caller must raise ``error`` again.

    :raises AirflowFailException: unless Airflow must get ``error`` unchanged.
    """
    if not isinstance(error, INTERRUPTS):
        raise AirflowFailException(message) from error
    operator.log.error("%s", message)
    # after an interrupt, Airflow 2 checks only whether the operator has retries
    operator.retries = 0
