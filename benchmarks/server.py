"""Servers in processes of their own, so that what they take is not the client's."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import requests

from demo.ports import free_port


class Server(NamedTuple):
    """A sandbox that is being served."""

    url: str
    pid: int


@contextlib.contextmanager
def sandbox(*options: str) -> Iterator[Server]:
    """Run a sandbox on a free port while the block runs.

    :param options: for its command line.
    """
    with tempfile.TemporaryDirectory() as directory:
        ready = Path(directory) / "url"
        command = [sys.executable, "-m", "airflow_provider_webcollect.sandbox", "--port", "0"]
        command += ["--speed", "1", *options, "--ready-file", str(ready)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while not ready.exists():
                time.sleep(0.02)
            yield Server(ready.read_text(), process.pid)
        finally:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def link(url: str, speed: float) -> Iterator[str]:
    """Run a link of limited speed to a server while the block runs; give the URL to reach it by.

    :param speed: bytes per second, of all answers together.
    """
    host, _, port = url.removeprefix("http://").partition(":")
    command = [sys.executable, "-m", "benchmarks.link", host, port, str(speed)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


class S3:
    """An S3 service with one bucket.

    :ivar environment: what a client finds it by.
    :ivar bucket: its URL.
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
        """Begin again, with nothing in the bucket."""
        requests.post(f"{self._url}/moto-api/reset", timeout=60).raise_for_status()
        requests.put(f"{self._url}/{self.bucket.removeprefix('s3://')}", timeout=60).raise_for_status()


@contextlib.contextmanager
def s3() -> Iterator[S3]:
    """Run an S3 server while the block runs."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server = S3(f"http://127.0.0.1:{port}")
    try:
        while True:
            assert process.poll() is None, "the S3 server has ended"
            with contextlib.suppress(requests.ConnectionError):
                server.empty()
                break
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait()
