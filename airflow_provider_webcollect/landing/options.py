"""The checked options of a landing, and the location of its folder."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple, cast, get_args

import msgspec

from airflow_provider_webcollect.landing.checks import Checks, OnFailedChecks, make_checks
from airflow_provider_webcollect.landing.location import TableFormat
from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.endpoints import MAX_DATA_SIZE
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_webcollect.landing.formats import FileFormat

Mode = Literal["full", "incremental"]
IfExists = Literal["fail", "overwrite", "skip"]
OnReset = Literal["fail", "full", "append"]
WriteDisposition = Literal["append", "merge", "replace", "scd2"]
OnMissingKey = Literal["fail", "skip"]
OnGone = Literal["keep", "delete", "mark"]
MAX_PART_BYTES = 128 * 1024 * 1024
LATE_ROWS_DELAY = 15.0
#: The rule of options that a full landing does not use.
INCREMENTAL_ALONE = "it goes with mode='incremental' alone, which is not the default of a batch (`lotno`)"
#: Names that dlt does not change: it separates the names of nested tables by two underscores.
_TABLE = re.compile(r"[a-z](?:_?[a-z0-9])*\.[a-z](?:_?[a-z0-9])*")


def check_table_format(table_format: str | None, file_format: str | None) -> str:
    """Return the format of the parts.

    :param table_format: ``delta`` or ``iceberg``, or None for a folder with a manifest.
    :param file_format: None for the default: ``parquet`` for a table, else ``jsonl``.
    :raises InvalidArgument: if there is no such table format, or its parts cannot have the file format.
    """
    if table_format is None:
        return "jsonl" if file_format is None else file_format
    arguments.one_of("table_format", table_format, get_args(TableFormat))
    if file_format not in (None, "parquet"):
        raise InvalidArgument(
            "file_format", file_format, f"table_format={table_format!r} goes with 'parquet' alone"
        )
    return "parquet"


def check_partition(value: object) -> str | None:
    """Return the folders for a run's new parts, such as ``dt=2026-01-01/hour=07``; None for no partition.

    :param value: an empty string means None.
    :raises InvalidArgument: if readers might not find the folders, or might misread their names.
    """
    if value is None or value == "":
        return None
    from airflow_provider_webcollect.landing.log.names import PARTITION_PATTERN

    partition = arguments.text("partition", value)
    if not re.fullmatch(f"{PARTITION_PATTERN}(?:/{PARTITION_PATTERN})*", partition):
        raise InvalidArgument(
            "partition",
            value,
            "it must be one or more name=value, separated by /, such as dt=2026-01-01/hour=07: of letters, "
            "digits, '=', '-', '_' and '.', and none beginning with '_' or '.', which readers treat "
            "as hidden. Not all readers take ':' and '+', which run ids hold: give the day of the run (in a "
            "DAG, dt={{ (dag_run.data_interval_end or dag_run.run_after) | ds }})",
        )
    return partition


class LoadOptions(NamedTuple):
    """The checked options of a load; :func:`make_load_options` makes and explains them."""

    write_disposition: WriteDisposition
    primary_key: tuple[str, ...] = ()
    on_missing_key: OnMissingKey = "fail"
    on_gone: OnGone = "keep"


def make_load_options(
    write_disposition: str,
    primary_key: str | Sequence[str] | None,
    on_missing_key: OnMissingKey = "fail",
    on_gone: OnGone = "keep",
) -> LoadOptions:
    """Check how a load writes rows.

    :param write_disposition: ``append``, ``merge``, ``replace`` or ``scd2``; see
        :mod:`airflow_provider_webcollect.landing.read.loading`.
    :param primary_key: the columns of the key, by their names in the landing; for ``merge`` alone.
    :param on_missing_key: what to do with rows that have null or a blank text in a column of the key:
        ``fail``, and nothing is loaded; or ``skip`` to load the others; for ``merge`` alone.
    :param on_gone: what to do with the row of a key that the last whole run does not have: ``keep``,
        ``delete`` or ``mark``; for ``merge`` alone.
    :raises InvalidArgument: if one is wrong, or they do not go together.
    """
    arguments.one_of("write_disposition", write_disposition, get_args(WriteDisposition))
    columns = [primary_key] if isinstance(primary_key, str) and primary_key else primary_key or []
    key = arguments.texts("primary_key", columns, may_be_empty=True)
    if (write_disposition == "merge") != bool(key):
        rule = "it goes with write_disposition='merge', which needs it"
        raise InvalidArgument("primary_key", primary_key, rule)
    arguments.one_of("on_missing_key", on_missing_key, get_args(OnMissingKey))
    arguments.one_of("on_gone", on_gone, get_args(OnGone))
    for name, value, usual in (("on_missing_key", on_missing_key, "fail"), ("on_gone", on_gone, "keep")):
        if value != usual and not key:
            raise InvalidArgument(name, value, "it goes with write_disposition='merge' alone")
    return LoadOptions(cast("WriteDisposition", write_disposition), tuple(key), on_missing_key, on_gone)


def check_table(table: object) -> tuple[str, str]:
    """Return dataset and table.

    :param table: ``dataset.table``, in names that dlt does not change.
    :raises InvalidArgument: if it is something else.
    """
    name = arguments.text("table", table)
    if not _TABLE.fullmatch(name):
        rule = "it must be dataset.table, each of lower-case letters, digits and single underscores"
        raise InvalidArgument("table", table, rule)
    dataset, _, own = name.partition(".")
    return dataset, own


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options of a landing; :func:`make_options` makes and explains them."""

    file_format: FileFormat
    mode: Mode
    on_reset: OnReset
    if_exists: IfExists
    partition: str | None
    mark_exported: bool
    page_size: int
    max_part_bytes: int
    late_rows_delay: float
    checks: Checks | None
    on_failed_checks: OnFailedChecks


