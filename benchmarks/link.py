"""A link of limited speed: ``python -m benchmarks.link HOST PORT BYTES_PER_SECOND [OWN_PORT]``.

It prints the port that it listens on. All connections share the speed; only responses are slowed down.
"""

from __future__ import annotations

import asyncio
import sys

PIECE = 64 * 1024


class Link:
    """Forwards connections to a server.

    :param host: the server's host.
    :param port: the server's port.
    :param speed: the bytes per second of all responses together.
    :param own_port: the port that the link listens on; 0 (default) for a free port.
    """

    def __init__(self, host: str, port: int, speed: float, own_port: int = 0) -> None:
        self._end = (host, port)
        self._speed = speed
        self._own_port = own_port
        self._free_at = 0.0

    async def serve(self) -> None:
        """Accept connections until the process is terminated."""
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", self._own_port)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(*self._end)
        await asyncio.gather(
            self._copy(reader, requests, paced=False), self._copy(answers, writer, paced=True)
        )

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, paced: bool) -> None:
        try:
            while piece := await reader.read(PIECE):
                if paced:
                    await self._turn(len(piece))
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _turn(self, size: int) -> None:
        now = asyncio.get_running_loop().time()
        self._free_at = max(now, self._free_at) + size / self._speed
        await asyncio.sleep(self._free_at - now)


if __name__ == "__main__":
    asyncio.run(Link(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), *map(int, sys.argv[4:])).serve())
