"""Landings on S3 to which many runs have added a part, and what one more run sends."""

from __future__ import annotations

import datetime
import hashlib
import json
from dataclasses import dataclass
from types import SimpleNamespace

import msgspec

from airflow_provider_webcollect.landing.copy import digest_rows
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.job import Landed, LeaseTiming
from airflow_provider_webcollect.landing.manifest import (
    MANIFEST,
    Manifest,
    PageFingerprint,
    Part,
    Run,
    Source,
    encode,
    part_name,
)
from airflow_provider_webcollect.landing.plan import encoding_of
from airflow_provider_webcollect.landing.profile import Profile, Profiler
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.landing.run import run_job
from airflow_provider_webcollect.landing.storage.folder import Folder
from airflow_provider_webcollect.landing.storage.object_stores import S3
from tests.landing.pages import make_job, serving
from tests.landing.relay import Relay, relayed
from tests.landing.storages import Storage

Rows = list[dict[str, str]]

#: Rows that each run has landed, as one part.
EACH = 100
SOURCE = Source(collection_task_id="0f6a1f7e-1f3c-4f0e-9d53-0f1a2b3c4d5e", host="openapi.example.com")
#: On a slow machine, too, no heartbeat comes in between, and the record is not written again for the part.
UNHURRIED = LeaseTiming(heartbeat_interval=3600, progress_interval=3600)


def rows_of(number: int) -> Rows:
    """Return the rows of the run of that number."""
    return [
        {
            "id": f"{number:05d}-{row:03d}",
            "keyword": "headphones",
            "title": "🎧 Studio headphones",
            "price": "129.00",
            "seller": "Nordwind GmbH",
            "city": "København",
            "url": f"https://shop.example.com/item/{number:05d}-{row:03d}",
            "comment": "Arrived on time and well packed; would buy again.",
        }
        for row in range(EACH)
    ]


def with_rating(rows: Rows) -> Rows:
    """Return the rows with a column that no row had before."""
    return [{**row, "rating": "5"} for row in rows]


def _profile(rows: Rows) -> Profile:
    profiler = Profiler()
    profiler.add([*rows[0]], [[row[name] for row in rows] for name in rows[0]], len(rows))
    return profiler.profile(len(rows))


def run_of(number: int) -> Run:
    """Return an hourly run, named as Airflow names it."""
    hour = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(hours=number)
    return Run(dag_id="collect_prices", task_id="land", run_id=f"scheduled__{hour.isoformat()}")


@dataclass
class Bill:
    """What a run has sent to the storage."""

    landed: Landed
    relay: Relay

    @property
    def requests(self) -> list[str]:
        """Methods and names of files, in order."""
        return [f"{each.method} {each.path.rpartition('/')[2]}" for each in self.relay.requests]

    @property
    def parts(self) -> list[str]:
        """The requests that were about parts."""
        return [request for request in self.requests if " part-" in request]

    @property
    def bytes(self) -> int:
        """Those that were uploaded besides parts."""
        return sum(each.bytes for each in self.relay.requests if "/part-" not in each.path)


class Runs:
    """What runs have landed, each of them a part.

    :param count: how many there were.
    """

    def __init__(self, count: int, file_format: str) -> None:
        self.count = count
        self.format = make_format(file_format)
        self.rows = [row for number in range(count) for row in rows_of(number)]

    def parts(self) -> dict[str, bytes]:
        """Return the contents of the parts by name."""
        return {self._name(number): self._content(number) for number in range(self.count)}

    def _name(self, number: int) -> str:
        attempt_id = hashlib.sha256(b"%d" % number).hexdigest()[:8]
        return part_name(number + 1, attempt_id, self.format.suffix)

    def _content(self, number: int) -> bytes:
        rows = rows_of(number)
        if self.format.name == "jsonl":
            lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
        else:
            lines = [",".join(line) for line in (rows[0], *(row.values() for row in rows))]
        return "".join(f"{line}\n" for line in lines).encode()

    def _part(self, number: int) -> Part:
        content = self._content(number)
        part = Part(
            name=self._name(number),
            rows=EACH,
            bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            start_offset=number * EACH,
            next_offset=(number + 1) * EACH,
            columns=None if self.format.name == "jsonl" else len(self.rows[0]),
            landed_at="2026-01-01T00:00:01.000+00:00",
            profile=_profile(rows_of(number)),
        )
        return part.of(run_of(number))

    def manifest(self) -> Manifest:
        """Return the manifest that lists them."""
        parts = tuple(self._part(number) for number in range(self.count))
        last_page = [msgspec.Raw(json.dumps(row).encode()) for row in self.rows[-EACH:]]
        encoding = encoding_of(self.format)
        return Manifest(
            landing_id="0badcafe",
            source=SOURCE,
            rows=len(self.rows),
            bytes=sum(part.bytes for part in parts),
            format=encoding.pop("file_format"),
            compression=encoding.pop("compression"),
            encoding=encoding,
            columns=None if self.format.name == "jsonl" else tuple(self.rows[0]),
            new_parts=1,
            next_offset=len(self.rows),
            last_page=PageFingerprint(offset=len(self.rows) - EACH, rows=EACH, sha256=digest_rows(last_page)),
            total=len(self.rows),
            run=run_of(self.count - 1),
            started_at="2026-01-01T00:00:00.000+00:00",
            finished_at="2026-01-01T00:00:01.000+00:00",
            provider_version="1.0.0",
            parts=parts,
        )


class Landing:
    """A landing on S3 to which each run has added a part.

    :param runs: those that have landed so far.
    """

    def __init__(self, storage: Storage, runs: Runs) -> None:
        self.runs = runs.count
        self.rows = runs.rows
        self._format = runs.format
        self._storage = storage
        self._root = storage.new_folder()
        storage.fs.pipe({f"{self._root}/{name}": content for name, content in runs.parts().items()})
        storage.fs.pipe_file(f"{self._root}/{MANIFEST}", encode(runs.manifest()))

    @property
    def manifest(self) -> bytes:
        """The manifest as it is stored."""
        content: bytes = self._storage.fs.cat_file(f"{self._root}/{MANIFEST}")
        return content

    def read(self) -> Rows:
        """Return what has landed, once it is verified."""
        landed = read_landing(SimpleNamespace(fs=self._storage.fs, path=self._root))
        landed.verify()
        return list(landed.iter_rows())

    def land(self, new: Rows) -> Bill:
        """Land the source with the new rows by the next run, in a process that knows nothing of the bucket.

        :return: what this has sent.
        """
        self.rows += new
        self.runs += 1
        S3.known.clear()
        with relayed(self._storage) as (storage, relay):
            job = make_job(
                serving(self.rows),
                source=SOURCE,
                folder=Folder(storage.fs, self._root),
                run=run_of(self.runs - 1),
                file_format=self._format,
                mode="incremental",
                timing=UNHURRIED,
            )
            return Bill(run_job(job), relay)
