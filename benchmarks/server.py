"""Servers in processes of their own, so that their CPU time and memory do not count for the client."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import requests

from demo.ports import free_port


class Server(NamedTuple):
    """The URL and the process id of a running sandbox."""

    url: str
    pid: int


@contextlib.contextmanager
def _running(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a Python module in a process of its own while the block runs."""
    with subprocess.Popen([sys.executable, "-m", *command], text=True, **options) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextlib.contextmanager
def sandbox(*options: str) -> Iterator[Server]:
    """Run a sandbox on a free port while the block runs.

    :param options: options for the sandbox's command line.
    """
    with tempfile.TemporaryDirectory() as directory:
        ready = Path(directory) / "url"
        command = ["airflow_provider_webcollect.sandbox", "--port", "0", "--speed", "1", *options]
        with _running(*command, "--ready-file", str(ready), stdout=subprocess.DEVNULL) as process:
            while not ready.exists():
                assert process.poll() is None, "the sandbox has ended"
                time.sleep(0.02)
            yield Server(ready.read_text(), process.pid)


@contextlib.contextmanager
def link(url: str, speed: float) -> Iterator[str]:
    """Run a link of limited speed to a server while the block runs; yield the URL of the link.

    :param url: the URL of the server.
    :param speed: bytes per second of all responses together.
    """
    host, _, port = url.removeprefix("http://").partition(":")
    with _running("benchmarks.link", host, port, str(speed), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"


class S3:
    """An S3 server with one bucket.

    :ivar environment: environment variables with which a client uses the server.
    :ivar bucket: the URL of the bucket.
    """

    bucket = "s3://landings"

    def __init__(self, url: str) -> None:
        self._url = url
        self.environment = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def empty(self) -> None:
        """Delete everything, and create the empty bucket."""
        requests.post(f"{self._url}/moto-api/reset", timeout=60).raise_for_status()
        requests.put(f"{self._url}/{self.bucket.removeprefix('s3://')}", timeout=60).raise_for_status()


@contextlib.contextmanager
def s3() -> Iterator[S3]:
    """Run an S3 server while the block runs."""
    port = free_port()
    server = S3(f"http://127.0.0.1:{port}")
    command = ["moto.server", "--host", "127.0.0.1", "--port", str(port)]
    with _running(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while True:
            assert process.poll() is None, "the S3 server has ended"
            with contextlib.suppress(requests.ConnectionError):
                server.empty()
                break
            time.sleep(0.1)
        yield server
