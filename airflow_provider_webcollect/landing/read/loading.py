"""Loads of a landing into a warehouse by dlt: the parts that have landed since the last load, each once.

The table gets three more columns: ``_webcollect_landing``, the landing's folder as the first load has named
it, with an account or endpoint that is not in its URL; ``_webcollect_part``, the part that has the row; and
``_webcollect_row``, the row's position in the landing, from 0. A landing is recognized by the id of its log,
whatever address it is loaded from.

- ``append`` replaces the rows of a part that is loaded again, so the table has each row of the landing once.
- ``merge`` keeps the latest row of each key: within a load the row with the highest position, otherwise the
  row of the last load. If each run collects everything, ``on_gone`` says what happens to a key that neither
  the last whole run (:meth:`.LandedData.changes`) nor later rows have: ``delete`` deletes its row, ``mark``
  sets ``_webcollect_gone_at``, which is null in other rows, to the time of the commit without it. Rows of
  other landings in the table stay as they are. Rows are deleted or marked after the merge, in separate
  statements; if the process is killed in between, the next load catches up, even if it has nothing to load.
  If rows were read before a whole run, and a person accepts them after it, they are not loaded.
- ``replace`` replaces the table with all rows of the landing.
- ``scd2`` treats the landing as a snapshot of the whole table: rows of the table that it lacks get an end
  (``_dlt_valid_to``), and its new rows are added. The parts must be of one run, since a landing of several
  runs is not a snapshot.

The number of the last loaded commit is kept in dlt's state, which is stored at the destination in the same
load. A load that is killed before the state is stored is repeated as a whole, and no row is loaded twice. A
landing that has begun again since (``on_reset="full"``, ``if_exists="overwrite"``) is loaded as a whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from airflow_provider_webcollect.landing.errors import (
    ExtraMissing,
    LandingError,
    LoadFailed,
    LoadRefused,
)
from airflow_provider_webcollect.landing.formats import key_columns, require
from airflow_provider_webcollect.landing.formats.reading import ROWS
from airflow_provider_webcollect.landing.options import LoadOptions, check_table
from airflow_provider_webcollect.landing.read.gone import Gone
from airflow_provider_webcollect.landing.read.table_types import Column, misfit, table_columns
from airflow_provider_webcollect.landing.storage import causes_of
from airflow_provider_webcollect.landing.temporary import TemporaryFolder
from airflow_provider_webcollect.service.errors import InvalidArgument, escaped, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    import pyarrow as pa
    from dlt import Pipeline
    from dlt.common.configuration.providers.provider import ConfigProvider
    from dlt.common.configuration.specs import PluggableRunContext
    from dlt.common.destination import DestinationCapabilitiesContext
    from dlt.extract import DltResource

    from airflow_provider_webcollect.landing.formats.types import ColumnType
    from airflow_provider_webcollect.landing.log.commits import Commit, Manifest, Part

log = logging.getLogger(__name__)

LANDING, PART, ROW = "_webcollect_landing", "_webcollect_part", "_webcollect_row"
#: For ``scd2``: the digest of the row's values.
ROW_VERSION = "_webcollect_version"
#: For ``on_gone="mark"``: when the key of a row was found to be gone.
GONE = "_webcollect_gone_at"
_ADDED = (LANDING, PART, ROW, ROW_VERSION, GONE)
#: The columns that dlt adds for ``scd2``.
_PERIOD = ("_dlt_valid_from", "_dlt_valid_to")
#: Warehouses, as sqlglot calls them, whose texts and names cannot contain NUL, and whose names are limited in
#: bytes.
_LIKE_POSTGRESQL = ("postgres", "redshift")
#: The system columns of each table in these warehouses.
_SYSTEM_COLUMNS = {"cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"}
#: Maximum number of characters that are shown of an error of dlt or a warehouse, which may quote a statement.
_LONGEST_REASON = 500
#: User and password in a URL, such as one that a warehouse's package cannot parse and quotes in its error.
_USERS = re.compile(r"://[^/\s]*@")
#: Matches errors about a row that, by itself, violates a constraint of the table.
_RULE = re.compile("(check|not.null) constraint|contains null values", re.IGNORECASE)
#: Matches the errors of warehouses about a wrong user or password, or a missing role or database.
_WRONG_PASSWORD = re.compile(
    r"(password )?authentication failed|incorrect username or password|(role|database) \S+ does not exist",
    re.IGNORECASE,
)
#: Keeps PostgreSQL from ending an idle transaction; the second setting exists from version 17 on.
_WITHOUT_TIMEOUTS = """
    select set_config(name, '0', true) from pg_settings
    where name in ('idle_in_transaction_session_timeout', 'transaction_timeout')
