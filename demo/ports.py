"""Free ports for servers that cannot choose one themselves."""

from __future__ import annotations

import contextlib
import random
import socket

#: Ports that no outgoing connection uses: it could take a port before the server does.
CANDIDATES = range(20_000, 32_000)


def free_port() -> int:
    """Return a loopback port without a listener.

    :raises OSError: if there is none.
    """
    for port in random.sample(CANDIDATES, len(CANDIDATES)):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("no port of loopback is free")
