"""Operators for the service's operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.common.arguments import check_now
from airflow_provider_webcollect.common.storage import storage_path
from airflow_provider_webcollect.operators.analytics import (
    WebCollectMetricsCheckOperator,
    WebCollectQueryAnalyticsOperator,
)
from airflow_provider_webcollect.operators.base import WebCollectTaskOperator
from airflow_provider_webcollect.operators.landings import (
    WebCollectCleanLandingOperator,
    WebCollectVerifyLandingOperator,
)
from airflow_provider_webcollect.operators.start import WebCollectStartSubTasksOperator
from airflow_provider_webcollect.operators.tasks import (
    WebCollectCopyTaskOperator,
    WebCollectCopyTasksOperator,
    WebCollectDeleteTaskGroupsOperator,
    WebCollectDeleteTasksOperator,
    WebCollectDeprecateDataAppOperator,
    WebCollectGetActionsOperator,
    WebCollectGetRunningCountsOperator,
    WebCollectMoveTaskOperator,
    WebCollectUpdateTaskParametersOperator,
)
from airflow_provider_webcollect.operators.tokens import WebCollectRefreshTokenOperator
from airflow_provider_webcollect.service import endpoints, validation
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.service.url_file import url_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook

__all__ = [
    "WebCollectCleanLandingOperator",
    "WebCollectCopyTaskOperator",
    "WebCollectCopyTasksOperator",
    "WebCollectDeleteTaskGroupsOperator",
    "WebCollectDeleteTasksOperator",
    "WebCollectDeprecateDataAppOperator",
    "WebCollectGetActionsOperator",
    "WebCollectGetRunningCountsOperator",
    "WebCollectMarkExportedOperator",
    "WebCollectMetricsCheckOperator",
    "WebCollectMoveTaskOperator",
    "WebCollectQueryAnalyticsOperator",
    "WebCollectRefreshTokenOperator",
    "WebCollectReplaceUrlsOperator",
    "WebCollectStartSubTasksOperator",
    "WebCollectUpdateLoopItemsOperator",
    "WebCollectUpdateTaskParametersOperator",
    "WebCollectVerifyLandingOperator",
]


class WebCollectUpdateLoopItemsOperator(WebCollectTaskOperator):
    """Replaces or extends the values of a task's loop step (contract.md, endpoint 3).

    Returns ``{"collection_task_id", "action_id", "count", "message"}``.

    :param collection_task_id: the service's task. (templated)
    :param action_id: the loop step. (templated)
    :param loop_type: ``TextList`` or ``UrlList``, in any letter case. (templated)
    :param loop_items: the values. (templated)
    :param is_append: append to the existing values; by default they are replaced. If the response to an
        append is lost, the task fails without retries, since the values may have been appended.
    :param retry_unknown_outcome: also retry if it is not known whether values were appended.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for a task that does not exist; and if it is
        not known whether values were appended, unless ``retry_unknown_outcome`` is set.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields: Sequence[str] = (
        "collection_task_id",
        "action_id",
        "loop_type",
        "loop_items",
        "webcollect_conn_id",
    )
    template_fields_renderers = {"loop_items": "json"}  # noqa: RUF012  # as Airflow declares it

    def __init__(
        self,
        *,
        collection_task_id: str,
        action_id: str,
        loop_type: str,
        loop_items: Sequence[str],
        is_append: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(collection_task_id=collection_task_id, **kwargs)
        self.action_id = action_id
        self.loop_type = loop_type
        self.loop_items = loop_items
        self.is_append = is_append
        check_now(self, self._call)

    def _call(self) -> Any:
        task_id = validation.text("collection_task_id", self.collection_task_id)
        return endpoints.update_loop_items(
            task_id, self.action_id, self.loop_type, self.loop_items, self.is_append
        )

    def perform(self, hook: WebCollectHook) -> dict[str, Any]:
        """Update the values and return a summary."""
        message = hook.client.send(self._call()).message
        done = "Appended" if self.is_append else "Replaced all values by"
        self.log.info("%s %d values of step %s.", done, len(self.loop_items), self.action_id)
        return {
            "collection_task_id": self.collection_task_id,
            "action_id": self.action_id,
            "count": len(self.loop_items),
            "message": message,
        }

    def what_to_check(self) -> str:
        """Return the list whose values may have been appended."""
        return (
            f"The {len(self.loop_items)} values may have been appended already to step {self.action_id} of "
            f"task {self.collection_task_id}."
        )


class WebCollectReplaceUrlsOperator(WebCollectTaskOperator):
    """Replaces a task's URLs from a list or a file (contract.md, endpoint 6).

    The file is checked line by line before anything is sent, and is streamed.

    Returns ``{"collection_task_id", "count"}``.

    :param collection_task_id: the service's task. (templated)
    :param urls: http(s) URLs, also from an upstream task. (templated)
    :param urls_path: instead of ``urls``: a text file with one URL per line, in UTF-8, on any storage that
        ``ObjectStoragePath`` reaches, such as ``s3://bucket/urls.txt``. A BOM and blank lines at its end are
        not sent. (templated)
    :param object_storage_conn_id: the Airflow connection of that storage; None for its default credentials.
        (templated)
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for a line of the file that is no URL.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields: Sequence[str] = (
        "collection_task_id",
        "urls",
        "urls_path",
        "object_storage_conn_id",
        "webcollect_conn_id",
    )
    template_fields_renderers = {"urls": "json"}  # noqa: RUF012  # as Airflow declares it

    def __init__(
        self,
        *,
        collection_task_id: str,
        urls: Sequence[str] | None = None,
        urls_path: str | None = None,
        object_storage_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(collection_task_id=collection_task_id, **kwargs)
        self.urls = urls
        self.urls_path = urls_path
        self.object_storage_conn_id = object_storage_conn_id
        check_now(self, self._check)

    def _check(self) -> None:
        validation.text("collection_task_id", self.collection_task_id)
        if (self.urls is None) == (self.urls_path is None):
            raise InvalidArgument("urls", self.urls, "either `urls` or `urls_path` must be given")
        if self.urls is not None:
            url_list(self.urls)
        elif isinstance(self.urls_path, str):
            validation.text("urls_path", self.urls_path)

    def perform(self, hook: WebCollectHook) -> dict[str, Any]:
        """Upload the URLs and return their number."""
        self._check()
        file = None
        if self.urls_path is not None:
            file = storage_path(self.urls_path, self.object_storage_conn_id)
        count = hook.replace_urls(self.collection_task_id, file, urls=self.urls)
        self.log.info("Replaced the URLs of task %s by %d.", self.collection_task_id, count)
        return {"collection_task_id": self.collection_task_id, "count": count}


class WebCollectMarkExportedOperator(WebCollectTaskOperator):
    """Confirms that a task's data has been exported (contract.md, endpoint 19).

    Returns ``{"collection_task_id"}``.

    :param collection_task_id: the service's task. (templated)
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for a task that does not exist.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields: Sequence[str] = ("collection_task_id", "webcollect_conn_id")

    def __init__(self, *, collection_task_id: str, **kwargs: Any) -> None:
        super().__init__(collection_task_id=collection_task_id, **kwargs)
        check_now(self, self._call)

    def _call(self) -> Any:
        return endpoints.mark_exported(validation.text("collection_task_id", self.collection_task_id))

    def perform(self, hook: WebCollectHook) -> dict[str, Any]:
        """Confirm the export."""
        hook.client.send(self._call())
        self.log.info("Confirmed the export of task %s.", self.collection_task_id)
        return {"collection_task_id": self.collection_task_id}
