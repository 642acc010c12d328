"""Landings of a sandbox's tasks on filesystems of every kind."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import fsspec
import pytest
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from airflow_provider_webcollect.landing import MANIFEST
from airflow_provider_webcollect.landing.log.commits import Manifest, Run, Source
from airflow_provider_webcollect.landing.reader import LandedData, read_landing
from airflow_provider_webcollect.landing.storage.folder import Folder as Destination
from airflow_provider_webcollect.landing.write import copy, staging
from airflow_provider_webcollect.landing.write import job as jobs
from airflow_provider_webcollect.landing.write.run import run_job
from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.models import DataPage
from airflow_provider_webcollect.service.pages import PageReader
from tests.interruption import Pauses
from tests.landing.checked_runs import Runs
from tests.landing.decisions import Ledger
from tests.landing.formats.parts import read_part
from tests.landing.pages import Fetch, Stream, make_job, through
from tests.simulation.samples import leave_to_the_night
from tests.simulation.steps import Crash
from tests.storages import Storage

#: Fixtures with several parameters, of which each case tries only one by day: landings do not depend on the
#: kind of filesystem (test_storage.py tests all), nor do queries on a shop's rows depend on their format.
ONE_OF = {"folder", "shop"}
#: The kinds of storage that have a server.
SERVERS = ("s3", "azure", "gcs")

RUN = Run(dag_id="d", task_id="t", run_id="r1")
OTHER_RUN = Run(dag_id="d", task_id="t", run_id="r2")


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but a sample of the cases as `at_night`; keep the tests of one server in one process."""
    kinds = defaultdict(list)
    here = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    for item in here:
        if callspec := getattr(item, "callspec", None):
            if (server := callspec.params.get("storage")) in SERVERS:
                item.add_marker(pytest.mark.xdist_group(server))
            for kind in ONE_OF & callspec.params.keys():
                own_id = rf"(?<=[\[-]){callspec.params[kind]}(?=[\]-])"
                kinds[re.sub(own_id, "", item.nodeid, count=1)].append(item)
    for case, variants in kinds.items():
        leave_to_the_night(case, variants, 1)


@pytest.fixture
def long_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every read as long, so that the first page is read again at its end: attempts may be held."""
    monkeypatch.setattr(copy, "LONG_READ", 0.0)


@pytest.fixture
def each_part_is_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record what is staged after each part, however fast the machine is."""
    monkeypatch.setattr(staging, "INTERVAL", 0.0)


def crashing_at(number: int) -> Callable[[Iterator[DataPage]], Iterator[DataPage]]:
    """Return a stream of pages that crashes once, instead of yielding the page of that number (from 1)."""
    left = number

    def crashing(pages: Iterator[DataPage]) -> Iterator[DataPage]:
        nonlocal left
        for page in pages:
            left -= 1
            if left == 0:
                raise Crash
            yield page

    return crashing


class StoreFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """A file that exists only once it is committed, as on object stores."""

    def _initiate_upload(self) -> None:
        self.uploaded = b""

    def _upload_chunk(self, final: bool = False) -> bool:
        self.uploaded += self.buffer.getvalue()
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        self.fs.objects[self.path] = self.uploaded


class Store(AbstractFileSystem):  # type: ignore[misc]
    """An object store: no folders, no renames, and a listing that names the folder itself."""

    protocol = "store"
    cachable = False  # codespell:ignore

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> StoreFile:
        return StoreFile(self, path, mode, block_size=kwargs["block_size"], autocommit=kwargs["autocommit"])

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        below = [name for name in self.objects if name.startswith(f"{path}/")]
        if not below:
            raise FileNotFoundError(path)
        own = {"name": f"{path}/", "size": 0, "type": "directory"}
        children = {name[len(path) + 1 :].partition("/")[0] for name in below}
        entries = [
            {"name": name, "size": len(self.objects[name]), "type": "file"}
            if (name := f"{path}/{child}") in self.objects
            else {"name": name, "size": 0, "type": "directory"}
            for child in sorted(children)
        ]
        return [own, *entries] if detail else [entry["name"] for entry in (own, *entries)]

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> bytes:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path]

    def rm_file(self, path: str) -> None:
        if path not in self.objects:
            raise FileNotFoundError(path)
        del self.objects[path]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        self.objects[path] = value


