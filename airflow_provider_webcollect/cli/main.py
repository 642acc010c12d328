"""The command ``webcollect``, and its exit codes."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from typing import TYPE_CHECKING, TextIO

import click

from airflow_provider_webcollect import __version__
from airflow_provider_webcollect.cli.connecting import CALLED, FIELD_NAMES, HINT, NO_NAME
from airflow_provider_webcollect.cli.init import init
from airflow_provider_webcollect.cli.landed import land, landing
from airflow_provider_webcollect.cli.output import INTERRUPTED, make_printable, tell
from airflow_provider_webcollect.cli.steering import app, group, subtasks, task
from airflow_provider_webcollect.cli.tasks import analytics, capacity, discover, follow, read, status, token
from airflow_provider_webcollect.cli.warehouse import dbt_source, load
from airflow_provider_webcollect.landing.errors import (
    CastFailed,
    ExtraMissing,
    FormatChanged,
    LandingDamaged,
    LandingError,
    NothingLanded,
)
from airflow_provider_webcollect.service.errors import (
    InvalidArgument,
    WebCollectError,
    unknown_outcome,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@click.command(
    add_help_option=False, context_settings={"ignore_unknown_options": True, "help_option_names": []}
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def sandbox(options: tuple[str, ...]) -> int:
    """Run a local stand-in for the service.

    It runs until Ctrl-C; `webcollect sandbox --help` shows its options.
    """
    from airflow_provider_webcollect.sandbox.__main__ import main

    return main(options, "webcollect sandbox")


#: A task in a message that gives only its id.
_ID = re.compile(r"\btask ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")
#: Exit codes besides 0 and the code of an interrupt; click's own code for wrong usage is also 2.
NO, WRONG_USAGE, REFUSED, FAILED = 1, 2, 3, 4


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="Exit codes: 0 done; 1 the answer is no, such as a damaged landing; 2 wrong option or argument; "
    "3 failed, a retry cannot help; 4 failed, a retry may help; 130 interrupted.",
)
@click.version_option(__version__, prog_name="webcollect")
@click.option("-v", "--verbose", is_flag=True, help="Also log waits and retries.")
def webcollect(verbose: bool) -> None:
    """See, steer, read and land what a web data collection service collects.

    TASK is a task's id, or its name in the file of collection tasks.
    """
    handler = logging.StreamHandler()
    handler.addFilter(make_printable)
    logging.basicConfig(format="%(message)s", handlers=[handler])
    logging.getLogger("airflow_provider_webcollect").setLevel(logging.INFO if verbose else logging.WARNING)


for command in (
    *(init, status, follow, subtasks, capacity, analytics, discover, task, group, app),
    *(read, land, load, landing, token, sandbox),
):
    webcollect.add_command(command)
landing.add_command(dbt_source)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; errors are written to standard error.

    :param arguments: the arguments of the command line, without the program's name; None for the arguments
        of this process.
    """
    if sys.stderr is None:
        sys.stderr = io.StringIO()
    if sys.stdout is None:
        tell("Error: standard output is closed, so there is nowhere to write the result to")
        return FAILED
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        # the program that reads the output, such as `head`, has read enough
        _drop(sys.stdout, sys.stderr)
        return 0
    except OSError as error:  # for example a full disk under the output
        tell(f"Error: {error}")
        _drop(sys.stdout)
        return FAILED
    return code


def _run(arguments: list[str]) -> int:
    """Run a command and return its exit code; an output that cannot be written raises ``OSError``."""
    context = None
    try:
        # not click's own main(), which fails if the program that reads the output has read enough
        with webcollect.make_context("webcollect", list(arguments)) as context:
            code = webcollect.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        message = io.StringIO()
        error.show(message)
        tell(message.getvalue().rstrip("\n"))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as interrupt:
        unknown = unknown_outcome(interrupt)
        tell(f"Interrupted: {unknown}" if unknown else "Interrupted")
        return INTERRUPTED
    except Exception as error:
        if context is None or (exit_code := _exit_code(error)) is None:
            raise
        tell(f"Error: {_with_names(_message(error, context, _invoked_command(arguments)), context)}")
        if HINT in context.meta and isinstance(error, WebCollectError) and "the connection" in str(error):
            tell(context.meta[HINT])
        return exit_code
    if code == NO and (hint := context.meta.get(NO_NAME)):
        tell(hint)
    return code if isinstance(code, int) else 0


def _invoked_command(words: Sequence[str]) -> click.Command:
    """Return the command that a command line calls.

    The words are enough: groups have no options with values, which could be taken for names of commands.
    """
    command: click.Command = webcollect
    for word in words:
        if isinstance(command, click.Group):
            command = command.commands.get(word, command)
    return command


def _message(error: Exception, context: click.Context, command: click.Command) -> str:
    """Return an error's message, with arguments named as they are typed on the command line."""
    if not isinstance(error, InvalidArgument):
        has_raw = any(parameter.name == "raw" for parameter in command.params)
        more = "; --raw shows the texts" if has_raw and isinstance(error, CastFailed) else ""
        # only the options that the error names: messages also have names of columns in backticks, and a web
        # site, which chooses these, may choose the name of an option
        options = error.options if isinstance(error, FormatChanged) else ()
        said = _names_as_typed(str(error), [each for each in command.params if each.name in options])
        return _options_as_typed(f"{said}{more}", command)
    called, place = context.meta.get(FIELD_NAMES, {}).get(error.name), error.place
    rule = _names_as_typed(error.rule, command.params)
    for parameter in command.params:
        if parameter.name == error.name:
            # if an option is given several times, the value shows which one is meant
            is_one = parameter.nargs == 1 and not getattr(parameter, "multiple", False)
            called, place = _typed(parameter), place if is_one else ""
    said = f"{called}{place} is {error.value}; {rule}" if called else str(error)
    return _options_as_typed(said, command)


def _with_names(said: str, context: click.Context) -> str:
    """Return a message in which tasks have the names that the file of collection tasks gives them."""
    ids = _ID.findall(said)
    if not ids or CALLED not in context.meta:
        return said
    names = iter(context.meta[CALLED](ids))
    return _ID.sub(lambda _: f"task {next(names)}", said)


def _names_as_typed(said: str, parameters: Iterable[click.Parameter]) -> str:
    """Return a message in which `` `columns` ``, an argument in Python, is the option ``--column``."""
    for parameter in parameters:
        said = said.replace(f"`{parameter.name}`", _typed(parameter))
    return said


def _options_as_typed(said: str, command: click.Command) -> str:
    """Return a message in which ``mode='full'``, an argument in Python, is the option ``--mode full``."""
    for parameter in command.params:
        for value in getattr(parameter.type, "choices", ()):
            said = said.replace(f"{parameter.name}='{value}'", f"{_typed(parameter)} {value}")
    return said


def _typed(parameter: click.Parameter) -> str:
    """Return the name of a parameter on the command line."""
    if isinstance(parameter, click.Option):
        return parameter.opts[-1]
    return (parameter.metavar or str(parameter.name).upper()).strip("[].")


def _drop(*streams: TextIO) -> None:
    """Discard output that is still buffered, so that writing it does not fail again at exit."""
    for stream in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _exit_code(error: Exception) -> int | None:
    """Return the exit code for an error that a user can do something about; None for any other error."""
    match error:
        case NothingLanded() | LandingDamaged():
            return NO
        case InvalidArgument() | ExtraMissing():
            return WRONG_USAGE
        case WebCollectError() | LandingError():
            return REFUSED if error.permanent else FAILED
    return None
