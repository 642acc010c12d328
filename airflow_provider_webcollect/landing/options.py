"""The options of landings and loads, each declared once.

The operator, the group, the file of collection tasks and the command line take their options from here. The
last text of a declaration is the option's description on the command line and in the documentation.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from airflow_provider_webcollect.landing.checks import Checks, OnFailedChecks, make_checks
from airflow_provider_webcollect.landing.formats import (
    ColumnNames,
    ColumnTypes,
    CompressionName,
    FileFormat,
    FormatName,
    OnCastError,
    key_columns,
    make_format,
)
from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.arguments import Range, Seconds, as_given, declared
from airflow_provider_webcollect.service.endpoints import MAX_DATA_SIZE
from airflow_provider_webcollect.service.errors import InvalidArgument

Mode = Literal["full", "incremental"]
IfExists = Literal["fail", "overwrite", "skip"]
OnReset = Literal["fail", "full", "append"]
WriteDisposition = Literal["append", "merge", "replace", "scd2"]
OnMissingKey = Literal["fail", "skip"]
OnGone = Literal["keep", "delete", "mark"]
MAX_PART_BYTES = 128 * 1024 * 1024
LATE_ROWS_DELAY = 15.0
#: The error for options that a full landing does not use.
INCREMENTAL_ALONE = "it requires mode='incremental', which is not the default of a batch (`lotno`)"
#: Names that dlt keeps unchanged; dlt separates the names of nested tables by two underscores.
_TABLE = re.compile(r"[a-z](?:_?[a-z0-9])*\.[a-z](?:_?[a-z0-9])*")


def check_partition(argument: str, value: object) -> str | None:
    """Return the folders for a run's new parts, such as ``dt=2026-01-01/hour=07``; None for no partition.

    :param argument: the name of the argument, for errors.
    :param value: the folders; None or an empty string for no partition.
    :raises InvalidArgument: if readers might not find the folders, or might misread their names.
    """
    if value is None or value == "":
        return None
    from airflow_provider_webcollect.landing.log.names import PARTITION_PATTERN

    partition = arguments.text(argument, value)
    if not re.fullmatch(f"{PARTITION_PATTERN}(?:/{PARTITION_PATTERN})*", partition):
        raise InvalidArgument(
            argument,
            value,
            "it must be one or more name=value, separated by /, such as dt=2026-01-01/hour=07: of letters, "
            "digits, '=', '-', '_' and '.', and none beginning with '_' or '.', which readers treat "
            "as hidden. Not all readers take ':' and '+', which run ids hold: give the day of the run (in a "
            "DAG, dt={{ (dag_run.data_interval_end or dag_run.run_after) | ds }})",
        )
    names = [folder.partition("=")[0].lower() for folder in partition.split("/")]
    if len({*names}) < len(names):
        rule = "it must have each name once: for readers they are columns, whose letter case does not count"
        raise InvalidArgument(argument, value, rule)
    return partition


class LandOptions(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The options of a landing; :meth:`parse` checks them, and sets defaults that depend on the source."""

    file_format: Annotated[FormatName | None, "Part format: by default jsonl, and parquet for a table."] = (
        None
    )
    compression: Annotated[
        CompressionName, "Part compression: by default snappy for Parquet, otherwise none."
    ] = None
    columns: Annotated[ColumnNames, "Only these columns, in this order; by default all."] = None
    column_types: Annotated[
        ColumnTypes, "Types by column; other columns are strings. A dict describes the texts."
    ] = None
    on_cast_error: Annotated[OnCastError, "What to do with a value that does not fit its column's type."] = (
        "fail"
    )
    sanitize_formulas: Annotated[
        bool, "For CSV: put ' before values that a spreadsheet would read as a formula."
    ] = False
    mode: Annotated[
        Mode | None,
        "incremental: add what is new; full: land all rows. By default full with a batch.",
    ] = None
    on_reset: Annotated[OnReset, "incremental: what to do if the source has lost rows."] = "fail"
    if_exists: Annotated[IfExists, "full: what to do if another landing is complete there."] = "fail"
    partition: Annotated[
        str | None, check_partition, "A folder in the destination for the new parts, NAME=VALUE."
    ] = None
    mark_exported: Annotated[bool, "Confirm the export to the service after the commit."] = False
    page_size: Annotated[int, Range(1, MAX_DATA_SIZE), "Rows per request."] = MAX_DATA_SIZE
    max_part_bytes: Annotated[
        int, Range(1), "A part ends with the page that reaches this size; 128 MiB by default."
    ] = MAX_PART_BYTES
    late_rows_delay: Annotated[float, Seconds(may_be_zero=True), "Seconds to wait for late rows."] = (
        LATE_ROWS_DELAY
    )
    checks: Annotated[Checks | None, as_given, "Conditions for the rows before they are committed."] = None
    on_failed_checks: Annotated[
        OnFailedChecks, "fail and quarantine: quarantine the rows, fail with an error; warn: land them."
    ] = "fail"

    @classmethod
    def parse(
        cls, values: Mapping[str, Any], *, lotno: str | None = None, table_format: str | None = None
    ) -> LandOptions:
        """Return the options of a landing, without importing anything heavy.

        :param values: the values by name; missing options have their defaults.
        :param lotno: the batch of the source; None for the whole history. By default, a batch is landed once
            (``full``), and a history, which keeps growing, incrementally.
        :param table_format: the format of the table to land in; None for a folder with a manifest.
        :raises InvalidArgument: if an option is wrong, or contradicts another.
        """
        # a template renders None as an empty text
        optional = {name for name, argument in declared(cls).items() if argument.default is None}
        given = {
            name: None if name in optional and isinstance(value, str) and not value else value
            for name, value in values.items()
        }
        options = arguments.parse_struct(cls, given)
        mode = options.mode or ("incremental" if lotno is None else "full")
        if table_format and options.file_format not in (None, "parquet"):
            rule = f"table_format={table_format!r} requires 'parquet'"
            raise InvalidArgument("file_format", options.file_format, rule)
        if mode == "incremental" and options.if_exists != "fail":
            raise InvalidArgument("if_exists", options.if_exists, "it requires mode='full'")
        if mode == "full" and options.on_reset != "fail":
            raise InvalidArgument("on_reset", options.on_reset, INCREMENTAL_ALONE)
        usual: FormatName = "parquet" if table_format else "jsonl"
        options = msgspec.structs.replace(options, mode=mode, file_format=options.file_format or usual)
        return msgspec.structs.replace(options, checks=make_checks(options.checks, options.format))

    @functools.cached_property
    def format(self) -> FileFormat:
        """The format of the parts."""
        return make_format(
            self.file_format or "jsonl",
            self.compression,
            self.columns,
            self.column_types,
            self.on_cast_error,
            self.sanitize_formulas,
        )


