"""The fold of a log: contradictions, and what it remembers of many runs.

That any log folds to what its commits say is shown by the histories (``test_histories.py``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from airflow_provider_webcollect.landing.errors import DestinationUnreadable
from airflow_provider_webcollect.landing.log.commits import (
    MOST_RECORDS,
    Commit,
    Manifest,
    Source,
    decode,
    encode,
)
from airflow_provider_webcollect.landing.log.fold import Contradiction, fold
from tests.landing.logs import Begin, commit_after, decision


@dataclasses.dataclass
class Log:
    """Commits, and the state to which they lead; each part has one row."""

    commits: list[Commit] = dataclasses.field(default_factory=list)
    state: Manifest | None = None

    def land(self, rows: int, waiting: int = 0, begin: Begin = "end", run: str = "r1") -> None:
        self.add(commit_after(self.state, rows, waiting, begin=begin, run=run))

    def add(self, commit: Commit) -> None:
        self.state = fold(self.state, [commit])
        self.commits.append(commit)


def changed(commit: Commit, **fields: Any) -> Commit:
    return msgspec.structs.replace(commit, **fields)


Make = Callable[[Manifest, list[Commit]], Commit]


def wrong(rows: int = 1, begin: Begin = "end", **fields: Any) -> Make:
    """Return a function that makes the next commit, with some fields changed."""
    return lambda state, log: changed(commit_after(state, rows, begin=begin), **fields)


def wrong_decision(on: int, **fields: Any) -> Make:
    """Return a function that makes the commit that accepts rows, with some fields changed.

    :param on: number of the commit whose rows are accepted.
    """
    return lambda state, log: changed(decision(state, log[on - 1], accepts=True), **fields)


#: Commits that contradict the usual log: 2 rows landed, 1 quarantined, 1 landed, and 1 quarantined that would
#: replace all of them.
WRONG: dict[str, tuple[Make, str]] = {
    "the same number again": (lambda state, log: log[-1], "its number is 4, not 5"),
    "another source": (wrong(source=Source(collection_task_id="other")), "it is of task other, and"),
    "another batch": (
        wrong(source=Source(collection_task_id="t", lotno="1")),
        "it is of task t, batch 1, and the landing is of task t",
    ),
    "too few rows": (wrong(1, total=6), "it makes 5 rows of the source, and its `total` is 6"),
    "too many rows": (wrong(1, total=4), "it makes 5 rows of the source, and its `total` is 4"),
    "a part that has landed": (
        lambda state, log: changed(commit_after(state, 2), parts=log[0].parts[:1] + log[2].parts),
        "has landed twice|are from before the source was reset",
    ),
    "a part twice in it": (
        lambda state, log: changed(commit_after(state, 2), parts=commit_after(state, 1).parts * 2),
        "has landed twice",
    ),
    "earlier rows of no reset": (wrong(total=3, earlier_rows=2), "0 rows are from before .* is 2"),
    "a reset that forgets earlier rows": (
        wrong(begin="reset", total=5, earlier_rows=0),
        "3 rows are from before the source was reset, and its `earlier_rows` is 0",
    ),
    "a decision on what has landed": (
        wrong_decision(1),
        "it decides on commit 1, which has no quarantined rows",
    ),
    "a decision on what is to come": (wrong_decision(2, about=7), "commit 7, which has no quarantined rows"),
    "accepting fewer rows": (
        lambda state, log: changed(
            decision(state, commit_after(state, 0, 2), accepts=True), about=log[1].number
        ),
        "it has 2 rows, and 1 are quarantined",
    ),
    "adding in the place of all": (wrong_decision(2, replaces=True), "its `replaces` is True, not False"),
    "adding what would replace all": (wrong_decision(4, replaces=False), "its `replaces` is False, not True"),
}


def usual_log() -> Log:
    log = Log()
    log.land(2)
    log.land(0, 1)
    log.land(1)
    log.land(0, 1, "replace")
    return log


@pytest.mark.parametrize("case", WRONG)
def test_a_contradiction_is_refused(case: str) -> None:
    log = usual_log()
    make, said = WRONG[case]
    assert log.state is not None
    with pytest.raises(Contradiction, match=said) as refusal:
        fold(log.state, [make(log.state, log.commits)])
    assert refusal.value.number == 5


@pytest.mark.parametrize("needing", [{"kind": "exported"}, {"kind": "decided", "about": 1}])
def test_a_log_does_not_begin_with_a_decision_or_export(needing: dict[str, Any]) -> None:
    with pytest.raises(Contradiction, match="nothing was landed before it"):
        fold(None, [changed(commit_after(None, 1), **needing)])


@pytest.mark.parametrize(
    "name",
    [
        *("../part-00001-0123abcd.jsonl", "/part-00001-0123abcd.jsonl", "a/part-00001-0123abcd.jsonl"),
        *("dt=1/../part-00001-0123abcd.jsonl", "_manifest.json", "_commits/00000001.json", ""),
        *(
            "part-00001-0123abcd.jsonl/",
            "s3://other/part-00001-0123abcd.jsonl",
            "C:\\\\part-00001-0123abcd.jsonl",
        ),
        *("_quarantine/../../part-00001-0123abcd.jsonl", "part-00001-0123abcd.jsonl\n"),
    ],
)
@pytest.mark.parametrize("kind", [Commit, Manifest])
def test_a_name_that_may_lead_out_of_the_folder_is_refused(name: str, kind: type[Commit | Manifest]) -> None:
    log = usual_log()
    assert log.state is not None
    written = log.commits[0] if kind is Commit else log.state
    content = encode(written).replace(
        msgspec.json.encode(written.parts[0].name), msgspec.json.encode(name), 1
    )
    with pytest.raises(DestinationUnreadable, match="is not the name of a part"):
        decode(content, "there", kind)


def test_the_last_runs_and_decisions_are_known() -> None:
    log = Log()
    for number in range(MOST_RECORDS + 5):
        log.land(1, 1, run=f"run {number}")
        assert log.state is not None
        log.add(decision(log.state, log.commits[-1], accepts=False, by=f"{number}"))
    assert log.state is not None
    last = range(5, MOST_RECORDS + 5)
    assert [record.run.run_id for record in log.state.history] == [f"run {number}" for number in last]
    decisions = log.state.decisions
    assert [decided.by for decided in decisions] == [*map(str, last)]
    log.land(1, begin="replace")
    assert log.state.decisions == decisions
