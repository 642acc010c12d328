"""Rows as JSON lines, straight from the slices of the service's answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


def encode(rows: Sequence[msgspec.Raw]) -> bytes:
    """Return the rows as JSON lines, each ended by a line feed."""
    if not rows:
        return b""
    lines = b"\n".join(rows)
    if lines.count(b"\n") != len(rows) - 1 or b"\r" in lines:
        # pretty-printed rows have line ends inside; in JSON text they can only be white space between tokens
        lines = b"\n".join(msgspec.json.format(row, indent=-1) for row in rows)
    return lines + b"\n"
