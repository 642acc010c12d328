"""Decisions on quarantined rows: a person accepts or discards them, by one commit.

A decision names its decider. If the response to a decision is lost, the same decider can repeat the call: it
then finds the first decision, and does not decide on other rows.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from airflow_provider_webcollect.landing.checks import Checks, RowChecks
from airflow_provider_webcollect.landing.errors import (
    FormatChanged,
    NothingToReview,
    PartsMissing,
    UnreadableRow,
)
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.formats.profile import Profiler
from airflow_provider_webcollect.landing.formats.writing import SINGLE_ROWS_SUFFIX, SingleRow, as_lines
from airflow_provider_webcollect.landing.location import landing_at
from airflow_provider_webcollect.landing.log.commits import counted
from airflow_provider_webcollect.landing.log.fold import following, quarantined_by
from airflow_provider_webcollect.landing.log.names import copy_name, data_name
from airflow_provider_webcollect.landing.rules import ValueRules
from airflow_provider_webcollect.landing.storage.commit_log import (
    TRIES,
    CommitLog,
    Conflict,
    contended,
    suppress_conflict,
)
from airflow_provider_webcollect.service.errors import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec

    from airflow_provider_webcollect.landing.formats import FileFormat
    from airflow_provider_webcollect.landing.formats.writing import Columns
    from airflow_provider_webcollect.landing.log.commits import Commit, Landing, Manifest, Part, SetApart
    from airflow_provider_webcollect.landing.storage.folder import Folder

log = logging.getLogger(__name__)
Choice = Literal["accept", "discard"]


def in_review(landing: Any) -> tuple[SetApart, ...]:
    """Return the quarantined rows of a landing, one entry for each commit that has quarantined rows.

    :param landing: the folder or the manifest of the landing, in any form that
        :func:`~airflow_provider_webcollect.landing.reader.read_landing` accepts.
    :raises DestinationUnreadable: if a commit cannot be read.
    """
    state = CommitLog(landing_at(landing)).read()
    return state.quarantined if state else ()


def waiting(landing: Any, commit: int | None = None) -> SetApart:
    """Return the rows that a commit has quarantined, if nobody has decided on them yet.

    :param landing: the folder or the manifest of the landing, see :func:`in_review`.
    :param commit: the number of the commit; None for the only commit with quarantined rows.
    :raises NothingToReview: if the commit has no quarantined rows, or no number is given and several commits
        have some. The message says who has decided, if that is known.
    :raises DestinationUnreadable: if a commit cannot be read.
    """
    folder = landing_at(landing)
    return _chosen(folder, CommitLog(folder).read(), None, commit)


def accept(landing: Any, run_id: str | None = None, commit: int | None = None, by: str = "") -> SetApart:
    """Land quarantined rows as they are, each once, after all landed rows.

    Single rows that the landing cannot hold, since they do not fit its format or the types of its columns,
    stay quarantined, from then on under the number of the decision's commit.

    If the rows were to replace the landing when they were read, they replace all landed rows. The export is
    not marked; the next run with ``mark_exported`` marks it.

    :param landing: the folder or the manifest of the landing, see :func:`in_review`.
    :param run_id: the id of the DAG run that has read the rows; None for any run.
    :param commit: the number of the commit that has quarantined the rows; None for the only one of the run.
    :param by: the decider. A second call by the same decider with the same ``run_id`` and ``commit``, as far
        as they are given, changes nothing, and returns the result of the first call. If empty, each call
        decides.
    :return: the accepted rows.
    :raises NothingToReview: if no such rows are quarantined, or several commits have quarantined such rows.
    :raises PartsMissing: if a file of these rows is missing or damaged; nothing is committed then.
    :raises FormatChanged: if the landing has begun again since, in another format or with other columns.
    :raises UnreadableRow: if the landing can hold none of the rows; nothing is committed then.
    :raises LogContended: if other landings keep committing meanwhile.
    """
    return _decide(landing_at(landing), "accept", run_id, commit, by)


def discard(landing: Any, run_id: str | None = None, commit: int | None = None, by: str = "") -> SetApart:
    """Delete quarantined rows; the landing skips them, and counts them as discarded.

    If the rows were to replace the landing when they were read, the next run reads the source again.

    :param landing: the folder or the manifest of the landing, see :func:`in_review`.
    :param run_id: the id of the DAG run that has read the rows; None for any run.
    :param commit: the number of the commit that has quarantined the rows; None for the only one of the run.
    :param by: the decider, see :func:`accept`; if empty, each call decides.
    :return: the discarded rows.
    :raises NothingToReview: if no such rows are quarantined, or several commits have quarantined such rows.
    :raises LogContended: if other landings keep committing meanwhile.
    """
    return _decide(landing_at(landing), "discard", run_id, commit, by)


def _decide(folder: Folder, choice: Choice, run_id: str | None, number: int | None, by: str) -> SetApart:
    commits = CommitLog(folder)
    for _ in range(TRIES):
        with suppress_conflict(folder):
            state = commits.read()
            if by and state and (earlier := commits.decision_by(state, by, run_id, number)):
                commits.publish(state)
                return _decided_before(commits, earlier, choice)
            try:
                apart = _chosen(folder, state, run_id, number)
            except NothingToReview:
                if state is not None:
                    # an earlier decision may have failed after its commit
                    commits.publish(state)
                raise
            assert state is not None
            # by the next try, other rows may be quarantined too
            number = apart.commit
            (read,) = commits.commits([number])
            try:
                made = _accepted(folder, state, read) if choice == "accept" else {}
            except PartsMissing:
                # another decider may have discarded the rows meanwhile, and deleted their files
                if number in {left.commit for left in in_review(folder)}:
                    raise
                raise Conflict from None
            decision = following(state, "decided", read.run, about=number, by=by, **made)
            commits.publish(commits.append(state, decision))
            if choice == "discard":
                with contextlib.suppress(Exception):
                    # `clean` removes files that are left
                    folder.delete(part.name for part in read.quarantined)
            return replace(apart, rows=decision.rows or apart.rows)
    raise contended(folder)


def _chosen(folder: Folder, state: Manifest | None, run_id: str | None, number: int | None) -> SetApart:
    """Return the named rows, or the only quarantined ones.

    :raises NothingToReview: if there are none, or several.
    """
    quarantined = state.quarantined if state else ()
    chosen = [
        apart
        for apart in quarantined
        if run_id in (None, apart.run.run_id) and number in (None, apart.commit)
    ]
    if len(chosen) == 1:
        return chosen[0]
    listed = ", ".join(map(str, quarantined))
    if chosen:
        raise NothingToReview(f"several commits have quarantined rows at {folder.url}; name one: {listed}")
    for decision in reversed(state.decisions if state else ()):
        if decision.about == number:
            verb = "accepted" if decision.is_accepted else "discarded"
            who = f" by {escaped(decision.by)}" if decision.by else ""
            raise NothingToReview(f"the rows of commit {number} at {folder.url} were {verb} already{who}")
    named = [f"commit {number}"] * (number is not None) + [f"run {run_id}"] * (run_id is not None)
    which = f" of {' and '.join(named)}" if named else ""
    others = f"; quarantined: {listed}" if listed else ""
    raise NothingToReview(f"no quarantined rows{which} at {folder.url}{others}")


def _decided_before(commits: CommitLog, earlier: Commit, choice: Choice) -> SetApart:
    """Return the rows of an earlier decision by the same decider.

    :raises NothingToReview: if the earlier decision was the opposite.
    """
    assert earlier.about is not None
    (read,) = commits.commits([earlier.about])
    if (choice == "accept") != bool(earlier.parts):
        verb = "accepted" if earlier.parts else "discarded"
        raise NothingToReview(f"{escaped(earlier.by)} has {verb} the rows of commit {read.number} already")
    return replace(quarantined_by(read), rows=earlier.rows or read.quarantined_rows)


def _accepted(folder: Folder, state: Manifest, read: Commit) -> dict[str, Any]:
    """Write quarantined rows as rows of the landing, and return the fields of the commit that accepts them.

    :param state: the state of the landing.
    :param read: the commit that has quarantined the rows.
    :raises PartsMissing: if a file is missing or damaged; nothing is committed then.
    :raises FormatChanged: if the landing has begun again since, in another format or with other columns.
    :raises UnreadableRow: if the landing can hold none of the rows, because of its types or its format.
    """
    landing: Landing = read if read.waits_to_replace else state
    written: dict[str, Any] = {"file_format": landing.format, "compression": landing.compression or "none"}
    file_format = make_format(**written, **landing.encoding)
    columns = file_format.columns_after(landing.columns or ())
    whole = [part for part in read.quarantined if not part.broke]
    if not all(_is_alike(part, read, landing) for part in whole):
        raise FormatChanged(
            f"the landing at {folder.url} has begun again since commit {read.number}, in another format "
            "or with other columns, so the rows of that commit cannot be added; read them with "
            f"quarantined={read.number}, or discard them"
        )
    sorted_rows = _sorted_rows(folder, read, file_format)
    parts, left = [], []
    for part in read.quarantined:
        if not part.broke:
            parts.append(folder.copied(part, data_name(part.name)))
            continue
        good, wrong = sorted_rows[part.name]
        if good:
            parts.append(_written(folder, part, good, file_format, columns))
        if wrong:
            with folder.part(copy_name(part.name)) as file:
                file.write(as_lines(wrong))
            broke = Counter(rule for row in wrong for rule in row.broke)
            left.append(file.part(len(wrong), broke=dict(broke), **part.place))
    if left:
        rows = counted(sum(part.rows for part in left), "row")
        log.warning("%s of commit %d cannot land: still quarantined.", rows, read.number)
    return {
        **landing.place,
        "columns": columns.names if columns.fixed or landing.format != "jsonl" else None,
        "parts": tuple(parts),
        "quarantined": tuple(left),
        "checks": read.checks,
        "replaces": read.waits_to_replace,
    }


def _written(
    folder: Folder, part: Part, rows: Sequence[msgspec.Raw], file_format: FileFormat, columns: Columns
) -> Part:
    """Write single rows of a quarantined part as a part of the landing, and return it."""
    profiler, name = Profiler(), data_name(part.name.removesuffix(SINGLE_ROWS_SUFFIX) + file_format.suffix)
    with folder.part(name) as file, file_format.writer(file, columns, profiler) as writer:
        writer.write(rows)
    return file.part(
        len(rows),
        columns=None if columns.fixed else len(writer.columns) or None,
        profile=profiler.profile(len(rows), writer.misfits),
        **part.place,
    )


def _sorted_rows(
    folder: Folder, read: Commit, file_format: FileFormat
) -> dict[str, tuple[Sequence[msgspec.Raw], Sequence[SingleRow]]]:
    """Sort the single rows of each file into rows that the format and its types can hold, and the others.

    :return: both, by the name of the file.
    :raises UnreadableRow: if all quarantined rows are single rows, and the format can hold none of them.
    """
    sorted_rows: dict[str, tuple[Sequence[msgspec.Raw], Sequence[SingleRow]]] = {}
    left: list[SingleRow] = []
    for part in read.quarantined:
        if part.broke:
            singles = list(folder.single_rows(part))
            reasons = {id(single.row): single.broke for single in singles}
            rules = ValueRules(Checks(rows=RowChecks(max_wrong=1.0)), file_format)
            good, wrong = rules.split([single.row for single in singles])
            wrong = [SingleRow(list(dict.fromkeys((*reasons[id(row)], *broke))), row) for broke, row in wrong]
            sorted_rows[part.name] = good, wrong
            left += wrong
    if len(left) == read.quarantined_rows:
        raise UnreadableRow(
            f"{counted(len(left), 'row')} of commit {read.number} at {folder.url} cannot land: the "
            f"first has broken {', '.join(left[0].broke)}. Nothing was changed; discard them"
        )
    return sorted_rows


def _is_alike(part: Part, read: Commit, landing: Landing) -> bool:
    """Return whether a quarantined part can become a part of the landing unchanged."""
    # later runs may add columns, and change types, which only the files of Parquet depend on
    columns = (read.columns or ())[: part.columns]

    def written(each: Landing) -> tuple[Any, ...]:
        types = each.encoding.get("column_types") or {} if each.has_typed_files else {}
        own = {name: types.get(name) for name in columns}
        others = {**each.encoding, "columns": None, "column_types": own, "on_cast_error": None}
        return each.format, each.compression, others, (each.columns or ())[: part.columns]

    return written(read) == written(landing)
