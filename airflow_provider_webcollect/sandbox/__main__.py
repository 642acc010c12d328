"""Command line: ``python -m airflow_provider_webcollect.sandbox``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.sandbox.settings import Settings, make_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_PORT = 8155
CONN_ID = "webcollect_default"

#: The defaults of the command line are for trying things out: a run takes seconds.
DEFAULTS = Settings(speed=60.0)


class Parser(argparse.ArgumentParser):
    """A parser whose error messages cannot control the terminal."""

    def error(self, message: str) -> NoReturn:
        super().error(
            "".join(
                character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in message
            )
        )


def make_parser(program: str) -> argparse.ArgumentParser:
    """Return the parser, with the server's options and one option for each setting.

    :param program: name of the program in help and error messages.
    """
    parser = Parser(prog=program, description="A local stand-in for the web data collection service.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help="0 takes a free one (default: %(default)s)"
    )
    parser.add_argument("--allow-remote", action="store_true", help="let --host be other than loopback")
    parser.add_argument("--ready-file", type=Path, help="write the URL into this file once it listens")
    for setting in dataclasses.fields(Settings):
        flag = "--" + setting.name.replace("_", "-")
        text = setting.metadata["description"] + " (default: %(default)s)"
        if isinstance(setting.default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
        else:
            several = "*" if isinstance(setting.default, tuple) else None
            parser.add_argument(flag, metavar="X", nargs=several, help=text)
    parser.set_defaults(**dataclasses.asdict(DEFAULTS))
    return parser


def welcome(url: str, datahub_url: str, settings: Settings) -> str:
    """Return the text shown at the start: commands to paste, ids of tasks, and the speed.

    The commands are on separate lines, quoted for a POSIX shell. They contain the user name and password,
    which every sandbox accepts, since a refresh token works once, and only in the sandbox that issued it.
    """
    connection = json.dumps(
        {
            "conn_type": "webcollect",
            "host": url,
            "login": demo.USERNAME,
            "password": demo.PASSWORD,
            "extra": {"datahub_url": datahub_url, "datahub_api_key": demo.DATAHUB_API_KEY},
        }
    )
    seconds = (settings.wait_seconds + settings.run_seconds) / settings.speed
    return f"""\
Web data collection sandbox at {url} (data apps: {datahub_url})

Connection, stored in Airflow's database:
airflow connections add {CONN_ID} --conn-json {shlex.quote(connection)}

or as an environment variable of every Airflow process:
export AIRFLOW_CONN_{CONN_ID.upper()}={shlex.quote(connection)}

or for the command webcollect, without Airflow:
export WEBCOLLECT_URL={url} WEBCOLLECT_USERNAME={demo.USERNAME} WEBCOLLECT_PASSWORD={demo.PASSWORD}

Tasks:
{demo.TASK_ID}   never ran: start it, wait for it and land it (that of the README's DAG)
{demo.FINISHED_TASK_ID}   ran twice, 120 rows each: land it right away
{demo.GROUPED_TASK_ID}   never ran, in group 2: to copy or to move

Speed: a run takes {seconds:.3g} s (--speed {settings.speed:g}).
Everything else, such as other credentials, is in docs/reference/sandbox.md and `--help`. Ctrl-C stops it.
"""


def main(
    argv: Sequence[str] | None = None, program: str = "python -m airflow_provider_webcollect.sandbox"
) -> int:
    """Serve until SIGINT or SIGTERM."""
    parser = make_parser(program)
    arguments = vars(parser.parse_args(argv))
    host, port, allow_remote, ready_file = map(arguments.pop, ("host", "port", "allow_remote", "ready_file"))
    # Blocked in every thread, so that sigwait below receives them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        from airflow_provider_webcollect.sandbox import Sandbox

        settings = make_settings(arguments)
        sandbox = Sandbox(settings, port, host, allow_remote)
        with sandbox:
            print(welcome(sandbox.url, sandbox.datahub_url, settings), flush=True)
            if ready_file:
                # a process that waits for the file must not read an incomplete one
                unfinished = ready_file.with_name(f"{ready_file.name}.unfinished")
                unfinished.write_text(sandbox.url)
                unfinished.replace(ready_file)
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
    except (ImportError, ValueError, OSError) as error:
        # a caller in this process may continue, and its child processes would inherit the blocked signals
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
