"""Writes the options, as declared, into the JSON schema of collection tasks; ``make docs`` runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_origin

import airflow_provider_webcollect
from airflow_provider_webcollect.landing.formats.types import ColumnType
from airflow_provider_webcollect.landing.options import (
    LoadOptions,
    SourceOptions,
)
from airflow_provider_webcollect.service.arguments import Argument, declared

PAGE = (
    Path(airflow_provider_webcollect.__file__).parent / "collection_tasks.schema.json"
)
#: The keys whose schema is written by hand.
BY_HAND = ("checks", "lotno", "tags", "loop_items")


def page() -> str:
    """Return the whole schema: what is written by hand, with the options of an entry."""
    written = json.loads(PAGE.read_text())
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
