"""Loads what is new in a landing into a warehouse, each row once, by dlt."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseHook, BaseOperator

from airflow_provider_webcollect.assets import storable
from airflow_provider_webcollect.common import airflow_errors, check_at_parse
from airflow_provider_webcollect.hooks.storage import AirflowConnections, supported
from airflow_provider_webcollect.landing.location import Location
from airflow_provider_webcollect.landing.options import (
    LoadOptions,
    OnGone,
    OnMissingKey,
    WriteDisposition,
    check_table,
)
from airflow_provider_webcollect.service import arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.providers.common.compat.sdk import Context, ObjectStoragePath
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_provider_webcollect.landing.reader import LandedData

__all__ = ["WebCollectLoadOperator"]


class WebCollectLoadOperator(BaseOperator):
    """Loads what is new in a landing into a table of a warehouse, each row once, by dlt (the extra ``dlt``).

    New are the parts of all commits after the last load, whose number is stored beside the rows: also those
    of runs whose load has failed, or was never tried. A retry, a cleared run and a load that was killed
    change nothing that is loaded. See :mod:`airflow_provider_webcollect.landing.read.loading`.

    Rows get three more columns: ``_webcollect_landing``, ``_webcollect_part`` and ``_webcollect_row`` (the
    position in the landing, from 0). Columns that appear later are added to the table.

    Run the loads of one landing into one table one after another (``max_active_runs=1``): of two at once, one
    fails and is retried in PostgreSQL and DuckDB; other warehouses may get a part twice, or only some of its
    rows.

    Returns ``{"landing", "table", "rows", "parts", "commit", "total_rows", "total_parts", "skipped_rows",
    "skipped"}``: what this load has loaded, the number of the commit up to which the table has the rows, all
    that the landing has, and how many rows have no key and were left out, in all and by part.

    :param landing: the landing's folder or its ``_manifest.json``, as a URL or an ``ObjectStoragePath``; or a
        table of Iceberg, ``catalog.namespace.table``. (templated)
    :param object_storage_conn_id: the Airflow connection of the storage, or of Iceberg's catalog; None for
        the storage's default credentials, or ``iceberg_default``. (templated)
    :param warehouse_conn_id: the Airflow connection of the warehouse, of the type ``clickhouse``,
        ``databricks``, ``duckdb``, ``google_cloud_platform`` (BigQuery), ``postgres``, ``redshift`` or
        ``snowflake``. (templated)
    :param table: ``dataset.table``, in lower case; the dataset is a schema in most warehouses. Both are
        created if they do not exist. (templated)
    :param write_disposition: ``append`` (default): the table has each row of the landing; ``merge``: only the
        latest row of each key; ``replace``: the rows of this landing alone, all of them in each load;
        ``scd2``: each row with the times from which and to which snapshots had it, where the landing is a
        snapshot (``mode="full"``). (templated)
    :param primary_key: for ``merge``: the column, or columns, of the key, by their names in the landing.
        (templated)
    :param on_missing_key: for ``merge``: what to do with rows that have null or a blank text in a column of
        the key: ``fail`` (default), and nothing is loaded; or ``skip`` to load the others: the log and the
        result say how many were left out, and of which parts. (templated)
    :param on_gone: for ``merge``, if each run collects everything: what to do with the row of a key that the
        last whole run does not have. ``keep`` (default); ``delete``; or ``mark``, which sets the column
        ``_webcollect_gone_at`` to the time when it was found to be gone, until the key is back. A run of
        which rows failed their checks, and were not accepted, makes nothing gone. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for rows without a key.
    :raises LandingError: for any other error, such as no manifest yet, or a warehouse that cannot be reached;
        the task is retried.
    """

    template_fields: Sequence[str] = (
        "landing",
        "object_storage_conn_id",
        "warehouse_conn_id",
        "table",
        "write_disposition",
        "primary_key",
        "on_missing_key",
        "on_gone",
    )
    template_fields_renderers = {"primary_key": "json"}  # noqa: RUF012  # as Airflow declares it
    ui_color = "#d7ecdf"

    def __init__(
        self,
        *,
        landing: str | ObjectStoragePath,
        object_storage_conn_id: str | None = None,
        warehouse_conn_id: str,
        table: str,
        write_disposition: WriteDisposition = "append",
        primary_key: str | Sequence[str] | None = None,
        on_missing_key: OnMissingKey = "fail",
        on_gone: OnGone = "keep",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.landing = landing
        self.object_storage_conn_id = object_storage_conn_id
        self.warehouse_conn_id = warehouse_conn_id
        self.table = table
        self.write_disposition = write_disposition
        self.primary_key = primary_key
        self.on_missing_key = on_missing_key
        self.on_gone = on_gone
        self._landed: LandedData | None = None
        check_at_parse(self, self._check)

    def _check(self) -> LoadOptions:
        self._location()
        arguments.text("warehouse_conn_id", self.warehouse_conn_id)
        check_table(self.table)
        return LoadOptions.parse({name: getattr(self, name) for name in LoadOptions.__struct_fields__})

    def _location(self) -> Location:
        location = Location.parse_landed("landing", self.landing, conn_id=self.object_storage_conn_id)
        return supported("landing", location)

    def execute(self, context: Context) -> dict[str, Any]:
        """Load what is new and return a summary of it."""
        from airflow_provider_webcollect.landing.log.commits import counted
        from airflow_provider_webcollect.landing.read.loading import load
        from airflow_provider_webcollect.landing.reader import read_landing
        from airflow_provider_webcollect.transfers.reporting import MAX_LISTED
        from airflow_provider_webcollect.transfers.warehouses import warehouse_of

        with airflow_errors():
            options = self._check()
            warehouse = warehouse_of(BaseHook.get_connection(self.warehouse_conn_id))
            landed = read_landing(self._location().open_landed(AirflowConnections()))
            new = load(landed, options, self.table, warehouse.destination)
            self._landed = landed
        skipped = sum(new.skipped.values())
        rows = sum(part.rows for part in new.parts) - skipped
        self.log.info(
            "%s of %s with %s loaded into %s.",
            counted(len(new.parts), "part"),
            landed.uri,
            counted(rows, "row"),
            self.table,
        )
        return storable(
            {
                "landing": landed.uri,
                "table": self.table,
                "rows": rows,
                "parts": len(new.parts),
                "commit": landed.manifest.commit,
                "total_rows": landed.manifest.rows,
                "total_parts": landed.manifest.part_count,
                "skipped_rows": skipped,
                "skipped": dict(itertools.islice(new.skipped.items(), MAX_LISTED)),
            }
        )

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the landing for OpenLineage, in the version that was loaded; nothing if the load has failed.

        The table is no output here, since each warehouse has its own names: set ``outlets`` for that.
        """
        from airflow.providers.common.compat.openlineage.facet import InputDataset
        from airflow.providers.openlineage.extractors import OperatorLineage

        from airflow_provider_webcollect.transfers.reporting import version_of

        if self._landed is None:
            return OperatorLineage()
        dataset = Location("folder", self._landed.uri).dataset
        return OperatorLineage(inputs=[InputDataset(*dataset, facets=version_of(self._landed.manifest))])