def default_mode(lotno: str | None) -> Mode:
    """Return the mode of a landing for which none is chosen: a batch is landed once, a task keeps growing."""
    return "incremental" if lotno is None else "full"


def make_options(
    file_format: FileFormat,
    *,
    mode: Mode,
    on_reset: OnReset = "fail",
    if_exists: IfExists = "fail",
    partition: str | None = None,
    mark_exported: bool = False,
    page_size: int | str = MAX_DATA_SIZE,
    max_part_bytes: int | str = MAX_PART_BYTES,
    late_rows_delay: float = LATE_ROWS_DELAY,
    checks: object = None,
    on_failed_checks: OnFailedChecks = "fail",
) -> Options:
    """Return the checked options of a landing. Imports nothing heavy.

    :param file_format: the format of the parts, see :func:`~.landing.formats.make_format`.
    :param mode: ``full`` lands all rows for this run; ``incremental`` adds new rows to those that earlier
        runs have landed. See ``default_mode``.
    :param on_reset: for ``incremental``: what to do if the source no longer begins with the landed rows:
        ``fail``; ``full`` to replace them by all of the source's rows; ``append`` to add all of these.
    :param if_exists: for ``full``: what to do if there is a commit of another run: ``fail``, ``overwrite`` or
        ``skip``.
    :param partition: the subfolder for this run's new parts, see :func:`check_partition`; None for the
        landing's folder itself.
    :param mark_exported: whether to confirm the export to the service after the commit.
    :param page_size: rows per request, 1 to 1000 (default).
    :param max_part_bytes: a part ends with the page that reaches this size; by default 128 MiB.
    :param late_rows_delay: seconds to wait for rows that the source may not show yet; by default 15.
    :param checks: what the rows must be before they are committed, see :func:`~.landing.checks.make_checks`;
        None for no checks.
    :param on_failed_checks: ``fail`` commits the rows as quarantined, and raises an error; ``quarantine``
        does so without the error; ``warn`` lands them. Single rows that have broken rules about values wait
        in each case (``checks["rows"]["max_wrong"]``).
    :raises InvalidArgument: if an argument is wrong, or does not go with the mode.
    """
    arguments.one_of("if_exists", if_exists, get_args(IfExists))
    arguments.one_of("mode", mode, get_args(Mode))
    arguments.one_of("on_reset", on_reset, get_args(OnReset))
    arguments.one_of("on_failed_checks", on_failed_checks, get_args(OnFailedChecks))
    if mode == "incremental" and if_exists != "fail":
        raise InvalidArgument("if_exists", if_exists, "it goes with mode='full' alone")
    if mode == "full" and on_reset != "fail":
        raise InvalidArgument("on_reset", on_reset, INCREMENTAL_ALONE)
    return Options(
        file_format=file_format,
        mode=mode,
        on_reset=on_reset,
        if_exists=if_exists,
        partition=check_partition(partition),
        mark_exported=arguments.boolean("mark_exported", mark_exported),
        page_size=arguments.integer("page_size", page_size, 1, MAX_DATA_SIZE),
        max_part_bytes=arguments.integer("max_part_bytes", max_part_bytes, 1),
        late_rows_delay=arguments.seconds("late_rows_delay", late_rows_delay, may_be_zero=True),
        checks=make_checks(checks, file_format),
        on_failed_checks=on_failed_checks,
    )
