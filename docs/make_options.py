"""Writes the options, as declared; ``make docs`` runs it.

They go into the tables of ``docs/reference/api/transfer.md``, and into the JSON schema of the file of
collection tasks.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, get_origin

import airflow_provider_webcollect
from airflow_provider_webcollect.landing.formats.types import ColumnType
from airflow_provider_webcollect.landing.options import (
    LandOptions,
    LoadOptions,
    SourceOptions,
)
from airflow_provider_webcollect.service.arguments import Argument, declared

PAGE = Path(__file__).parent / "reference" / "api" / "transfer.md"
SCHEMA = (
    Path(airflow_provider_webcollect.__file__).parent / "collection_tasks.schema.json"
)
#: The keys whose schema is written by hand.
BY_HAND = ("checks", "lotno", "tags", "loop_items")
BEGIN = "<!-- `make docs` writes this table from {} -->\n"
END = "<!-- end of the table -->\n"
HEAD = """
| Option | Values | Default | Meaning |
|---|---|---|---|
"""


def page() -> str:
    """Return the whole page: what is written by hand, with the tables between their comments."""
    text = PAGE.read_text()
    for options in (LandOptions, LoadOptions, ColumnType):
        begin = BEGIN.format(options.__name__)
        before, _, rest = text.partition(begin)
        after = rest.partition(END)[2]
        text = f"{before}{begin}{HEAD}{_rows(options)}\n{END}{after}"
    return text


def _rows(options: Any) -> str:
    rows = []
    for name, argument in declared(options).items():
        is_empty = argument.default in (None, (), inspect.Parameter.empty)
        default = "" if is_empty else f"`{argument.default!r}`"
        rows.append(
            f"| `{name.rstrip('_')}` | {_values(argument)} | {default} | {argument.help} |\n"
        )
    return "".join(rows)


def _values(argument: Argument) -> str:
    if argument.choices:
        return ", ".join(f"`{word}`" for word in argument.choices)
    if argument.is_list:
        return "a list of texts"
    if get_origin(argument.kind) is tuple:
        return "a name, or a list of names"
    kinds = {bool: "`True`, `False`", float: "seconds", str: "a text"}
    return argument.limits or kinds.get(argument.kind, "a dict")


def schema() -> str:
    """Return the whole schema: what is written by hand, with the options of an entry."""
    written = json.loads(SCHEMA.read_text())
    text = {"$ref": "#/$defs/text"}
    load = {"type": "object", "additionalProperties": False}
    load["properties"] = {"table": text, **_schemas(LoadOptions)}
    load["description"] = "Table and options of its load; false for no load."
    options = written["$defs"]["options"]
    by_hand = {name: options["properties"][name] for name in BY_HAND}
    loads = {"anyOf": [load, {"const": False}, {"type": "null"}]}
    types = {"anyOf": [text, {"$ref": "#/$defs/column_type"}]}
    own = _schemas(SourceOptions)
    own["column_types"]["anyOf"][0]["additionalProperties"] = types
    options["properties"] = {**own, "load": loads, **by_hand}
    keys = {name.rstrip("_"): value for name, value in _schemas(ColumnType).items()}
    for name in ("decimal", "thousands"):
        keys[name]["anyOf"][0] = {"type": "string", "minLength": 1, "maxLength": 1}
    written["$defs"]["column_type"] = {
        "type": "object",
        "additionalProperties": False,
        "required": ["type"],
        "properties": keys,
    }
    return json.dumps(written, indent=2) + "\n"


def _schemas(options: Any) -> dict[str, Any]:
    return {
        name: {
            "anyOf": [*_schema(argument), {"type": "null"}],
            "description": argument.help,
        }
        for name, argument in declared(options).items()
    }


def _schema(argument: Argument) -> list[dict[str, Any]]:
    """Return the forms that a value can have."""
    text = {"$ref": "#/$defs/text"}
    texts = {"type": "array", "items": text}
    if argument.choices:
        return [{"enum": list(argument.choices)}]
    if argument.is_list:
        return [texts]
    if get_origin(argument.kind) is tuple:
        return [text, texts]
    kinds = {bool: "boolean", int: "integer", float: "number"}
    if argument.kind is str:
        return [text]
    return [{"type": kinds.get(argument.kind, "object")}]


if __name__ == "__main__":
    PAGE.write_text(page())
    SCHEMA.write_text(schema())
