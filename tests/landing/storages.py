"""Storages that are really there: this machine's disk, and an S3 server on loopback."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import fsspec

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Storage:
    """What fsspec needs to reach it.

    :param parent: a folder to make others in.
    """

    protocol: str
    parent: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def fs(self) -> Any:
        return fsspec.filesystem(self.protocol, **self.options)

    def new_folder(self) -> str:
        return f"{self.parent}/{uuid.uuid4().hex}"


@contextlib.contextmanager
def s3_server() -> Iterator[Storage]:
    """Run an S3 server while the block runs."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    storage = Storage(
        "s3",
        "landings/of",
        {
            "key": "testing",
            "secret": "testing",
            "endpoint_url": f"http://{host}:{port}",
        },
    )
    try:
        storage.fs.call_s3("create_bucket", Bucket="landings")
        yield storage
    finally:
        server.stop()
        fsspec.filesystem("s3", **storage.options).clear_instance_cache()
