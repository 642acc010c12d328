"""Links from a task in Airflow's UI to the service's web page of the collection task, and to landed rows.

The web server must not read connections, so a task stores its links as XComs when it runs; a link that was
not stored is not shown. DAGs that Airflow 2 has stored refer to these classes by path. If a web server does
not know one of an operator's paths, it shows none of that operator's links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom

from airflow_provider_webcollect.assets import storable
from airflow_provider_webcollect.collection_tasks import task_id_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
    from airflow_provider_webcollect.landing.location import Location


class _StoredLink(BaseOperatorLink):
    """A link whose URL the task stores when it runs."""

    key: str

    @property
    def xcom_key(self) -> str:
        """The key under which Airflow 3's API server looks for the URL."""
        return self.key

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the stored URL, or an empty string to show no link."""
        url = getattr(operator, self.key, None)
        if url is None:
            # this process is not the task's, or the task has continued after a wait in the triggerer
            url = XCom.get_value(ti_key=ti_key, key=self.key)
        # a user who can write XComs could have stored a script
        is_page = isinstance(url, str) and url.lower().startswith(("http://", "https://"))
        return str(url) if is_page else ""

    @classmethod
    def store(cls, context: Context, url: str) -> None:
        """Store ``url``, so that the link is shown at once, even while the task is running or deferred.

        :param url: the URL; empty to show no link.
        """
        operator = context["task"]
        # Airflow 3 looks for the link when the task has ended, and logs a missing XCom as an error
        setattr(operator, cls.key, url)
        if url or getattr(operator, "deferrable", False):
            context["ti"].xcom_push(key=cls.key, value=storable(url))


class WebCollectTaskLink(_StoredLink):
    """The service's web page of the task, if the connection's extra ``task_url_template`` is set."""

    name = "Collection task"
    key = "webcollect_task_url"


class WebCollectExportLink(_StoredLink):
    """The storage's web page of landed rows, if the connection's extra ``export_url_template`` is set."""

    name = "Landed rows"
    key = "webcollect_export_url"


def store_task_link(context: Context, hook: WebCollectHook, collection_task_id: object) -> None:
    """Store the link to a task's page, if the connection has a URL template for such pages.

    :param collection_task_id: the task's id or name; for any other value, such as None, no link is stored.
    :raises InvalidArgument: if the file of collection tasks does not have the name.
    """
    template = hook.connection.task_url_template
    linked = template and isinstance(collection_task_id, str | int) and str(collection_task_id).strip()
    task_id = task_id_of("collection_task_id", collection_task_id) if linked else ""
    url = _filled(str(template), {"task_id": task_id}) if linked else ""
    WebCollectTaskLink.store(context, url)


def store_export_link(context: Context, hook: WebCollectHook, location: Location) -> None:
    """Store the link to a folder of landed rows, if the connection has a URL template for such pages."""
    template = hook.connection.export_url_template
    values = {"bucket": location.bucket, "path": location.key.lstrip("/")}
    WebCollectExportLink.store(context, _filled(template, values, safe="/") if template else "")


def _filled(template: str, values: Mapping[str, str], safe: str = "") -> str:
    """Return ``template`` with the quoted ``values`` in place of their names in braces.

    :param safe: characters of the values that are not quoted.
    """
    for name, value in values.items():
        template = template.replace(f"{{{name}}}", quote(value, safe=safe))
    return template
