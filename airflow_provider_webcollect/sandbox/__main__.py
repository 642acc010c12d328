"""Command line: ``python -m airflow_provider_webcollect.sandbox``."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.sandbox.settings import Settings, descriptions, make_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_PORT = 8155

_BANNER = """\
Web data collection sandbox at {url} (data apps: {url}/datahub)
Airflow connection: type "webcollect", host {url},
  extra {{"refresh_token": "...", "api_key": "...", "datahub_url": "{url}/datahub", "datahub_api_key": "..."}}
The demo credentials and tasks are in docs/sandbox.md and in airflow_provider_webcollect.sandbox.demo.
Press Ctrl-C to stop.
"""


def make_parser() -> argparse.ArgumentParser:
    """The command line's options: those of the server, and one for each setting."""
    parser = argparse.ArgumentParser(
        prog="python -m airflow_provider_webcollect.sandbox",
        description="A local stand-in for the web data collection service.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help="0 takes a free one (default: %(default)s)"
    )
    parser.add_argument("--allow-remote", action="store_true", help="let --host be other than loopback")
    parser.add_argument("--ready-file", type=Path, help="write the URL into this file once it listens")
    parser.add_argument(
        "--no-limits", action="store_true", help="the same as --no-enforce-limits: never answer 429"
    )
    meanings = descriptions()
    for setting in dataclasses.fields(Settings):
        flag = "--" + setting.name.replace("_", "-")
        text = f"{meanings[setting.name]} (default: {setting.default})"
        if isinstance(setting.default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            several = "*" if isinstance(setting.default, tuple) else None
            parser.add_argument(flag, metavar="X", nargs=several, help=text)
    return parser


def settings_from(arguments: argparse.Namespace) -> Settings:
    """
    The settings that the command line asks for.

    :raises ValueError: a value does not fit.
    """
    names = (setting.name for setting in dataclasses.fields(Settings))
    given: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    if arguments.no_limits:
        given["enforce_limits"] = False
    return make_settings({name: value for name, value in given.items() if value is not None})


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    # Blocked in every thread, so that sigwait below is what receives them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    from airflow_provider_webcollect.sandbox.server import Sandbox

    try:
        sandbox = Sandbox(settings_from(arguments), arguments.port, arguments.host, arguments.allow_remote)
        with sandbox:
            print(_BANNER.format(url=sandbox.url), flush=True)
            if arguments.ready_file:
                _write_at_once(arguments.ready_file, sandbox.url)
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return 0


def _write_at_once(path: Path, text: str) -> None:
    """Write a file that nobody ever sees half-written."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(text)
    unfinished.replace(path)


if __name__ == "__main__":
    sys.exit(main())
