"""Writes the tables of options in ``docs/reference/api/transfer.md``, as declared; ``make docs`` runs it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from airflow_provider_webcollect.cli.declared import notes_of
from airflow_provider_webcollect.landing.options import LandOptions, LoadOptions
from airflow_provider_webcollect.service.arguments import Range, Seconds

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
    for declaration in (LandOptions, LoadOptions):
        begin = BEGIN.format(declaration.__name__)
        before, _, rest = text.partition(begin)
        after = rest.partition(END)[2]
        text = f"{before}{begin}{HEAD}{''.join(_rows(declaration))}\n{END}{after}"
    return text


def _rows(declaration: Any) -> list[str]:
    hints = get_type_hints(declaration, include_extras=True)
    parameters = inspect.signature(declaration).parameters
    rows = []
    for name, parameter in parameters.items():
        kind, *notes = notes_of(hints[name])
        meaning = next(note for note in reversed(notes) if isinstance(note, str))
        default = "" if parameter.default in (None, ()) else f"`{parameter.default!r}`"
        rows.append(f"| `{name}` | {_values(kind, notes)} | {default} | {meaning} |\n")
    return rows


def _values(kind: Any, notes: list[Any]) -> str:
    limits = next((note for note in notes if isinstance(note, Range)), Range())
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if any(isinstance(note, Seconds) for note in notes):
        return "seconds, 0 or more"
    if kind is bool:
        return "`True`, `False`"
    if kind is int:
        return (
            f"{limits.low} or more"
            if limits.high is None
            else f"{limits.low} to {limits.high}"
        )
    names = {"Checks": "a dict", "Mapping": "a dict", "str": "a text"}
    return names.get(getattr(kind, "__name__", ""), "a list of names")


if __name__ == "__main__":
    PAGE.write_text(page())
