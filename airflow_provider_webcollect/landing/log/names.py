"""The names of a landing's files, all relative to its folder."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

from airflow_provider_webcollect.landing import MANIFEST

#: The folder of commits: the truth. Names that begin with `_` are no data for any reader of folders and
#: tables.
COMMITS = "_commits"
#: The folder of what attempts have written so far.
STAGED = "_staged"
#: The folder of single rows that are quarantined, and of all quarantined rows of a table.
QUARANTINE = "_quarantine"
#: The pattern of a folder of a Hive partition.
PARTITION_PATTERN = r"[A-Za-z0-9-][A-Za-z0-9._-]*=[A-Za-z0-9._=-]+"
#: The pattern of the names that :func:`part_name` returns, and of their folders.
PART_PATTERN = rf"(?:{QUARANTINE}/)?(?:{PARTITION_PATTERN}/)*part-\d{{5,}}-[0-9a-f]{{8}}\.[a-z0-9.]+"
_COMMIT_PATTERN = rf"{COMMITS}/\d{{8,}}\.json"
_STAGED_PATTERN = rf"{STAGED}/[0-9a-f]{{12}}-[0-9a-f]{{8}}\.json"
_PART = re.compile(PART_PATTERN)
#: The random id in the name of a part.
_ATTEMPT_ID = re.compile(r"-[0-9a-f]{8}(?=\.[a-z0-9.]+$)")
_COMMIT = re.compile(_COMMIT_PATTERN)
#: A file of a landing, or an incomplete one on a disk.
_OURS = re.compile(
    rf"{PART_PATTERN}|{_COMMIT_PATTERN}|{_STAGED_PATTERN}|{MANIFEST}"
    rf"|(?:{PARTITION_PATTERN}/|{COMMITS}/|{STAGED}/|{QUARANTINE}/|_delta_log/)*\.tmp-[^/]+-[0-9a-f]{{8}}"
)
#: Files that file systems, Spark, Hadoop and macOS leave in folders.
_MARKER = re.compile(r"(?:[^/]+/)*(?:\.nfs[^/]*|_SUCCESS|[^/]*_\$folder\$|\.[^/]*\.crc|\.DS_Store)")


def new_attempt_id() -> str:
    """Return a random id that makes the part names of one attempt unique."""
    return secrets.token_hex(4)


def part_name(number: int, attempt_id: str, suffix: str) -> str:
    """Return the name of a part.

    :param number: its position in the landing, from 1.
    :param suffix: the format's suffix, with the dot.
    """
    return f"part-{number:05d}-{attempt_id}{suffix}"


def copy_name(name: str) -> str:
    """Return a name for a copy of a part: with another random id, so that it is new."""
    return _ATTEMPT_ID.sub(f"-{new_attempt_id()}", name)


def quarantine_name(name: str) -> str:
    """Return the name of quarantined rows of a part."""
    return f"{QUARANTINE}/{name}"


def data_name(name: str) -> str:
    """Return a new name with which quarantined rows are in the landing, in the folder of their partition."""
    return copy_name(name.removeprefix(f"{QUARANTINE}/"))


def check_part_names(names: Iterable[str]) -> None:
    """Raise ValueError unless all are names of parts: others could lead out of the folder."""
    for name in names:
        if not _PART.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a part")


def commit_name(number: int) -> str:
    """Return the name of the file of a commit."""
    return f"{COMMITS}/{number:08d}.json"


def last_commit(names: Iterable[str]) -> int:
    """Return the number of the last commit among files; 0 if there is none."""
    digits = slice(len(f"{COMMITS}/"), -len(".json"))
    return max((int(name[digits]) for name in names if _COMMIT.fullmatch(name)), default=0)


def staged_name(run_digest: str, attempt_id: str) -> str:
    """Return the name of the file with what an attempt has written so far.

    :param run_digest: of its run.
    """
    return f"{STAGED}/{run_digest[:12]}-{attempt_id}.json"


def is_ours(name: str) -> bool:
    """Return whether a landing uses such a name, at the top or in partition folders."""
    return bool(_OURS.fullmatch(name))


def is_removable(name: str) -> bool:
    """Return whether a file goes once nothing needs it; commits and the manifest stay."""
    return is_ours(name) and name != MANIFEST and not _COMMIT.fullmatch(name)


def is_marker(name: str) -> bool:
    """Return whether a file says nothing of rows: other tools leave such files in any folder."""
    return name.endswith("/") or bool(_MARKER.fullmatch(name))
