"""How errors end a task: with the retries that it has, or without any where they cannot help."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_webcollect.landing.errors import LandingError
from airflow_provider_webcollect.service.errors import WebCollectError


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
