"""The directive ``commands``: the help of every command of the command line, each below a heading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from airflow_provider_webcollect.cli.main import webcollect
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

#: Characters of a line of help.
WIDTH = 90


def setup(app: Sphinx) -> dict[str, Any]:
    """Make the directive known."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}


class Commands(SphinxDirective):
    """Has a section for each command, with its help."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        return [
            nodes.section(
                "",
                nodes.title("", path),
                nodes.literal_block(text, text, language="text"),
                ids=[nodes.make_id(path)],
                names=[nodes.fully_normalize_name(path)],
            )
            for path, text in _helps(webcollect, "webcollect")
        ]


def _helps(
    command: click.Command, path: str, parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Yield how a command and those in it are called, and their help."""
    context = click.Context(
        command,
        parent,
        info_name=path.split()[-1],
        terminal_width=WIDTH,
        **command.context_settings,
    )
    yield path, command.get_help(context)
    if isinstance(command, click.Group):
        for name, subcommand in sorted(command.commands.items()):
            yield from _helps(subcommand, f"{path} {name}", context)
