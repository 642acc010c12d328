"""Files of single rows that are quarantined.

They have a line for each row: ``{"broke": [<names of rules>], "row": <the row>}``. The row is as the service
sent it, whatever the format of the landing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from airflow_provider_webcollect.landing.errors import UnreadableRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: The ending of the names of such files.
SUFFIX = ".rows.jsonl"
#: Between the two values of a line; no JSON string has it, since its quotes would be escaped.
_BETWEEN = b',"row":'
_encode = msgspec.json.Encoder().encode


class _Broke(msgspec.Struct):
    """The beginning of a line."""

    broke: list[str]


_decode = msgspec.json.Decoder(_Broke).decode


class SingleRow(NamedTuple):
    """A row that breaks rules about values, and waits by itself.

    :ivar broke: the names of these rules, in the order of declaration.
    :ivar row: its JSON as the service sent it.
    """

    broke: Sequence[str]
    row: msgspec.Raw


def as_lines(rows: Iterable[SingleRow]) -> bytes:
    """Return the lines of rows in a file."""
    return b"".join(b'{"broke":%s%s%s}\n' % (_encode(row.broke), _BETWEEN, row.row) for row in rows)


def from_lines(lines: Iterable[bytes]) -> Iterator[SingleRow]:
    """Yield the rows of the lines of a file, each with or without its line feed.

    :raises UnreadableRow: if a line is torn.
    """
    for line in lines:
        broke, _, row = line.rstrip(b"\n").partition(_BETWEEN)
        try:
            names = _decode(broke + b"}").broke
        except msgspec.DecodeError:
            names = None
        if names is None or not row.endswith(b"}"):
            raise UnreadableRow("it is no line of quarantined rows")
        yield SingleRow(names, msgspec.Raw(row[:-1]))
