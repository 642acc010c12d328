"""Showing results (as a table, as JSON or as CSV), asking questions, and deferring interrupts."""

from __future__ import annotations

import base64
import contextlib
import csv
import datetime
import functools
import inspect
import json
import logging
import math
import os
import re
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from airflow_provider_webcollect.landing.log.commits import counted
from airflow_provider_webcollect.service.arguments import declared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: The exit code after an interrupt (Ctrl-C).
INTERRUPTED = 130
#: The escape sequence that shows a terminal's cursor, which rich hides while it shows a bar.
_SHOW_CURSOR = b"\x1b[?25h"
#: Characters between two columns of a table.
_GAP = 2
#: The columns whose texts may be wrapped between words, and the minimum width of these columns.
_WRAPPED = {"name"}
_NARROW_TEXT = 20
#: Maximum number of rows of a table on a terminal.
_MOST_ROWS = 20
#: The columns whose numbers are shares of 1, which tables show as percentages.
_SHARES = {"succeeded", "filled"}
#: Characters that may not be printable everywhere.
_UNUSUAL = re.compile(r"[^\x20-\x7e\n]")

F = TypeVar("F", bound="Callable[..., Any]")
#: The option ``--output``, which :func:`show` takes.
output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    help="How the result is shown.",
)


def declared_option(declaration: Any, argument: str, *names: str, **more: Any) -> Callable[[F], F]:
    """Return an option for an argument, with the choices or type, default and help of its declaration.

    :param declaration: what declares the argument: an endpoint's function, or a struct of options or of an
        entry.
    :param names: names of the option; by default the name of the argument.
    :param more: other settings of ``click.option``, or settings that replace the declared ones.
    """
    own = declared(declaration)[argument]
    limits = f" {own.limits[0].upper()}{own.limits[1:]}." if own.limits and not own.is_list else ""
    options = {
        "type": click.Choice(own.choices) if own.choices else own.kind if own.kind in (int, float) else str,
        "multiple": own.is_list,
        "required": own.default is inspect.Parameter.empty,
        "help": own.help + limits + (" May be repeated." if more.get("multiple", own.is_list) else ""),
        **more,
    }
    if isinstance(own.default, str | int | float):
        options["default"] = own.default
    if own.kind is bool:
        del options["type"]
        options["is_flag"] = True
    return click.option(*(names or [f"--{argument.replace('_', '-')}"]), argument, **options)


