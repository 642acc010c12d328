"""Encoding rows as the bytes of a part: JSON lines, CSV or Parquet.

How a landing uses it::

    file_format = make_format("csv", compression="gzip")  # checks the arguments, imports nothing
    file_format.require_extras()  # where the landing runs: is everything installed?
    columns = file_format.columns_after(progress_columns)  # () for a new landing
    name = f"part-00001{file_format.suffix}"
    with folder.part(name) as file, file_format.writer(file, columns) as writer:
        for page in pages:
            if not writer.write(page.rows):
                break  # nothing of the page was written: end this part, the page is the first of the next one
    len(writer.columns)  # columns of this part: the first ones of `columns.names`

A part's header or schema comes before its first row. If a later page has a key without a column, the part
ends before that page. Columns are only ever added at the end, and parts never change: an older part has the
first of the landing's columns, and the manifest says how many. Readers take null for the others.
"""

from __future__ import annotations

from airflow_provider_webcollect.landing.formats.base import FileFormat, RowWriter, SupportsWrite
from airflow_provider_webcollect.landing.formats.columns import Columns
from airflow_provider_webcollect.landing.formats.errors import CastFailed, ExtraMissing, UnreadableRow
from airflow_provider_webcollect.landing.formats.making import make_format

__all__ = [
    "CastFailed",
    "Columns",
    "ExtraMissing",
    "FileFormat",
    "RowWriter",
    "SupportsWrite",
    "UnreadableRow",
    "make_format",
]
