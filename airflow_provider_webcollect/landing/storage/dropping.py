"""Dropping an upload that is not to be published."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds that a task which is interrupted waits for it.
LONGEST_WAIT = 5.0


def drop(error: BaseException, *steps: Callable[[], object]) -> None:
    """Take the steps that drop an upload; what goes wrong with them is ignored.

    :param error: why. If it interrupts the task (a timeout, say) and the storage hangs, the steps are left to
        their thread after :data:`LONGEST_WAIT`, and to the end of the process.
    """

    def take_steps() -> None:
        for step in steps:
            with contextlib.suppress(Exception):
                step()

    thread = threading.Thread(target=take_steps, name="webcollect-drop", daemon=True)
    thread.start()
    thread.join(None if isinstance(error, Exception) else LONGEST_WAIT)
