"""Bases of the operators, checks of arguments while a DAG is parsed, permanent errors, and metrics."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.providers.common.compat.sdk import AirflowFailException, BaseOperator, Stats
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from airflow_provider_webcollect.assets import storable
from airflow_provider_webcollect.collection_tasks import described, named_tasks, task_id_of
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.landing.errors import LandingError, SomeFailed
from airflow_provider_webcollect.links import WebCollectTaskLink, store_task_link
from airflow_provider_webcollect.service.errors import (
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    PermissionDenied,
    RequestRejected,
    TaskBusy,
    WebCollectError,
    unknown_outcome,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_webcollect.service.call import ClientContext

log = logging.getLogger(__name__)
T = TypeVar("T")
#: The id of a group that collects missing inputs again, and the maximum number of such groups in a task
#: group.
RETRY_GROUP, MOST_RETRIES = "retry_{}", 3
#: Number of failures in a row after which the remaining collection tasks are left to a retry: while the
#: service is down, each failure takes minutes. Failures that concern one collection task do not count.
MOST_FAILURES = 3
ABOUT_ONE_TASK = (InvalidArgument, NotFound, PermissionDenied, RequestRejected, TaskBusy)


def metric_tags(conn_id: str, dag_run: Any = None) -> dict[str, str]:
    """Return the tags of metrics: the connection, and the DAG's team if Airflow has teams.

    :param conn_id: the Airflow connection of the service.
    :param dag_run: the DAG run; None if it is not known, as in the triggerer.
    """
    team = getattr(dag_run, "team_name", None)
    return {"connection": conn_id} | ({"team_name": team} if team else {})


def send_gauges(client: ClientContext, tags: dict[str, str]) -> None:
    """Send the gauges of a client: its share of the rate limit, and the age of its token."""
    for name, value in client.gauges().items():
        Stats.gauge(name, value, tags=tags)


#: How long after a wait's timeout Airflow ends the wait in the triggerer, if the trigger has not ended it.
GRACE = timedelta(seconds=60)


def check_at_parse(
    operator: BaseOperator, check: Callable[[], Any], names: Iterable[str] | None = None
) -> None:
    """Run ``check`` while the DAG is parsed, if all arguments that it reads are literal.

    Templated and mapped arguments are checked when the task runs; an error then fails the task without
    retries. Generators and other iterators among the arguments become lists, see :func:`as_lists`.

    :param check: the check, which raises ``InvalidArgument``.
    :param names: names of the arguments that ``check`` reads; None for all template fields of the operator.
    :raises InvalidArgument: if an argument breaks a rule; Airflow shows the error as an import error.
    """
    names = operator.template_fields if names is None else tuple(names)
    replace_iterators(operator, names)
    values = [getattr(operator, name, None) for name in names]
    # Airflow calls functions when the task runs
    if not is_expanded_instance(operator) and all(
        is_literal(value) and not callable(value) for value in values
    ):
        try:
            check()
        except InvalidArgument as error:
            # Airflow shows only the last frames of an import error, and none of them is in the DAG's file
            error.add_note(f"in the task {operator.task_id}")
            raise


def refuse_beside(argument: str, operator: BaseOperator, names: Iterable[str]) -> None:
    """Refuse arguments for a single item beside the argument for several items.

    :param argument: the name of the argument for several items.
    :param names: names of the arguments for a single item.
    :raises InvalidArgument: if an argument for a single item is given.
    """
    for name in names:
        if (value := getattr(operator, name)) is not None:
            raise InvalidArgument(name, value, f"it cannot be given with `{argument}`")


def replace_iterators(operator: BaseOperator, names: Iterable[str] = ()) -> None:
    """Replace iterators among an operator's arguments with lists, since they are read more than once.

    Templates that render native objects can also return iterators: ``{{ params.words | map('upper') }}``.

    :param names: names of arguments besides the template fields.
    """
    # only the provider's own arguments: Airflow 2.11 has a weak proxy of the task group, which looks like an
    # iterator
    for name in {*operator.template_fields, *names}:
        if (value := getattr(operator, name, None)) is not None:
            setattr(operator, name, as_lists(value))


def refuse_none_at_runtime(operator: BaseOperator, names: Iterable[str]) -> None:
    """Refuse arguments that the DAG has set, but that are None when the task runs, such as a missing result.

    :param names: names of the arguments that the DAG has set.
    :raises InvalidArgument: if one is None: without it, the task would do something else.
    """
    for name in names:
        if getattr(operator, name) is None:
            rule = "the DAG sets it to a template or a task's result, which resolved to None"
            raise InvalidArgument(name, None, rule)


def as_lists(value: Any) -> Any:
    """Return an argument with lists in place of iterators, which could be read only once."""
    match value:
        case dict():
            return {name: as_lists(item) for name, item in value.items()}
        case list() | tuple() | Iterator():
            return [as_lists(item) for item in value]
    return value


def is_expanded_instance(operator: BaseOperator) -> bool:
    """Return whether Airflow creates the operator from a mapped one, which happens in a worker.

    An error in its constructor would use up a retry, and skip ``on_failure_callback`` on Airflow 2.
    """
    dag = operator.get_dag()
    # the DAG keeps the mapped operator
    return dag is not None and dag.task_dict.get(operator.task_id) is not operator


def is_literal(value: Any) -> bool:
    """Return whether an argument, unlike a template or a task's result, has its value during parsing."""
    match value:
        case str():
            return "{{" not in value and "{%" not in value
        case Mapping():
            return all(is_literal(item) for item in value.values())
        case list() | tuple() | set():
            return all(is_literal(item) for item in value)
    if hasattr(type(value), "fs"):
        # Airflow also renders object storage paths
        return is_literal(str(value))
    # an XComArg, a mapped argument, or another value that exists only when the task runs
    return not hasattr(value, "resolve")


