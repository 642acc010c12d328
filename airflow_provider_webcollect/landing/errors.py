"""The errors of a landing, besides the service's own errors.

``make docs`` writes the table in ``docs/reference/errors.md`` from the classes: the first paragraph of a
docstring says what has happened, the second what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class LandingError(Exception):
    """Base of the errors of landing. What is already committed at the destination stays unchanged.

    :param permanent: whether a retry cannot help until a person fixes the cause; None for the default of the
        class.
    """

    permanent = False

    def __init__(self, message: str, *, permanent: bool | None = None) -> None:
        super().__init__(message)
        if permanent is not None:
            self.permanent = permanent


class DestinationTaken(LandingError):
    """The destination has rows of another source, host or run, another ``table_format``, or files that no
    landing wrote; or it is in a partition of another landing.

    Use another destination, ``mode="incremental"``, or ``if_exists``.
    """

    permanent = True


class LogContended(LandingError):
    """Other landings kept committing to the same destination meanwhile.

    Run one landing at a time: in a DAG, set ``max_active_runs=1``.
    """


class FormatChanged(LandingError):
    """The landing has other format options; the rows have other partition columns or types than the table, or
    names that differ in letter case alone; or the table has rules that nothing would check, such as ``NOT
    NULL``.

    Use the old options, another destination, or ``columns`` that begin with the landed columns.

    :param options: the options that differ; the message names them in backticks.
    """

    permanent = True

    def __init__(self, message: str, *, options: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.options = options


class NoColumns(LandingError):
    """Neither rows nor ``columns`` name the columns of a table.

    Set ``columns``, or wait for rows.
    """


class SourceReset(LandingError):
    """The source no longer begins with the rows that have landed.

    Set ``on_reset``, or for ``mode="full"`` ``if_exists="overwrite"`` once the source has rows.
    """

    permanent = True


class RowsMissing(LandingError):
    """More or fewer rows came than the service announced, or they changed meanwhile.

    A retry reads all rows again. If this persists, ask the service's support.
    """


class ChecksFailed(LandingError):
    """Rows failed their checks and are quarantined, or there were no rows to commit.

    Look at the rows, and accept or discard them.

    :param outcomes: the :class:`~.landing.checks.CheckOutcome` of each check that failed.
    """

    permanent = True

    def __init__(self, message: str, outcomes: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.outcomes = tuple(outcomes)


class PartsMissing(LandingError):
    """A part to commit, to accept or to add to a table is missing or changed.

    Put the part back, discard the quarantined rows, or land all rows again.
    """


class DestinationUnreadable(LandingError):
    """A commit is torn, missing, or contradicts earlier commits; or a newer version has written a file.

    Put the file back. A torn last commit can be deleted: its rows land again. Otherwise use another
    destination.
    """

    permanent = True


class NothingLanded(LandingError):
    """Nothing has landed at the path.

    Check the path, or land there first.
    """


class NothingToReview(LandingError):
    """The commit has no quarantined rows, or several commits have some and none is named.

    Name a commit that the message lists.
    """

    permanent = True


class LandingReplaced(LandingError):
    """Parts were deleted while the landing was read, since it has begun again.

    Call ``read_landing`` again.
    """


class RowsRewritten(LandingError):
    """Others have rewritten files of the table, so the rows of a run are not known.

    Read all rows of the table.
    """

    permanent = True


class LandingDamaged(LandingError):
    """Parts are missing, or differ from the manifest.

    Restore them, or use another destination.

    :param where: the manifest.
    :param problems: the differences, each as a text that names the part.
    """

    permanent = True
    _SHOWN = 20

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        more = len(problems) - self._SHOWN
        named = [*problems[: self._SHOWN], *([f"and {more} more"] if more > 0 else [])]
        super().__init__(f"the landing differs from {where}: {'; '.join(named)}")
        self.where = where
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.problems)


class ExtraMissing(LandingError):
    """A package that is needed is not installed.

    Install the extra that the message names.
    """

    permanent = True


class CastFailed(LandingError):
    """A value cannot be read as its column's type.

    Set ``max_wrong``, other ``column_types``, or ``on_cast_error="null"``. Once rows are committed, the types
    can only change in another destination.
    """

    permanent = True


class UnreadableRow(LandingError):
    """A row is no JSON object, is nested too deeply, or the format cannot hold it.

    Set ``max_wrong``, ``file_format="jsonl"``, or ``columns`` if no row of the first page has a field.
    """

    permanent = True


class LoadRefused(LandingError):
    """Rows lack a value in a column of the key, or do not fit the table; nothing was loaded.

    The message says what to change.
    """

    permanent = True


class LoadFailed(LandingError):
    """The warehouse, or dlt, has failed. It is permanent if the warehouse refuses the password, or the role
    lacks a privilege.

    The message has the reason. The next load replaces the rows of this one.
    """


class StorageError(LandingError):
    """The storage cannot be read or written, or its credentials have expired. It is permanent if bucket,
    credentials or access are missing, or a name is too long.

    The message says what to do. A retry gets new credentials.
    """


class SomeFailed(LandingError):
    """Some of several landings or loads have failed; the others are complete. It is permanent if all its
    errors are permanent.

    A retry repeats these alone.

    :param errors: the errors by the name of the landing or load.
    :param of: the total number of landings or loads.
    :param what: the words of the message that follow the numbers, such as ``loads have failed``.
    """

    def __init__(self, errors: Mapping[str, Exception], of: int, what: str = "sources did not land") -> None:
        reasons = "; ".join(f"{name}: {error}" for name, error in errors.items())
        super().__init__(f"{len(errors)} of {of} {what}. {reasons}")
        self.errors = dict(errors)
        self.permanent = all(getattr(error, "permanent", False) for error in errors.values())
