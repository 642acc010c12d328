"""Support for JSON that is nested too deeply for a recursive decoder, as all decoders used here are."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Levels of lists and objects that can be decoded at any depth of the call stack; Python's limit is 1000.
LEVELS = 400
#: A string, which may contain brackets, or one bracket.
_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_validate = msgspec.json.Decoder(msgspec.Raw).decode


def is_deep(text: bytes) -> bool:
    """Return whether ``text`` has more than :data:`LEVELS` levels."""
    return text.count(b"[") + text.count(b"{") > LEVELS and any(
        level > LEVELS for _, level in _brackets(text)
    )


def flattened(text: bytes) -> tuple[bytes, Callable[[bytes], bytes]]:
    """Replace the values in ``text`` that are nested deeper than :data:`LEVELS` by numbers.

    :return: the text with these numbers, and a function that puts the values, without line ends, back into a
        part of that text.
    :raises msgspec.DecodeError: if a replaced value is not valid JSON.
    """
    mark = f"0.{random.getrandbits(128):039d}".encode()
    taken: list[bytes] = []
    # a stack: the text so far, and the values being replaced, each nested in the one before
    layers, start, copied = [bytearray()], 0, 0
    for bracket, level in _brackets(text):
        opens = bracket[0] in b"[{"
        around = level - opens
        if around < LEVELS or around % LEVELS:
            continue
        if opens:
            start = start if layers[1:] else bracket.start()
            layers[-1] += text[copied : bracket.start()]
            layers.append(bytearray())
            copied = bracket.start()
        else:
            _validate(layers.pop() + text[copied : bracket.end()])
            copied = bracket.end()
            layers[-1] += b"%b%010d" % (mark, len(taken))
            if not layers[1:]:
                taken.append(text[start:copied].translate(None, b"\r\n"))
    if layers[1:]:
        raise msgspec.DecodeError("Input data was truncated")
    marks = re.compile(re.escape(mark) + rb"(\d{10})")
    return bytes(layers[0] + text[copied:]), lambda part: marks.sub(lambda found: taken[int(found[1])], part)


def _brackets(text: bytes) -> Iterator[tuple[re.Match[bytes], int]]:
    """Yield the brackets, each with the number of brackets that are open after it."""
    level = 0
    for token in _TOKENS.finditer(text):
        if token[0] in b"[{":
            level += 1
        elif token[0] in b"]}":
            level -= 1
        else:
            continue
        yield token, level
