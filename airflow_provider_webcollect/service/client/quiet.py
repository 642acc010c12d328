"""Keeping httpx from telling of every request at INFO: a triggerer's log would hold little else.

Only requests of this package are meant. A level set for the whole of httpx would hide those of others.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar

_ours: ContextVar[bool] = ContextVar("ours", default=False)


@contextlib.contextmanager
def quiet_request() -> Iterator[None]:
    """What httpx logs of the requests made inside is dropped, unless it is a warning or worse."""
    # adding it again does nothing
    logging.getLogger("httpx").addFilter(_is_worth_telling)
    before = _ours.set(True)
    try:
        yield
    finally:
        _ours.reset(before)


def _is_worth_telling(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO or not _ours.get()
