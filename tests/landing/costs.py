"""Landings on S3 to which many runs have added a part, and what one more run sends."""

from __future__ import annotations

import datetime
import hashlib
import json
from dataclasses import dataclass

import msgspec

from airflow_provider_webcollect.landing import MANIFEST
from airflow_provider_webcollect.landing.formats import FormatName, make_format
from airflow_provider_webcollect.landing.formats.profile import Profile, Profiler
from airflow_provider_webcollect.landing.log.commits import Commit, PageFingerprint, Part, Run, Source, encode
from airflow_provider_webcollect.landing.log.fold import fold
from airflow_provider_webcollect.landing.log.names import commit_name, part_name
from airflow_provider_webcollect.landing.storage.folder import Folder
from airflow_provider_webcollect.landing.storage.object_stores import S3
from airflow_provider_webcollect.landing.write.copy import digest_rows
from airflow_provider_webcollect.landing.write.job import Landed, encoding_of
from airflow_provider_webcollect.landing.write.run import run_job
from tests.landing import conftest
from tests.landing.pages import make_job, serving
from tests.simulation.relay import Relay, relayed
from tests.storages import Storage

Rows = list[dict[str, str]]

#: Rows that each run has landed, as one part.
EACH = 100
AT = "2026-01-01T00:00:00.000+00:00"
#: The number of runs whose files exist.
NEWEST = 100
SOURCE = Source(collection_task_id="0f6a1f7e-1f3c-4f0e-9d53-0f1a2b3c4d5e", host="openapi.example.com")


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
        """HTTP methods and file names of the requests, in order."""
        return [f"{request.method} {request.path.rpartition('/')[2]}" for request in self.relay.requests]

    @property
    def parts(self) -> list[str]:
        return [request for request in self.requests if " part-" in request]

    @property
    def bytes(self) -> int:
        """Number of bytes uploaded, apart from the part and the manifest."""
        others = [request for request in self.relay.requests if "/part-" not in request.path]
        return sum(request.bytes for request in others if not request.path.endswith(MANIFEST))


class Runs:
    """What runs have landed: each one part, by one commit.

    :param count: the number of runs.
    """

    def __init__(self, count: int, file_format: FormatName) -> None:
        self.count = count
        self.format = make_format(file_format)
        self.rows = [row for number in range(count) for row in rows_of(number)]

    def files(self) -> dict[str, bytes]:
        """Return the contents of the files by name; the newest parts and commits suffice."""
        parts = [self._part(number) for number in range(self.count)]
        commits = [self._commit(number, part) for number, (part, _) in enumerate(parts)]
        state = fold(None, commits)
        assert state is not None
        return {
            MANIFEST: encode(state),
            **{part.name: content for part, content in parts[-NEWEST:]},
            **{commit_name(commit.number): encode(commit) for commit in commits[-NEWEST:]},
        }

    def _commit(self, number: int, part: Part) -> Commit:
        last_page = [msgspec.Raw(json.dumps(row).encode()) for row in rows_of(number)]
        return Commit(
            number=number + 1,
            kind="landed",
            attempt_id=part.name[-14:-6],
            source=SOURCE,
            run=run_of(number),
            **encoding_of(self.format),
            columns=None if self.format.name == "jsonl" else tuple(self.rows[0]),
            next_offset=part.next_offset,
            last_page=PageFingerprint(offset=number * EACH, rows=EACH, sha256=digest_rows(last_page)),
            total=(number + 1) * EACH,
            started_at=AT,
            finished_at=AT,
            provider_version="0.1.0",
            parts=(part,),
        )

    def _part(self, number: int) -> tuple[Part, bytes]:
        rows = rows_of(number)
        if self.format.name == "jsonl":
            lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
        else:
            lines = [",".join(line) for line in (rows[0], *(row.values() for row in rows))]
        content = "".join(f"{line}\n" for line in lines).encode()
        attempt_id = hashlib.sha256(b"%d" % number).hexdigest()[:8]
        part = Part(
            name=part_name(number + 1, attempt_id, self.format.suffix),
            rows=EACH,
            bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            start_offset=number * EACH,
            next_offset=(number + 1) * EACH,
            columns=None if self.format.name == "jsonl" else len(self.rows[0]),
            profile=_profile(rows),
        )
        return part, content


class Landing:
    """A landing on S3 to which each run has added a part.

    :param runs: runs that have landed so far.
    """

    def __init__(self, storage: Storage, runs: Runs) -> None:
        self.runs = runs.count
        self.rows = runs.rows
        self.folder = conftest.Folder.new(storage)
        self._format = runs.format
        self._storage = storage
        storage.fs.pipe({f"{self.folder.root}/{name}": content for name, content in runs.files().items()})

    def land(self, new: Rows) -> Bill:
        """Add new rows to the source, and land it as the next run, as a process new to the bucket would.

        :return: what the run has sent.
        """
        self.rows += new
        self.runs += 1
        S3.respects.clear()
        with relayed(self._storage) as (storage, relay):
            job = make_job(
                serving(self.rows),
                source=SOURCE,
                folder=Folder(storage.fs, self.folder.root),
                run=run_of(self.runs - 1),
                run_began=datetime.datetime.now(datetime.UTC),
                file_format=self._format,
                mode="incremental",
            )
            return Bill(run_job(job), relay)
