"""Writes the table of extras in ``docs/reference/connection.md``, as declared; ``make docs`` runs it."""

from __future__ import annotations

import json
from pathlib import Path

from airflow_provider_webcollect.hooks.connection_fields import FIELDS, Field

PAGE = Path(__file__).parent / "reference" / "connection.md"

BEGIN = "<!-- `make docs` writes this table from hooks/connection_fields.py -->\n"
END = "<!-- end of the table -->\n"
HEAD = """
| Extra | Meaning | Default |
|---|---|---|
"""


def page() -> str:
    """Return the whole page: what is written by hand, with the table between its two comments."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}{HEAD}{''.join(map(_row, FIELDS))}\n{END}{after}"


def _row(field: Field) -> str:
    default = "" if field.default is None else f"`{json.dumps(field.default)}`"
    return f"| `{field.name}` | {field.help} | {default} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
