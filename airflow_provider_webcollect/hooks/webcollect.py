"""The hook: a connection of the type ``webcollect``, and a typed method for each endpoint of the service."""

from __future__ import annotations

import ast
import inspect
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from airflow.providers.common.compat.sdk import BaseHook, mask_secret

from airflow_provider_webcollect.hooks.connection_fields import UI_FIELD_BEHAVIOUR, widgets
from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.errors import InvalidArgument, WebCollectError
from airflow_provider_webcollect.service.models import DataPage, SubTask, TokenRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_provider_webcollect.hooks.connection import WebCollectConnection
    from airflow_provider_webcollect.service.call import ClientContext
    from airflow_provider_webcollect.service.client import AsyncClient, Client
    from airflow_provider_webcollect.service.endpoints import Operation

__all__ = ["WebCollectHook"]

P = ParamSpec("P")
T = TypeVar("T")

#: Limits of calls for whose result a person waits: the maximum number of attempts, the seconds after which no
#: further attempt is made, and the maximum number of seconds for a response.
READING_TRIES, READING_DEADLINE, READING_TIMEOUT = 2, 10.0, 20.0


def _method(operation: Operation[P, T]) -> Callable[Concatenate[WebCollectHook, P], T]:
    """Return the hook's method that calls an endpoint and returns the result."""

    def method(self: WebCollectHook, /, *args: P.args, **kwargs: P.kwargs) -> T:
        call = operation(*args, **kwargs)
        return self.client.send(call)

    signature = inspect.signature(operation)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    arguments = [own]
    for parameter in signature.parameters.values():
        annotation = ast.parse(parameter.annotation, mode="eval").body
        if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
            # only the parser of arguments needs the metadata of `Annotated`
            assert isinstance(annotation.slice, ast.Tuple)
            annotation = annotation.slice.elts[0]
        arguments.append(parameter.replace(annotation=ast.unparse(annotation)))
    method.__name__, method.__doc__ = operation.endpoint.name, operation.__doc__
    method.__qualname__ = f"WebCollectHook.{method.__name__}"
    vars(method)["__signature__"] = inspect.Signature(
        arguments, return_annotation=operation.endpoint.result.kind
    )
    return method


