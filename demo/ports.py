"""Ports for servers that need to be given one."""

from __future__ import annotations

import contextlib
import random
import socket

#: Below those of outgoing connections, one of which might else take the port before the server does.
CANDIDATES = range(20_000, 32_000)


def free_port() -> int:
    """Return a port of loopback on which nobody listens.

    :raises OSError: if there is none.
    """
    for port in random.sample(CANDIDATES, len(CANDIDATES)):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("no port of loopback is free")