"""
#: PostgreSQL's error code for a missing privilege.
_DENIED = "42501"
#: The hints of columns that dlt would keep from an earlier load.
_COLUMN_HINTS = ("primary_key", "merge_key", "dedup_sort")
#: How many loads are under way in this process. When the last one ends, dlt gets the worker's settings back.
_under_way = 0
_settings_lock, _replaced_settings = threading.Lock(), contextlib.ExitStack()


class LandingSource(Protocol):
    """The part of :class:`~airflow_provider_webcollect.landing.reader.LandedData` that loads need."""

    uri: str
    manifest: Manifest
    column_types: Mapping[str, ColumnType]

    @property
    def table_columns(self) -> Sequence[str]:
        """The columns of the landing, as far as they are known."""

    @property
    def identity(self) -> str:
        """A unique name of the landing."""

    def parts(self, *, since: int | None = None) -> Sequence[Part]:
        """Return the parts of the commits after ``since``, or all parts, in the order of their rows."""

    def commits(self, since: int) -> Iterator[Commit]:
        """Yield, in order, the commits that have landed parts: of the last runs, and all after ``since``."""

    def tables_of(self, part: Part) -> Iterator[pa.Table]:
        """Yield the rows of a part as Arrow tables."""


def _hints(options: LoadOptions, by_row: bool, is_whole: bool) -> dict[str, Any]:
    """Return the hints that make dlt write a resource as the options say, see :meth:`NewParts.resource`."""
    match options.write_disposition:
        case "append" if by_row:
            merge = {"disposition": "merge", "deduplicated": True}
            return {"write_disposition": merge, "primary_key": (LANDING, PART, ROW)}
        case "append":
            return {"write_disposition": "merge", "merge_key": LANDING if is_whole else (LANDING, PART)}
        case "merge":
            return {"write_disposition": "merge", "primary_key": options.primary_key}
        case "scd2":
            strategy = {"disposition": "merge", "strategy": "scd2", "row_version_column_name": ROW_VERSION}
            return {"write_disposition": strategy}
    return {"write_disposition": "replace"}


class NewParts:
    """The parts of a landing that a destination does not have yet.

    :param landed: the landing.
    :param options: how rows are written.
    :param since: the number of a commit: only parts of later commits are loaded; 0 (default) for all parts.
    :param on_progress: called with the number of rows read so far, and the number of rows to load.
    :ivar parts: the parts of the last load.
    :ivar skipped: the number of rows that were left out because they have no key, by the name of the part.
    :ivar gone: the keys that are gone by now; None if gone keys are kept.
    :raises InvalidArgument: if the landing lacks a column of the key.
    """

    def __init__(
        self,
        landed: LandingSource,
        options: LoadOptions,
        since: int = 0,
        on_progress: Callable[[int, int], object] = lambda rows, total: None,
    ) -> None:
        self._landed = landed
        self._options = options
        self._since = since
        self._on_progress = on_progress
        self.parts: Sequence[Part] = ()
        self.skipped: dict[str, int] = {}
        self.gone: Gone | None = None
        self._has_nul = True
        self._name = landed.identity
        if key := options.primary_key:
            profile = landed.manifest.profile
            is_known = landed.manifest.columns or not (profile.is_cut or profile.unread)
            names = (is_known and landed.table_columns) or None
            key_columns("primary_key", key if len(key) > 1 else key[0], names)

    def resource(self, name: str, *, by_row: bool = False, is_whole: bool = False) -> DltResource:
        """Return a dlt resource that yields the rows of the parts as Arrow tables.

        The state of the resource has the number of the last loaded commit.

        :param name: the name of the resource and its table.
        :param by_row: whether ``append`` replaces single rows rather than the rows of a part, for
            destinations that can only merge by a primary key, such as Delta Lake; False by default.
        :param is_whole: whether ``append`` replaces all rows of the landing; False by default.
        :raises ExtraMissing: if dlt or pyarrow is not installed.
        """
        for package in ("dlt", "pyarrow"):
            require(package, "dlt", "a load by dlt")
        import dlt

        def tables() -> Iterator[pa.Table]:
            states = dlt.current.resource_state().setdefault("landings", {})
            manifest = self._landed.manifest
            state = states.get(manifest.log_id)
            missing = self._missing(self._loaded_and_judged(state))
            self.parts, self.skipped = [part for part in missing if self._is_loaded(part)], {}
            place = self._landed.identity
            self._name = state["name"] if state else place
            destination = dlt.current.pipeline().destination.capabilities()
            is_scd2 = self._options.write_disposition == "scd2"
            columns = _Columns(name, destination, (*_ADDED, *(_PERIOD if is_scd2 else ())))
            self._has_nul = destination.sqlglot_dialect not in _LIKE_POSTGRESQL
            # including the columns of parts that were loaded before
            columns.add(self._landed.table_columns)
            # the missing parts are the last parts of the landing
            first_row = manifest.rows - sum(part.rows for part in missing)
            done, total = 0, sum(part.rows for part in self.parts)
            self._on_progress(done, total)
            for part in missing:
                if self._is_loaded(part):
                    yield from self._rows(part, first_row, columns)
                    done += part.rows
                    self._on_progress(done, total)
                first_row += part.rows
            states[manifest.log_id] = {
                "options": self._written,
                "commit": manifest.commit,
                "name": self._name,
                "place": place,
                "last_part": missing[-1].name if missing else state and state["last_part"],
                "first": self.gone.first if self.gone else None,
            }

        hints = _hints(self._options, by_row, is_whole)
        return dlt.resource(tables, name=name, columns=self._column_hints(), **hints)

    def _column_hints(self) -> dict[str, Any]:
        """Return hints that dlt cannot infer from values: it treats each time as one with a zone."""
        naive = {"data_type": "timestamp", "timezone": False}
        types = self._landed.column_types
        names = {*self._landed.table_columns} & types.keys()
        hints = {name: naive for name in names if types[name].type == "timestamp"}
        if self._options.write_disposition == "merge":
            # the latest row of a key is the one with the highest position
            hints[ROW] = {"data_type": "bigint", "dedup_sort": "desc"}
        return {name: {"name": name, **hint} for name, hint in hints.items()}

    @property
    def _written(self) -> str:
        """The options that decide which rows a table has."""
        return str((self._options.write_disposition, self._options.primary_key, self._options.on_gone))

    def loaded(self, state: dict[str, Any] | None) -> int:
        """Return the number of the last loaded commit; 0 if all parts are to be loaded.

        :param state: the state that an earlier load has stored; None or empty for none.
        :raises LoadRefused: if the earlier load was of another copy of this landing, and both copies have
            changed since.
        """
        if self._options.write_disposition == "replace" or not state:
            return 0
        manifest, number = self._landed.manifest, int(state["commit"])
        place, last_part = self._landed.identity, state["last_part"]
        is_elsewhere = place != state["place"] and manifest.first_commit <= number
        if is_elsewhere and last_part and last_part not in {part.name for part in self._landed.parts()}:
            raise LoadRefused(
                f"{place} is a copy of {state['place']}, and lacks {last_part}, which was loaded from the "
                "latter: load the copy into another table"
            )
        # the landing may have begun again, or an older version of its table may have been restored
        is_known = state["options"] == self._written and manifest.first_commit <= number <= manifest.commit
        return number if is_known else 0

    def _loaded_and_judged(self, state: dict[str, Any] | None) -> int:
        """Return the number of the commit after which parts are loaded, and decide which keys are gone.

        If another run than in the last load is now the last whole run, parts are loaded again from its first
        rows on; if no run is whole any more, all parts are. Otherwise, rows that were read earlier, but
        landed later, could have replaced newer rows.
        """
        loaded = self.loaded(state)
        if self._options.on_gone == "keep":
            return loaded
        earlier = state["first"] if state and loaded else 0
        self.gone = self._judged(min(loaded, max(0, earlier - 1)))
        begin = max(0, self.gone.first - 1)
        if self.gone.first != earlier and begin < loaded:
            loaded, self.gone = begin, self._judged(begin)
        return loaded

    def _judged(self, since: int) -> Gone:
        return Gone(list(self._landed.commits(since)), self._landed.manifest.set_apart)

    def _is_loaded(self, part: Part) -> bool:
        if self.gone is None:
            return True
        is_kept = self._options.on_gone == "mark" or self.gone.at(part.name) is None
        return is_kept and part.commit not in self.gone.outdated

    @property
    def skipped_rows(self) -> int:
        """The number of rows that the last load has left out because they have no key."""
        return sum(self.skipped.values())

    @property
    def rows(self) -> int:
        """The number of loaded rows."""
        return sum(part.rows for part in self.parts) - self.skipped_rows

    @property
    def needed(self) -> set[str]:
        """The columns that a table has if a load with these options has written rows of the landing to it."""
        return {LANDING, PART, *([GONE] if self._options.on_gone == "mark" else [])}

    def settle(self, client: Any, table: str) -> None:
        """Delete or mark the rows of gone keys in a table with rows of the landing, unless they are kept."""
        if self.gone is not None:
            mark = GONE if self._options.on_gone == "mark" else None
            self.gone.settle(client, table, self._name, (LANDING, PART), mark)

    def _missing(self, loaded: int) -> Sequence[Part]:
        """Return the parts of the commits after ``loaded``; for ``scd2``, all parts if there are new ones."""
        missing = self._landed.parts(since=max(loaded, self._since))
        if self._options.write_disposition != "scd2" or not missing:
            return missing
        if len({commit.run for commit in self._landed.commits(0)}) > 1:
            raise LoadRefused(
                f"the rows of {self._landed.uri} are of several runs: write_disposition='scd2' needs a "
                f"snapshot, that is a landing with mode='full'"
            )
        return self._landed.parts()

    def _rows(self, part: Part, first_row: int, columns: _Columns) -> Iterator[pa.Table]:
        """Yield the rows of a part.

        :param first_row: the position of the part's first row in the landing.
        :param columns: the columns of the table; the columns of the rows are added to them.
        """
        import pyarrow.compute as pc

        from airflow_provider_webcollect.landing.formats.parquet import lack_key

        key, without = self._options.primary_key, 0
        for table in self._landed.tables_of(part):
            lacking = lack_key(table, key)
            count = int(pc.sum(lacking).as_py() or 0)
            without += count
            # after a row without a key nothing is yielded, unless such rows are skipped: the load fails below
            if not without or self._options.on_missing_key == "skip":
                columns.add(name for name in table.column_names if name != ROWS)
                marked = self._marked(table, part, first_row)
                yield marked.filter(pc.invert(lacking)) if count else marked
            first_row += table.num_rows
        if not without:
            return
        problem = (
            f"{without:,} of {part.rows:,} rows of {self._landed.uri}/{part.name} have no value in a column "
            f"of the key ({', '.join(key)})"
        )
        if self._options.on_missing_key == "fail":
            raise LoadRefused(
                f"{problem}; nothing was loaded. on_missing_key='skip' loads the others; or choose another "
                f"key, or write_disposition='append'"
            )
        log.warning("%s, and are not loaded", problem)
        self.skipped[part.name] = without

    def _held(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return a column as the warehouse can hold it, with U+FFFD for NUL in texts where it must be."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_float32(column.type):
            # some warehouses receive floats as digits, which they would read as another 64-bit number
            return column.cast(pa.float64())
        if self._has_nul or not pa.types.is_string(column.type):
            return column
        return pc.replace_substring(column, "\0", "\ufffd")

    def _marked(self, table: pa.Table, part: Part, first_row: int) -> pa.Table:
        import pyarrow as pa

        count = table.num_rows
        columns = {name: self._held(table[name]) for name in table.column_names if name != ROWS}
        if self._options.write_disposition == "scd2":
            rows = (row for batch in table.to_batches() for row in batch.to_pylist())
            # only the row's own values, so that the digest does not depend on the columns of other rows
            held = (sorted((name, value) for name, value in row.items() if value is not None) for row in rows)
            digests = (hashlib.sha256(msgspec.json.encode(values)).hexdigest()[:32] for values in held)
            columns[ROW_VERSION] = pa.array(digests, pa.string())
        columns[LANDING] = pa.repeat(pa.scalar(self._name), count)
        columns[PART] = pa.repeat(pa.scalar(part.name), count)
        columns[ROW] = pa.array(range(first_row, first_row + count), pa.int64())
        if self.gone and self._options.on_gone == "mark":
            gone_at = pa.scalar(self.gone.at(part.name), pa.timestamp("us", "UTC"))
            columns[GONE] = pa.repeat(gone_at, count)
        needed = {*_ADDED, *self._options.primary_key} - {GONE}
        fields = [pa.field(name, column.type, name not in needed) for name, column in columns.items()]
        return pa.table(list(columns.values()), schema=pa.schema(fields))


class _Columns:
    """The columns that a table gets from a landing, whose parts may have different columns.

    :param table: the name of the table.
    :param destination: dlt's description of the warehouse.
    :param added: the names of the columns that loads add.
    """

    def __init__(self, table: str, destination: DestinationCapabilitiesContext, added: Iterable[str]) -> None:
        self._table = table
        self._has_case = destination.has_case_sensitive_identifiers
        is_like_postgresql = destination.sqlglot_dialect in _LIKE_POSTGRESQL
        self._longest = destination.max_column_identifier_length if is_like_postgresql else None
        # dlt splits statements at semicolons, and the names in the first line of CSV at commas
        self._not_held = {";"} | ({"\0"} if is_like_postgresql else set())
        if destination.sqlglot_dialect == "postgres":
            self._not_held.add(",")
        self._taken = _SYSTEM_COLUMNS if is_like_postgresql else ()
        self._names = {self._compared(_normalized(name)): name for name in added}
        self._added = frozenset(self._names)

    def add(self, names: Iterable[str]) -> None:
        """Add columns.

        :raises LoadRefused: if a column would have no name in the table, or two columns the same name. dlt
            would find this only within one Arrow table.
        """
        for name in names:
            column = _normalized(name) if name.strip() else ""
            if not column or not self._holds(column):
                raise self._refused(name, f"no column of {self._table} can be called {quoted(name)}", "")
            compared = self._compared(column)
            other = self._names.setdefault(compared, name)
            if other != name or compared in self._added:
                kind = "that loads add" if compared in self._added else "of the landing"
                problem = (
                    f"two columns would get the same name in {self._table}: {escaped(other)} {kind} and "
                    f"{escaped(name)} would be {escaped(column)}"
                )
                raise self._refused(name, problem, other)

    def _compared(self, name: str) -> str:
        """Return a name in the form that the warehouse compares."""
        return name if self._has_case else name.lower()

    def _holds(self, name: str) -> bool:
        """Return whether a column of the table can have this name."""
        is_short = self._longest is None or len(name.encode()) <= self._longest
        return is_short and self._not_held.isdisjoint(name) and name not in self._taken

    def _refused(self, name: str, problem: str, other: str) -> LoadRefused:
        cure = f"land into another folder, with `columns` that leave out {quoted(name)}"
        as_it_is = name.strip()
        can_be_kept = bool(as_it_is) and self._holds(name) and self._holds(other)
        if can_be_kept and self._compared(as_it_is) != self._compared(other):
            cure = (
                "SCHEMA__NAMING=direct in the worker's environment has columns of new tables keep their names"
            )
        return LoadRefused(f"{problem}; nothing was loaded: {cure}")


def _normalized(name: str) -> str:
    """Return the name that dlt gives a column in a table."""
    import dlt

    # not `normalize_identifier`: in dlt, two underscores separate nested names
    return dlt.current.source_schema().naming.normalize_path(name)


def pipeline_digest(landed: LandingSource, table: str) -> str:
    """Return the digest that names dlt's pipeline and schema for loads of a landing into a table.

    :param table: ``dataset.table``.
    """
    return hashlib.sha256(f"{landed.manifest.log_id}\n{table}".encode()).hexdigest()[:16]


def load(
    landed: LandingSource,
    options: LoadOptions,
    table: str,
    make_destination: Callable[..., Any],
    on_progress: Callable[[int, int], object] = lambda rows, total: None,
) -> NewParts:
    """Load the new parts of a landing, and return them.

    The rows are first written to a temporary folder, which must have room for them.

    :param landed: the landing.
    :param options: how rows are written.
    :param table: see :func:`check_table`.
    :param make_destination: called with further options of the destination; returns the destination.
    :param on_progress: called with the number of rows read so far, and the number of new rows.
    :raises InvalidArgument: if the landing lacks a column of the key, the table was loaded with a write
        disposition that does not fit this one, a name is too long for the warehouse, or ``SCHEMA__NAMING`` in
        the environment is unknown or would rename the table.
    :raises LoadFailed: if dlt or the warehouse fails; nothing of the load counts, and a retry repeats it.
    :raises LoadRefused: if rows have no key, a column would have no name or the name of another column, a
        column of the table does not hold the values, the parts are not a snapshot although ``scd2`` needs
        one, or the landing is a copy of a loaded landing, and both have changed; nothing is loaded.
    :raises ExtraMissing: if dlt, pyarrow or a package of the destination is not installed.
    :raises LandingDamaged: if parts differ from the manifest; other errors of reading a landing are possible.
    """
    dataset, name = check_table(table)
    require("dlt", "dlt", "a load by dlt")
    try:
        with _pipeline(landed, dataset, name, make_destination) as pipeline:
            return _load(pipeline, landed, options, dataset, name, on_progress)
    except Exception as error:
        failure = _failure(error, table)
    # raised outside the block, without cause and context: their frames have the credentials
    raise failure


@contextlib.contextmanager
def _own_settings() -> Iterator[None]:
    """Make dlt use only the settings of loads in the block, in all threads of the process.

    By default, dlt looks for each setting in the environment, in ``.dlt`` of the working directory and in
    Airflow Variables. Settings from there could direct the load to another dataset, with other credentials.
    """
    from dlt.common.configuration.container import Container

    global _under_way
    with _settings_lock:
        if not _under_way:
            _replaced_settings.enter_context(Container().injectable_context(dlt_context(_settings())))
        _under_way += 1
    try:
        yield
    finally:
        with _settings_lock:
            _under_way -= 1
            if not _under_way:
                _replaced_settings.close()


def _settings() -> dict[str, Any]:
    """Return dlt's settings for loads; two of them are read from the environment."""
    is_tracked = os.environ.get("RUNTIME__DLTHUB_TELEMETRY", "").lower() == "true"
    naming = os.environ.get("SCHEMA__NAMING")
    return {
        "schema": {"naming": naming} if naming else {},
        # Airflow handles signals
        "runtime": {"dlthub_telemetry": is_tracked, "intercept_signals": False},
        # a trace would write an id of this machine for telemetry
        "enable_runtime_trace": is_tracked,
    }