#: Errors that Airflow 2 must receive unchanged: Ctrl-C ends a `dag.test()`, and after a SIGTERM Airflow
#: checks whether a user has set the task's state. Airflow 3 treats them like other failures, or does not
#: raise them.
INTERRUPTS: tuple[type[BaseException], ...] = ()
if not AIRFLOW_V_3_0_PLUS:
    from airflow.exceptions import AirflowTaskTerminated

    INTERRUPTS = (KeyboardInterrupt, AirflowTaskTerminated)


@contextlib.contextmanager
def airflow_errors() -> Iterator[None]:
    """Fail the task without retries if a retry cannot help; re-raise other errors unchanged.

    :raises AirflowFailException: for a permanent error.
    """
    try:
        yield
    except Exception as error:
        fail_if_permanent(error)
        raise


@contextlib.contextmanager
def errors_about(name: str | None, key: str) -> Iterator[None]:
    """Prefix the messages of errors with the name of their collection task, unless they have the name.

    :param name: the name of the collection task; None if it is not known.
    :param key: the id of the collection task, or the place of its rows.
    """
    try:
        yield
    except (WebCollectError, LandingError) as error:
        if name and name not in str(error):
            error.args = (f"{name} ({key}): {error.args[0]}", *error.args[1:])
            if isinstance(error, WebCollectError):
                error.message = error.args[0]
        raise


def fail_if_permanent(error: BaseException) -> None:
    """Raise ``AirflowFailException`` if the error is permanent, so that a retry cannot help."""
    if isinstance(error, WebCollectError | LandingError) and error.permanent:
        raise AirflowFailException(str(error)) from error


def for_each(
    task_ids: Collection[str], act: Callable[[str], T], names: Mapping[str, str] | None = None
) -> list[T]:
    """Call ``act`` for each of several collection tasks, one after another, and return the results.

    If it fails for one collection task, the others follow, except after :data:`MOST_FAILURES` failures in a
    row. At the end, one error names each failed collection task with the reason.

    :param act: the function to call with the id of each collection task.
    :param names: names of the collection tasks by id, which take precedence over the names in the configured
        file; None for the configured names.
    :raises OutcomeUnknown: if at least one outcome is unknown.
    :raises AirflowFailException: if all errors are permanent.
    :raises WebCollectError: if a retry may help.
    """
    results, errors, in_a_row = list[T](), dict[str, WebCollectError](), 0
    for task_id in task_ids:
        try:
            results.append(act(task_id))
        except WebCollectError as error:
            called = described(task_id, names)
            log.error("Task %s failed: %s", called, error)
            errors[called] = error
            in_a_row = 0 if isinstance(error, ABOUT_ONE_TASK) else in_a_row + 1
            if in_a_row == MOST_FAILURES:
                break
        else:
            in_a_row = 0
    if not errors:
        return results
    left_out = len(task_ids) - len(results) - len(errors)
    not_tried = f", and {left_out} were not tried" if left_out else ""
    failed = SomeFailed(errors, len(task_ids), f"collection tasks failed{not_tried}")
    if any(map(unknown_outcome, errors.values())):
        raise OutcomeUnknown(str(failed))
    if failed.permanent:
        raise AirflowFailException(str(failed))
    raise WebCollectError(str(failed))


