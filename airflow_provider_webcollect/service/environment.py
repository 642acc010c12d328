"""Variables of the environment that other packages read: those of all threads of the process."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_lock = threading.Lock()
#: How many blocks need a variable that was added.
_needed: Counter[str] = Counter()


@contextlib.contextmanager
def variables_added(variables: Mapping[str, str]) -> Iterator[None]:
    """Add variables that the environment does not have, in the block.

    Those that other threads have added stay until the last block that needs them has ended.

    :param variables: their values by name.
    """
    with _lock:
        added = [name for name in variables if name in _needed or name not in os.environ]
        _needed.update(added)
        os.environ.update({name: variables[name] for name in added})
    try:
        yield
    finally:
        with _lock:
            _needed.subtract(added)
            for name in [name for name in added if not _needed[name]]:
                del _needed[name]
                os.environ.pop(name, None)
