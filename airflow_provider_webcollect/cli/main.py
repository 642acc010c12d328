"""The command ``webcollect``: its group of commands, and the exit code of each end."""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import TYPE_CHECKING

import click

from airflow_provider_webcollect import __version__
from airflow_provider_webcollect.cli.output import INTERRUPTED, log_to_stderr
from airflow_provider_webcollect.cli.rows import land, landing, read
from airflow_provider_webcollect.cli.tasks import analytics, capacity, follow, status
from airflow_provider_webcollect.cli.tokens import token

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command(
    add_help_option=False, context_settings={"ignore_unknown_options": True, "help_option_names": []}
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def sandbox(options: tuple[str, ...]) -> int:
    """Run a local stand-in for the service.

    It runs until Ctrl-C; `webcollect sandbox --help` shows its options.
    """
    from airflow_provider_webcollect.sandbox.__main__ import main, make_parser

    return main(options, make_parser("webcollect sandbox"))


#: Exit codes besides 0, 1 and that of an interrupt; click's own code for wrong usage is 2 too.
WRONG_USAGE, REFUSED, FAILED = 2, 3, 4


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="Exit codes: 0 done; 1 the answer is no, such as a damaged landing; 2 wrong option or argument; "
    "3 refused until somebody acts; 4 failed, another try may help; 130 interrupted.",
)
@click.version_option(__version__, prog_name="webcollect")
@click.option("-v", "--verbose", is_flag=True, help="Also log what is waited for and repeated.")
def webcollect(verbose: bool) -> None:
    """See, read and land what a web data collection service collects."""
    logging.basicConfig(format="%(message)s")
    log_to_stderr()  # as `airflow webcollect`
    logging.getLogger("airflow_provider_webcollect").setLevel(logging.INFO if verbose else logging.WARNING)


for command in (status, follow, capacity, analytics, read, land, landing, token, sandbox):
    webcollect.add_command(command)


def main(arguments: Sequence[str] | None = None, name: str = "webcollect") -> int:
    """Run a command and return its exit code; errors are said on standard error.

    :param arguments: those of the command line, without the program; None for this process's.
    :param name: how the program was called.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        # not click's own main(), for which a reader that has enough is a failure
        with webcollect.make_context(name, list(sys.argv[1:] if arguments is None else arguments)) as context:
            code = webcollect.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # what reads the output, such as `head`, has enough
        _drop_output()
        return 0
    except OSError as error:  # for example a full disk under the output
        click.echo(f"Error: {error}", err=True)
        _drop_output()
        return FAILED
    except Exception as error:
        if (found := _exit_code(error)) is None:
            raise
        click.echo(f"Error: {error}", err=True)
        return found
    return code if isinstance(code, int) else 0


def _drop_output() -> None:
    """Drop what is still to be written, so that writing it does not fail again at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit_code(error: Exception) -> int | None:
    """Return the exit code for an error that a user can do something about; None for any other."""
    from airflow_provider_webcollect.landing.errors import ExtraMissing, LandingError
    from airflow_provider_webcollect.service.errors import InvalidArgument, WebCollectError

    match error:
        case InvalidArgument() | ExtraMissing():
            return WRONG_USAGE
        case WebCollectError() | LandingError():
            return REFUSED if error.permanent else FAILED
    return None
