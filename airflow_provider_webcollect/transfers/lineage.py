"""What lineage tools learn of a transfer: which collection tasks went into which folders."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.assets import Address, dataset_name, report_read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow.providers.common.compat.sdk import ObjectStoragePath
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
    from airflow_provider_webcollect.landing.manifest import Manifest
    from airflow_provider_webcollect.transfers.reporting import LandingReport


@dataclass(frozen=True, slots=True)
class Transferred:
    """What went where, as names of datasets: of a namespace each.

    :param columns: names of the columns and their types, as far as known; empty where rows name their own.
    :param rows: and ``bytes``: what this attempt has committed.
    """

    task: tuple[str, str]
    folder: tuple[str, str]
    columns: Mapping[str, str | None]
    rows: int
    bytes: int


def report(hook: WebCollectHook, landing: LandingReport) -> Transferred:
    """Report to Airflow's hook lineage what went where, and return it for OpenLineage."""
    source = landing.place.source
    report_read(hook, source.collection_task_id, source.lotno)
    _report_written(landing.path)
    return Transferred(
        task=dataset_name(hook, source.collection_task_id, source.lotno),
        folder=_folder_name(Address.of(landing.path)),
        columns=_columns(landing.manifest),
        rows=sum(part.rows for part in landing.newly_committed()),
        bytes=sum(part.bytes for part in landing.newly_committed()),
    )


def to_openlineage(transferred: Iterable[Transferred]) -> OperatorLineage[Any, Any]:
    """Return the datasets for OpenLineage: of folders with their schema and what was written."""
    from airflow.providers.common.compat.openlineage import facet
    from airflow.providers.openlineage.extractors import OperatorLineage

    inputs, outputs = [], []
    for each in transferred:
        fields = [facet.SchemaDatasetFacetFields(name=name, type=kind) for name, kind in each.columns.items()]
        written = facet.OutputStatisticsOutputDatasetFacet(rowCount=each.rows, size=each.bytes)
        inputs.append(facet.Dataset(*each.task))
        outputs.append(
            facet.OutputDataset(
                *each.folder,
                facets={"schema": facet.SchemaDatasetFacet(fields=fields)} if fields else {},
                outputFacets={"outputStatistics": written},
            )
        )
    return OperatorLineage(inputs=inputs, outputs=outputs)


def _report_written(folder: ObjectStoragePath) -> None:
    from airflow.providers.common.compat.lineage.hook import get_hook_lineage_collector

    uri = Address.of(folder).uri
    # assets are of ASCII alone and not too long, folders need not be
    if uri.isascii():
        with contextlib.suppress(ValueError):
            get_hook_lineage_collector().add_output_asset(context=folder, uri=uri)


def _folder_name(folder: Address) -> tuple[str, str]:
    """Return namespace and name of a folder, by OpenLineage's rules for object stores and files."""
    return (
        (f"{folder.scheme}://{folder.bucket}", folder.key or "/")
        if folder.bucket
        else (folder.scheme, folder.path)
    )


def _columns(manifest: Manifest) -> dict[str, str | None]:
    types = manifest.encoding.get("column_types") or {}
    usual = "string" if manifest.format == "parquet" else None
    return {name: types.get(name, usual) for name in manifest.columns or ()}
