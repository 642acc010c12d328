"""The manifest with which Redshift's COPY loads exactly the new parts of a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_provider_webcollect.assets import Address
from airflow_provider_webcollect.landing.manifest import loader_manifest
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow.providers.common.compat.sdk import ObjectStoragePath

    from airflow_provider_webcollect.landing.manifest import Part, Run
    from airflow_provider_webcollect.landing.storage.folder import Folder
    from airflow_provider_webcollect.service.pauses import Stop

#: Airflow's schemes for S3; Redshift knows only the first.
_SCHEMES = ("s3", "s3a", "s3n")


def refuse_other_storage(folder: object) -> None:
    """Raise :class:`InvalidArgument` if a folder is not on S3."""
    if str(folder).partition("://")[0] not in _SCHEMES:
        rule = f"Redshift reads manifests from S3 alone, and {folder} is not there"
        raise InvalidArgument("redshift_manifest", True, rule)


def write_redshift_manifest(
    folder: Folder, path: ObjectStoragePath, run: Run, parts: Iterable[Part], stop: Stop
) -> str:
    """Write a manifest of ``parts`` beside the landing's own; a retry replaces the one of its run.

    :param folder: that of the landing, which is at ``path``.
    :return: the URI of the manifest.
    :raises StorageError: if the storage cannot be written.
    :raises Stopped: if the landing is to end.
    """
    address = Address.of(path)._replace(scheme=_SCHEMES[0])
    entries = [
        # COPY of Parquet needs the length
        {"url": address.file(part.name).uri, "mandatory": True, "meta": {"content_length": part.bytes}}
        for part in parts
    ]
    name = loader_manifest(run, "redshift")
    stop.check()
    with folder.part(name) as file:
        file.write(json.dumps({"entries": entries}, indent=2).encode())
    return address.file(name).uri
