"""The names of a landing's files, all relative to its folder."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

from airflow_provider_webcollect.landing import MANIFEST

#: The folder of commits, which alone define a landing. Readers of folders and tables ignore names that begin
#: with `_`.
COMMITS = "_commits"
#: The folder of drafts: each lists the parts that one attempt has written so far.
STAGED = "_staged"
#: The folder of quarantined single rows and, for a table, of all quarantined rows.
QUARANTINE = "_quarantine"
#: The pattern of the name of a folder of a Hive partition.
PARTITION_PATTERN = r"[A-Za-z0-9-][A-Za-z0-9._-]*=[A-Za-z0-9._=-]+"
#: The pattern of a part's name (:func:`part_name`), including its folders.
PART_PATTERN = rf"(?:{QUARANTINE}/)?(?:{PARTITION_PATTERN}/)*part-\d{{5,}}-[0-9a-f]{{8}}\.[a-z0-9.]+"
_COMMIT_PATTERN = rf"{COMMITS}/\d{{8,}}\.json"
_STAGED_PATTERN = rf"{STAGED}/[0-9a-f]{{12}}-[0-9a-f]{{8}}\.json"
_PART = re.compile(PART_PATTERN)
#: The random id of the attempt in the name of a part.
_ATTEMPT_ID = re.compile(r"-[0-9a-f]{8}(?=\.[a-z0-9.]+$)")
_COMMIT = re.compile(_COMMIT_PATTERN)
#: The names of a landing's files, and of files on a disk that are still being written.
_OURS = re.compile(
    rf"{PART_PATTERN}|{_COMMIT_PATTERN}|{_STAGED_PATTERN}|{MANIFEST}"
    rf"|(?:{PARTITION_PATTERN}/|{COMMITS}/|{STAGED}/|{QUARANTINE}/|_delta_log/)*\.tmp-[^/]+-[0-9a-f]{{8}}"
)
#: The names of files that file systems, Spark, Hadoop and macOS leave in folders.
_MARKER = re.compile(r"(?:[^/]+/)*(?:\.nfs[^/]*|_SUCCESS|[^/]*_\$folder\$|\.[^/]*\.crc|\.DS_Store)")


def new_attempt_id() -> str:
    """Return a random id that makes the part names of one attempt unique."""
    return secrets.token_hex(4)


def part_name(number: int, attempt_id: str, suffix: str) -> str:
    """Return the name of a part.

    :param number: the number of the part in the landing, or of the file of single rows in its commit, from 1.
    :param attempt_id: the random id of the attempt.
    :param suffix: the suffix of the file's format, with the dot.
    """
    return f"part-{number:05d}-{attempt_id}{suffix}"


def copy_name(name: str) -> str:
    """Return a name for a copy of a part, with a new random id."""
    return _ATTEMPT_ID.sub(f"-{new_attempt_id()}", name)


def quarantine_name(name: str) -> str:
    """Return the name of a part in the folder of quarantined rows."""
    return f"{QUARANTINE}/{name}"


def data_name(name: str) -> str:
    """Return a new name in the landing for a quarantined part: in the folder of its partition."""
    return copy_name(name.removeprefix(f"{QUARANTINE}/"))


def check_part_names(names: Iterable[str]) -> None:
    """Raise ValueError unless all are names of parts; other names could point outside the folder."""
    for name in names:
        if not _PART.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a part")


def commit_name(number: int) -> str:
    """Return the name of a commit's file."""
    return f"{COMMITS}/{number:08d}.json"


def last_commit(names: Iterable[str]) -> int:
    """Return the highest number of a commit among the names of files; 0 if there is no commit."""
    digits = slice(len(f"{COMMITS}/"), -len(".json"))
    return max((int(name[digits]) for name in names if _COMMIT.fullmatch(name)), default=0)


def staged_name(run_digest: str, attempt_id: str) -> str:
    """Return the name of the file with an attempt's draft.

    :param run_digest: the digest of the attempt's run.
    :param attempt_id: the random id of the attempt.
    """
    return f"{STAGED}/{run_digest[:12]}-{attempt_id}.json"


def is_ours(name: str) -> bool:
    """Return whether a file has a name that landings use, also in folders of partitions."""
    return bool(_OURS.fullmatch(name))


def is_removable(name: str) -> bool:
    """Return whether a file may be deleted once nothing needs it; commits and the manifest never are."""
    return is_ours(name) and name != MANIFEST and not _COMMIT.fullmatch(name)


def is_marker(name: str) -> bool:
    """Return whether a name is a folder or a file without data, such as other tools leave in folders."""
    return name.endswith("/") or bool(_MARKER.fullmatch(name))
