"""How commands show their results: as a table for people, as JSON or as CSV."""

from __future__ import annotations

import csv
import datetime
import json
import logging
import math
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: The exit code after an interrupt (Ctrl-C).
INTERRUPTED = 130

F = TypeVar("F", bound="Callable[..., Any]")


def output_option(command: F) -> F:
    """Add the option ``--output``, which :func:`show` takes."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json", "csv"]),
        default="table",
        help="How the result is shown.",
    )(command)


def show(
    rows: Sequence[Mapping[str, Any]], output: str, columns: Sequence[str], *, exactly: bool = False
) -> None:
    """Print rows to standard output.

    :param output: ``table``, ``json`` (an array of objects) or ``csv`` (with a header).
    :param columns: the keys of the rows, in order.
    :param exactly: whether a table has all columns under their own names; otherwise it leaves out those
        without a value.
    """
    if output == "json":
        plain = [{name: _json(value) for name, value in row.items()} for row in rows]
        click.echo(json.dumps(plain, default=_text, indent=2))
    elif output == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_text(row[name]) for name in columns] for row in rows)
    else:
        _print_table(rows, columns, exactly)


def _print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], exactly: bool) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    shown = [name for name in columns if exactly or not rows or any(row[name] is not None for row in rows)]
    for name in shown:
        numeric = all(isinstance(row[name], int | float | None) for row in rows)
        table.add_column(
            name if exactly else name.replace("_", " "),
            justify="right" if numeric else "left",
            overflow="fold",
        )
    if shown:
        table.columns[0].no_wrap = True  # an id in two lines cannot be copied
    for row in rows:
        table.add_row(*(_shown(row[name]) for name in shown))
    console().print(table)


def console(stderr: bool = False) -> Any:
    """Return rich's console; what is not a terminal gets whole lines, however long."""
    from rich.console import Console

    made = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not made.is_terminal:
        made.width = 1000
    return made


def log_to_stderr() -> None:
    """Have the log go to standard error; that of Airflow would come between the rows of a result."""
    for handler in list(logging.root.handlers):
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            logging.root.removeHandler(handler)
            beside = logging.StreamHandler()
            beside.setFormatter(handler.formatter)
            logging.root.addHandler(beside)


def write(data: bytes) -> None:
    """Write to standard output all of ``data``, which is UTF-8 whatever the terminal's characters are."""
    left = memoryview(data)
    while left:
        # without a buffer (PYTHONUNBUFFERED), an interrupt can make it write only a part
        left = left[sys.stdout.buffer.write(left) :]


def printable(text: str) -> str:
    """Return a text of the service without characters that would control the terminal."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def _shown(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int | float) else printable(_text(value))


def _json(value: Any) -> Any:
    """Return a value for JSON, which has no infinity and no "not a number"."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return value if value is None or isinstance(value, str | int | float) else str(value)