def dlt_context(settings: Mapping[str, Any], *, and_found: bool = False) -> PluggableRunContext:
    """Return the context from which dlt gets its settings, without Airflow's Variables.

    :param and_found: whether dlt also looks for missing settings in the environment and in ``.dlt``; False by
        default.
    """
    from dlt.common.configuration.providers import CustomLoaderDocProvider
    from dlt.common.configuration.specs import PluggableRunContext
    from dlt.common.runtime.run_context import RunContext

    values = {**settings, "providers": {"enable_airflow_secrets": False}}

    class Context(RunContext):
        #: The folder of a DuckDB file with a relative path; otherwise, DLT_LOCAL_DIR would choose it.
        local_dir = "."

        def initial_providers(self) -> list[ConfigProvider]:
            own = CustomLoaderDocProvider("settings of loads", lambda: values)
            return [own, *(super().initial_providers() if and_found else ())]

    return PluggableRunContext(Context(None))


@contextlib.contextmanager
def _pipeline(
    landed: LandingSource, dataset: str, table: str, make_destination: Callable[..., Any]
) -> Iterator[Pipeline]:
    """Provide a pipeline with the state that is stored at the destination, and no local state."""
    digest = pipeline_digest(landed, f"{dataset}.{table}")
    folder = TemporaryFolder("load")
    with contextlib.closing(folder), _own_settings():
        import dlt
        from dlt.common.pipeline import current_pipeline

        # loads of several landings into one table may run at once, so each has a staging dataset of its own
        staging = f"%s_staging_{digest[:8]}"
        destination = make_destination(
            staging_dataset_name_layout=staging, replace_strategy="insert-from-staging"
        )
        active: Any = current_pipeline()
        pipeline = dlt.pipeline(
            f"webcollect_{digest}",
            pipelines_dir=str(folder.path),
            destination=destination,
            dataset_name=dataset,
        )
        try:
            client: Any = pipeline.destination_client()
            longest = client.capabilities.max_identifier_length
            for name, used in ((dataset, staging % dataset), (table, table)):
                if (excess := len(used) - longest) > 0:
                    # the name would be shortened
                    rule = f"in this warehouse {name} can have {len(name) - excess} characters"
                    raise InvalidArgument("table", f"{dataset}.{table}", rule)
            with _exclusive_load(client, digest):
                pipeline.sync_destination()
                yield pipeline
        finally:
            pipeline.deactivate()
            if active is not None:
                active.activate()


