"""Operators that can ask a person if it is not known whether what they sent took effect."""

from __future__ import annotations

import textwrap
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

import pendulum
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_webcollect.common import WebCollectOperator, check_now, task_store
from airflow_provider_webcollect.questions import (
    Answer,
    Question,
    UnusableAnswer,
    answer_of,
    ask,
    check_available,
    checked_timeout,
)
from airflow_provider_webcollect.service import validation
from airflow_provider_webcollect.service.errors import InvalidArgument, OutcomeUnknown, unknown_outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook

OnUnknownOutcome = Literal["fail", "ask"]
SEND_AGAIN = "send again"
FAIL = "fail"


class AskingOperator(WebCollectOperator):
    """Base of the operators that can ask a person about an unknown outcome, see :mod:`.questions`.

    The names of the arguments are not those of Airflow's HITLOperator, since these operators seldom ask: a
    `response_timeout` would be taken for one of the service's response, `defaults` for anything.

    :param on_unknown_outcome: ``fail`` (default) or ``ask``.
    :param ask_timeout: how long the task waits for an answer, as a timedelta or in seconds; None (default)
        for without a limit.
    :param ask_default: the option that counts if nobody answers in time, ``fail`` by default; with None the
        task fails too.
    """

    #: The option by which a person says that what was sent took effect.
    took_effect: str
    #: What that option does, and the two others.
    effects: Mapping[str, str]
    #: The fields of the form.
    answer_params: Mapping[str, Mapping[str, Any]] = {}

    def __init__(
        self,
        *,
        on_unknown_outcome: OnUnknownOutcome = "fail",
        ask_timeout: timedelta | float | None = None,
        ask_default: str | None = FAIL,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.on_unknown_outcome = on_unknown_outcome
        self.ask_timeout = ask_timeout
        self.ask_default = ask_default
        names = ("on_unknown_outcome", "retry_unknown_outcome", "ask_timeout", "ask_default")
        check_now(self, self._check_asking, names)

    @property
    def asks(self) -> bool:
        """Whether a person is asked about an unknown outcome."""
        return self.on_unknown_outcome == "ask"

    @property
    def options(self) -> tuple[str, ...]:
        """What a person can answer."""
        return (self.took_effect, SEND_AGAIN, FAIL)

    def _check_asking(self) -> None:
        validation.one_of("on_unknown_outcome", self.on_unknown_outcome, get_args(OnUnknownOutcome))
        if not self.asks:
            return
        check_available("on_unknown_outcome", self.on_unknown_outcome)
        if self.retry_unknown_outcome:
            raise InvalidArgument(
                "retry_unknown_outcome",
                self.retry_unknown_outcome,
                'with `on_unknown_outcome="ask"` a person decides whether it is sent again',
            )
        checked_timeout(self.ask_timeout)
        # nobody would have filled in the form
        defaults = self.options[1:] if self.answer_params else self.options
        if self.ask_default is not None:
            validation.one_of("ask_default", self.ask_default, defaults)

    def open_hook(self, context: Context) -> WebCollectHook:
        """Return the hook of the connection, once the arguments are checked."""
        self._check_asking()
        return super().open_hook(context)

    def end_unknown(self, context: Context, unknown: OutcomeUnknown, error: BaseException) -> None:
        """Ask a person; if that is not wanted or not possible, fail the task without retries."""
        # a person who ends the process wants no question
        if self.asks and not isinstance(error, KeyboardInterrupt | SystemExit):
            kwargs = {"reason": unknown.message, **self.kept_for_answer(context)}
            try:
                ask(
                    self,
                    context,
                    self._question(context, unknown),
                    method_name="execute_answer",
                    kwargs=kwargs,
                )
            except Exception:  # what ends the attempt until there is an answer is none
                self.log.exception("The question cannot be asked.")
        self.forget(context)
        super().end_unknown(context, unknown, error)

    def _question(self, context: Context, unknown: OutcomeUnknown) -> Question:
        options = "\n".join(f"- **{option}**: {self.effects[option]}" for option in self.options)
        now = pendulum.now("UTC").format("YYYY-MM-DD HH:mm:ss")
        return Question(
            subject=self.subject(),
            # indented by four, it is no Markdown
            body=f"{textwrap.indent(str(unknown), ' ' * 4)}\n\n{self.what_to_check()}\n\n"
            f"What the service shows at {now} UTC:\n\n{self.evidence(context)}\n\n{options}",
            options=self.options,
            params=self.answer_params,
            default=self.ask_default,
            timeout=checked_timeout(self.ask_timeout),
        )

    def execute_answer(self, context: Context, event: Any, reason: str, **kept: Any) -> Any:
        """Do what a person has chosen, or ask again if the answer cannot be used.

        :param reason: why it was asked.
        :param kept: what :meth:`kept_for_answer` has returned.
        :raises AirflowFailException: for the option ``fail``, and if nobody has answered in time.
        """
        with self.errors(context):
            self.remember(context, **kept)
            try:
                answer = answer_of(event, self.options)
                self.log.info("%s", answer or "Nobody answered in time.")
                if answer and answer.option == self.took_effect:
                    return self.go_on(context, answer)
            except UnusableAnswer as error:
                raise OutcomeUnknown(f"{reason} The answer cannot be used: {error}.") from error
            if answer and answer.option == SEND_AGAIN:
                return self.send(context)
            self.forget(context)
            said = answer or f"Nobody answered within {checked_timeout(self.ask_timeout)}."
            raise AirflowFailException(
                f"{OutcomeUnknown(reason)} {self.what_to_check()} {said} Clear the task to repeat it."
            )

    def send(self, context: Context) -> Any:
        """Send it, and return the operator's result."""
        raise NotImplementedError

    def go_on(self, context: Context, answer: Answer) -> Any:
        """Return the operator's result if it took effect.

        :raises UnusableAnswer: if the fields of the form lack what that takes.
        """
        raise NotImplementedError

    def subject(self) -> str:
        """Return the question in one line."""
        raise NotImplementedError

    def evidence(self, context: Context) -> str:
        """Return what the service shows now, as Markdown."""
        raise NotImplementedError

    def kept_for_answer(self, context: Context) -> dict[str, Any]:
        """Return what is stored for later attempts, as plain JSON, and store that a person is asked."""
        return {}

    def remember(self, context: Context, **kept: Any) -> None:
        """Store again what :meth:`kept_for_answer` has returned: before Airflow 3.3, each attempt forgets."""

    def forget(self, context: Context) -> None:
        """Delete what is stored for later attempts, so that the next one sends it again."""
        raise NotImplementedError


class CopyingOperator(AskingOperator):
    """Base of both copy operators: no attempt sends what an earlier one may have sent.

    That is known from Airflow 3.3 on; before, nothing is stored of earlier attempts.
    """

    key = "webcollect_copy"

    def execute(self, context: Context) -> Any:
        """Make the copies; or ask about those of an earlier attempt, of which nobody knows."""
        with self.errors(context):
            if self.asks and task_store(context).get(self.key):
                raise OutcomeUnknown("an earlier try may have sent it; what became of that is not known.")
            return self.send(context)

    def send(self, context: Context) -> Any:
        """Make the copies, and return the operator's result."""
        hook = self.open_hook(context)
        if self.asks:
            task_store(context).set(self.key, {"sent_at": pendulum.now("UTC").isoformat()})
        try:
            result = self.perform(hook)
        except BaseException as error:
            if unknown_outcome(error) is None:
                self.forget(context)
            raise
        self.forget(context)
        return result

    def evidence(self, context: Context) -> str:
        return "It has no list of tasks by name for programs, so look at its web pages."

    def forget(self, context: Context) -> None:
        if self.asks:
            task_store(context).delete(self.key)
