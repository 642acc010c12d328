"""What operators and sensors share: their base, checks of arguments while a DAG is parsed, errors that no
retry mends, and how long retries wait."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, BaseOperator
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS, AIRFLOW_V_3_3_PLUS

from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.landing.errors import LandingError, SomeFailed
from airflow_provider_webcollect.links import WebCollectTaskLink, store_task_link
from airflow_provider_webcollect.service import validation
from airflow_provider_webcollect.service.errors import (
    InvalidArgument,
    OutcomeUnknown,
    WebCollectError,
    unknown_outcome,
)

if TYPE_CHECKING or AIRFLOW_V_3_3_PLUS:
    from airflow.providers.common.compat.sdk import RetryDecision, RetryPolicy
if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


#: How long after the timeout Airflow ends a wait in the triggerer, if the trigger fails to end it in time.
GRACE = timedelta(seconds=60)


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
        if (value := getattr(operator, name, None)) is not None:
            setattr(operator, name, kept(value))
    if not is_unmapped(operator) and all(is_literal(getattr(operator, name, None)) for name in names):
        try:
            check()
        except InvalidArgument as error:
            # Airflow shows the last frames of an import error alone, which are not those of the DAG's file
            error.add_note(f"in the task {operator.task_id}")
            raise


def kept(value: Any) -> Any:
    """Return an argument with lists in place of iterators, since those can be read only once."""
    match value:
        case dict():
            return {name: kept(item) for name, item in value.items()}
        case list() | tuple() | Iterator():
            return [kept(item) for item in value]
    return value


def is_unmapped(operator: BaseOperator) -> bool:
    """Return whether Airflow creates the operator from a mapped one, which happens in a worker.

    An error in its constructor would use up a retry, and skip ``on_failure_callback`` on Airflow 2.
    """
    dag = operator.get_dag()
    # the mapped operator remains the one in the DAG
    return dag is not None and dag.task_dict.get(operator.task_id) is not operator


def is_literal(value: Any) -> bool:
    """Return whether an argument has its value while the DAG is parsed: no template, no other's result."""
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


#: The longest delay that the service may request, in seconds; a longer one is taken for a mistake.
LONGEST = 3600.0


if TYPE_CHECKING or AIRFLOW_V_3_3_PLUS:

    class RetryAfterPolicy(RetryPolicy):
        """Waits as long as the service's ``Retry-After`` if the task's own delay is shorter."""

        def evaluate(
            self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
        ) -> RetryDecision:
            """Return the delay that the service requests, or leave the delay to the task."""
            retry_after = _retry_after(exception)
            if not retry_after:
                return RetryDecision.default()
            delay = timedelta(seconds=min(retry_after, LONGEST))
            if context is not None and _own_delay(context["ti"].task, try_number) >= delay:
                return RetryDecision.default()
            return RetryDecision.retry(
                delay, f"The service asked to wait {retry_after:.0f} s before the next request."
            )

        def serialize(self) -> dict[str, Any]:
            """Return the policy as JSON, which is empty since it has no arguments."""
            return {}

        @classmethod
        def deserialize(cls, data: dict[str, Any]) -> RetryAfterPolicy:
            """Return the policy."""
            return cls()

    RETRY_AFTER = RetryAfterPolicy()


def _retry_after(exception: BaseException) -> float:
    """Return the seconds that the service requests to wait, or 0; of several sources, the maximum."""
    errors = exception.errors.values() if isinstance(exception, SomeFailed) else (exception,)
    delays = [error.retry_after for error in errors if isinstance(error, WebCollectError)]
    return max(filter(None, delays), default=0.0)


def _own_delay(task: Any, try_number: int) -> timedelta:
    """Return the minimum delay that the task would wait by itself."""
    delay: timedelta = task.retry_delay
    growth = float(task.retry_exponential_backoff or 1)
    try:
        delay *= growth ** (try_number - 1)
    except OverflowError:
        return timedelta.max
    return min(delay, task.max_retry_delay or timedelta.max)


