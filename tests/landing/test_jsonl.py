"""JSON lines: every row comes back as it was."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_webcollect.landing import jsonl
from airflow_provider_webcollect.landing.read_ahead import read_ahead

text = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
rows = st.lists(st.dictionaries(text, values, max_size=5), max_size=6)
layouts: Any = st.fixed_dictionaries(
    {
        "indent": st.sampled_from([None, 0, 2, "\t"]),
        "ensure_ascii": st.booleans(),
        "separators": st.sampled_from([None, (",", ":"), (" ,\r\n", " :\r")]),
    }
)


def as_served(written: list[dict[str, Any]], layout: dict[str, Any]) -> list[msgspec.Raw]:
    """Return the rows as slices of a page of so laid out JSON."""
    return msgspec.json.decode(json.dumps(written, **layout).encode(), type=list[msgspec.Raw])


@given(rows, layouts)
def test_rows_of_any_layout_come_back_as_they_were(
    written: list[dict[str, Any]], layout: dict[str, Any]
) -> None:
    encoded = jsonl.encode(as_served(written, layout))
    assert encoded.count(b"\n") == len(written)
    assert b"\r" not in encoded
    assert [json.loads(line) for line in encoded.split(b"\n")[:-1]] == written


@given(rows)
def test_plain_rows_are_copied_byte_by_byte(written: list[dict[str, Any]]) -> None:
    plain = [msgspec.Raw(json.dumps(row).encode()) for row in written]
    assert jsonl.encode(plain) == b"".join(bytes(row) + b"\n" for row in plain)


def test_no_rows_are_no_bytes() -> None:
    assert jsonl.encode([]) == b""


def test_a_cell_of_10_mb_comes_back() -> None:
    row = {"": "ü" * 5_000_000, "two\nlines": None}
    encoded = jsonl.encode([msgspec.Raw(json.dumps(row, indent=1).encode())])
    assert json.loads(encoded) == row


class TestReadAhead:
    def test_items_come_in_order_and_one_is_fetched_ahead(self) -> None:
        fetched: list[int] = []

        def items() -> Iterator[int]:
            for number in range(5):
                fetched.append(number)
                yield number

        ahead = read_ahead(items())
        assert next(ahead) == 0
        deadline = time.monotonic() + 5
        while len(fetched) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert fetched == [0, 1]
        assert list(ahead) == [1, 2, 3, 4]

    def test_an_error_comes_in_its_place(self) -> None:
        def items() -> Iterator[int]:
            yield 1
            raise OSError("broken")

        ahead = read_ahead(items())
        assert next(ahead) == 1
        with pytest.raises(OSError, match="broken"):
            next(ahead)

    def test_who_stops_early_waits_for_nothing_and_leaves_no_thread(self) -> None:
        released = threading.Event()

        def items() -> Iterator[int]:
            yield 1
            released.wait(10)
            yield 2

        ahead: Any = read_ahead(items())
        next(ahead)
        began = time.monotonic()
        ahead.close()
        assert time.monotonic() - began < 5
        released.set()
        deadline = time.monotonic() + 5
        while reading() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert not reading()


def reading() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("webcollect-read")]
