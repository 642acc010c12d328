"""What an attempt has written and not committed yet: for a retry, or for a person's decision."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_webcollect.landing.commits import encode
from airflow_provider_webcollect.landing.errors import RowsMissing
from airflow_provider_webcollect.landing.names import staged_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from airflow_provider_webcollect.landing.checks import CheckOutcome
    from airflow_provider_webcollect.landing.commits import Staged
    from airflow_provider_webcollect.landing.job import Job

#: Seconds between two writes: stores such as Google Cloud Storage take one write per second of an object.
INTERVAL = 1.0


class Staging:
    """Keeps what an attempt has written.

    After an error in the block, its file has all finished parts; after :class:`RowsMissing`, it is deleted.

    :param job: the landing.
    :param start: with what it begins.
    :param earlier: the files of earlier attempts of the run.
    :ivar staged: what is written.
    """

    def __init__(self, job: Job, start: Staged, earlier: Iterable[str]) -> None:
        self.staged = start
        self._job = job
        self._name = staged_name(job.run.digest(), start.attempt_id)
        self._earlier = list(earlier)
        self._is_there = False
        self._is_saved = True
        self._written = time.monotonic()

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(Exception):
            if isinstance(error, RowsMissing):
                # the source has changed since, or its counts are wrong: these rows may not go together
                self.end()
            # after an interruption, such as a timeout, no storage is waited for
            elif isinstance(error, Exception) and not self._is_saved:
                self.write()

    def save(self, staged: Staged) -> None:
        """Write it to the file, unless that was written just now: then the next write has it.

        :raises Stopped: if the landing is to end.
        """
        self._job.stop.check()
        self.staged, self._is_saved = staged, False
        if time.monotonic() - self._written >= INTERVAL:
            self.write()

    def write(self) -> None:
        """Write it to the file."""
        self._job.folder.write(self._name, encode(self.staged))
        self._is_there, self._is_saved, self._written = True, True, time.monotonic()

    def refuse(self, outcomes: tuple[CheckOutcome, ...]) -> None:
        """Write that the rows have failed their checks: a person decides what becomes of them."""
        self.staged = msgspec.structs.replace(self.staged, refused=outcomes)
        self.write()

    def end(self) -> None:
        """Delete the files of the run's attempts: what they have written is committed, or read again."""
        self._is_saved = True
        self._job.folder.delete([*self._earlier, *([self._name] if self._is_there else [])])
