"""What a transfer reports to lineage tools: which collection tasks were written to which folders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.assets import Address, dataset_name, landing_asset, report_read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow.providers.common.compat.sdk import ObjectStoragePath
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
    from airflow_provider_webcollect.landing.manifest import Manifest
    from airflow_provider_webcollect.transfers.reporting import LandingReport


@dataclass(frozen=True, slots=True)
class Transferred:
    """A task and the folder its rows were written to; both are pairs of a dataset's namespace and name.

    :param columns: names of the columns and their types, as far as known; empty if each row has its own keys.
    :param rows: rows that this attempt has committed; ``bytes`` likewise.
    """

    task: tuple[str, str]
    folder: tuple[str, str]
    columns: Mapping[str, str | None]
    rows: int
    bytes: int


def report(hook: WebCollectHook, landing: LandingReport) -> Transferred:
    """Report a landing's source and folder to Airflow's hook lineage, and return them for OpenLineage."""
    source = landing.place.source
    report_read(hook, source.collection_task_id, source.lotno)
    _report_written(landing.path)
    return Transferred(
        task=dataset_name(hook, source.collection_task_id, source.lotno),
        folder=_folder_name(Address.of(landing.path)),
        columns=_columns(landing.manifest),
        rows=sum(part.rows for part in landing.committed),
        bytes=sum(part.bytes for part in landing.committed),
    )


def to_openlineage(transferred: Iterable[Transferred]) -> OperatorLineage[Any, Any]:
    """Return the datasets for OpenLineage; those of folders with their schema and what was written."""
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

    if asset := landing_asset(folder):
        get_hook_lineage_collector().add_output_asset(context=folder, uri=asset.uri)


def _folder_name(folder: Address) -> tuple[str, str]:
    """Return the namespace and name of a folder, by OpenLineage's rules for object stores and files."""
    return (
        (f"{folder.scheme}://{folder.bucket}", folder.key or "/")
        if folder.bucket
        else (folder.scheme, folder.path)
    )


def _columns(manifest: Manifest) -> dict[str, str | None]:
    types = manifest.encoding.get("column_types") or {}
    usual = "string" if manifest.format == "parquet" else None
    return {name: types.get(name, usual) for name in manifest.columns or ()}
