"""The errors of a landing, besides the service's own errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class LandingError(Exception):
    """Base of the errors of landing. What is already committed at the destination stays unchanged.

    :param permanent: whether a retry cannot help until a person fixes the cause; None for what is usual.
    """

    permanent = False

    def __init__(self, message: str, *, permanent: bool | None = None) -> None:
        super().__init__(message)
        if permanent is not None:
            self.permanent = permanent


class DestinationTaken(LandingError):
    """The destination holds something that this landing must not change."""

    permanent = True


class LogContended(LandingError):
    """Other landings have committed again and again meanwhile; a later attempt may succeed."""


class FormatChanged(LandingError):
    """The data at the destination has other format options, so this landing cannot continue it."""

    permanent = True


class NoColumns(LandingError):
    """There are no rows yet that would give the table columns; nothing was committed."""


class SourceReset(LandingError):
    """The source no longer begins with the rows landed from it; nothing was changed."""

    permanent = True


class RowsMissing(LandingError):
    """The rows read differ from those that the service announced, or the source has changed since."""


class ChecksFailed(LandingError):
    """Rows are not what the checks ask for: they wait for a decision, or there were none to commit.

    :param outcomes: the :class:`~.landing.checks.CheckOutcome` of each check that failed.
    """

    permanent = True

    def __init__(self, message: str, outcomes: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.outcomes = tuple(outcomes)


class PartsMissing(LandingError):
    """Parts of the landing are missing or changed; nothing was committed."""


class DestinationUnreadable(LandingError):
    """The landing's files cannot be read: torn, missing, of a newer version, or contradictory."""

    permanent = True


class NothingLanded(LandingError):
    """There is no commit at the path to read: nothing has landed there, or not yet."""


class NothingToReview(LandingError):
    """No such rows wait for a decision, or it is not clear which are meant; nothing was changed."""

    permanent = True


class LandingReplaced(LandingError):
    """Parts were deleted while the landing was read, since it has begun again; read it again."""


class RowsRewritten(LandingError):
    """Others have rewritten files of a table: which rows are of which run, and their order, is not known."""

    permanent = True


class LandingDamaged(LandingError):
    """Files of a landing differ from its manifest.

    :param where: the manifest.
    :param problems: the differences, a sentence each.
    """

    permanent = True
    _SHOWN = 20

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        more = len(problems) - self._SHOWN
        named = [*problems[: self._SHOWN], *([f"and {more} more"] if more > 0 else [])]
        super().__init__(f"the landing is not what {where} says: {'; '.join(named)}")
        self.where = where
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.problems)


class ExtraMissing(LandingError):
    """A format or compression needs a package that is not installed."""

    permanent = True


class CastFailed(LandingError):
    """A value cannot be read as its column's type; the part was not written."""

    permanent = True


class UnreadableRow(LandingError):
    """A row is not a JSON object, or holds what no file can store; the part was not written.

    Readers raise it too, for a row of a part with content that Python cannot read.
    """

    permanent = True


class LoadRefused(LandingError):
    """The rows of a landing cannot be loaded as they are; nothing was loaded.

    Some have nothing in a column of the key, two columns would get the same name or one none, the table has
    another column of such a name, its types would change values or do not take them, or they are of several
    runs and no snapshot as ``scd2`` needs.
    """

    permanent = True


class LoadFailed(LandingError):
    """A warehouse, or dlt, has failed to load rows; a retry loads them again, each once.

    It is permanent if the warehouse refuses the connection's password, or what its role may not do.
    """


class StorageError(LandingError):
    """The storage cannot be read or written; the message names the file and what to do.

    It is permanent if there is no bucket, no credentials or no access, or a name is too long.
    """


class SomeFailed(LandingError):
    """Some of several landings or loads have failed; the others are complete, and a retry keeps them.

    It is permanent if all its errors are permanent.

    :param errors: the errors by the name of the landing.
    :param of: the number of all.
    :param what: what has happened to the failed ones.
    """

    def __init__(self, errors: Mapping[str, Exception], of: int, what: str = "sources did not land") -> None:
        reasons = "; ".join(f"{name}: {error}" for name, error in errors.items())
        super().__init__(f"{len(errors)} of {of} {what}. {reasons}")
        self.errors = dict(errors)
        self.permanent = all(getattr(error, "permanent", False) for error in errors.values())