@contextlib.contextmanager
def _exclusive_load(client: Any, digest: str) -> Iterator[None]:
    """Keep out other loads of the landing into the table during the block, if the warehouse has such locks.

    :param digest: the digest of landing and table.
    :raises LoadFailed: if another load of the landing into the table is under way.
    """
    warehouse = client.capabilities.sqlglot_dialect
    if warehouse not in ("duckdb", "postgres"):
        yield
        return
    # a DuckDB file can be open in one process at a time: here, as long as this connection is open
    with client:
        if warehouse == "postgres":
            key, execute = int(digest, 16) - 2**63, client.sql_client.execute_sql
            # the lock is held by a transaction, which ends with the connection, and not by the session: a
            # connection pooler may run each transaction in another session
            execute("begin")
            execute(_WITHOUT_TIMEOUTS)
            ((is_alone,),) = execute("select pg_try_advisory_xact_lock(%s)", key)
            if not is_alone:
                raise LoadFailed("another load of this landing into this table is under way")
        yield


def _load(
    pipeline: Pipeline,
    landed: LandingSource,
    options: LoadOptions,
    dataset: str,
    table: str,
    on_progress: Callable[[int, int], object],
) -> NewParts:
    disposition = options.write_disposition
    client: Any = pipeline.destination_client()
    with client:
        _require_privilege(client)
        columns = table_columns(client, dataset, table)
    if PART in columns and (ROW_VERSION in columns) != (disposition == "scd2"):
        way = "with" if ROW_VERSION in columns else "without"
        rule = f"{table} was loaded {way} write_disposition='scd2': choose another table, or drop this one"
        raise InvalidArgument("write_disposition", disposition, rule)
    # the state that earlier loads of this landing have stored
    state: Any = pipeline.state
    log_id = landed.manifest.log_id
    for key in ("sources", pipeline.default_schema_name, "resources", table, "landings", log_id):
        state = state.get(key) or {}
    new = NewParts(landed, options, on_progress=on_progress)
    resource = new.resource(table, is_whole=not new.loaded(state))
    if columns:
        resource.add_map(lambda rows: _held_by(columns, rows, client, f"{dataset}.{table}"))
    # all new rows are read before anything is changed
    pipeline.extract(resource, refresh=_refresh(pipeline, table, columns))
    extracted: Any = pipeline.destination_client()
    written_table = extracted.schema.naming.normalize_tables_path(table)
    written = f"{extracted.sql_client.dataset_name}.{written_table}"
    if written != f"{dataset}.{table}":
        rule = f"dlt would write {written} instead: check SCHEMA__NAMING in the worker's environment"
        raise InvalidArgument("table", f"{dataset}.{table}", rule)
    if new.parts or disposition == "replace":
        pipeline.normalize()
        # a failed load may have left a staging dataset, perhaps with columns of other types
        _drop_staging(pipeline)
        pipeline.load().raise_on_failed_jobs()
        _drop_staging(pipeline)
    if new.parts or new.needed.issubset(columns):
        with client:
            new.settle(client, table)
    return new


