"""The command that runs the sandbox; its options are the sandbox's own."""

from __future__ import annotations

import click


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
