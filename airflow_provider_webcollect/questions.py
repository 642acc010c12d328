"""Questions to a person, for whose answer a task waits without a worker slot (Airflow 3.1 and later)."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import airflow
import msgspec
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_1_PLUS, AIRFLOW_V_3_3_PLUS

from airflow_provider_webcollect.service import validation
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, Context


class Question(NamedTuple):
    """What a person is asked, in Airflow's *Required actions*.

    :ivar subject: one line.
    :ivar body: what the person needs to know, as Markdown.
    :ivar options: the answers, of which one is chosen.
    :ivar params: the fields of the form: for each name ``{"value", "description", "schema"}``, in the way of
        a DAG's params.
    :ivar default: the option that counts if nobody answers in time; None for none.
    :ivar timeout: how long the task waits; None for without a limit.
    """

    subject: str
    body: str
    options: tuple[str, ...]
    params: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    default: str | None = None
    timeout: timedelta | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What was chosen.

    :ivar option: one of the question's options.
    :ivar params: what was entered into the fields of the form.
    :ivar by: name and id of the person; None for the question's default.
    :ivar at: when.
    """

    option: str
    params: dict[str, Any]
    by: str | None
    at: datetime

    def __str__(self) -> str:
        when = f"{self.at:%Y-%m-%d %H:%M:%S %Z}"
        if self.by is None:
            return f"Nobody answered in time, so the default `{self.option}` was taken at {when}."
        return f"`{self.option}` was chosen by {self.by} at {when}."


class UnusableAnswer(Exception):
    """An answer that breaks the rules of the question."""


def check_available(argument: str, value: object) -> None:
    """Check that this Airflow can ask.

    :param argument: the argument that wants it.
    :param value: its value.
    :raises InvalidArgument: if it cannot.
    """
    if not AIRFLOW_V_3_1_PLUS:
        raise InvalidArgument(
            argument,
            value,
            "only Airflow 3.1 and later can wait for a person's answer; this is Airflow "
            f"{airflow.__version__}",
        )
    # from 3.3 on, Airflow itself does all of it
    if not AIRFLOW_V_3_3_PLUS and not _has_trigger():
        raise InvalidArgument(
            argument,
            value,
            "waiting for a person's answer needs a newer apache-airflow-providers-standard on Airflow 3.1 "
            "and 3.2: one with `airflow.providers.standard.triggers.hitl`",
        )


def checked_timeout(ask_timeout: object) -> timedelta | None:
    """Return the argument ``ask_timeout`` as a timedelta; None for no limit.

    :param ask_timeout: a timedelta, or seconds.
    :raises InvalidArgument: if it is neither.
    """
    if ask_timeout is None:
        return None
    seconds = ask_timeout.total_seconds() if isinstance(ask_timeout, timedelta) else ask_timeout
    return timedelta(seconds=validation.seconds("ask_timeout", seconds))


def _has_trigger() -> bool:
    # only looks for the file: importing it takes the whole task SDK
    try:
        return importlib.util.find_spec("airflow.providers.standard.triggers.hitl") is not None
    except ModuleNotFoundError:
        return False


def ask(
    operator: BaseOperator,
    context: Context,
    question: Question,
    *,
    method_name: str,
    kwargs: Mapping[str, Any],
) -> NoReturn:
    """Ask a person, and give up the worker slot until there is an answer.

    Airflow stores one question for each try of a task instance. If the same try asks again, the answer that
    was given is dropped, but up to Airflow 3.3 the form shows the first question.

    :param operator: the operator that is executed.
    :param method_name: the operator's method that is called with the answer, as ``event`` for
        :func:`answer_of`.
    :param kwargs: what else it is called with, as plain JSON.
    """
    # These are the pieces of which Airflow's HITLOperator consists, and of which other providers build their
    # own questions. A HITLOperator inside of another operator would only be resumed in its own
    # `execute_complete`, and Airflow warns of operators that are executed by others.
    from airflow.sdk.execution_time.hitl import upsert_hitl_detail

    asked: dict[str, Any] = {
        "ti_id": context["ti"].id,
        "options": list(question.options),
        "defaults": None if question.default is None else [question.default],
        # each is changed by who reads it
        "params": {name: copy.deepcopy(dict(param)) for name, param in question.params.items()},
        "multiple": False,
    }
    upsert_hitl_detail(**asked, subject=question.subject, body=question.body)
    operator.log.info("Waiting for a person's answer. %s\n%s", question.subject, question.body)
    if AIRFLOW_V_3_3_PLUS:
        from airflow.sdk.exceptions import TaskAwaitingInput

        raise TaskAwaitingInput(method_name=method_name, kwargs=dict(kwargs), timeout=question.timeout)

    from airflow.sdk.timezone import utcnow

    from airflow_provider_webcollect.triggers.questions import AnswerTrigger

    until = None if question.timeout is None else utcnow() + question.timeout
    operator.defer(
        trigger=AnswerTrigger(**asked, timeout_datetime=until), method_name=method_name, kwargs=dict(kwargs)
    )


def answer_of(event: Mapping[str, Any], options: Sequence[str]) -> Answer | None:
    """Return the answer from what Airflow calls a resumed task with; None if nobody answered in time.

    :param options: the question's options.
    :raises UnusableAnswer: if it is none of the options, or the fields of the form break their schema.
    """
    if "error" in event:
        if event.get("error_type") == "timeout":
            return None
        raise UnusableAnswer(str(event["error"]))
    chosen = event["chosen_options"]
    # up to 3.2, Airflow's API takes every text for an option
    if len(chosen) != 1 or chosen[0] not in options:
        raise UnusableAnswer(f"{chosen!r} is not one of {', '.join(options)}")
    person = event.get("responded_by_user")
    return Answer(
        option=chosen[0],
        params=event.get("params_input") or {},
        by=f"{person['name']} (id {person['id']})" if person else None,
        at=event["responded_at"],
    )