#: The arguments that identify what a task works on; at most this many characters of them are shown.
NAMING = (
    "collection_task_id",
    "collection_task_ids",
    "lotno",
    "sources",
    "task_group_id",
    "task_group_ids",
    "app_id",
)
LONGEST_NAME = 100


class ProviderOperator(BaseOperator):
    """Base of the operators and sensors that call the service: their retries respect ``Retry-After``.

    When a mapped task has ended, Airflow shows what it worked on (id of the task, batch, ...) as its name,
    unless ``map_index_template`` is given, or none of these arguments is mapped.

    :param retry_policy: Airflow's argument, only available on Airflow 3.3 and later. By default a retry waits
        as long as the service requests (``Retry-After``) if that is longer than the task's own delay; None
        for only the task's own delay. Before Airflow 3.3.2, mapped tasks get None unless it is given.
    """

    if TYPE_CHECKING or AIRFLOW_V_3_3_PLUS:
        # an explicit parameter: Airflow reads the default for mapped tasks here, and `default_args` can set
        # it
        def __init__(self, *, retry_policy: RetryPolicy | None = RETRY_AFTER, **kwargs: Any) -> None:
            super().__init__(retry_policy=retry_policy, **kwargs)

    else:
        # otherwise Airflow would insert BaseOperator's, and sensors would skip BaseSensorOperator's
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)

    def pre_execute(self, context: Any) -> None:
        """Let Airflow show what a mapped task works on, unless ``map_index_template`` is set."""
        super().pre_execute(context)
        # not in the constructor: Airflow takes the template from the mapped operator, not from this one
        if context["ti"].map_index < 0 or context.get("map_index_template") is not None:
            return
        if name := self._name(context["dag"]):
            # a native-object template would turn digits into numbers, and Airflow stores only strings
            is_native = context["dag"].render_template_as_native_obj
            context["webcollect_map_index"] = repr(name) if is_native else name
            context["map_index_template"] = "{{ webcollect_map_index }}"

    def _name(self, dag: Any) -> str:
        """Return what a mapped task works on; an empty string if all its siblings work on the same."""
        shown = {name: text for name in NAMING if (text := _shown(getattr(self, name, None)))}
        shared = getattr(dag.task_dict[self.task_id], "partial_kwargs", {})
        return "" if shown.keys() <= shared.keys() else ", ".join(shown.values())[:LONGEST_NAME]


def _shown(value: Any) -> str:
    """Return an argument as readable text; lists and dicts without brackets and keys."""
    match value:
        case str() | int():
            return str(value)
        case dict():
            return " ".join(filter(None, map(_shown, value.values())))
        case list() | tuple():
            return ", ".join(filter(None, map(_shown, value)))
    # None, or a value that would have to be read first, such as the results of a mapped task
    return ""


class WebCollectOperator(ProviderOperator):
    """Base of the operators: the connection, and how errors fail the task.

    Literal arguments are checked while the DAG is parsed.

    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :param retry_unknown_outcome: also retry if it is not known whether an operation that is not idempotent
        took effect; by default the task then fails without retries.
    :param retry_policy: Airflow's argument, available from Airflow 3.3; by default a retry waits at least as
        long as the service requests (``Retry-After``), see
        :class:`~airflow_provider_webcollect.common.ProviderOperator`.
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
            return self.perform(self.open_hook(context))

    def open_hook(self, context: Context) -> WebCollectHook:
        """Return the hook of the connection.

        :param context: of the attempt.
        """
        return WebCollectHook(self.webcollect_conn_id)

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
        check_now(self, self._checked_id, ("collection_task_id",))

    def _checked_id(self) -> str:
        return validation.text("collection_task_id", self.collection_task_id)

    def open_hook(self, context: Context) -> WebCollectHook:
        """Return the hook of the connection, and store the link to the task.

        :param context: of the attempt.
        """
        self.collection_task_id = self._checked_id()
        hook = super().open_hook(context)
        store_task_link(context, hook, self.collection_task_id)
        return hook
