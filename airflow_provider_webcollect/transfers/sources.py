"""What a transfer lands, and into which folders."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.destinations import check_destination
from airflow_provider_webcollect.landing.manifest import Source
from airflow_provider_webcollect.service import validation
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import ObjectStoragePath

_KEYS = ("collection_task_id", "lotno", "destination")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]|^\.+$")


@dataclass(frozen=True, slots=True)
class Place:
    """A source and the folder for its rows."""

    source: Source
    folder: str | ObjectStoragePath


def make_source(collection_task_id: object, lotno: object, where: str = "") -> Source:
    """Return the checked source; an empty batch number means no batch.

    :param where: prefix of the arguments' names in messages.
    """
    return Source(
        collection_task_id=validation.text(f"{where}collection_task_id", collection_task_id),
        lotno=None if lotno is None or lotno == "" else validation.text(f"{where}lotno", lotno),
    )


def places(sources: object, folder: str | ObjectStoragePath) -> list[Place]:
    """Return the sources with their folders, no two of which overlap.

    :param sources: ids of tasks, or dicts of ``collection_task_id`` and, as needed, ``lotno`` and
        ``destination``.
    :param folder: the sources without a destination go to ``<task>`` or ``<task>/<batch>`` in it.
    :raises InvalidArgument: if a source is wrong, or two of them share a folder.
    """
    entries = validation.items("sources", sources)
    found = [_place(f"sources[{index}]", entry, folder) for index, entry in enumerate(entries)]
    _refuse_shared_folders(found)
    return found


def _place(name: str, entry: object, folder: str | ObjectStoragePath) -> Place:
    if isinstance(entry, str | int):
        entry = {"collection_task_id": entry}
    if not isinstance(entry, Mapping):
        raise InvalidArgument(name, entry, "it must be a task id or a dict")
    if unknown := [key for key in entry if key not in _KEYS]:
        raise InvalidArgument(name, unknown, f"its keys can be {', '.join(_KEYS)}")
    source = make_source(entry.get("collection_task_id"), entry.get("lotno"), f"{name}.")
    own: Any = entry.get("destination")
    if own is None:
        return Place(source, _inside(folder, source))
    return Place(source, check_destination(f"{name}.destination", own))


def _inside(folder: str | ObjectStoragePath, source: Source) -> str | ObjectStoragePath:
    segments = [safe_name(source.collection_task_id)]
    if source.lotno is not None:
        segments.append(safe_name(source.lotno))
    if isinstance(folder, str):
        return "/".join([folder.rstrip("/"), *segments])
    return folder.joinpath(*segments)


def safe_name(text: str) -> str:
    """Return ``text`` as a folder name that any storage accepts; different texts give different names."""
    return _UNSAFE.sub(lambda found: "".join(f"~{byte:02x}" for byte in found[0].encode()), text)


def _refuse_shared_folders(found: list[Place]) -> None:
    # in sorted order, a folder comes right before the folders inside it
    folders = sorted((str(place.folder).rstrip("/") + "/", -index) for index, place in enumerate(found))
    for (outer, other), (inner, index) in itertools.pairwise(folders):
        if inner.startswith(outer):
            raise InvalidArgument(
                f"sources[{-index}]",
                str(found[-index].folder),
                f"its folder must not be in that of sources[{-other}]; give one its own `destination`",
            )
