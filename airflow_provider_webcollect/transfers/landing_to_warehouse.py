"""Loads the new rows of landings into a warehouse, each row once, using dlt."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.providers.common.compat.sdk import BaseHook, BaseOperator

from airflow_provider_webcollect.assets import documentation, storable
from airflow_provider_webcollect.collection_tasks import id_or_name
from airflow_provider_webcollect.common import (
    airflow_errors,
    check_at_parse,
    errors_about,
    refuse_beside,
    replace_iterators,
)
from airflow_provider_webcollect.hooks.storage import AirflowConnections, require_supported
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


#: The keys of a source besides its options, and the keys of results that are added up for all sources.
_OWN = ("landing", "table", "collection_task_name")
_SUMS = ("rows", "parts", "skipped_rows")
#: The reason why a load cannot share its table with another load, by write disposition.
_ALONE = {how: f"write_disposition={how!r} keeps no rows of other loads" for how in ("replace", "scd2")}
#: By table, the first load into it, and the reason why no other load can use the table; None if others can.
Claims = dict[str, tuple[str, str | None]]


class _Load(NamedTuple):
    """A landing, the table that it is loaded into, and the options of the load.

    :ivar name: the name of the landing's collection task; None if it is not known.
    """

    location: Location
    table: str
    options: LoadOptions
    name: str | None


def claim_table(claims: Claims, owner: str, argument: str, table: str, alone: str | None) -> None:
    """Claim a table for a load; refuse a second load into the table, unless both can share it.

    :param claims: the claims of the earlier loads, by table; a new claim is added.
    :param owner: the name of this load in errors.
    :param argument: the argument that names the table, for errors.
    :param alone: the reason why no other load can use the table; None if others can.
    :raises InvalidArgument: if the loads cannot share the table.
    """
    first, first_alone = claims.setdefault(table, (owner, alone))
    if first != owner and (rule := alone or first_alone):
        raise InvalidArgument(argument, table, f"{first} has the same table: {rule}")


class WebCollectLoadOperator(BaseOperator):
    """Loads the new rows of a landing into a warehouse table, each row once, using dlt (the extra ``dlt``).

    The parts of all commits after the last load are new, even if an earlier load of them has failed or was
    never tried. The number of the last loaded commit is stored in the warehouse, with the rows. A retry, a
    cleared run or a killed load changes no rows that are already loaded. See
    :mod:`airflow_provider_webcollect.landing.read.loading`.

    The table gets three more columns: ``_webcollect_landing``, ``_webcollect_part`` and ``_webcollect_row``
    (the position in the landing, from 0). Columns that appear later are added to the table.

    Run the loads of one landing into one table one after another (``max_active_runs=1``). Of two simultaneous
    loads in PostgreSQL and DuckDB, one fails and is retried; other warehouses may get a part twice, or only
    some of its rows.

    Returns ``{"landing", "collection_task_name", "table", "rows", "parts", "commit", "total_rows",
    "total_parts", "skipped_rows", "skipped"}``: the number of rows and parts that this load has loaded, the
    number of the commit up to which the table has the rows, the number of all rows and parts of the landing,
    and the number of rows that were left out because they have no key, in total and by part. With
    ``sources``, it returns ``{"sources", "rows", "parts", "skipped_rows"}``: a list of such results, and the
    sums.

    :param landing: the landing's folder or its ``_manifest.json``, as a URL or an ``ObjectStoragePath``; or
        an Iceberg table, ``catalog.namespace.table``. (templated)
    :param object_storage_conn_id: the Airflow connection of the storage, or of Iceberg's catalog; None for
        the storage's default credentials, or ``iceberg_default``. (templated)
    :param warehouse_conn_id: the Airflow connection of the warehouse, of the type ``clickhouse``,
        ``databricks``, ``duckdb``, ``google_cloud_platform`` (BigQuery), ``postgres``, ``redshift`` or
        ``snowflake``. (templated)
    :param table: the table, as ``dataset.table`` in lower case; the dataset is a schema in most warehouses.
        Both are created if they do not exist. (templated)
    :param collection_task_name: the name of the landing's collection task, for logs, errors, result and
        lineage; None (default) if it has no name. (templated)
    :param sources: several landings, instead of ``landing``, ``table`` and ``collection_task_name``: a list
        of dicts of ``landing``, ``table`` and, as needed, ``collection_task_name`` and the options below,
        which replace the operator's. They are loaded one after another; if a load fails, the others are still
        loaded. With ``replace`` or ``scd2``, each landing needs a table of its own. A table can have a
        landing only once. (templated)
    :param write_disposition: the rows that the table gets. ``append`` (default): each row of the landing;
        ``merge``: only the latest row of each key; ``replace``: only the rows of this landing, all of which
        each load writes again; ``scd2``: each row with the period in which snapshots had it, for landings
        that are snapshots (``mode="full"``). (templated)
    :param primary_key: for ``merge``, the column or columns of the key, by their names in the landing.
        (templated)
    :param on_missing_key: for ``merge``, what to do with rows that have null or a blank text in a column of
        the key: ``fail`` (default) loads nothing; ``skip`` loads the other rows, and the log and the result
        show how many rows of which parts were left out. (templated)
    :param on_gone: for ``merge``, if each run collects everything: what to do with the row of a key that the
        last whole run does not have. ``keep`` (default) and ``delete`` keep or delete the row; ``mark`` sets
        its column ``_webcollect_gone_at`` to the time when the key was found to be gone, until the key is
        back. A run is not whole if rows of it have failed their checks and were not accepted. (templated)
    :raises AirflowFailException: if a retry cannot help, such as for rows without a key.
    :raises LandingError: for any other error, such as a manifest that does not exist yet, or a warehouse that
        cannot be reached; the task is retried.
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
        places = dict[tuple[tuple[str, str], str], str]()
        for index, source in enumerate(arguments.items("sources", self.sources)):
            place = f"sources[{index}]"
            if not isinstance(source, Mapping):
                raise InvalidArgument(place, source, "it must be a dict")
            with arguments.inside(place):
                load = self._load_of(source)
                claim_table(claims, place, "table", load.table, _ALONE.get(load.options.write_disposition))
                if (first := places.setdefault((load.location.storage, load.table), place)) != place:
                    rule = f"{first} loads it into the same table"
                    raise InvalidArgument("landing", load.location.text, rule)
                loads.append(load)
        return loads

    def _load_of(self, source: Mapping[str, Any]) -> _Load:
        landing, table, name = (source.get(key) for key in _OWN)
        check_table(table)
        own = {option: value for option, value in source.items() if option not in _OWN}
        called = None if name is None else id_or_name("collection_task_name", name)
        given = {option: getattr(self, option) for option in LoadOptions.__struct_fields__}
        location = Location.parse_landed(
            "landing", landing, conn_id=self.object_storage_conn_id, may_differ=self.sources is not None
        )
        return _Load(
            require_supported("landing", location), str(table), LoadOptions.parse({**given, **own}), called
        )

    def execute(self, context: Context) -> dict[str, Any]:
        """Load the new rows and return a summary of them."""
        from airflow_provider_webcollect.landing.errors import SomeFailed
        from airflow_provider_webcollect.transfers.warehouses import warehouse_of

        with airflow_errors():
            replace_iterators(self)
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
        """Return the landings as OpenLineage's inputs, with the versions that were loaded.

        The table is not an output here, since each warehouse names its tables differently: set ``outlets``
        for it.
        """
        from airflow.providers.common.compat.openlineage.facet import InputDataset
        from airflow.providers.openlineage.extractors import OperatorLineage

        from airflow_provider_webcollect.transfers.reporting import version_of

        def dataset_of(load: _Load, landed: LandedData) -> tuple[str, str]:
            # the same name as in the landing's lineage: filesystems may use another name for the scheme
            is_folder = load.location.kind == "folder"
            return (load.location if is_folder else Location("folder", landed.uri)).dataset

        return OperatorLineage(
            inputs=[
                InputDataset(
                    *dataset_of(load, landed),
                    facets={**documentation(load.name), **version_of(landed.manifest)},
                )
                for load, landed in self._landed
            ]
        )
