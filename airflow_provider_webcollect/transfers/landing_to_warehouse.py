"""Loads what is new in a landing into a warehouse, each row once, by dlt."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.providers.common.compat.sdk import BaseHook, BaseOperator

from airflow_provider_webcollect.assets import documentation, storable
from airflow_provider_webcollect.collection_tasks import id_or_name
from airflow_provider_webcollect.common import airflow_errors, check_at_parse, errors_about, refuse_beside
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
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.providers.common.compat.sdk import Context, ObjectStoragePath
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_provider_webcollect.landing.reader import LandedData
    from airflow_provider_webcollect.transfers.warehouses import Warehouse

__all__ = ["WebCollectLoadOperator"]


#: What a source has beside options, and what is summed up of results.
_OWN = ("landing", "table", "collection_task_name")
_SUMS = ("rows", "parts", "skipped_rows")
#: Why no other load can have the table of one that is written so.
_ALONE = {how: f"write_disposition={how!r} keeps no rows of others" for how in ("replace", "scd2")}
#: By table, the first load that has it, and why no other load can have it, too; None if others can.
Claims = dict[str, tuple[str, str | None]]


class _Load(NamedTuple):
    """A landing, its table, and how it is loaded.

    :ivar name: of its collection task; None if it is not known.
    """

    location: Location
    table: str
    options: LoadOptions
    name: str | None


def claim_table(claims: Claims, owner: str, argument: str, table: str, alone: str | None) -> None:
    """Note whose load has a table; refuse a second one, unless both can share it.

    :param claims: of the loads before, by table.
    :param owner: what errors call the load's own.
    :param argument: with the table, for errors.
    :param alone: why no other load can have the table, too; None if others can.
    """
    first, first_alone = claims.setdefault(table, (owner, alone))
    if first != owner and (rule := alone or first_alone):
        raise InvalidArgument(argument, table, f"{first} has it, too: {rule}")


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

    Returns ``{"landing", "collection_task_name", "table", "rows", "parts", "commit", "total_rows",
    "total_parts", "skipped_rows", "skipped"}``: what this load has loaded, the number of the commit up to
    which the table has the rows, all that the landing has, and how many rows have no key and were left out,
    in all and by part. With ``sources``, it returns ``{"sources", "rows", "parts", "skipped_rows"}``: the
    results, and the sums.

    :param landing: the landing's folder or its ``_manifest.json``, as a URL or an ``ObjectStoragePath``; or a
        table of Iceberg, ``catalog.namespace.table``. (templated)
    :param object_storage_conn_id: the Airflow connection of the storage, or of Iceberg's catalog; None for
        the storage's default credentials, or ``iceberg_default``. (templated)
    :param warehouse_conn_id: the Airflow connection of the warehouse, of the type ``clickhouse``,
        ``databricks``, ``duckdb``, ``google_cloud_platform`` (BigQuery), ``postgres``, ``redshift`` or
        ``snowflake``. (templated)
    :param table: ``dataset.table``, in lower case; the dataset is a schema in most warehouses. Both are
        created if they do not exist. (templated)
    :param collection_task_name: what logs, errors, result and lineage call the landing: the name of its
        collection task; None (default) if it has none. (templated)
    :param sources: several landings, instead of the arguments above: dicts of ``landing``, ``table`` and, as
        needed, ``collection_task_name`` and the options below, in place of the operator's. They are loaded
        one after another; if one fails, the others continue. A table with ``replace`` or ``scd2`` can be that
        of one of them. (templated)
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
        "collection_task_name",
        "sources",
        "write_disposition",
        "primary_key",
        "on_missing_key",
        "on_gone",
    )
    template_fields_renderers = {"primary_key": "json", "sources": "json"}  # noqa: RUF012  # as Airflow declares it
    ui_color = "#d7ecdf"

    def __init__(
        self,
        *,
        landing: str | ObjectStoragePath | None = None,
        object_storage_conn_id: str | None = None,
        warehouse_conn_id: str,
        table: str | None = None,
        collection_task_name: str | None = None,
        sources: Sequence[Mapping[str, Any]] | None = None,
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
        self.collection_task_name = collection_task_name
        self.sources = sources
        self.write_disposition = write_disposition
        self.primary_key = primary_key
        self.on_missing_key = on_missing_key
        self.on_gone = on_gone
        self._landed: list[tuple[_Load, LandedData]] = []
        check_at_parse(self, self._check)

    def _check(self) -> list[_Load]:
        arguments.text("warehouse_conn_id", self.warehouse_conn_id)
        if self.sources is None:
            return [self._load_of({name: getattr(self, name) for name in _OWN})]
        refuse_beside("sources", self, _OWN)
        loads, claims = list[_Load](), Claims()
        for index, source in enumerate(arguments.items("sources", self.sources)):
            place = f"sources[{index}]"
            if not isinstance(source, Mapping):
                raise InvalidArgument(place, source, "it must be a dict")
            with arguments.inside(place):
                load = self._load_of(source)
                claim_table(claims, place, "table", load.table, _ALONE.get(load.options.write_disposition))
                loads.append(load)
        return loads

    def _load_of(self, source: Mapping[str, Any]) -> _Load:
        landing, table, name = (source.get(key) for key in _OWN)
        check_table(table)
        own = {option: value for option, value in source.items() if option not in _OWN}
        called = None if name is None else id_or_name("collection_task_name", name)
        given = {option: getattr(self, option) for option in LoadOptions.__struct_fields__}
        conn_id = self.object_storage_conn_id
        if self.sources is not None:
            # a source may name a connection of its own
            conn_id = Location.parse_landed("landing", landing).conn_id or conn_id
        location = Location.parse_landed("landing", landing, conn_id=conn_id)
        return _Load(supported("landing", location), str(table), LoadOptions.parse({**given, **own}), called)

    def execute(self, context: Context) -> dict[str, Any]:
        """Load what is new and return a summary of it."""
        from airflow_provider_webcollect.landing.errors import SomeFailed
        from airflow_provider_webcollect.transfers.warehouses import warehouse_of

        with airflow_errors():
            loads = self._check()
            warehouse = warehouse_of(BaseHook.get_connection(self.warehouse_conn_id))
            if self.sources is None:
                return self._run(loads[0], warehouse)
            results, errors = [], dict[str, Exception]()
            for load in loads:
                try:
                    results.append(self._run(load, warehouse))
                except Exception as error:
                    name = f"{load.location.text} into {load.table}"
                    self.log.exception("%s is not loaded.", name)
                    errors[name] = error
            if errors:
                raise SomeFailed(errors, len(loads), "loads have failed")
            sums = {name: sum(result[name] for result in results) for name in _SUMS}
            return {"sources": results, **sums}

    def _run(self, load: _Load, warehouse: Warehouse) -> dict[str, Any]:
        from airflow_provider_webcollect.landing.log.commits import counted
        from airflow_provider_webcollect.landing.read import loading
        from airflow_provider_webcollect.landing.reader import read_landing
        from airflow_provider_webcollect.transfers.reporting import MAX_LISTED

        with errors_about(load.name, load.location.text):
            landed = read_landing(load.location.open_landed(AirflowConnections()))
            new = loading.load(landed, load.options, load.table, warehouse.destination)
        self._landed.append((load, landed))
        self.log.info(
            "%s%s of %s with %s loaded into %s.",
            f"{load.name}: " if load.name else "",
            counted(len(new.parts), "part"),
            landed.uri,
            counted(new.rows, "row"),
            load.table,
        )
        return storable(
            {
                "landing": landed.uri,
                "collection_task_name": load.name,
                "table": load.table,
                "rows": new.rows,
                "parts": len(new.parts),
                "commit": landed.manifest.commit,
                "total_rows": landed.manifest.rows,
                "total_parts": landed.manifest.part_count,
                "skipped_rows": new.skipped_rows,
                "skipped": dict(itertools.islice(new.skipped.items(), MAX_LISTED)),
            }
        )

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the landings for OpenLineage, in the versions that were loaded.

        The table is no output here, since each warehouse has its own names: set ``outlets`` for that.
        """
        from airflow.providers.common.compat.openlineage.facet import InputDataset
        from airflow.providers.openlineage.extractors import OperatorLineage

        from airflow_provider_webcollect.transfers.reporting import version_of

        return OperatorLineage(
            inputs=[
                InputDataset(
                    *Location("folder", landed.uri).dataset,
                    facets={**documentation(load.name), **version_of(landed.manifest)},
                )
                for load, landed in self._landed
            ]
        )
