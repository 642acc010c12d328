"""Assets of collection tasks, ``webcollect://<conn_id>/<task id>``; and the asset events of landings."""

from __future__ import annotations

import contextlib
import datetime
import re
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, cast
from urllib.parse import quote, unquote, urlsplit

import msgspec
from msgspec import UNSET, UnsetType

from airflow_provider_webcollect.collection_tasks import task_id_of
from airflow_provider_webcollect.landing import MANIFEST
from airflow_provider_webcollect.landing.location import Location, is_iceberg_name
from airflow_provider_webcollect.service import arguments

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from airflow.providers.common.compat.openlineage.facet import Dataset
    from airflow.providers.common.compat.sdk import Asset

    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook

__all__ = ["LandingEvent", "create_asset"]

T = TypeVar("T")

SCHEME = "webcollect"
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_FORM = "a webcollect asset is webcollect://<connection id>/<collection task id>, or with /<batch number>"


def storable(value: T) -> T:
    """Return plain JSON in a form that each of Airflow's databases can store.

    PostgreSQL accepts no NUL and no surrogates, so U+FFFD replaces them. Everything that is sent to Airflow's
    database passes through this function: XComs, events, triggers.
    """
    stored: Any = value
    match stored:
        case str():
            stored = _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", stored)
        case dict():
            stored = {storable(name): storable(item) for name, item in stored.items()}
        case list() | tuple():
            stored = [storable(item) for item in stored]
    return cast("T", stored)


def create_asset(
    *,
    collection_task_id: str,
    lotno: str | None = None,
    webcollect_conn_id: str = "webcollect_default",
    extra: dict[str, Any] | None = None,
) -> Asset:
    """Return the asset of a collection task's rows, or of one batch, for schedules, inlets and outlets.

    :param collection_task_id: the service's task: its id, or its name in the file of collection tasks.
    :param lotno: the batch number; None for the whole history.
    :param webcollect_conn_id: the Airflow connection of the service.
    :param extra: metadata that Airflow stores with the asset.
    """
    from airflow.providers.common.compat.sdk import Asset

    parts = [task_id_of("collection_task_id", collection_task_id)]
    if lotno is not None:
        parts.append(arguments.text("lotno", lotno))
    conn_id = arguments.text("webcollect_conn_id", webcollect_conn_id)
    path = "/".join(quote(part, safe="") for part in parts)
    return Asset(uri=f"{SCHEME}://{quote(conn_id, safe='')}/{path}", extra=extra)


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Check the URI of an asset, and return its normalized form.

    :param uri: the URI, split into its parts.
    :raises ValueError: if it is not the URI of a ``webcollect`` asset.
    """
    parts = [unquote(part) for part in uri.path.strip("/").split("/")]
    if not uri.netloc or not all(parts) or len(parts) > 2 or uri.query or uri.fragment:
        raise ValueError(f"{uri.geturl()}: {_FORM}")
    return uri._replace(path="/" + "/".join(quote(part, safe="") for part in parts))


def landing_asset(destination: object) -> Asset | None:
    """Return the asset of a destination; None if its name cannot be the URI of an asset.

    The asset of a folder is the folder's URL, such as ``s3://bucket/prices``; the asset of an Iceberg table
    is ``iceberg://catalog/namespace/table``. Airflow drops parts of some names (``?``, ``#``), so the asset
    of such a folder would be another folder's.

    :param destination: a location, a path or URL, an ``ObjectStoragePath``, or the name of an Iceberg table;
        it may be invalid. The connection in it is left out.
    """
    from airflow.providers.common.compat.sdk import Asset

    if not isinstance(destination, Location):
        destination = Location("iceberg" if is_iceberg_name(destination) else "folder", str(destination))
    uri = destination.asset_uri
    # the URI of an asset must be ASCII and has a maximum length, unlike the URL of a folder
    if uri.isascii():
        with contextlib.suppress(ValueError):
            asset = Asset(uri=uri)
            return asset if asset.uri == uri else None
    return None


class WaitingRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a landing that a commit has quarantined.

    :ivar commit: the number of the commit.
    :ivar rows: the number of the rows.
    :ivar dag_id: the DAG id of the DAG run that has read the rows.
    :ivar run_id: the run id of that DAG run.
    :ivar at: the time at which the rows were quarantined.
    """

    commit: int
    rows: int
    dag_id: str
    run_id: str
    at: Annotated[datetime.datetime, msgspec.Meta(tz=True)]


