"""Operators on landed rows; they need access to the storage, but no connection of the service."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_provider_webcollect.assets import storable
from airflow_provider_webcollect.collection_tasks import described, named_tasks
from airflow_provider_webcollect.common import airflow_errors, check_at_parse, errors_about
from airflow_provider_webcollect.hooks.storage import AirflowConnections, require_supported
from airflow_provider_webcollect.landing.location import Location
from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterator, Sequence

    from airflow.providers.common.compat.sdk import Context, ObjectStoragePath

    from airflow_provider_webcollect.landing.storage.folder import Folder

Choice = Literal["accept", "discard"]


class _LandingOperator(BaseOperator):
    """Base of the operators on a single landing.

    :param destination: the landing's folder or its ``_manifest.json``, as a URL or an ``ObjectStoragePath``;
        or an Iceberg table, ``catalog.namespace.table``. (templated)
    :param object_storage_conn_id: the Airflow connection of the storage, or of Iceberg's catalog; None for
        the storage's default credentials, or ``iceberg_default``. (templated)
    """

    template_fields: Sequence[str] = ("destination", "object_storage_conn_id")
    ui_color = "#d7ecdf"

    def __init__(
        self,
        *,
        destination: str | ObjectStoragePath,
        object_storage_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.destination = destination
        self.object_storage_conn_id = object_storage_conn_id
        check_at_parse(self, self._location)

    def _location(self) -> Location:
        location = Location.parse_landed("destination", self.destination, conn_id=self.object_storage_conn_id)
        return require_supported("destination", location)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[Folder, str]]:
        """Yield the folder, and a text for logs that names its collection task.

        Errors in the block name the task, too. The task is unknown if nothing has landed in the folder.
        """
        from airflow_provider_webcollect.landing.storage.commit_log import CommitLog

        with airflow_errors():
            folder = self._location().open_landed(AirflowConnections())
            state = CommitLog(folder).read()
            task_id = state.source.collection_task_id if state else ""
            with errors_about(named_tasks([task_id]).get(task_id), task_id):
                yield folder, f"task {described(task_id)}"


class WebCollectVerifyLandingOperator(_LandingOperator):
    """Verifies all parts of a landing against its manifest: presence, bytes, SHA-256 and number of rows.

    Returns ``{"destination", "commit", "rows", "bytes", "parts", "new_parts", "run_id", "finished_at"}``: the
    number of the landing's last commit; the number of verified rows, bytes and parts; and for the last run
    with rows, the number of its parts, its id, and the time at which its last rows were committed.

    :param destination: the landing's folder or its ``_manifest.json``, as a URL or an ``ObjectStoragePath``;
        or an Iceberg table, ``catalog.namespace.table``. (templated)
    :param object_storage_conn_id: the Airflow connection of the storage, or of Iceberg's catalog; None for
        the storage's default credentials, or ``iceberg_default``. (templated)
    :raises AirflowFailException: if files differ from the manifest (the error lists the differences), and if
        a retry cannot help.
    :raises LandingError: for any other error, such as a manifest that does not exist yet, or a landing that
        was replaced during the verification; the task is retried.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Verify the landing and return a summary of it."""
        from airflow_provider_webcollect.landing.log.commits import counted
        from airflow_provider_webcollect.landing.reader import read_landing

        with self._opened() as (folder, source):
            landed = read_landing(folder)
            landed.verify()
        manifest = landed.manifest
        rows, parts = counted(manifest.rows, "row"), counted(manifest.part_count, "part")
        self.log.info("%s of %s is complete: %s in %s.", landed.uri, source, rows, parts)
        return storable(
            {
                "destination": landed.uri,
                "commit": manifest.commit,
                "rows": manifest.rows,
                "bytes": manifest.bytes,
                "parts": manifest.part_count,
                "new_parts": len(landed.parts(new_only=True)),
                "run_id": manifest.run.run_id,
                "finished_at": manifest.finished_at,
            }
        )


class WebCollectAcceptLandingOperator(_LandingOperator):
    """Accepts or discards quarantined rows: rows that have failed their checks.

    Accepted rows are committed to the landing, each once: a consumer finds them after the last commit that it
    has seen. If the landing would have begun again with the rows, they replace all others. Discarded rows are
    deleted, and the landing skips them. See :mod:`airflow_provider_webcollect.landing.write.review`.

    A retry does not decide twice: if an earlier attempt has committed its decision, the retry returns the
    result of that decision. A cleared task decides again.

    Returns ``{"destination", "run_id", "commit", "rows", "checks"}``: the id of the run that has read the
    rows, the number of the commit that has quarantined them, the number of rows, and the names of the failed
    checks.

    :param destination: the landing's folder or its ``_manifest.json``, as a URL or an ``ObjectStoragePath``;
        or an Iceberg table, ``catalog.namespace.table``. (templated)
    :param decision: ``accept`` (default) or ``discard``. With a template, a person can choose, see
        ``example_dags/webcollect_ask_about_rows.py``. (templated)
    :param run_id: the id of the run that has read the rows; None (default) for any run. (templated)
    :param commit: the number of the commit that has quarantined the rows, one of ``quarantined`` in the
        landing's result; None (default) if only one commit has quarantined rows. To discard rows, ``commit``
        or ``run_id`` must be given. (templated)
    :param object_storage_conn_id: the Airflow connection of the storage, or of Iceberg's catalog; None for
        the storage's default credentials, or ``iceberg_default``. (templated)
    :raises AirflowFailException: if there are no such quarantined rows; and if a retry cannot help.
    :raises LandingError: for any other error, such as other landings that keep committing at the destination;
        the task is retried.
    """

    template_fields: Sequence[str] = (*_LandingOperator.template_fields, "decision", "run_id", "commit")

    def __init__(
        self,
        *,
        decision: Choice = "accept",
        run_id: str | None = None,
        commit: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.decision = decision
        self.run_id = run_id
        self.commit = commit
        check_at_parse(self, self._check)

    def _check(self) -> int | None:
        """Check the arguments and return the number of the commit; None for any commit."""
        self._location()
        arguments.one_of("decision", self.decision, get_args(Choice))
        # templates render None as an empty string or as "None"
        is_any = str(self.commit) in ("", "None")
        if self.decision == "discard" and is_any and not self.run_id:
            raise InvalidArgument("commit", self.commit, "`commit` or `run_id` must be given to discard rows")
        return None if is_any else arguments.integer("commit", self.commit, 1)

    def execute(self, context: Context) -> dict[str, Any]:
        """Carry out the decision and return a summary of its rows."""
        from airflow_provider_webcollect.landing.write import review

        ti = context["ti"]
        mapped = "" if ti.map_index in (None, -1) else f"[{ti.map_index}]"
        # all retries decide as one; clearing the task increases `max_tries`, and so makes a new decider
        by = f"{ti.dag_id}.{ti.task_id}{mapped} {ti.run_id} of {ti.max_tries + 1} tries"
        with airflow_errors():
            commit = self._check()
        with self._opened() as (folder, source):
            decide = {"accept": review.accept, "discard": review.discard}[self.decision]
            rows = decide(folder, self.run_id or None, commit, by)
        self.log.info("%s: %s of %s", self.decision, rows, source)
        return storable(
            {
                "destination": str(self.destination),
                "run_id": rows.run.run_id,
                "commit": rows.commit,
                "rows": rows.rows,
                "checks": [outcome.check for outcome in rows.checks],
            }
        )


class WebCollectCleanLandingOperator(_LandingOperator):
    """Removes old files that no landing needs from a folder.

    Such files are parts, incomplete files, and files that interrupted runs have staged. The operator may run
    while a landing writes to the folder, see :func:`~airflow_provider_webcollect.landing.cleaning.clean`.
    Each of these files is logged.

    Returns ``{"files", "bytes", "dry_run"}``: the number and the total size of the files that were removed,
    or that would be removed.

    :param destination: the landing's folder or its ``_manifest.json``, as a URL or an ``ObjectStoragePath``;
        or an Iceberg table, ``catalog.namespace.table``. (templated)
    :param older_than: minimum age of the files, in seconds or as a ``timedelta``; one day by default.
    :param dry_run: only log what would be removed; False by default.
    :param object_storage_conn_id: the Airflow connection of the storage, or of Iceberg's catalog; None for
        the storage's default credentials, or ``iceberg_default``. (templated)
    :raises AirflowFailException: if a retry cannot help.
    :raises LandingError: for any other error, such as parts in a folder where nothing has landed; the task is
        retried.
    """

    def __init__(
        self,
        *,
        older_than: float | datetime.timedelta = 24 * 60 * 60,
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.older_than = older_than
        # BaseOperator has a method `dry_run`
        self.only_report = dry_run
        check_at_parse(self, self._check, ("older_than", "only_report"))

    def _check(self) -> None:
        arguments.seconds("older_than", self.older_than, may_be_zero=True, may_be_timedelta=True)
        arguments.boolean("dry_run", self.only_report)

    def execute(self, context: Context) -> dict[str, Any]:
        """Remove the files and return their number and size."""
        from airflow_provider_webcollect.landing.cleaning import clean

        with self._opened() as (folder, _):
            removed = clean(folder, older_than=self.older_than, dry_run=self.only_report)
        return {
            "files": len(removed),
            "bytes": sum(file.bytes for file in removed),
            "dry_run": self.only_report,
        }