@dataclasses.dataclass
class Folder:
    """A destination whose files tests can read and change."""

    fs: Any
    root: str

    @classmethod
    def new(cls, storage: Storage) -> Self:
        """Return a folder in a storage; it does not exist yet."""
        return cls(storage.fs, storage.new_folder())

    @property
    def destination(self) -> Destination:
        return Destination(self.fs, self.root)

    @property
    def location(self) -> SimpleNamespace:
        """The folder in a form that `read_landing` and `clean` accept, like an `ObjectStoragePath`."""
        return SimpleNamespace(fs=self.fs, path=self.root)

    def names(self) -> set[str]:
        """Return the names of all files, including those in subfolders."""
        self.fs.invalidate_cache()
        start = len(self.root.strip("/")) + 1
        return {path.strip("/")[start:] for path in self.fs.find(self.root) if not path.endswith("/")}

    def parts(self) -> set[str]:
        """Return the names of the parts that exist, whether or not anything lists them."""
        return {name for name in self.names() if name.rpartition("/")[2].startswith("part-")}

    def staged(self) -> list[dict[str, Any]]:
        """Return the records of what attempts have staged and not committed."""
        return [json.loads(self.read(name)) for name in self.names() if name.startswith("_staged/")]

    def commits(self) -> list[dict[str, Any]]:
        """Return the contents of the commit files, in order."""
        return [json.loads(self.read(name)) for name in sorted(self.names()) if name.startswith("_commits/")]

    def landed(self, **options: Any) -> LandedData:
        """Read the landing as users do."""
        return read_landing(self.location, **options)

    def contents(self) -> dict[str, bytes]:
        return {name: self.read(name) for name in self.names()}

    def read(self, name: str) -> bytes:
        self.fs.invalidate_cache()
        content: bytes = self.fs.cat_file(f"{self.root}/{name}")
        return content

    def write(self, name: str, content: bytes) -> None:
        path = f"{self.root}/{name}"
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self.fs.pipe_file(path, content)

    def damage(self, name: str, content: bytes | None) -> None:
        """Replace the content of a file; None deletes the file."""
        if content is None:
            self.fs.rm_file(f"{self.root}/{name}")
        else:
            self.write(name, content)

    def manifest(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.read("_manifest.json"))
        return content

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows that the manifest lists, after checking what it says about them.

        Except in JSON lines, rows have null for columns that their part lacks. No manifest means no rows.
        """
        try:
            manifest = self.manifest()
        except FileNotFoundError:
            return []
        landed: list[dict[str, Any]] = []
        for part in manifest["parts"]:
            rows = self.rows_of(part)
            if manifest["format"] != "jsonl":
                columns = manifest["columns"][: part.get("columns")]
                assert all([*row] == columns for row in rows)
                rows = [dict.fromkeys(manifest["columns"]) | row for row in rows]
            landed += rows
        apart = sum(
            entry["rows"]
            for entry in manifest["set_apart"]
            if not entry.get("is_earlier") and not entry.get("replaces")
        )
        assert manifest["rows"] == manifest["earlier_rows"] + manifest["total"] - apart == len(landed)
        assert manifest["bytes"] == sum(part["bytes"] for part in manifest["parts"])
        return landed

    def rows_of(self, part: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the rows of a part, after checking the file against its entry."""
        content = self.read(part["name"])
        assert len(content) == part["bytes"]
        assert hashlib.sha256(content).hexdigest() == part["sha256"]
        rows = read_part(part["name"], content)
        assert len(rows) == part["rows"]
        return rows

    def committed(self) -> list[dict[str, Any]]:
        """Return the landed parts, according to the commits alone."""
        ledger = Ledger(self.commits())
        return [ledger.parts[name] for _, name in ledger.landed]

    def committed_rows(self) -> list[dict[str, Any]]:
        """Return the landed rows, according to the commits alone."""
        return [row for part in self.committed() for row in self.rows_of(part)]

    def apart(self) -> list[dict[str, Any]]:
        """Return the parts of quarantined rows, according to the commits alone."""
        ledger = Ledger(self.commits())
        return [ledger.parts[name] for _, name in ledger.names_waiting()]

    def rows_apart(self) -> list[dict[str, Any]]:
        return [row for part in self.apart() for row in self.rows_of(part)]

    def needed(self) -> set[str]:
        """Return the names of the files that the landing needs."""
        commits = {name for name in self.names() if name.startswith("_commits/")}
        return {MANIFEST, *commits, *Ledger(self.commits()).needed()}


