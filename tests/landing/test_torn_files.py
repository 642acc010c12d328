"""Commits and manifests that a kill, a person or a newer version has left unreadable for landings."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_webcollect.landing import MANIFEST
from airflow_provider_webcollect.landing.cleaning import clean
from airflow_provider_webcollect.landing.errors import DestinationUnreadable
from airflow_provider_webcollect.landing.log.commits import VERSION, encode
from airflow_provider_webcollect.landing.log.fold import fold
from airflow_provider_webcollect.landing.log.names import commit_name
from airflow_provider_webcollect.landing.reader import read_landing
from airflow_provider_webcollect.landing.storage.commit_log import CommitLog
from airflow_provider_webcollect.landing.storage.folder import Folder as Destination
from airflow_provider_webcollect.landing.write.job import Landed
from airflow_provider_webcollect.landing.write.review import accept, in_review
from airflow_provider_webcollect.landing.write.run import run_job
from tests.interruption import PATIENCE
from tests.landing.conftest import Folder, Store
from tests.landing.pages import PAGE, Rows, job, nothing, true_rows
from tests.simulation.steps import Stepping, kill, with_storage

pytestmark = pytest.mark.usefixtures("each_part_is_staged")

#: Number of runs that have landed.
COMMITS = 3
#: Number of rows that the source has in the end.
ALL = 25


@pytest.fixture
def folder() -> Folder:
    """A folder with three landed runs, a page each, on a storage without atomic replacement of files."""
    folder = Folder(Store(), "bucket/landing")
    for number in range(1, COMMITS + 1):
        run_job(job(Rows(PAGE * number), folder.destination, f"r{number}", mode="incremental"))
    return folder


def land(folder: Folder, **options: Any) -> None:
    """Land more rows by another run."""
    land_at(folder.destination, **options)


def land_at(place: Destination, **options: Any) -> Landed:
    return run_job(job(Rows(ALL), place, "last", **{"mode": "incremental", **options}))


def changed(content: bytes, **fields: Any) -> bytes:
    """Return the content of a JSON file with some keys changed."""
    return json.dumps({**json.loads(content), **fields}).encode()


@pytest.mark.parametrize("left", [b"", b"{", b"\xff", None], ids=["empty", "cut", "no text", "absent"])
def test_a_manifest_is_healed_from_the_commits(folder: Folder, left: bytes | None) -> None:
    before = folder.manifest()
    folder.damage(MANIFEST, left)
    landed = folder.landed()
    landed.verify()
    assert list(landed.iter_rows()) == true_rows(PAGE * COMMITS)
    run_job(job(Rows(PAGE * COMMITS), folder.destination, "r3", mode="incremental"))
    assert folder.manifest() == before
    land(folder)
    assert folder.rows() == true_rows(ALL)


def test_a_last_commit_that_was_deleted_by_hand_lands_again(folder: Folder) -> None:
    """No other file mentions it any more."""
    for name in (MANIFEST, commit_name(COMMITS)):
        folder.fs.rm_file(f"{folder.root}/{name}")
    land(folder)
    assert folder.rows() == folder.committed_rows() == true_rows(ALL)


def test_a_reader_beside_two_commits_reads_what_was_committed(folder: Folder) -> None:
    """The reader has found that the first commit is absent, and then finds the second."""
    destination, both_are_there = folder.destination, threading.Event()

    class Beside(Stepping):
        def read(self, path: str) -> bytes | None:
            if path.endswith(commit_name(COMMITS + 2)):
                assert both_are_there.wait(PATIENCE)
            content = super().read(path)
            if path.endswith(commit_name(COMMITS + 1)) and not both_are_there.is_set():
                for number in (1, 2):
                    rows = Rows(PAGE * (COMMITS + number))
                    run_job(job(rows, destination, f"beside {number}", mode="incremental"))
                both_are_there.set()
            return content

    # the manifest of an earlier commit, so that the reader reads several commits at a time
    earlier = fold(None, CommitLog(destination).commits(range(1, COMMITS)))
    assert earlier is not None
    folder.write(MANIFEST, encode(earlier))
    landed = read_landing(with_storage(destination, Beside(destination._storage, nothing)))
    assert list(landed.iter_rows()) == true_rows(PAGE * (COMMITS + 2))


def in_location(work: Callable[..., object], **options: Any) -> Callable[[Folder], object]:
    """Return a function that calls ``work`` with a folder, in the form in which users name it."""
    return lambda folder: work(folder.location, **options)


WORK: dict[str, Callable[[Folder], object]] = {
    "land": land,
    "overwrite": functools.partial(land, mode="full", if_exists="overwrite"),
    "in_review": in_location(in_review),
    "read_landing": in_location(read_landing),
    "accept": in_location(accept, by="a"),
    "clean": in_location(clean, older_than=0),
}


def with_parts_twice(content: bytes) -> bytes:
    manifest = json.loads(content)
    return changed(content, **{name: manifest[name] * 2 for name in ("parts", "rows", "bytes", "total")})


FIRST, SECOND, LAST = map(commit_name, (1, 2, COMMITS))
of_newer_version = functools.partial(changed, version=VERSION + 1, parts={"of": "another kind"})
NEWER = f"is of version {VERSION + 1}, this provider knows version {VERSION}: upgrade it"
OLDER = f"is of version {VERSION - 1}, this provider knows version {VERSION}: give the landing another dest"
#: Files, the changes that damage them, and what the error says; None for a file that is deleted.
DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes] | None, str]] = {
    "a commit that is cut": (LAST, lambda content: content[:-20], "is not readable"),
    "a commit that is empty": (SECOND, lambda content: b"", "is not readable"),
    "a commit that is no object": (FIRST, lambda content: b"[]", "is not readable"),
    "a deep commit": (LAST, lambda content: content[:-1] + b',"x":' + b"[" * 60_000, "is not readable"),
    "a commit of a newer version": (LAST, of_newer_version, NEWER),
    "a commit of an older version": (FIRST, functools.partial(changed, version=VERSION - 1), OLDER),
    "the first commit missing": (FIRST, None, "is missing"),
    "a commit missing": (SECOND, None, "is missing"),
    "a commit in another's place": (
        SECOND,
        lambda content: changed(content, number=5),
        "contradicts .*: its number is 5, not 2",
    ),
    "a manifest that is no object": (MANIFEST, lambda content: b"[]", "is not readable"),
    "a deep manifest": (MANIFEST, lambda content: b"[" * 60_000, "is not readable"),
    "a manifest with parts twice": (MANIFEST, with_parts_twice, ".*has landed twice"),
    "a manifest of a newer version": (MANIFEST, of_newer_version, NEWER),
}


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_cannot_be_read_is_named_with_the_cure_and_stays(folder: Folder, damage: str, work: str) -> None:
    name, change, said = DAMAGES[damage]
    content = folder.read(name)
    if name != MANIFEST:
        folder.fs.rm_file(f"{folder.root}/{MANIFEST}")
    folder.damage(name, change and change(content))
    folder.write("part-00009-0badcafe.jsonl", b"a leftover")
    before = dict(folder.fs.objects)
    # a manifest that contradicts itself is detected when the last commit does not follow from it
    named = f"({MANIFEST}|{LAST})" if name == MANIFEST else name
    with pytest.raises(DestinationUnreadable, match=f"{named} {said}") as refusal:
        WORK[work](folder)
    assert refusal.value.permanent
    assert any(cure in str(refusal.value) for cure in ("upgrade it", "put it back as it was", "give the"))
    assert folder.fs.objects == before


def staged_in(folder: Folder) -> str:
    """Kill an attempt before its commit, and return the name of the file that records what is staged."""
    kill(land_at, folder.destination, ("create", "00000004.json"))
    (name,) = [name for name in folder.names() if name.startswith("_staged/")]
    return name


@pytest.mark.parametrize(
    "left", [b"", b'{"version": 2, "parts": [', b"\xff"], ids=["empty", "cut", "no text"]
)
def test_what_an_attempt_has_staged_and_is_torn_is_read_again(folder: Folder, left: bytes) -> None:
    name = staged_in(folder)
    folder.write(name, left)
    land(folder)
    assert folder.rows() == true_rows(ALL)


def test_a_staged_file_that_leads_out_is_refused(folder: Folder) -> None:
    name = staged_in(folder)
    folder.write(name, folder.read(name).replace(b'"name":"part-', b'"name":"../part-'))
    with pytest.raises(DestinationUnreadable, match=r"'\.\./part-.*' is not the name of a part"):
        land(folder)
    assert len(folder.commits()) == COMMITS