def _require_privilege(client: Any) -> None:
    """Refuse a role without a privilege that each load needs, before a table is created.

    :raises LoadFailed: if the role may not create schemas.
    """
    if client.capabilities.sqlglot_dialect not in _LIKE_POSTGRESQL:
        return
    rights = "select current_user, current_database(), has_database_privilege(current_database(), 'CREATE')"
    ((role, database, may_create),) = client.sql_client.execute_sql(rights)
    if not may_create:
        raise LoadFailed(
            f"the role {role} may not create schemas in the database {database}, and each load makes one for "
            f'its staging: GRANT CREATE ON DATABASE "{database}" TO "{role}"; nothing was loaded',
            permanent=True,
        )


def _drop_staging(pipeline: Pipeline) -> None:
    client: Any = pipeline.destination_client()
    with client, client.with_staging_dataset():
        if client.is_storage_initialized():
            client.sql_client.drop_dataset()


def _held_by(columns: Mapping[str, Column], rows: pa.Table, client: Any, table: str) -> pa.Table:
    """Return the rows, after a check that the table holds them unchanged.

    :param columns: the columns of the table, by their names in lower case.
    :raises LoadRefused: if a column does not hold a value, or its name differs from the table's in letter
        case alone.
    """
    warehouse = client.capabilities
    for field in rows.schema:
        name = _normalized(field.name)
        column = columns.get(name.lower())
        # some warehouses store all names in upper case
        spellings = {name, warehouse.casefold_identifier(name)}
        if column and warehouse.has_case_sensitive_identifiers and column["name"] not in spellings:
            raise LoadRefused(
                f"the column {quoted(column['name'])} of {table} differs from {quoted(name)}, which the rows "
                "have, in letter case alone; nothing was loaded: rename it, or load into another table"
            )
        if column and (problem := misfit(client, column, rows[field.name])):
            raise LoadRefused(
                f"the column `{escaped(field.name)}` of {table} {problem}; nothing was loaded: change the "
                f"column, drop the table, or load into another"
            )
    return rows


