"""Writes the tables of options in ``docs/reference/api/transfer.md``, as declared; ``make docs`` runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_origin

from airflow_provider_webcollect.landing.options import LandOptions, LoadOptions
from airflow_provider_webcollect.service.arguments import Argument, declared

PAGE = Path(__file__).parent / "reference" / "api" / "transfer.md"
BEGIN = "<!-- `make docs` writes this table from {} of landing/options.py -->\n"
END = "<!-- end of the table -->\n"
HEAD = """
| Option | Values | Default | Meaning |
|---|---|---|---|
"""


def page() -> str:
    """Return the whole page: what is written by hand, with the tables between their comments."""
    text = PAGE.read_text()
    for options in (LandOptions, LoadOptions):
        begin = BEGIN.format(options.__name__)
        before, _, rest = text.partition(begin)
        after = rest.partition(END)[2]
        text = f"{before}{begin}{HEAD}{_rows(options)}\n{END}{after}"
    return text


def _rows(options: Any) -> str:
    rows = []
    for name, argument in declared(options).items():
        default = "" if argument.default in (None, ()) else f"`{argument.default!r}`"
        rows.append(
            f"| `{name}` | {_values(argument)} | {default} | {argument.help} |\n"
        )
    return "".join(rows)


def _values(argument: Argument) -> str:
    if argument.choices:
        return ", ".join(f"`{word}`" for word in argument.choices)
    if argument.is_list:
        return "a list of names"
    if get_origin(argument.kind) is tuple:
        return "a name, or a list of names"
    kinds = {bool: "`True`, `False`", float: "seconds", str: "a text"}
    return argument.limits or kinds.get(argument.kind, "a dict")


if __name__ == "__main__":
    PAGE.write_text(page())