@pytest.fixture(params=["disk", *(pytest.param(kind, marks=pytest.mark.at_night) for kind in SERVERS)])
def storage(request: pytest.FixtureRequest, storage_of: Callable[[str], Storage]) -> Storage:
    """A real storage; those with servers are tried only at night, unless a test chooses them."""
    return storage_of(request.param)


@pytest.fixture(params=["local", "memory", "store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """A folder that does not exist yet, on each kind of filesystem."""
    if request.param == "local":
        return Folder(fsspec.filesystem("file"), str(tmp_path / "landing"))
    if request.param == "memory":
        return Folder(fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}/landing")
    return Folder(Store(), "bucket/landing")


Landing = Callable[..., jobs.Landed]
Landed = Callable[..., Manifest]


def listed(pages: list[DataPage]) -> Fetch:
    """Return a function that returns the listed pages by offset, and after them an empty one."""
    starts = [0, *(page.offset for page in pages[:-1])]

    def fetch(offset: int) -> DataPage:
        if offset in starts:
            return pages[starts.index(offset)]
        return DataPage(offset=offset, total=pages[-1].total, rest_total=0, rows=[])

    return fetch


def in_order(pages: Iterator[DataPage]) -> Fetch:
    """Return a function that returns the pages one after another, whatever offset is requested."""
    return lambda offset: next(pages)


@pytest.fixture
def land_job(client: Client, folder: Folder) -> Landing:
    """Lands a task in the folder; ``fetch`` replaces the service, and pages pass through ``read``.

    Pauses take no time: ``sleep`` is called instead.
    """

    def run(
        task_id: str,
        lotno: str | None = None,
        *,
        size: int = 100,
        fetch: Fetch | None = None,
        read: Stream | None = None,
        sleep: Callable[[float], object] = lambda seconds: None,
        **changes: Any,
    ) -> jobs.Landed:
        fetch = fetch or PageReader(client, task_id, lotno, size=size).read
        arguments = {"folder": folder.destination, "run": RUN, "stop": Pauses(sleep), **changes}
        source = Source(collection_task_id=task_id, lotno=lotno)
        return run_job(make_job(through(read, fetch) if read else fetch, source=source, **arguments))

    return run


@pytest.fixture
def landing(land_job: Landing) -> Landed:
    """Like ``land_job``, but returns the manifest."""
    return lambda *args, **changes: land_job(*args, **changes).manifest


def rows_of_last_run(manifest: Manifest) -> int:
    """Return how many rows the last run has landed."""
    record = manifest.record_of(manifest.run)
    return sum(part.rows for part in manifest.parts if record and part.commit in record.commits)


class Task:
    """A collection task whose rows land in the folder.

    :param made: arguments with which the sandbox makes the task.
    :param options: options of every landing.
    """

    def __init__(self, sandbox: Sandbox, landing: Landed, folder: Folder, made: Any, **options: Any) -> None:
        self.control = sandbox.control
        self.id: str = sandbox.control.add_task(**made)["task_id"]
        self.folder = folder
        self._landing = landing
        self._options = options

    def land(self, *lotno: str, **options: Any) -> Manifest:
        """Land the rows of the task, or of a batch."""
        return self._landing(self.id, *lotno, **{**self._options, **options})

    def rows(self, *lotno: str) -> list[dict[str, Any]]:
        """Return the current rows of the task, or of a batch."""
        rows: list[dict[str, Any]] = self.control.true_rows(self.id, *lotno)
        return rows

    def grow(self, rows: int) -> None:
        self.control.grow(self.id, rows)

    def refill(self, rows: int) -> list[dict[str, Any]]:
        """Replace all rows by that many new ones, and return these."""
        self.control.reset_data(self.id)
        if rows:
            self.grow(rows)
        return self.rows()

    def offsets(self) -> list[int]:
        """Return the cursors of the requests for rows."""
        return [int(request["query"]["offset"]) for request in self.control.requests("/data/all")]


@pytest.fixture
def task(sandbox: Sandbox, landing: Landed, folder: Folder) -> Task:
    """A task with 1000 rows in two batches."""
    return Task(sandbox, landing, folder, {"rows": 500, "lots": 2})


@pytest.fixture
def runs(folder: Folder) -> Runs:
    return Runs(folder)