def _refresh(pipeline: Pipeline, table: str, columns: Collection[str]) -> Literal["drop_resources"] | None:
    """Return the ``refresh`` that makes dlt forget a dropped table; None if the table exists or is unknown.

    The hints that earlier loads have left in dlt's schema are removed, too: dlt would follow them again.
    """
    tables: Mapping[str, Any] = pipeline.default_schema.tables if pipeline.schema_names else {}
    if table not in tables:
        return None
    table_columns = tables[table]["columns"]
    for name in [name for name in table_columns if columns and name.lower() not in columns]:
        # a column of an earlier table that another one has replaced
        del table_columns[name]
    for column in table_columns.values():
        for hint in _COLUMN_HINTS:
            column.pop(hint, None)
    return None if columns else "drop_resources"


def _failure(error: Exception, table: str) -> BaseException:
    """Return the error to raise for an error of a load."""
    from dlt.common.exceptions import MissingDependencyException
    from dlt.common.normalizers.naming.exceptions import UnknownNamingModule

    causes = list(causes_of(error))
    for cause in causes:
        if isinstance(cause, LandingError | InvalidArgument | KeyboardInterrupt):
            return cause.with_traceback(None)
        if isinstance(cause, MissingDependencyException):
            packages = " ".join(f"'{name}'" for name in cause.dependencies)
            return ExtraMissing(f"a load into this warehouse needs: pip install {packages}")
        if isinstance(cause, UnknownNamingModule):
            rule = "it must be one of dlt's naming conventions, such as direct"
            return InvalidArgument("SCHEMA__NAMING", cause.naming_module, rule)
    last = causes[-1]
    text = _USERS.sub("://***@", " ".join(str(last).split()))[:_LONGEST_REASON]
    reason = f"{type(last).__name__}: {text}" if text else repr(last)
    # all packages of warehouses name these errors as PEP 249 does: a retry would have the same wrong values
    kinds = {base.__name__ for base in type(last).__mro__}
    if "DataError" in kinds or ("IntegrityError" in kinds and _RULE.search(text)):
        return LoadRefused(
            f"{table} does not hold the values of the landing, and nothing was loaded: {reason}; change "
            f"the type of the column, drop the table, or load into another"
        )
    is_refused = getattr(last, "pgcode", None) == _DENIED or _WRONG_PASSWORD.search(text) is not None
    return LoadFailed(f"the load into {table} has failed: {reason}", permanent=is_refused)
