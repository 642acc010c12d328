"""What can go wrong with a landing, beside the service's own errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class LandingError(Exception):
    """Base of the errors of landing. What is committed at the destination stays as it is.

    :cvar permanent: a retry cannot help until a person acts.
    """

    permanent = False


class DestinationTaken(LandingError):
    """The destination holds something that this landing must not touch."""

    permanent = True


class DestinationBusy(DestinationTaken):
    """Another landing is writing to the destination now; a later try may find it free."""

    permanent = False


class LeaseLost(DestinationBusy):
    """Another landing has taken the destination over from this one, which has changed nothing since."""


class FormatChanged(LandingError):
    """What lies at the destination was written with other format options, so this landing cannot go on."""

    permanent = True


class SourceReset(LandingError):
    """The source no longer begins with the rows that were landed of it; nothing was changed."""

    permanent = True


class RowsMissing(LandingError):
    """The rows read are not the rows that the service announced; nothing was committed."""


class PartsMissing(LandingError):
    """Parts of the landing are not there any more; nothing was committed."""


class DestinationUnreadable(LandingError):
    """A manifest or progress file at the destination cannot be read, or is of a newer version."""

    permanent = True


class NothingLanded(LandingError):
    """There is no manifest at the place that is to be read: nothing has landed there, or not yet."""


class LandingReplaced(LandingError):
    """The landing that is being read was replaced meanwhile; reading the manifest again gives the new one."""


class LandingDamaged(LandingError):
    """Files of a landing are not what its manifest says.

    :param where: the manifest.
    :param problems: what is wrong, a sentence each.
    """

    permanent = True
    _SHOWN = 20

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        more = len(problems) - self._SHOWN
        shown = [*problems[: self._SHOWN], *([f"and {more} more"] if more > 0 else [])]
        super().__init__(f"the landing is not what {where} says: {'; '.join(shown)}")
        self.where = where
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.problems)


class StorageError(LandingError):
    """The storage cannot be read or written; the message names the file and what to do.

    :param permanent: only a person can help: no bucket, no credentials, no access.
    """

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class SomeFailed(LandingError):
    """Some of several landings have failed; the others are committed, and a retry does not change them.

    It is permanent if all of its errors are.

    :param errors: by what did not land.
    :param of: how many were to land.
    """

    def __init__(self, errors: Mapping[str, Exception], of: int) -> None:
        said = "; ".join(f"{name}: {error}" for name, error in errors.items())
        super().__init__(f"{len(errors)} of {of} sources did not land. {said}")
        self.errors = dict(errors)
        self.permanent = all(getattr(error, "permanent", False) for error in errors.values())
