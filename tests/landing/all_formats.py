"""Every format, and its landings read as a reader does who trusts the manifest."""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any

import pyarrow.parquet as pq

from tests.landing.conftest import Folder
from tests.landing.formats.parts import csv_records, plain, read_csv, read_parquet

FORMATS = [
    {"file_format": "jsonl", "compression": "gzip"},
    {"file_format": "jsonl", "compression": "zstd"},
    {"file_format": "csv"},
    {"file_format": "csv", "compression": "gzip"},
    {"file_format": "csv", "compression": "zstd"},
    {"file_format": "parquet"},
    {"file_format": "parquet", "compression": "zstd"},
]


def named(options: dict[str, Any]) -> str:
    return "-".join(str(value) for value in options.values())


def read(folder: Folder) -> list[dict[str, Any]]:
    """Return the rows of all parts by the manifest, with null for the columns that a row lacks."""
    manifest = folder.manifest()
    rows: list[dict[str, Any]] = []
    for part in manifest["parts"]:
        content = folder.read(part["name"])
        assert (len(content), hashlib.sha256(content).hexdigest()) == (part["bytes"], part["sha256"])
        columns = manifest["columns"] and manifest["columns"][: part.get("columns")]
        found = parse(content, manifest, columns)
        if manifest["format"] != "jsonl":
            found = [dict.fromkeys(manifest["columns"]) | row for row in found]
        assert len(found) == part["rows"]
        rows += found
    return rows


def parse(content: bytes, manifest: dict[str, Any], columns: list[str] | None) -> list[dict[str, Any]]:
    if manifest["format"] == "parquet":
        assert pq.read_schema(io.BytesIO(content)).names == columns
        return read_parquet(content)
    content = plain(content, manifest["compression"])
    if manifest["format"] == "jsonl":
        return [json.loads(line) for line in content.splitlines()]
    assert csv_records(content)[0] == columns
    return read_csv(content)
