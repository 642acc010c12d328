"""Operators for the service's operations on tokens, tasks and data apps, in the order of the contract.

The operators for starts, analytics and landings are in modules of their own, but DAGs import all operators
from this module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec
import pendulum
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException

from airflow_provider_webcollect.assets import InputsWithoutRows
from airflow_provider_webcollect.collection_tasks import (
    check_names,
    described,
    folded,
    task_id_of,
    task_ids_of,
)
from airflow_provider_webcollect.common import (
    WebCollectOperator,
    WebCollectTaskOperator,
    check_at_parse,
    for_each,
    refuse_beside,
)
from airflow_provider_webcollect.hooks.storage import AirflowConnections, require_supported
from airflow_provider_webcollect.landing.location import Location
from airflow_provider_webcollect.operators.analytics import (
    WebCollectDiscoverOperator,
    WebCollectMetricsCheckOperator,
    WebCollectQueryAnalyticsOperator,
)
from airflow_provider_webcollect.operators.landings import (
    WebCollectAcceptLandingOperator,
    WebCollectCleanLandingOperator,
    WebCollectVerifyLandingOperator,
)
from airflow_provider_webcollect.operators.start import WebCollectStartSubTasksOperator
from airflow_provider_webcollect.service import arguments, endpoints
from airflow_provider_webcollect.service.endpoints import Retry
from airflow_provider_webcollect.service.errors import InvalidArgument, WebCollectError, escaped
from airflow_provider_webcollect.service.models import ActionType

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
    from airflow_provider_webcollect.service.endpoints import Call

__all__ = [
    "WebCollectAcceptLandingOperator",
    "WebCollectCleanLandingOperator",
    "WebCollectCopyTaskOperator",
    "WebCollectCopyTasksOperator",
    "WebCollectDeleteTaskGroupsOperator",
    "WebCollectDeleteTasksOperator",
    "WebCollectDeprecateDataAppOperator",
    "WebCollectDiscoverOperator",
    "WebCollectGetActionsOperator",
    "WebCollectGetRunningCountsOperator",
    "WebCollectMarkExportedOperator",
    "WebCollectMetricsCheckOperator",
    "WebCollectMoveTaskOperator",
    "WebCollectQueryAnalyticsOperator",
    "WebCollectRefreshTokenOperator",
    "WebCollectReplaceUrlsOperator",
    "WebCollectSetMissingInputsOperator",
    "WebCollectStartSubTasksOperator",
    "WebCollectUpdateLoopItemsOperator",
    "WebCollectUpdateTaskParametersOperator",
    "WebCollectVerifyLandingOperator",
]

OnPartialFailure = Literal["fail", "skip", "ignore"]


class WebCollectRefreshTokenOperator(WebCollectOperator):
    """Renews the connection's access token and shares it with all workers (contract.md, endpoint 1).

    Use it for connections with ``token_refresh = "keeper"``, whose workers never renew the token. If the
    token is not old enough to be renewed, the operator tests it (contract.md, endpoint 16), and renews it
    only if the service rejects it.

    Returns ``{"renewed", "expires_at"}``; ``expires_at`` is ISO 8601 in UTC, or None if the service gave no
    expiry.

    :param renew_after: share of the token's lifetime after which the operator renews it, from 0 (always
        renew) to 1; 0.5 by default.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as if the service rejects the refresh token.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    def __init__(self, *, renew_after: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.renew_after = renew_after
        check_at_parse(self, self._share, ("renew_after",))

    def _share(self) -> float:
        return arguments.share("renew_after", self.renew_after)

    def perform(self, hook: WebCollectHook) -> dict[str, Any]:
        began = pendulum.now("UTC")
        token = hook.client.renew_token(self._share())
        renewed = token.obtained_at >= began.timestamp()
        ends = None if token.expires_at is None else pendulum.from_timestamp(token.expires_at).isoformat()
        state = "was renewed" if renewed else "need not be renewed yet"
        self.log.info("The access token %s. It expires at %s.", state, ends or "an unknown time")
        return {"renewed": renewed, "expires_at": ends}


class WebCollectUpdateLoopItemsOperator(WebCollectTaskOperator):
    """Replaces or extends the values of a task's loop step (contract.md, endpoint 3).

    Returns ``{"collection_task_id", "action_id", "count", "message"}``.

    :param collection_task_id: the service's task: its id, or its name in the file of collection tasks.
        (templated)
    :param action_id: the id of the loop step. (templated)
    :param loop_type: ``TextList`` or ``UrlList``, in any letter case. (templated)
    :param loop_items: the values. (templated)
    :param is_append: append to the existing values; by default they are replaced. If the response to an
        append is lost, the task fails without retries, since the values may have been appended.
    :param retry_unknown_outcome: also retry if it is unknown whether values were appended; False by default.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for a task that does not exist; and if it is
        unknown whether values were appended, unless ``retry_unknown_outcome`` is set.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields = (*WebCollectTaskOperator.template_fields, "action_id", "loop_type", "loop_items")
    template_fields_renderers = {"loop_items": "json"}  # noqa: RUF012  # as in Airflow

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
        check_at_parse(self, self._call)

    def _call(self) -> Call[Any]:
        return endpoints.update_loop_items(
            self.collection_task_id, self.action_id, self.loop_type, self.loop_items, self.is_append
        )

    def perform(self, hook: WebCollectHook) -> dict[str, Any]:
        call = self._call()
        message = hook.client.send(call).message
        done = "Appended to" if (call.body or {})["isAppend"] else "Replaced all values of"
        self.log.info("%s step %s; number of values: %d.", done, self.action_id, len(self.loop_items))
        return {
            "collection_task_id": self.collection_task_id,
            "action_id": self.action_id,
            "count": len(self.loop_items),
            "message": message,
        }

    def what_to_check(self) -> str:
        return (
            f"The values may already have been appended to step {self.action_id} of task "
            f"{described(self.collection_task_id)}."
        )


class _Update(msgspec.Struct):
    """The update of one task: an entry of ``updates``."""

    collection_task_id: Annotated[str, task_id_of]
    actions: Annotated[Any, arguments.as_given] = None
    loop_items: Annotated[Any, arguments.as_given] = None

    def call(self) -> Call[Any]:
        """Return the call of endpoint 4.

        :raises InvalidArgument: if ``actions`` or ``loop_items`` is invalid, or both are missing or empty.
        """
        return endpoints.update_task_parameters(
            self.collection_task_id, actions=self.actions, loop_items=self.loop_items
        )


class WebCollectUpdateTaskParametersOperator(WebCollectTaskOperator):
    """Updates properties of steps and values of loops in one call (contract.md, endpoint 4).

    With ``updates``, it updates several tasks, one after another, within the connection's rate limit. If an
    update fails, the other tasks are still updated; then an error names each failed task with the reason. A
    retry repeats all updates, so if one of them appends values, the task fails without retries.

    Returns ``{"collection_task_id", "collection_task_name", "actions", "loop_items"}``: the task's id and
    name (None if not known), the steps with the names of their properties, and the loops with the number of
    values sent. The values are left out, since there may be many. With ``updates``, returns a list of such
    dicts, in the order of ``updates``.

    :param collection_task_id: the service's task: its id, or its name in the file of collection tasks.
        (templated)
    :param actions: list of steps, ``{"action_type", "action_id", "properties"}``, with the properties as a
        dict of names and values, or as a list of ``{"name", "value"}``. (templated)
    :param loop_items: list of loops, ``{"action_id", "loop_type", "loop_items"}`` and, optionally,
        ``"is_append"``. (templated)
    :param updates: several tasks instead of one: a list of dicts with the three arguments above, one dict for
        each task. (templated)
    :param collection_task_names: names of tasks by id, for logs, errors and the result; they take precedence
        over the names in the file. (templated)
    :param retry_unknown_outcome: also retry if it is unknown whether values were appended, or, with
        ``updates``, if a retry appends values again; False by default.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for a task that does not exist; and if it is
        unknown whether values were appended, unless ``retry_unknown_outcome`` is set.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    _own_fields = ("actions", "loop_items", "updates", "collection_task_names")
    template_fields = (*WebCollectTaskOperator.template_fields, *_own_fields)
    template_fields_renderers = dict.fromkeys(_own_fields, "json")
    _takes_several = True

    def __init__(
        self,
        *,
        collection_task_id: str | None = None,
        actions: Sequence[Mapping[str, Any]] | None = None,
        loop_items: Sequence[Mapping[str, Any]] | None = None,
        updates: Sequence[Mapping[str, Any]] | None = None,
        collection_task_names: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(collection_task_id=collection_task_id, **kwargs)
        self.actions = actions
        self.loop_items = loop_items
        self.updates = updates
        self.collection_task_names = collection_task_names
        check_at_parse(self, self._calls)

    def _calls(self) -> dict[str, Call[Any]]:
        """Return the call for each task, by the task's id."""
        check_names(self.collection_task_names)
        if self.updates is None:
            task_id = task_id_of("collection_task_id", self.collection_task_id)
            return {task_id: _Update(task_id, self.actions, self.loop_items).call()}
        refuse_beside("updates", self, _Update.__struct_fields__)
        calls: dict[str, Call[Any]] = {}
        for index, update in enumerate(arguments.parse("updates", list[_Update], self.updates)):
            place = f"updates[{index}]"
            if update.collection_task_id in calls:
                raise InvalidArgument(place, update.collection_task_id, "an earlier entry has the same task")
            with arguments.inside(place):
                calls[update.collection_task_id] = update.call()
        return calls

    def perform(self, hook: WebCollectHook) -> dict[str, Any] | list[dict[str, Any]]:
        calls = self._calls()
        if self.updates is None:
            return self._send(hook, *calls.popitem())
        try:
            return for_each(
                calls, lambda task_id: self._send(hook, task_id, calls[task_id]), self.collection_task_names
            )
        except WebCollectError as error:
            appends = any(call.retry is Retry.ONLY_IF_UNSENT for call in calls.values())
            if appends and not self.retry_unknown_outcome:
                raise AirflowFailException(f"{error} A retry would append values again.") from error
            raise

    def _send(self, hook: WebCollectHook, task_id: str, call: Call[Any]) -> dict[str, Any]:
        hook.client.send(call)
        sent = call.body or {}
        called = self._display_name(task_id)
        actions, loop_items = [], []
        for step in sent.get("actions", ()):
            names = [pair["name"] for pair in step["properties"]]
            self.log.info("Set %s of step %s of task %s.", ", ".join(names), step["actionId"], called)
            actions.append({"action_id": step["actionId"], "properties": names})
        for step in sent.get("loopItems", ()):
            count, appended = len(step["loopItems"]), step["isAppend"]
            done = "Appended to" if appended else "Replaced all values of"
            message = "%s step %s of task %s; number of values: %d."
            self.log.info(message, done, step["actionId"], called, count)
            loop_items.append({"action_id": step["actionId"], "count": count, "is_append": appended})
        return {**self._named(task_id), "actions": actions, "loop_items": loop_items}

    def what_to_check(self) -> str:
        if self.updates is not None:
            return ""
        (call,) = self._calls().values()
        sent = call.body or {}
        steps = [step["actionId"] for step in sent.get("loopItems", ()) if step["isAppend"]]
        return (
            f"The values may already have been appended to step {', '.join(steps)} of task "
            f"{self._display_name(self.collection_task_id)}."
        )


class _Landed(msgspec.Struct):
    """A landing's result for one source, or for all of its ``sources``.

    :ivar collection_task_id: the id of the source's task; None in a result without ``sources``.
    """

    rows: int
    quarantined_rows: int
    missing_inputs: InputsWithoutRows | None = None
    collection_task_id: str | None = None
    sources: tuple[_Landed, ...] = ()


class WebCollectSetMissingInputsOperator(WebCollectOperator):
    """Sets loops to their missing inputs, so that only these are collected again (contract.md, endpoint 4).

    Missing inputs are the inputs for which the input check of a landing has found no row. If there are none,
    the task is skipped. If the update of one loop fails, all loops that were to be set get their whole lists
    back. After the run, restore the whole lists in a teardown of this task:
    :class:`WebCollectUpdateTaskParametersOperator` with the same ``updates``.

    Returns ``{"collection_task_ids", "sources"}``, each also as an XCom under its own key: the ids of the
    tasks whose loops were set, and the entries of ``sources`` for these tasks.

    :param landed: the result of a :class:`.WebCollectToObjectStorageOperator`, or a list of such results from
        the same DAG run, in the order of the landings. (templated)
    :param updates: for each task ``{"collection_task_id", "loop_items"}``, with the whole list of one loop,
        as for :class:`WebCollectUpdateTaskParametersOperator` but without ``is_append``. Other tasks are not
        changed. (templated)
    :param sources: the ``sources`` argument of a landing of these tasks; the result has the entries for the
        tasks whose loops were set. None (default) for no entries. (templated)
    :param collection_task_names: names of tasks by id, for logs and errors; they take precedence over the
        names in the file. (templated)
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowSkipException: if no input is missing.
    :raises AirflowFailException: if a retry cannot help, such as for a task that does not exist; and if no
        row of a task was landed or quarantined, and its result does not name all of its missing inputs.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    _own_fields = ("landed", "updates", "sources", "collection_task_names")
    template_fields = (*WebCollectOperator.template_fields, *_own_fields)
    template_fields_renderers = dict.fromkeys(_own_fields, "json")

    def __init__(
        self,
        *,
        landed: Mapping[str, Any] | Sequence[Any],
        updates: Sequence[Mapping[str, Any]],
        sources: Sequence[Mapping[str, Any]] | None = None,
        collection_task_names: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"multiple_outputs": True, **kwargs})
        self.landed = landed
        self.updates = updates
        self.sources = sources
        self.collection_task_names = collection_task_names
        check_at_parse(self, self._loops, ("updates", "collection_task_names"))
        check_at_parse(self, lambda: self._missing(self._loops()))

    def _loops(self) -> dict[str, dict[str, Any]]:
        """Return each task's loop with its whole list, by the task's id."""
        check_names(self.collection_task_names)
        loops = {}
        for index, update in enumerate(arguments.parse("updates", list[_Update], self.updates)):
            with arguments.inside(f"updates[{index}]"):
                update.call()
                if len(update.loop_items or ()) != 1 or update.loop_items[0].get("is_append"):
                    rule = "it must have one loop, without `is_append`"
                    raise InvalidArgument("loop_items", update.loop_items, rule)
            loops[update.collection_task_id] = update.loop_items[0]
        return loops

    def _missing(self, loops: Collection[str]) -> dict[str, Sequence[str]]:
        """Return the missing inputs by task.

        :param loops: the ids of the tasks whose loops can be set.
        :raises AirflowFailException: if no row of a task was landed or quarantined, and its result does not
            name all of its missing inputs.
        """
        for index, source in enumerate(self.sources or ()):
            if not isinstance(source, Mapping) or "collection_task_id" not in source:
                rule = "it must be a dict with `collection_task_id`"
                raise InvalidArgument(f"sources[{index}]", source, rule)
            self._id_of(index, source)
        latest: dict[str | None, InputsWithoutRows] = {}
        with_rows = set[str | None]()
        for result in self._landed():
            landed_id = result.collection_task_id and folded(result.collection_task_id)
            if result.rows or result.quarantined_rows:
                with_rows.add(landed_id)
            if result.missing_inputs:
                latest[landed_id] = result.missing_inputs
        if None in latest and len(loops) > 1:
            rule = "with several `updates`, it must be the result of a landing with `sources`"
            raise InvalidArgument("landed", self.landed, rule)
        missing: dict[str, Sequence[str]] = {}
        for task_id in loops:
            key = None if None in latest else folded(task_id)
            if (found := latest.get(key)) is None or not found.inputs:
                continue
            if found.count > len(found.inputs) and key not in with_rows:
                called = described(task_id, self.collection_task_names)
                raise AirflowFailException(
                    f"No input of task {called} has a row, and the result names only {len(found.inputs)} of "
                    f"{found.count}: start the task again as a whole."
                )
            missing[task_id] = found.inputs
        return missing

    def _id_of(self, index: int, source: Mapping[str, Any]) -> str:
        """Return the task's id for an entry of ``sources``, which may name the task instead."""
        return task_id_of(f"sources[{index}]['collection_task_id']", source["collection_task_id"])

    def _landed(self) -> list[_Landed]:
        """Return the results of the landings, one for each source; a skipped landing has no result."""
        # the results of a mapped landing are a lazy sequence of Airflow
        is_one = isinstance(self.landed, str | Mapping) or not isinstance(self.landed, Iterable)
        given = [self.landed] if is_one else [*self.landed]
        try:
            results = [msgspec.convert(landed, _Landed) for landed in given if landed is not None]
        except msgspec.ValidationError as error:
            rule = f"it must be the result of a WebCollectToObjectStorageOperator: {error}"
            raise InvalidArgument("landed", self.landed, rule) from error
        return [source for result in results for source in result.sources or (result,)]

    def perform(self, hook: WebCollectHook) -> dict[str, Any]:
        loops = self._loops()
        missing = self._missing(loops)
        if not missing:
            raise AirflowSkipException("No input is missing.")
        whole = {task_id: loops[task_id] for task_id in missing}
        ids = set(map(folded, missing))
        chosen = [
            source
            for index, source in enumerate(self.sources or ())
            if folded(self._id_of(index, source)) in ids
        ]

        def set_loops(loops: Mapping[str, Mapping[str, Any]]) -> None:
            def set_one(task_id: str) -> None:
                loop, called = loops[task_id], described(task_id, self.collection_task_names)
                hook.client.send(endpoints.update_task_parameters(task_id, loop_items=[loop]))
                self.log.info("Set the loop of task %s to %d inputs.", called, len(loop["loop_items"]))

            for_each(loops, set_one, self.collection_task_names)

        try:
            set_loops({task_id: {**loop, "loop_items": missing[task_id]} for task_id, loop in whole.items()})
        except BaseException:
            # Airflow does not run the teardown of a failed setup task
            with contextlib.suppress(Exception):
                set_loops(whole)
            raise
        return {"collection_task_ids": [*missing], "sources": chosen}


class WebCollectGetActionsOperator(WebCollectOperator):
    """Reads the steps of tasks (contract.md, endpoint 5).

    Returns a list of ``{"task_id", "actions"}``; each action has ``action_id``, ``action_type``, ``name`` and
    the fields of its type.

    :param collection_task_ids: the tasks, by id or name. (templated)
    :param action_types: the types of steps to read: any of ``LoopAction``, ``NavigateAction`` and
        ``EnterTextAction``; all by default. (templated)
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for a task that does not exist.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields = (*WebCollectOperator.template_fields, "collection_task_ids", "action_types")
    template_fields_renderers = dict.fromkeys(("collection_task_ids", "action_types"), "json")

    def __init__(
        self,
        *,
        collection_task_ids: Sequence[str],
        action_types: Sequence[str] = tuple(ActionType),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.collection_task_ids = collection_task_ids
        self.action_types = action_types
        check_at_parse(self, self._call)

    def _call(self) -> Call[Any]:
        task_ids = task_ids_of("collection_task_ids", self.collection_task_ids)
        return endpoints.get_actions(task_ids, self.action_types)

    def perform(self, hook: WebCollectHook) -> list[dict[str, Any]]:
        return [task.as_dict() for task in hook.client.send(self._call())]


class WebCollectReplaceUrlsOperator(WebCollectTaskOperator):
    """Replaces a task's URLs with the URLs of a list or a file (contract.md, endpoint 6).

    A file may have up to 64 MiB. It is checked line by line before anything is sent.

    Returns ``{"collection_task_id", "count"}``, with the number of new URLs.

    :param collection_task_id: the service's task: its id, or its name in the file of collection tasks.
        (templated)
    :param urls: http(s) URLs, such as the result of an upstream task. (templated)
    :param urls_path: a text file to use instead of ``urls``, with one URL per line, in UTF-8, on any storage
        that ``ObjectStoragePath`` supports, such as ``s3://bucket/urls.txt``. A BOM and trailing blank lines
        are not sent. (templated)
    :param object_storage_conn_id: the Airflow connection of that storage; None for its default credentials.
        (templated)
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for a line of the file that is not a URL.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields = (*WebCollectTaskOperator.template_fields, "urls", "urls_path", "object_storage_conn_id")
    template_fields_renderers = {"urls": "json"}  # noqa: RUF012  # as in Airflow

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
        check_at_parse(self, self._check)

    def _check(self) -> None:
        if (self.urls is None) == (self.urls_path is None):
            raise InvalidArgument("urls", self.urls, "either `urls` or `urls_path` must be given")
        if self.urls is not None:
            from airflow_provider_webcollect.service.url_file import url_list

            url_list(self.urls)
        else:
            self._location()

    def _location(self) -> Location:
        path = self.urls_path
        if isinstance(path, str) and path.strip() and "://" not in path:
            # the path of a file to read may be relative to the working directory
            path = str(Path(path.strip()).absolute())
        location = Location.parse("urls_path", path, conn_id=self.object_storage_conn_id)
        return require_supported("urls_path", location)

    def perform(self, hook: WebCollectHook) -> dict[str, Any]:
        self._check()
        file = None
        if self.urls_path is not None:
            file = AirflowConnections().path(self._location())
        count = hook.replace_urls(self.collection_task_id, file, urls=self.urls)
        self.log.info(
            "Replaced the URLs of task %s; number of URLs: %d.", described(self.collection_task_id), count
        )
        return {"collection_task_id": self.collection_task_id, "count": count}


class WebCollectCopyTaskOperator(WebCollectTaskOperator):
    """Copies a task to its own group or to another group (contract.md, endpoint 7).

    If the response is lost, the task fails without retries, since the copy may exist.

    Returns ``{"task_id", "task_name"}`` of the new task.

    :param collection_task_id: the task to copy, by id or name. (templated)
    :param task_group_id: the group of the copy; None for the task's own. (templated)
    :param retry_unknown_outcome: also retry if it is unknown whether the copy was made; False by default.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for a task that does not exist; and if it is
        unknown whether the copy was made, unless ``retry_unknown_outcome`` is set.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields = (*WebCollectTaskOperator.template_fields, "task_group_id")

    def __init__(
        self, *, collection_task_id: str, task_group_id: int | str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(collection_task_id=collection_task_id, **kwargs)
        self.task_group_id = task_group_id
        check_at_parse(self, self._call)

    def _call(self) -> Call[Any]:
        return endpoints.copy_task(self.collection_task_id, _group(self.task_group_id))

    def perform(self, hook: WebCollectHook) -> dict[str, Any]:
        copied = hook.client.send(self._call())
        self.log.info("Copied task %s to task %s.", described(self.collection_task_id), copied.task_id)
        return {"task_id": copied.task_id, "task_name": copied.task_name}

    def what_to_check(self) -> str:
        group = _group(self.task_group_id)
        place = "the task's own group" if group is None else f"group {group}"
        return f"A copy of task {described(self.collection_task_id)} may be in {place} by now."


class WebCollectCopyTasksOperator(WebCollectOperator):
    """Copies each of the tasks to each of the groups (contract.md, endpoint 8).

    Returns ``{"request_count", "success_count", "failed_tasks"}``: the number of copies requested and made,
    and a list of ``{"task_id", "reason"}``.

    :param collection_task_ids: the tasks to copy, by id or name. (templated)
    :param task_group_ids: the groups of the copies. (templated)
    :param on_partial_failure: what to do if some copies were not made: ``fail`` the task (default; without
        retries, since a retry would repeat the other copies), ``skip`` the task, or ``ignore`` the failures.
        All failures are reported with their reasons.
    :param retry_unknown_outcome: also retry if it is unknown whether copies were made; False by default.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help; with ``on_partial_failure="fail"``, if some copies
        were not made; and if it is unknown whether copies were made, unless ``retry_unknown_outcome`` is set.
    :raises AirflowSkipException: with ``on_partial_failure="skip"``, if some copies were not made.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields = (*WebCollectOperator.template_fields, "collection_task_ids", "task_group_ids")
    template_fields_renderers = dict.fromkeys(("collection_task_ids", "task_group_ids"), "json")

    def __init__(
        self,
        *,
        collection_task_ids: Sequence[str],
        task_group_ids: Sequence[int],
        on_partial_failure: OnPartialFailure = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.collection_task_ids = collection_task_ids
        self.task_group_ids = task_group_ids
        self.on_partial_failure = on_partial_failure
        check_at_parse(self, self._call)

    def _call(self) -> Call[Any]:
        arguments.one_of("on_partial_failure", self.on_partial_failure, get_args(OnPartialFailure))
        return endpoints.copy_tasks(
            task_ids_of("collection_task_ids", self.collection_task_ids),
            arguments.items("task_group_ids", self.task_group_ids, arguments.integer),
        )

    def perform(self, hook: WebCollectHook) -> dict[str, Any]:
        result = hook.client.send(self._call())
        self.log.info("%d of %d copies were made.", result.success_count, result.request_count)
        named = tuple(
            msgspec.structs.replace(failed, task_id=failed.task_id and described(failed.task_id))
            for failed in result.failed_tasks
        )
        if shortfall := msgspec.structs.replace(result, failed_tasks=named).shortfall:
            match self.on_partial_failure:
                case "fail":
                    raise AirflowFailException(shortfall)
                case "skip":
                    raise AirflowSkipException(shortfall)
            self.log.warning("%s", shortfall)
        return {
            "request_count": result.request_count,
            "success_count": result.success_count,
            "failed_tasks": [failed.as_dict() for failed in result.failed_tasks],
        }

    def what_to_check(self) -> str:
        groups = ", ".join(map(str, self.task_group_ids))
        return f"Copies of the tasks may be in these groups by now: {groups}."


class WebCollectMoveTaskOperator(WebCollectTaskOperator):
    """Moves a task to a group (contract.md, endpoint 9).

    Returns ``{"collection_task_id", "task_group_id"}``.

    :param collection_task_id: the task to move, by id or name. (templated)
    :param task_group_id: the group to move it to. (templated)
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as if the service did not move the task.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields = (*WebCollectTaskOperator.template_fields, "task_group_id")

    def __init__(self, *, collection_task_id: str, task_group_id: int | str, **kwargs: Any) -> None:
        super().__init__(collection_task_id=collection_task_id, **kwargs)
        self.task_group_id = task_group_id
        check_at_parse(self, self._call)

    def _call(self) -> Call[Any]:
        group_id = arguments.integer("task_group_id", self.task_group_id)
        return endpoints.move_task(self.collection_task_id, group_id)

    def perform(self, hook: WebCollectHook) -> dict[str, Any]:
        if not hook.client.send(self._call()).moved:
            raise AirflowFailException(
                f"the service did not move task {described(self.collection_task_id)} to group "
                f"{self.task_group_id}: check that both exist, and that the task is not in that group already"
            )
        self.log.info("Moved task %s to group %s.", described(self.collection_task_id), self.task_group_id)
        return {"collection_task_id": self.collection_task_id, "task_group_id": int(self.task_group_id)}


class _DeleteOperator(WebCollectOperator):
    """Base of both delete operators; an empty list is an error unless ``ignore_empty`` is set."""

    _what: str
    _call: Callable[[list[Any]], Call[None]]
    _described: Callable[[Any], str] = staticmethod(str)

    def __init__(self, *, ignore_empty: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ignore_empty = ignore_empty

    def _ids(self) -> list[Any]:
        raise NotImplementedError

    def perform(self, hook: WebCollectHook) -> list[Any]:
        ids = self._ids()
        if not ids:
            self.log.info("No %s to delete.", self._what)
            return ids
        self.log.info("Deleting %s (%d): %s", self._what, len(ids), ", ".join(map(self._described, ids)))
        hook.client.send(self._call(ids))
        return ids


class WebCollectDeleteTasksOperator(_DeleteOperator):
    """Deletes tasks (contract.md, endpoint 10).

    Returns the list of the deleted tasks' ids.

    :param collection_task_ids: the tasks to delete, by id or name. (templated)
    :param ignore_empty: succeed without a request if the list is empty; by default it is an error.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for an empty list.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields = (*WebCollectOperator.template_fields, "collection_task_ids")
    template_fields_renderers = {"collection_task_ids": "json"}  # noqa: RUF012  # as in Airflow
    _what = "tasks"
    _call = staticmethod(endpoints.delete_tasks)
    _described = staticmethod(described)

    def __init__(self, *, collection_task_ids: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.collection_task_ids = collection_task_ids
        check_at_parse(self, self._ids)

    def _ids(self) -> list[str]:
        return task_ids_of("collection_task_ids", self.collection_task_ids, may_be_empty=self.ignore_empty)


class WebCollectDeleteTaskGroupsOperator(_DeleteOperator):
    """Deletes task groups (contract.md, endpoint 11).

    Returns the list of the deleted groups' ids.

    :param task_group_ids: the ids of the groups to delete. (templated)
    :param ignore_empty: succeed without a request if the list is empty; by default it is an error.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for an empty list.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields = (*WebCollectOperator.template_fields, "task_group_ids")
    template_fields_renderers = {"task_group_ids": "json"}  # noqa: RUF012  # as in Airflow
    _what = "task groups"
    _call = staticmethod(endpoints.delete_task_groups)

    def __init__(self, *, task_group_ids: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.task_group_ids = task_group_ids
        check_at_parse(self, self._ids)

    def _ids(self) -> list[int]:
        return arguments.items(
            "task_group_ids", self.task_group_ids, arguments.integer, may_be_empty=self.ignore_empty
        )


class WebCollectGetRunningCountsOperator(WebCollectOperator):
    """Reads the number of running and waiting tasks and sub-tasks (contract.md, endpoint 16).

    Returns ``{"extracting_count", "waiting_count", "finished_count", "waiting_sub_task_count",
    "executing_sub_task_count"}``; the contract leaves the meaning of the last two open (Task running counts).

    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for a plan below Enterprise.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    def perform(self, hook: WebCollectHook) -> dict[str, Any]:
        return hook.get_running_counts().as_dict()


class WebCollectMarkExportedOperator(WebCollectTaskOperator):
    """Confirms that a task's data has been exported (contract.md, endpoint 19).

    Returns ``{"collection_task_id"}``.

    :param collection_task_id: the service's task: its id, or its name in the file of collection tasks.
        (templated)
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for a task that does not exist.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    def perform(self, hook: WebCollectHook) -> dict[str, Any]:
        hook.mark_exported(self.collection_task_id)
        self.log.info("Confirmed the export of task %s.", described(self.collection_task_id))
        return {"collection_task_id": self.collection_task_id}


class WebCollectDeprecateDataAppOperator(WebCollectOperator):
    """Deprecates a data app, as its author; repeating it has no effect (contract.md, endpoint 20).

    Returns ``{"app_name", "status"}`` and, where the service sends them, ``namespace``, ``version`` and
    ``missing_secrets``.

    :param app_id: the data app's id, or ``namespace/app_name``. (templated)
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for an app of another author.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields = (*WebCollectOperator.template_fields, "app_id")

    def __init__(self, *, app_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.app_id = app_id
        check_at_parse(self, self._call)

    def _call(self) -> Call[Any]:
        return endpoints.deprecate_data_app(self.app_id)

    def perform(self, hook: WebCollectHook) -> dict[str, Any]:
        app = hook.client.send(self._call())
        self.log.info("Data app %s is %s.", escaped(app.app_name), escaped(app.status))
        result: dict[str, Any] = app.as_dict()
        return result


def _group(value: int | str | None) -> int | None:
    # a template that renders to an empty string means None
    return None if value is None or value == "" else arguments.integer("task_group_id", value)