def _key(argument: str, value: Any) -> tuple[str, ...]:
    # a template renders None as an empty text
    return () if value in (None, "", [], ()) else tuple(key_columns(argument, value))


class SourceOptions(LandOptions, frozen=True, kw_only=True, dict=True):
    """The options of each source of the transfer, and of each entry of the file of collection tasks."""

    whole_runs_key: Annotated[
        tuple[str, ...], _key, "incremental: count what is new, changed and gone by these columns."
    ] = ()

    @classmethod
    def parse(
        cls, values: Mapping[str, Any], *, lotno: str | None = None, table_format: str | None = None
    ) -> SourceOptions:
        """Return the options of a source, as :meth:`LandOptions.parse` does."""
        options = super().parse(values, lotno=lotno, table_format=table_format)
        assert isinstance(options, SourceOptions)
        if options.whole_runs_key:
            if options.mode == "full":
                raise InvalidArgument("whole_runs_key", values["whole_runs_key"], INCREMENTAL_ALONE)
            # the landing also has the columns that are made of others
            known = options.columns and (*options.columns, *options.format.column_types)
            key_columns("whole_runs_key", options.whole_runs_key, known or None)
        return options


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a load; :meth:`parse` checks them.

    The write dispositions and their requirements are explained in
    :mod:`airflow_provider_webcollect.landing.read.loading`.
    """

    write_disposition: Annotated[
        WriteDisposition, "append: each row; merge: the latest row of each key; replace: all rows; scd2."
    ] = "append"
    primary_key: Annotated[tuple[str, ...], _key, "merge: the columns of the key."] = ()
    on_missing_key: Annotated[
        OnMissingKey, "merge: what to do with rows that have null or a blank text in a column of the key."
    ] = "fail"
    on_gone: Annotated[
        OnGone, "merge: what to do with the row of a key that the last whole run does not have."
    ] = "keep"

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> LoadOptions:
        """Return the options of a load.

        :param values: the values by name; missing options have their defaults.
        :raises InvalidArgument: if an option is wrong, or options contradict each other.
        """
        options = arguments.parse_struct(cls, values)
        if (options.write_disposition == "merge") != bool(options.primary_key):
            needs_key = "write_disposition='merge' requires at least one column"
            rule = "it requires write_disposition='merge'" if options.primary_key else needs_key
            raise InvalidArgument("primary_key", values.get("primary_key"), rule)
        for name, usual in (("on_missing_key", "fail"), ("on_gone", "keep")):
            if (value := getattr(options, name)) != usual and not options.primary_key:
                raise InvalidArgument(name, value, "it requires write_disposition='merge'")
        return options


def check_table(table: object) -> tuple[str, str]:
    """Return the names of dataset and table.

    :param table: ``dataset.table``, with names that dlt keeps unchanged.
    :raises InvalidArgument: if ``table`` has another form.
    """
    name = arguments.text("table", table)
    if not _TABLE.fullmatch(name):
        rule = "it must be dataset.table, each of lower-case letters, digits and single underscores"
        raise InvalidArgument("table", table, rule)
    dataset, _, own = name.partition(".")
    return dataset, own
