"""The operators' base classes: the connection, the link, and how errors fail the task."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.common.errors import fail_if_permanent, fail_without_retries
from airflow_provider_webcollect.common.operator import ProviderOperator
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.links import WebCollectTaskLink, store_task_link
from airflow_provider_webcollect.service import validation
from airflow_provider_webcollect.service.errors import unknown_outcome

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_webcollect.service.errors import OutcomeUnknown


class WebCollectOperator(ProviderOperator):
    """Base of the operators: the connection, and how errors fail the task.

    Literal arguments are checked while the DAG is parsed.

    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :param retry_unknown_outcome: also retry if it is not known whether an operation that is not idempotent
        took effect; by default the task then fails without retries.
    :param retry_policy: Airflow's argument, available from Airflow 3.3; by default a retry waits at least as
        long as the service requests (``Retry-After``), see
        :class:`~airflow_provider_webcollect.common.operator.ProviderOperator`.
    :raises InvalidArgument: while the DAG is parsed, if a literal argument is wrong.
    :raises AirflowFailException: if a retry cannot help, such as for a wrong argument or a refused
        credential; and if an outcome is unknown, unless ``retry_unknown_outcome`` is set.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    ui_color = "#d7ecdf"

    def __init__(
        self,
        *,
        webcollect_conn_id: str = WebCollectHook.default_conn_name,
        retry_unknown_outcome: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.webcollect_conn_id = webcollect_conn_id
        self.retry_unknown_outcome = retry_unknown_outcome

    def execute(self, context: Context) -> Any:
        """Perform the operation; an error that a retry cannot fix fails the task without retries."""
        with self.errors():
            return self.perform(WebCollectHook(self.webcollect_conn_id))

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Return a context manager that fails the task without retries where the service's error requires it.

        :raises AirflowFailException: for a permanent error, and if it is not known whether an operation that
            is not idempotent took effect, whatever interrupted it (a lost response, the task's
            `execution_timeout`).
        """
        try:
            yield
        except BaseException as error:
            unknown = unknown_outcome(error)
            if unknown is None:
                fail_if_permanent(error)
            elif not self.retry_unknown_outcome:
                fail_without_retries(self, self._advice(unknown), error)
            raise

    def _advice(self, unknown: OutcomeUnknown) -> str:
        hint = " ".join(filter(None, (str(unknown), self.what_to_check())))
        return (
            f"{hint} Clear the task to repeat it, or set `retry_unknown_outcome=True` to have retries do so."
        )

    def perform(self, hook: WebCollectHook) -> Any:
        """Perform the operation and return its result as plain JSON.

        :param hook: the hook of the connection.
        """
        raise NotImplementedError

    def what_to_check(self) -> str:
        """Return what to check if it is not known whether the operation took effect."""
        return ""


class WebCollectTaskOperator(WebCollectOperator):
    """Base of the operators on one collection task; links to it if the connection has a template for that.

    :param collection_task_id: the service's task. (templated)
    """

    operator_extra_links = (WebCollectTaskLink(),)

    def __init__(self, *, collection_task_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.collection_task_id = collection_task_id

    def execute(self, context: Context) -> Any:
        """Store the link to the task and perform the operation."""
        with self.errors():
            self.collection_task_id = validation.text("collection_task_id", self.collection_task_id)
            hook = WebCollectHook(self.webcollect_conn_id)
            store_task_link(context, hook, self.collection_task_id)
            return self.perform(hook)