class WebCollectHook(BaseHook):
    """Calls the web data collection service through an Airflow connection.

    Every method that calls the service raises a
    :class:`~airflow_provider_webcollect.service.errors.WebCollectError`: ``InvalidArgument`` before anything
    is sent, a ``ServiceError`` if the service refuses the request, a ``TransportError`` if there was no
    response, and ``OutcomeUnknown`` if it is unknown whether an operation that is not idempotent took effect.

    Methods that read rows report the asset of the task to Airflow's hook lineage, as an input.

    :param webcollect_conn_id: the Airflow connection, of the type ``webcollect``.
    """

    conn_name_attr = "webcollect_conn_id"
    default_conn_name = "webcollect_default"
    conn_type = "webcollect"
    hook_name = "Web Data Collection"

    def __init__(self, webcollect_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.webcollect_conn_id = webcollect_conn_id

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """Return the fields of the connection form, for Airflow before 3.2."""
        return widgets()

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return the form's hidden and renamed fields and its examples, for Airflow before 3.2."""
        return UI_FIELD_BEHAVIOUR

    @cached_property
    def connection(self) -> WebCollectConnection:
        """The checked Airflow connection, read once, when first needed. Its secrets are masked in logs."""
        return self._read_connection()

    def _read_connection(self) -> WebCollectConnection:
        from airflow_provider_webcollect.hooks.connection import read_connection

        stored = self.get_connection(self.webcollect_conn_id)
        connection = read_connection(stored, stored.extra_dejson)
        for secret in connection.credentials.secrets():
            mask_secret(secret)
        return connection

    async def aload(self) -> WebCollectConnection:
        """Read the Airflow connection without blocking the event loop; triggers must call this first."""
        from airflow_provider_webcollect.service.client import in_thread

        if "connection" not in vars(self):
            # Airflow's own asynchronous method does not find connections in the database when `dag.test()`
            # runs a trigger. The cached property cannot be used either: in Python 3.11, all hooks share its
            # lock. The event loop could block on that lock while the thread waits for the event loop.
            self.connection = await in_thread(self._read_alone)
        return self.connection

    def _read_alone(self) -> WebCollectConnection:
        from airflow_provider_webcollect.service.threads import one_at_a_time

        with one_at_a_time():
            return self._read_connection()

    def get_conn(self) -> Client:
        """Return the client that the methods use."""
        return self.client

    @cached_property
    def client(self) -> Client:
        """The client that the methods use."""
        from airflow_provider_webcollect.service.client import Client

        return Client(self._context())

    def reading_client(self) -> Client:
        """Return a new client for results that a person waits for and that are soon read again.

        The client never renews the token, so a valid token must be stored. It makes few attempts with short
        timeouts.
        """
        from airflow_provider_webcollect.service.client import Client

        context = self._context(reads_only=True)
        return Client(context.short_retries(READING_TRIES, READING_DEADLINE, READING_TIMEOUT))

    def async_client(self) -> AsyncClient:
        """Return a new client for an event loop; the caller closes it (``async with``)."""
        from airflow_provider_webcollect.service.client import AsyncClient

        return AsyncClient(self._context())

    def _context(self, *, reads_only: bool = False) -> ClientContext:
        from airflow_provider_webcollect.collection_tasks import hint_at_names
        from airflow_provider_webcollect.hooks.token_store import make_token_store
        from airflow_provider_webcollect.service.call import make_context

        connection = self.connection
        store = make_token_store(connection.conn_id)
        return make_context(
            connection.settings,
            connection.credentials,
            connection.conn_id,
            store,
            learned=_mask,
            is_outdated=lambda: self.successor() is not None,
            hint=hint_at_names,
            reads_only=reads_only,
        )

    def successor(self) -> WebCollectHook | None:
        """Read the connection again, and return a hook for it if it has changed, otherwise None."""
        hook = WebCollectHook(self.webcollect_conn_id)
        try:
            hook.connection = self._read_alone()
        except Exception as error:  # for example from the secrets backend
            self.log.warning("The connection cannot be read again. %s", error)
            return None
        return hook if hook.connection != self.connection else None

    def test_connection(self) -> tuple[bool, str]:
        """Test the connection with a harmless call; return whether it works, and a message for the user.

        The refresh token is not tried, since it works only once.
        """
        from airflow_provider_webcollect.hooks.connection import check_connection

        try:
            return check_connection(self.connection)
        except WebCollectError as error:
            return False, str(error)

    def refresh_token(self) -> TokenRecord:
        """Renew the access token now, share it with all processes, and return it (contract.md, endpoint 1).

        The other methods renew the token automatically when needed.
        """
        return self.client.renew_token().record(time.time())

    # each method has the parameters and the docstring of its endpoint
    query_analytics = _method(endpoints.query_analytics)
    update_task_parameters = _method(endpoints.update_task_parameters)
    get_actions = _method(endpoints.get_actions)
    copy_task = _method(endpoints.copy_task)
    copy_tasks = _method(endpoints.copy_tasks)
    delete_tasks = _method(endpoints.delete_tasks)
    delete_task_groups = _method(endpoints.delete_task_groups)
    get_task_statuses = _method(endpoints.get_task_statuses)
    get_task_statuses_v2 = _method(endpoints.get_task_statuses_v2)
    get_subtasks = _method(endpoints.get_subtasks)
    start_subtasks = _method(endpoints.start_subtasks)
    get_running_counts = _method(endpoints.get_running_counts)
    mark_exported = _method(endpoints.mark_exported)
    deprecate_data_app = _method(endpoints.deprecate_data_app)

    def update_loop_items(
        self, task_id: str, action_id: str, loop_type: str, loop_items: Sequence[str], is_append: bool = False
    ) -> str | None:
        """Replace or extend a loop step's values; return the service's message (contract.md, endpoint 3).

        :param task_id: the id of the service's task.
        :param action_id: the id of the loop step.
        :param loop_type: ``TextList`` or ``UrlList``, in any letter case.
        :param loop_items: the values.
        :param is_append: append to the existing values; otherwise they are cleared first.
        :raises NotFound: if the task has no such step.
        :raises OutcomeUnknown: when appending, if there was no response.
        """
        call = endpoints.update_loop_items(task_id, action_id, loop_type, loop_items, is_append)
        return self.client.send(call).message

    def replace_urls(self, task_id: str, file: Any = None, *, urls: Sequence[str] | None = None) -> int:
        """Replace the task's URLs; return the number of new URLs (contract.md, endpoint 6).

        A file may have up to 64 MiB. It is checked line by line before anything is sent.

        :param task_id: the id of the service's task.
        :param file: a text file with one http(s) URL per line, in UTF-8: a path, an ``ObjectStoragePath``, an
            ``fsspec.OpenFile``, or a file opened in binary mode. A BOM and trailing blank lines are not sent.
        :param urls: http(s) URLs, instead of a file.
        :raises InvalidArgument: if the file is too large or has no URL; also, naming the line, if a line is
            not UTF-8, is not an http(s) URL, or is blank before the last URL.
        :raises FileUnreadable: if the file cannot be read now.
        :raises TaskBusy: if the task is running.
        """
        if (file is None) == (urls is None):
            raise InvalidArgument("file", file, "either `file` or `urls` must be given")
        from airflow_provider_webcollect.service.url_file import url_file, url_list

        upload = url_file(file) if urls is None else url_list(urls)
        self.client.send(endpoints.replace_urls(task_id, upload))
        return upload.count

    def move_task(self, task_id: str, group_id: int) -> bool:
        """Move a task to a group; return whether the service moved it (contract.md, endpoint 9).

        :param task_id: the id of the service's task.
        :param group_id: the id of the group to move it to.
        """
        return self.client.send(endpoints.move_task(task_id, group_id)).moved

    def get_all_subtasks(self, task_id: str) -> list[SubTask]:
        """Read all sub-tasks of the task's latest batch, page by page (contract.md, endpoint 14).

        :param task_id: the id of the service's task.
        """
        from airflow_provider_webcollect.service.pages import all_subtasks

        return all_subtasks(self.client, task_id)

    def read_data(self, task_id: str, offset: int = 0, size: int = endpoints.MAX_DATA_SIZE) -> DataPage:
        """Read a page of a task's whole history (contract.md, endpoint 17).

        :param task_id: the id of the service's task.
        :param offset: 0 for the first page, then the offset returned with the previous page.
        :param size: maximum number of rows, 1 to 1000 (default); a page may have fewer.
        """
        self.report_read(task_id)
        return self.client.send(endpoints.read_data(task_id, offset, size))

    def read_batch_data(
        self, task_id: str, lotno: str, offset: int = 0, size: int = endpoints.MAX_DATA_SIZE
    ) -> DataPage:
        """Read a page of one batch of a task (contract.md, endpoint 18).

        :param task_id: the id of the service's task.
        :param lotno: the batch number.
        :param offset: 0 for the first page, then the offset returned with the previous page.
        :param size: maximum number of rows, 1 to 1000 (default); a page may have fewer.
        """
        self.report_read(task_id, lotno)
        return self.client.send(endpoints.read_batch_data(task_id, lotno, offset, size))

    def report_read(self, task_id: str, lotno: str | None = None, name: str | None = None) -> None:
        """Report to Airflow's hook lineage that a task's rows are read, as the asset of the task.

        :param task_id: the id of the service's task.
        :param lotno: the batch number; None for the whole history.
        :param name: the task's name, for people; None if it is not known.
        """
        from airflow.providers.common.compat.lineage.hook import get_hook_lineage_collector

        source = {"collection_task_id": task_id, "lotno": lotno}
        get_hook_lineage_collector().add_input_asset(
            context=self,
            scheme=WebCollectHook.conn_type,  # the scheme of the URIs that `assets.create_asset` makes
            asset_kwargs={**source, "webcollect_conn_id": self.webcollect_conn_id},
            asset_extra={"collection_task_name": name} if name else None,
        )

    def iter_rows(self, task_id: str, lotno: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield all rows of the whole history or of one batch, as dicts (contract.md, endpoints 17 and 18).

        :param task_id: the id of the service's task.
        :param lotno: the batch number; None for the whole history.
        :raises PagingError: if the service's cursor does not advance, or its counts contradict the rows.
        """
        from airflow_provider_webcollect.service.pages import PageReader

        self.report_read(task_id, lotno)
        for page in PageReader(self.client, task_id, lotno).pages():
            yield from page.records()


def _mask(secret: str) -> None:
    """Mask ``secret`` in Airflow's logs."""
    from airflow_provider_webcollect.service.threads import one_at_a_time

    with one_at_a_time():
        mask_secret(secret)