class WebCollectOperator(BaseOperator):
    """Base of the operators: the connection, and how errors fail the task.

    Literal arguments are checked while the DAG is parsed.

    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :param retry_unknown_outcome: whether to retry even if it is not known whether an operation that is not
        idempotent took effect; by default, the task then fails without retries.
    :raises InvalidArgument: while the DAG is parsed, if a literal argument is invalid.
    :raises AirflowFailException: if a retry cannot help, such as for an invalid argument or a refused
        credential; and if an outcome is unknown, unless ``retry_unknown_outcome`` is set.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields: Sequence[str] = ("webcollect_conn_id",)
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
            replace_iterators(self)
            return storable(self.perform(self.open_hook(context)))

    def open_hook(self, context: Context) -> WebCollectHook:
        """Return the hook of the connection.

        :param context: Airflow's context of the attempt.
        """
        return WebCollectHook(self.webcollect_conn_id)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Return a context manager that fails the task without retries if an error in it requires that.

        :raises AirflowFailException: for a permanent error; and if it is not known whether an operation that
            is not idempotent took effect, whatever interrupted it (a lost response, the task's
            `execution_timeout`), unless ``retry_unknown_outcome`` is set.
        """
        try:
            yield
        except BaseException as error:
            if (unknown := unknown_outcome(error)) is None:
                fail_if_permanent(error)
            elif not self.retry_unknown_outcome:
                hint = " ".join(filter(None, (str(unknown), self.what_to_check())))
                repeat = (
                    "Clear the task to repeat it, or set `retry_unknown_outcome=True` to have retries do so."
                )
                if not isinstance(error, INTERRUPTS):
                    raise AirflowFailException(f"{hint} {repeat}") from error
                self.log.error("%s %s", hint, repeat)
                # after an interrupt, Airflow 2 checks only whether the operator has retries
                self.retries = 0
            raise

    def perform(self, hook: WebCollectHook) -> Any:
        """Perform the operation and return its result as plain JSON.

        :param hook: the hook of the connection.
        """
        raise NotImplementedError

    def what_to_check(self) -> str:
        """Return a sentence that says what to check if it is not known whether the operation took effect."""
        return ""


class WebCollectTaskOperator(WebCollectOperator):
    """Base of the operators on one collection task, with a link to it if the connection has a URL template.

    While ``perform`` runs, ``collection_task_id`` is the id. Before and after, it is the DAG's value, which
    may be a name in the file of collection tasks.

    :param collection_task_id: the service's task: its id, or its name in the file; None if another argument
        names several tasks. (templated)
    """

    template_fields = ("collection_task_id", *WebCollectOperator.template_fields)
    operator_extra_links = (WebCollectTaskLink(),)
    #: Whether another argument can name several collection tasks instead.
    _takes_several = False
    #: Names by id, which take precedence over the names in the configured file; None if no such
    #: argument is given, or the operator does not have it.
    collection_task_names: Mapping[str, str] | None = None

    def __init__(self, *, collection_task_id: str | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.collection_task_id: Any = collection_task_id
        check_at_parse(self, self._checked_id, ("collection_task_id",))

    def _named(self, task_id: str) -> dict[str, str | None]:
        """Return the id and the name of a collection task, for results."""
        name = named_tasks([task_id], self.collection_task_names).get(task_id)
        return {"collection_task_id": task_id, "collection_task_name": name}

    def _display_name(self, task_id: str) -> str:
        """Return how messages name a collection task."""
        return described(task_id, self.collection_task_names)

    def _checked_id(self) -> Any:
        if self._takes_several and self.collection_task_id is None:
            return None
        return task_id_of("collection_task_id", self.collection_task_id)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Return the base's context manager, in which ``collection_task_id`` is the id of the task.

        Afterwards, it is the DAG's value again, since Airflow renders a ``map_index_template`` with it when
        the task ends.
        """
        of_dag = self.collection_task_id
        try:
            with super().errors():
                self.collection_task_id = task_id = self._checked_id()
                name = task_id and self._named(task_id)["collection_task_name"]
                with errors_about(name, task_id):
                    yield
        finally:
            self.collection_task_id = of_dag

    def open_hook(self, context: Context) -> WebCollectHook:
        """Return the hook of the connection, and store the link to the collection task.

        :param context: Airflow's context of the attempt.
        """
        hook = super().open_hook(context)
        store_task_link(context, hook, self.collection_task_id)
        return hook