class InputsWithoutRows(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a collection task that have no row.

    :ivar count: the number of these inputs.
    :ivar inputs: the first 1,000 of these inputs, or fewer if there are many sources.
    """

    count: int
    inputs: list[str]


class LandedSource(NamedTuple):
    """An event's facts about one collection task.

    :ivar collection_task_id: the id of the collection task.
    :ivar collection_task_name: its name; None if it is not known.
    :ivar rows: the number of rows, as in the event; None if it is not known.
    :ivar usual_rows: the usual number of rows, as in the event; None if it is not known.
    :ivar filled: by column, the share of the rows in which it has a value, 0 to 1; empty if not known.
    :ivar checks: the outcome of each check, in the form of :class:`~.landing.checks.CheckOutcome`.
    :ivar missing_inputs: the inputs without a row; None if they are not known, or not checked.
    :ivar manifest: the address of the landing's manifest.
    :ivar commit: the number of the landing's last commit at that time; None if it is not known.
    :ivar quarantined: the numbers of the commits that have quarantined rows of the run.
    :ivar waiting: the quarantined rows of the landing, from this run and earlier ones, as in the event.
    """

    collection_task_id: str
    collection_task_name: str | None
    rows: int | None
    usual_rows: float | None
    filled: dict[str, float]
    checks: list[dict[str, Any]]
    missing_inputs: InputsWithoutRows | None
    manifest: str
    commit: int | None
    quarantined: list[int]
    waiting: list[WaitingRows]

    @property
    def is_quarantined(self) -> bool:
        """Whether all rows of the run are quarantined, not only some of them."""
        return bool(self.quarantined) and not self.rows

    @property
    def landing(self) -> str:
        """The folder of the landing, or the name of its Iceberg table."""
        return self.manifest.removesuffix(f"/{MANIFEST}")


# `gc=False`, since thousands of events would keep the garbage collector busy
class LandingEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The ``extra`` of a landing's asset event: the transfer writes it, consumers read it.

    :ivar webcollect_conn_id: the Airflow connection of the service.
    :ivar object_storage_conn_id: the Airflow connection of the storage, or of Iceberg's catalog; None for the
        connection in ``destination``, or for the storage's default credentials. With several sources, the
        address of a manifest may name another connection.
    :ivar destination: the folder as it was given; with several sources, the folder that contains all of them.
    :ivar rows: the number of rows of the landing or, if it is incremental, of this run; with several sources,
        the sum. ``bytes`` and ``parts`` are counted in the same way.
    :ivar usual_rows: the median number of rows of the last ten runs that have landed rows there; None if
        there are fewer than four such runs, or if this run only repeats missing inputs of another run; with
        several sources, the sum, or None if it is None for one of them.
    :ivar bytes: the size of the parts in bytes.
    :ivar parts: the number of parts.
    :ivar duration: the duration of the landing in seconds.
    :ivar quarantined_rows: the number of this run's quarantined rows.
    :ivar quarantined: the numbers of the commits that have quarantined them; unset if there are several
        sources.
    :ivar waiting: the quarantined rows of the landing, from this run and earlier ones, the newest first, of
        at most 100 commits, or fewer if there are many sources; unset if there are several sources.
    :ivar total_rows: the number of all rows of an incremental landing; unset for a full landing.
    :ivar changes: how many keys are ``new``, ``changed`` and ``gone`` since the previous whole run, if they
        are counted (``whole_runs_key``); None for a run that is not whole; with several sources, the sums.
    :ivar collection_task_id: the id of the collection task. This field and the next six are unset if there
        are several sources, as are ``filled``, ``checks`` and ``missing_inputs``.
    :ivar collection_task_name: the collection task's name; None if it is not known.
    :ivar lotno: the number of the batch; None for the whole history.
    :ivar manifest: the address of the landing's manifest.
    :ivar commit: the number of the landing's last commit; it and earlier commits have all of this run's rows.
    :ivar uris: the parts that this run has landed; None if there are more than 1,000.
    :ivar objects: the same parts without scheme and bucket.
    :ivar collection_task_ids: the ids of several collection tasks; unset for one source, as are
        ``collection_task_names`` and ``manifests``.
    :ivar collection_task_names: the names of these collection tasks, with None for each unknown name.
    :ivar manifests: the addresses of the manifests of their landings.
    :ivar source_rows: ``rows`` of each source; ``source_usual_rows`` and ``source_commits`` have the other
        numbers of each source.
    :ivar source_filled: ``filled`` of each source, if there are no more than 1,000 columns in all;
        ``source_checks`` has ``checks`` of each source, if there are no more than 1,000 checks in all.
    :ivar source_quarantined: ``quarantined`` of each source; ``source_waiting`` and ``source_missing_inputs``
        have the other two fields of each source.
    :ivar filled: by column, the share of the rows in which it has a value, 0 to 1.
    :ivar checks: the outcome of each check, in the form of :class:`~.landing.checks.CheckOutcome`.
    :ivar missing_inputs: the inputs without a row; None if they are not known, or not checked.
    """

    webcollect_conn_id: str
    object_storage_conn_id: str | None = None
    destination: str
    rows: int
    usual_rows: float | None = None
    bytes: int
    parts: int
    duration: float
    quarantined_rows: int = 0
    quarantined: list[int] | UnsetType = UNSET
    waiting: list[WaitingRows] | UnsetType = UNSET
    total_rows: int | UnsetType = UNSET
    changes: dict[str, int] | UnsetType | None = UNSET
    collection_task_id: str | UnsetType = UNSET
    collection_task_name: str | UnsetType | None = UNSET
    lotno: str | UnsetType | None = UNSET
    manifest: str | UnsetType = UNSET
    commit: int | UnsetType = UNSET
    uris: list[str] | UnsetType | None = UNSET
    objects: list[str] | UnsetType | None = UNSET
    collection_task_ids: list[str] | UnsetType = UNSET
    collection_task_names: list[str | None] | UnsetType = UNSET
    manifests: list[str] | UnsetType = UNSET
    source_rows: list[int] | UnsetType = UNSET
    source_usual_rows: list[float | None] | UnsetType = UNSET
    source_commits: list[int] | UnsetType = UNSET
    filled: dict[str, float] | UnsetType = UNSET
    checks: list[dict[str, Any]] | UnsetType = UNSET
    source_filled: list[dict[str, float]] | UnsetType = UNSET
    source_checks: list[list[dict[str, Any]]] | UnsetType = UNSET
    missing_inputs: InputsWithoutRows | UnsetType | None = UNSET
    source_missing_inputs: list[InputsWithoutRows | None] | UnsetType = UNSET
    source_quarantined: list[list[int]] | UnsetType = UNSET
    source_waiting: list[list[WaitingRows]] | UnsetType = UNSET

    @classmethod
    def of(cls, extra: object) -> LandingEvent | None:
        """Return an asset event's ``extra`` as a landing's event; None if it is not from a landing.

        :param extra: the ``extra`` of an asset event, or its JSON text; it can be anything, since anyone may
            add events.
        """
        try:
            if isinstance(extra, str):
                event = msgspec.json.decode(extra, type=cls)
            else:
                event = msgspec.convert(extra, cls)
        except msgspec.DecodeError:
            return None
        return event if event.all_manifests() else None

    def extra(self) -> dict[str, Any]:
        """Return the event as plain JSON."""
        return storable(msgspec.to_builtins(self))

    def tasks(self) -> list[str]:
        """Return the ids of the collection tasks whose rows have landed."""
        return _listed(self.collection_task_ids, self.collection_task_id)

    def sources(self) -> list[LandedSource]:
        """Return the event's facts about each collection task."""
        tasks = self.tasks()

        def of_each(several: Any, one: Any, unknown: Any) -> list[Any]:
            facts_of_each = _listed(several, one)
            return facts_of_each if len(facts_of_each) == len(tasks) else [unknown] * len(tasks)

        return [
            LandedSource(*facts)
            for facts in zip(
                tasks,
                of_each(self.collection_task_names, self.collection_task_name, None),
                of_each(self.source_rows, self.rows, None),
                of_each(self.source_usual_rows, self.usual_rows, None),
                of_each(self.source_filled, self.filled, {}),
                of_each(self.source_checks, self.checks, []),
                of_each(self.source_missing_inputs, self.missing_inputs, None),
                of_each(self.manifests, self.manifest, ""),
                of_each(self.source_commits, self.commit, None),
                of_each(self.source_quarantined, self.quarantined, []),
                of_each(self.source_waiting, self.waiting, []),
                strict=True,
            )
        ]

    def all_manifests(self) -> list[str]:
        """Return the addresses of the manifests of all landings in the event."""
        return _listed(self.manifests, self.manifest)


def _listed(several: list[T] | UnsetType, one: T | UnsetType) -> list[T]:
    if several is not UNSET:
        return several
    return [] if one is UNSET else [one]


def is_asset(outlet: object) -> bool:
    """Return whether an outlet is an asset, or a reference to an asset (Airflow 3), but not an alias."""
    from airflow.providers.common.compat.sdk import Asset

    refer = getattr(Asset, "ref", None)
    return hasattr(outlet, "uri") or (refer is not None and isinstance(outlet, type(refer(name="any"))))


def dataset_name(hook: WebCollectHook, collection_task_id: str, lotno: str | None = None) -> tuple[str, str]:
    """Return the OpenLineage namespace and name of a task's rows.

    The namespace comes from the service's host, so two connections to one service have the same datasets.

    :param hook: the hook of the connection.
    :param collection_task_id: the id of the collection task.
    :param lotno: the number of the batch; None for the whole history.
    """
    service = urlsplit(hook.connection.settings.base_url)
    place = service.hostname if service.port is None else f"{service.hostname}:{service.port}"
    return f"{SCHEME}://{place}", collection_task_id if lotno is None else f"{collection_task_id}/{lotno}"


def documentation(name: object) -> dict[str, Any]:
    """Return OpenLineage's facet that describes a dataset by the name of its collection task.

    :param name: the name; for a value that is not a string, such as None, no facet is returned.
    """
    if not isinstance(name, str):
        return {}
    from airflow.providers.common.compat.openlineage import facet

    return {"documentation": facet.DocumentationDatasetFacet(description=name)}


def convert_asset_to_openlineage(asset: Asset, lineage_context: Any) -> Dataset:
    """Return the OpenLineage dataset of a ``webcollect`` asset.

    :param asset: the asset.
    :param lineage_context: the hook that has read the rows; any other object for an inlet or an outlet.
    """
    from airflow.providers.common.compat.openlineage.facet import Dataset

    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook

    uri = urlsplit(asset.uri)
    is_hook = isinstance(lineage_context, WebCollectHook)
    hook = lineage_context if is_hook else WebCollectHook(unquote(uri.netloc))
    namespace, name = dataset_name(hook, *(unquote(part) for part in uri.path.strip("/").split("/")))
    facets = documentation((asset.extra or {}).get("collection_task_name"))
    return Dataset(namespace=namespace, name=name, facets=facets)
