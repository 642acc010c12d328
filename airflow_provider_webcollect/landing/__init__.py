"""Landings: a source's rows in a folder, exactly once (docs/explanation/landing-protocol.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.job import Landed, Observer
    from airflow_provider_webcollect.landing.manifest import Run, Source
    from airflow_provider_webcollect.landing.options import Options
    from airflow_provider_webcollect.landing.storage.folder import Folder
    from airflow_provider_webcollect.service.client import Client


def land(
    client: Client,
    source: Source,
    destination: Folder,
    run: Run,
    options: Options,
    *,
    attempt: int = 1,
    observer: Observer | None = None,
    finish: bool = True,
) -> Landed:
    """Move the rows of the source to the folder, and return the manifest that commits them.

    A commit of the same run stays unchanged; an unfinished landing of the same source is resumed. If there is
    nothing new, nothing is written (contract.md, endpoints 17, 18 and 19).

    :param client: of the service; once its ``stop`` is set, nothing is committed any more.
    :param source: the host of the client is added to it.
    :param destination: the folder of this landing alone.
    :param run: what it is for; its rows count once, in whichever of its attempts.
    :param options: see :func:`~airflow_provider_webcollect.landing.options.make_options`.
    :param attempt: Airflow's try number; of the attempts of one run, the highest may take the folder over.
    :param observer: hears of the landing while it is at work.
    :param finish: whether the result counts as reported when this returns; else the caller adds it to an
        :class:`~airflow_provider_webcollect.landing.run.Unreported`. A run that never does so leaves its
        parts to the next run, which reports them with its own.
    :return: ``manifest``; ``new``, the parts whose rows this run reports; ``committed``, those with the rows
        that this call has committed; ``own``, False if another run's landing was left as it is.
    :raises DestinationTaken: if the folder holds another source, foreign files, or another run's commit that
        may not be replaced.
    :raises DestinationBusy: if another landing is writing there, or has taken over the folder.
    :raises FormatChanged: if the data to continue has other format options.
    :raises SourceReset: if the source no longer begins with the data to continue.
    :raises RowsMissing: if the service returned fewer or more rows than it announced.
    :raises PartsMissing: if parts of another run are missing.
    :raises DestinationUnreadable: if the manifest is torn, or of a newer version.
    :raises CastFailed: if a value does not fit its column's type.
    :raises UnreadableRow: if a row is no JSON object.
    :raises ExtraMissing: if the format needs a package that is not installed.
    :raises StorageError: if the storage cannot be read or written.
    :raises Stopped: once the client's ``stop`` is set; what was committed just before, the next run reports.
    :raises WebCollectError: if the service refuses a request, or cannot be reached.
    """
    import functools

    import msgspec

    from airflow_provider_webcollect.landing import run as engine
    from airflow_provider_webcollect.landing.job import Job, Observer
    from airflow_provider_webcollect.service.endpoints import mark_exported
    from airflow_provider_webcollect.service.pages import PageReader

    observer = observer or Observer()
    job = Job(
        source=msgspec.structs.replace(source, host=client.context.settings.host),
        folder=destination,
        run=run,
        attempt=attempt,
        options=options,
        pages=PageReader(
            client,
            source.collection_task_id,
            source.lotno,
            size=options.page_size,
            sent=observer.on_request,
        ),
        mark=functools.partial(client.send, mark_exported(source.collection_task_id)),
        observer=observer,
        stop=client.stop,
    )
    return engine.land(job, finish=finish)
