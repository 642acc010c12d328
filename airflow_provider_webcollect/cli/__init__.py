"""The command line, ``webcollect``, see ``docs/reference/command-line.md``.

The modules import neither Airflow nor requests until a command needs them, so that help, and commands that
only read landings, start at once.
"""

from __future__ import annotations

import os
import signal


def run() -> int:
    """Run this process's command line and return its exit code.

    An interrupt while the modules are imported ends the process without a traceback, as a later interrupt
    does.
    """
    # if interrupts are ignored, as in the background of a shell, they stay ignored
    by_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if by_default:
        signal.signal(signal.SIGINT, lambda signum, frame: os._exit(130))
    from airflow_provider_webcollect.cli.main import main

    if by_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return main()
