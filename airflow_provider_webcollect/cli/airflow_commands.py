"""The same commands as ``airflow webcollect …``, from Airflow 3.2 on."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand


def commands() -> list[CLICommand]:
    """Return the commands in the form of Airflow's ``cli`` entry of the provider's metadata."""
    from airflow_provider_webcollect.cli.main import webcollect

    return [_group(webcollect, "webcollect")]


def _group(group: click.Group, path: str) -> GroupCommand:
    from airflow.cli.cli_config import GroupCommand

    return GroupCommand(
        name=str(group.name),
        help=group.get_short_help_str(100),
        description=inspect.cleandoc(group.help or ""),
        subcommands=tuple(
            _group(each, f"{path} {name}")
            if isinstance(each, click.Group)
            else _action(each, f"{path} {name}")
            for name, each in group.commands.items()
        ),
    )


def _action(command: click.Command, path: str) -> ActionCommand:
    from airflow.cli.cli_config import ActionCommand

    def run(given: Namespace) -> None:
        from airflow_provider_webcollect.cli.main import main

        sys.exit(main([*path.split()[1:], *_words(command, given)], "airflow webcollect"))

    return ActionCommand(
        name=str(command.name),
        help=command.get_short_help_str(100),
        description=inspect.cleandoc(command.help or ""),
        func=run,
        args=tuple(_argument(each) for each in command.params),
    )


def _argument(parameter: click.Parameter) -> Arg:
    """Return a parameter as Airflow takes it; its value is checked by click alone."""
    from airflow.cli.cli_config import Arg

    if isinstance(parameter, click.Option):
        facts: dict[str, Any] = {"dest": parameter.name, "help": parameter.help, "default": None}
        if parameter.is_flag:
            facts["action"] = "store_true"
        else:
            facts["action"] = "append" if parameter.multiple else "store"
            facts["metavar"] = parameter.make_metavar(click.Context(click.Command("")))
        return Arg(tuple(parameter.opts), **facts)
    several = "+" if parameter.required else "*"
    one = None if parameter.required else "?"
    return Arg(
        (parameter.name,),
        nargs=several if parameter.nargs == -1 else one,
        metavar=(parameter.metavar or str(parameter.name).upper()).strip("[].") or None,
    )


def _words(command: click.Command, given: Namespace) -> list[str]:
    """Return the words of the command line that click is to read."""
    options, words = [], []
    for parameter in command.params:
        value = getattr(given, str(parameter.name))
        values = value if isinstance(value, list) else [] if value in (None, False) else [value]
        if not isinstance(parameter, click.Option):
            words += values
        elif parameter.is_flag:
            options += parameter.opts[-1:] * len(values)
        else:
            options += [f"{parameter.opts[-1]}={each}" for each in values]
    # `sandbox` hands all its words on, options among them
    return [*options, *words] if command.ignore_unknown_options else [*options, "--", *words]