def declared_options(
    declaration: Any, differences: Mapping[str, tuple[tuple[str, ...], dict[str, Any]]]
) -> Callable[[F], Any]:
    """Return a decorator that adds an option for each field of a struct of options.

    The command gets ``options``, a dict of the options that are given.

    :param differences: for options that differ from their declarations, by field: their names, and other
        settings.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_options(*positional: Any, **given: Any) -> Any:
            options = {
                name: [*value] if isinstance(value, tuple) else value
                for name in declaration.__struct_fields__
                if (value := given.pop(name)) not in (None, ())
            }
            return command(*positional, options=options, **given)

        for name in reversed(declaration.__struct_fields__):
            names, more = differences.get(name, ((), {}))
            with_options = declared_option(declaration, name, *names, **more)(with_options)
        return with_options

    return add


def show(
    rows: Sequence[Mapping[str, Any]],
    output: str,
    columns: Sequence[str] = (),
    *,
    exactly: bool = False,
    whole: bool = False,
) -> None:
    """Print rows to standard output; a table on a terminal has only the first rows.

    :param output: ``table``, ``json`` (an array of objects) or ``csv`` (with a header).
    :param columns: the keys of the rows, in order; by default the keys of the first row.
    :param exactly: whether times are shown in full, and a table has all columns under their own names;
        otherwise it leaves out columns without a value.
    :param whole: whether a table on a terminal has all rows, too; for results that cannot be shown again,
        such as the result of a change.
    """
    columns = columns or [*next(iter(rows), ())]
    if output == "json":
        # with the columns in the given order
        rows = [{**dict.fromkeys(columns), **row} for row in rows]
        is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
        text = functools.partial(_text, exactly=exactly)
        click.echo(as_json(rows, text=text, indent=2, ensure_ascii=not is_unicode))
    elif output == "csv":
        writer = csv.writer(_Lines())
        if columns:
            writer.writerow(columns)
            writer.writerows([_cell(row[name], exactly) for name in columns] for row in rows)
    else:
        shown_columns = [
            name for name in columns if exactly or not rows or any(row[name] is not None for row in rows)
        ]
        if len(rows) == 1 and sys.stdout.isatty():
            _print_record(rows[0], shown_columns, exactly)
        elif shown_columns:
            most = _MOST_ROWS if sys.stdout.isatty() and not whole else len(rows)
            _print_table(rows[:most], shown_columns, exactly)
            if more := len(rows[most:]):
                tell(f"{counted(more, 'more row')}; --output json has all")


class _Lines:
    """The output of a CSV writer, with line feeds as line ends.

    The writer itself ends lines with CRLF: it quotes a carriage return only if its own line end has one.
    """

    def write(self, line: str) -> None:
        line = line.removesuffix("\r\n") + "\n"
        write(line.encode(errors="backslashreplace"))


def _cell(value: Any, exactly: bool) -> Any:
    """Return a value for CSV: spelled as in JSON, unless it is a text or a time."""
    if isinstance(value, bool | Mapping | list | tuple):
        return as_json(value, text=functools.partial(_text, exactly=exactly))
    return base64.b64encode(value).decode() if isinstance(value, bytes) else _text(value, exactly)


def as_json(value: Any, *, text: Callable[[Any], str] = str, **form: Any) -> str:
    """Return JSON with escapes only for characters that are not printable, or that the output cannot encode.

    Bytes are in Base64; infinity and "not a number", which JSON does not have, are null.

    :param text: function that converts other values, such as times, to text.
    :param form: arguments of :func:`json.dumps`.
    """
    plain = json.dumps(_plain(value, text), allow_nan=False, **{"ensure_ascii": False, **form})
    return _UNUSUAL.sub(
        lambda match: match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1], plain
    )


def _plain(value: Any, text: Callable[[Any], str]) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(name): _plain(item, text) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item, text) for item in value]
        case bytes():
            return base64.b64encode(value).decode()
    return text(value)


def _print_record(row: Mapping[str, Any], columns: Sequence[str], exactly: bool) -> None:
    names = [_heading(name, exactly) for name in columns]
    width = max(map(len, names), default=0) + 1
    for name, column in zip(names, columns, strict=True):
        click.echo(f"{f'{name}:':{width}} {_shown(column, row[column], exactly)}")


def _print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], exactly: bool) -> None:
    """Print a table whose lines fit into the terminal; the last columns are left out if there is no room."""
    from rich.cells import cell_len
    from rich.table import Table

    to = console()
    texts = {
        name: [_heading(name, exactly), *(_shown(name, row[name], exactly) for row in rows)]
        for name in columns
    }
    whole = {name: max(map(cell_len, cells)) for name, cells in texts.items()}
    widths: dict[str, int] = {}
    room: float = to.width + _GAP if sys.stdout.isatty() else math.inf
    for name in columns:
        least = whole[name]
        if exactly or name in _WRAPPED:
            words = [cell_len(word) for text in texts[name] for word in text.split()]
            least = min(least, max(_NARROW_TEXT, *words, 0))
        if least + _GAP <= room or not widths:  # an id in two lines could not be copied
            widths[name] = least
            room -= least + _GAP
    for name in widths:
        more = int(min(whole[name] - widths[name], max(room, 0)))
        widths[name] += more
        room -= more
    table = Table(box=None, pad_edge=False)
    for name, width in widths.items():
        numeric = all(isinstance(row[name], int | float | None) for row in rows)
        table.add_column(texts[name][0], justify="right" if numeric else "left", width=width, overflow="fold")
    for index in range(1, len(rows) + 1):
        table.add_row(*(texts[name][index] for name in widths))
    shown_in, to.width = to.width, max(to.width, sum(widths.values()) + _GAP * len(widths))
    to.print(table)
    if left_out := [texts[name][0] for name in columns if name not in widths]:
        names = ", ".join(left_out)
        tell(f"Left out in {shown_in} columns: {names}; --output json has all")


@contextlib.contextmanager
def progress(verb: str) -> Iterator[Callable[[int, int], object]]:
    """Show a progress bar on a terminal; yield a function that takes the number of rows so far and in total.

    :param verb: the word before the bar, such as ``Loading``.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    terminal = console(stderr=True)
    if not terminal.is_terminal:
        yield lambda rows, total: None
        return
    columns = (
        TextColumn(verb),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rows"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=terminal, transient=True) as shown:
        bar = shown.add_task(verb, total=None)
        yield lambda rows, total: shown.update(bar, completed=rows, total=total)


def _raise_broken_pipe() -> NoReturn:
    # rich's own function would end the process with exit code 1
    raise BrokenPipeError


def console(stderr: bool = False) -> Any:
    """Return a console of rich; outputs other than terminals get whole lines, however long they are."""
    from rich.console import Console

    made: Any = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    made.on_broken_pipe = _raise_broken_pipe
    if not made.is_terminal:
        made.width = 1000
    return made


def log_to_stderr() -> None:
    """Send the log to standard error: Airflow would write it to standard output, among a result's rows."""
    for handler in list(logging.root.handlers):
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            logging.root.removeHandler(handler)
            beside = logging.StreamHandler()
            beside.setFormatter(handler.formatter)
            beside.addFilter(make_printable)
            logging.root.addHandler(beside)
    # Airflow 3 has loggers that write to standard output without a handler
    structlog, stderr = sys.modules.get("structlog"), sys.__stderr__
    if structlog and stderr:
        factory = structlog.get_config()["logger_factory"]
        if getattr(factory, "io", factory) is None:
            factory.io = stderr.buffer if issubclass(factory.cls, structlog.BytesLogger) else stderr


def write(data: bytes) -> None:
    """Write all of ``data`` to standard output; it is UTF-8, whatever the terminal's encoding is."""
    left = memoryview(data)
    while left:
        # without a buffer (PYTHONUNBUFFERED), an interrupt can make it write only a part
        left = left[sys.stdout.buffer.write(left) :]


def printable(text: str, kept: str = "") -> str:
    """Return a text without characters that would control the terminal.

    :param kept: control characters that stay.
    """
    return "".join(
        character if character.isprintable() or character in kept else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )


def make_printable(record: logging.LogRecord) -> bool:
    """Replace characters in a log record that would control the terminal.

    This is a filter, so that it works with any formatter.
    """
    if isinstance(record.msg, str):
        record.msg, record.args = printable(record.getMessage(), kept="\n"), None
    return True


def tell(text: object) -> None:
    """Write lines to standard error, without characters that would control the terminal."""
    click.echo(printable(str(text), kept="\n"), err=True)


def _heading(name: str, exactly: bool) -> str:
    return printable(name) if exactly else name.replace("_", " ")


def _shown(name: str, value: object, exactly: bool) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return printable(str(_text(value, exactly)))
    if name in _SHARES and not exactly:
        return f"{value * 100:.4g} %"
    return str(value) if exactly else f"{value:,}"


def _text(value: Any, exactly: bool) -> Any:
    if isinstance(value, datetime.datetime) and not exactly:
        return value.isoformat(sep=" ", timespec="seconds")
    return value if value is None or isinstance(value, str | int | float) else str(value)


def ask(question: str) -> None:
    """Ask before an action that cannot be undone.

    :raises Exit: if the answer is no.
    :raises UsageError: if there is no terminal for the question.
    """
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Without a terminal to answer on, --yes is needed.")
    if not click.confirm(printable(question), err=True):
        tell("Nothing was changed.")
        raise click.exceptions.Exit(1)


@contextlib.contextmanager
def deferred_interrupt(on_first: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Defer an interrupt (Ctrl-C) until the block has ended; a second one ends the process at once.

    :param on_first: function that is called at the first interrupt.
    :raises KeyboardInterrupt: after the block, if there was an interrupt.
    """
    interrupts: list[int] = []

    def handle(signum: int, frame: object) -> None:
        if interrupts:
            if sys.stderr.isatty():
                os.write(2, _SHOW_CURSOR)
            os._exit(INTERRUPTED)
        interrupts.append(signum)
        on_first()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts:
        raise KeyboardInterrupt
