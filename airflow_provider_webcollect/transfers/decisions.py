"""Asking a person what becomes of rows that have failed their checks, and doing it."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_webcollect.landing.errors import ChecksFailed, SomeFailed
from airflow_provider_webcollect.landing.review import InReview, Review, waiting_in
from airflow_provider_webcollect.questions import Question, UnusableAnswer, answer_of, ask, checked_timeout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_webcollect.landing.manifest import Run
    from airflow_provider_webcollect.landing.storage.folder import Folder
    from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
        WebCollectToObjectStorageOperator,
    )

#: How many landings, and failed checks of each, a question shows.
_SHOWN = 20
EFFECTS = {
    "accept": "the rows are landed as they are, and this task reports them to what comes after it.",
    "quarantine": "the rows are set apart under `_quarantine/`, and the next run goes on behind them.",
    "discard": "the rows are deleted, and the next run goes on behind them.",
    "fail": "this task fails, and the rows stay staged: they can be decided on later.",
}


def failed_checks(error: ChecksFailed | SomeFailed) -> Mapping[str, ChecksFailed]:
    """Return the checks that are all that has failed, by the name of the landing; else none.

    :param error: what ended the task.
    """
    errors = error.errors if isinstance(error, SomeFailed) else {"": error}
    failed = {name: each for name, each in errors.items() if isinstance(each, ChecksFailed) and each.rows}
    return failed if len(failed) == len(errors) else {}


def ask_about(
    operator: WebCollectToObjectStorageOperator, context: Context, failed: Mapping[str, ChecksFailed]
) -> None:
    """Ask a person, and give up the worker slot until there is an answer; return if that is not possible.

    :param failed: what :func:`failed_checks` has returned.
    """
    rows = sum(error.rows for error in failed.values())
    shown = [*failed.items()][:_SHOWN]
    evidence = "\n\n".join(_evidence(name, error) for name, error in shown)
    if len(failed) > len(shown):
        evidence += f"\n\nand {len(failed) - len(shown)} more"
    # rows with which a landing begins again cannot be left out
    can_be_set_apart = all(error.can_be_set_apart for error in failed.values())
    choices = operator.options if can_be_set_apart else (operator.options[0], operator.options[-1])
    options = "\n".join(f"- **{option}**: {EFFECTS[option]}" for option in choices)
    question = Question(
        subject=f"{rows:,} rows for {operator.destination} have failed their checks. What becomes of them?",
        body=f"{evidence}\n\nNothing was committed or marked.\n\n{options}",
        options=choices,
        default=operator.ask_default if operator.ask_default in (None, *choices) else choices[-1],
        timeout=checked_timeout(operator.ask_timeout),
    )
    try:
        ask(operator, context, question, method_name="execute_answer", kwargs={"options": choices})
    except Exception:  # what ends the attempt until there is an answer is none
        operator.log.exception("The question cannot be asked.")


def _evidence(name: str, error: ChecksFailed) -> str:
    # indented by four, values of rows are no Markdown
    outcomes = textwrap.indent("\n".join(map(str, error.outcomes[:_SHOWN])), " " * 4)
    return f"{name or 'Rows'}, {error.rows:,} rows:\n\n{outcomes}"


def decide(
    operator: WebCollectToObjectStorageOperator,
    folders: Sequence[Folder],
    run: Run,
    event: Mapping[str, Any],
    options: Sequence[str],
) -> None:
    """Do with the staged rows of a run what a person has chosen; nothing if the answer cannot be used.

    :param folders: of all landings of the task.
    :param event: what Airflow calls the resumed task with.
    :param options: those of the question.
    :raises AirflowFailException: for the option ``fail``, and if nobody has answered in time.
    """
    try:
        answer = answer_of(event, options)
    except UnusableAnswer as error:
        operator.log.warning("The answer cannot be used: %s.", error)
        return
    operator.log.info("%s", answer or "Nobody answered in time.")
    staged = [(folder, rows) for folder in folders if (rows := _staged(folder, run))]
    if answer is None or answer.option == "fail":
        said = answer or f"Nobody answered within {checked_timeout(operator.ask_timeout)}."
        what = "; ".join(f"{rows} at {folder.url}" for folder, rows in staged)
        raise AirflowFailException(f"Checks have failed. {said} What stays there: {what or 'nothing'}.")
    for folder, _ in staged:
        review = Review(folder, run.run_id)
        {"accept": review.accept, "quarantine": review.quarantine, "discard": review.discard}[answer.option]()


def _staged(folder: Folder, run: Run) -> InReview | None:
    of_run = (each for each in waiting_in(folder) if each.run == run and each.folder is None)
    return next(of_run, None)
