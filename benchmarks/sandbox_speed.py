"""Speed at which the sandbox serves rows: ``python benchmarks/sandbox_speed.py [--rows N] [--seconds S]``.

The sandbox runs in its own process; the client reads over one kept-alive connection and drops the bytes. The
table shows MB per second of the server's CPU time (the speed of one core) and of wall time (the speed that
this client reached).
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

from airflow_provider_webcollect.sandbox import Control, demo
from benchmarks.server import sandbox


def main() -> None:
    """Start a sandbox, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the task (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="per measurement (default: %(default)s)")
    arguments = parser.parse_args()
    with sandbox("--no-enforce-limits") as server:
        measure(server.url, server.pid, arguments.rows, arguments.seconds)


def measure(url: str, pid: int, rows: int, seconds: float) -> None:
    """Read with several page sizes, and print the speed of the first and of repeated reads."""
    task_id = Control(url).add_task(lots=[rows])["task_id"]
    print(f"{'':24}{'MB':>8}{'pages':>8}{'MB/s wall':>12}{'MB/s server CPU':>18}")
    for title, size in (
        ("first read, 1000 rows", 1000),
        ("again, 1000 rows", 1000),
        ("again, 200 rows", 200),
        ("again, 20 rows", 20),
    ):
        began, cpu = time.perf_counter(), cpu_seconds(pid)
        size_read, pages = read_for(url, task_id, size, 0 if title.startswith("first") else seconds)
        wall, cpu = time.perf_counter() - began, cpu_seconds(pid) - cpu
        per_cpu = f"{size_read / cpu / 1e6:.0f}" if cpu > 0.05 else "-"
        print(f"{title:24}{size_read / 1e6:8.0f}{pages:8}{size_read / wall / 1e6:12.0f}{per_cpu:>18}")


def read_for(url: str, task_id: str, size: int, seconds: float) -> tuple[int, int]:
    """Read the task repeatedly for this number of seconds; return the number of bytes and of pages.

    :param seconds: 0 to read the task exactly once.
    """
    address = urlsplit(url)
    total = pages = 0
    until = time.perf_counter() + seconds
    with socket.create_connection((address.hostname or "", address.port or 0)) as connection:
        buffer = memoryview(bytearray(16_000_000))
        while True:
            offset, rest = 0, 1
            while rest:
                count, offset, rest = read_page(connection, buffer, task_id, offset, size)
                total, pages = total + count, pages + 1
                if seconds and time.perf_counter() > until:
                    return total, pages
            if not seconds:
                return total, pages


def read_page(
    connection: socket.socket, buffer: memoryview, task_id: str, offset: int, size: int
) -> tuple[int, int, int]:
    """Read one page; return its bytes, the next offset and the number of remaining rows."""
    connection.sendall(
        f"GET /data/all?taskId={task_id}&offset={offset}&size={size} HTTP/1.1\r\nHost: sandbox\r\n"
        f"Authorization: Bearer {demo.ACCESS_TOKEN}\r\n\r\n".encode()
    )
    got = connection.recv_into(buffer)
    head_end = bytes(buffer[:1000]).index(b"\r\n\r\n") + 4
    head = bytes(buffer[:head_end]).lower()
    length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    while got < head_end + length:
        got += connection.recv_into(buffer[got:])
    start = bytes(buffer[head_end : head_end + 120])
    fields = json.loads(start[len(b'{"data":') : start.index(b',"data":[')] + b"}")
    return length, fields["offset"], fields["restTotal"]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process in seconds (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


if __name__ == "__main__":
    main()
