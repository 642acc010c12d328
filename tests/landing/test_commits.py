"""The fold of a log: any order of commits that a log can have, in pieces and whole; contradictions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_webcollect.landing.errors import DestinationUnreadable
from airflow_provider_webcollect.landing.log.commits import (
    MOST_RECORDS,
    Commit,
    Manifest,
    Source,
    decode,
    encode,
)
from airflow_provider_webcollect.landing.log.fold import Contradiction, fold, following
from tests.landing.decisions import Ledger
from tests.landing.logs import Begin, commit_after, decision


@dataclasses.dataclass
class Model:
    """A log, and the states to which its commits lead; each part has one row."""

    commits: list[Commit] = dataclasses.field(default_factory=list)
    states: list[Manifest] = dataclasses.field(default_factory=list)

    @property
    def state(self) -> Manifest | None:
        return self.states[-1] if self.states else None

    def land(self, rows: int, waiting: int = 0, begin: Begin = "end", run: str = "r1") -> None:
        """Land rows, and quarantine those after them."""
        self.add(commit_after(self.state, rows, waiting, begin=begin, run=run))

    def decide(self, index: int, *, accepts: bool, by: str = "") -> None:
        """Accept or discard rows, if any wait."""
        if self.state is None or not (waiting := self.state.quarantined):
            return
        about = self.commits[waiting[index % len(waiting)].commit - 1]
        self.add(decision(self.state, about, accepts=accepts, by=by))

    def mark(self) -> None:
        """Mark the export."""
        assert self.state is not None
        self.add(following(self.state, "exported", self.state.run))

    def add(self, commit: Commit) -> None:
        """Add a commit, and the state that it leads to."""
        state = fold(self.state, [commit])
        assert state is not None
        self.commits.append(commit)
        self.states.append(state)

    def check(self) -> None:
        """The last state has what is counted without the package."""
        state, ledger = self.state, Ledger([json.loads(encode(commit)) for commit in self.commits])
        assert state is not None
        assert ledger.amiss == []
        assert [part.name for part in state.parts] == [name for _, name in ledger.landed]
        assert state.rows == state.part_count == len(ledger.landed)
        assert {each.commit for each in state.quarantined} == ledger.waiting.keys()
        discarded = {about for about, (_, accepted) in ledger.decided.items() if not accepted}
        assert {each.commit for each in state.set_apart} == ledger.waiting.keys() | discarded
        for each in state.set_apart:
            assert each.replaces or each.is_earlier == (ledger.readings[each.commit] != ledger.reading)
        of_source = [*ledger.landed, *ledger.names_waiting(), *ledger.discarded]
        total = sum(reading == ledger.reading for reading, _ in of_source)
        earlier = sum(reading != ledger.reading for reading, _ in ledger.landed)
        assert (state.total, state.source_rows, state.earlier_rows) == (total, total, earlier)
        assert len(state.history) <= MOST_RECORDS
        assert state.commit == len(self.commits)
        decided = [commit for commit in self.commits if commit.kind == "decided"]
        assert [(each.commit, each.about, each.by, each.is_accepted) for each in state.decisions] == [
            (commit.number, commit.about, commit.by, bool(commit.parts)) for commit in decided
        ]


@st.composite
def logs(draw: st.DrawFn) -> Model:
    """Logs of at least one commit."""
    model = Model()
    few = st.integers(0, 3)
    for move in ["land", *draw(st.lists(st.sampled_from(["land", "land", "decide", "mark"]), max_size=15))]:
        match move:
            case "mark":
                model.mark()
            case "decide":
                model.decide(draw(few), accepts=draw(st.booleans()), by=draw(st.sampled_from(["", "a", "b"])))
            case _:
                begins: list[Begin] = ["end", "end", "reset", "replace"]
                begin, rows, waiting = draw(st.sampled_from(begins)), draw(few), draw(few)
                # a source without rows resets nothing
                model.land(rows or int(begin == "reset" and not waiting), waiting, begin, f"r{draw(few)}")
    return model


def stored(state: Manifest) -> Manifest:
    """Return a manifest as it is read back."""
    return decode(encode(state), "there", Manifest)


@given(logs())
def test_any_log_folds_to_what_its_commits_say(model: Model) -> None:
    model.check()
    read = [decode(encode(commit), "there", Commit) for commit in model.commits]
    assert read == model.commits
    assert fold(None, read) == model.state


@given(logs(), st.data())
def test_folding_on_from_a_checkpoint_is_folding_all(model: Model, data: st.DataObject) -> None:
    state: Manifest | None = None
    begin = 0
    while begin < len(model.commits):
        end = data.draw(st.integers(begin + 1, len(model.commits)))
        state = fold(state and stored(state), model.commits[begin:end])
        assert state == model.states[end - 1]
        begin = end


@given(logs(), st.data())
def test_whoever_remembers_a_commit_gets_each_part_once_and_none_is_missed(
    model: Model, data: st.DataObject
) -> None:
    loaded, since = [], 0
    for state in data.draw(st.lists(st.sampled_from(model.states), unique_by=id).map(in_order)):
        loaded += [part.name for part in state.parts if (part.commit or 0) > since]
        assert {part.name for part in state.parts} <= {*loaded}
        since = state.commit
    assert len(loaded) == len({*loaded})


def in_order(states: list[Manifest]) -> list[Manifest]:
    return sorted(states, key=lambda state: state.commit)


def changed(commit: Commit, **fields: Any) -> Commit:
    return msgspec.structs.replace(commit, **fields)


Make = Callable[[Manifest, list[Commit]], Commit]


def wrong(rows: int = 1, begin: Begin = "end", **fields: Any) -> Make:
    """Return what makes the next commit with other values of some fields."""
    return lambda state, log: changed(commit_after(state, rows, begin=begin), **fields)


def wrong_decision(on: int, **fields: Any) -> Make:
    """Return what accepts the rows of a commit with other values of some fields."""
    return lambda state, log: changed(decision(state, log[on - 1], accepts=True), **fields)


#: Commits that do not follow from a log of: 2 rows landed, 1 quarantined, 1 landed, 1 that waits to replace
#: all of them.
WRONG: dict[str, tuple[Make, str]] = {
    "a gap": (wrong(number=6), "it is commit 6 in the place of 5"),
    "the same number again": (lambda state, log: log[-1], "it is commit 4 in the place of 5"),
    "another source": (
        wrong(source=Source(collection_task_id="other")),
        "it is of task other, and the landing of task t",
    ),
    "another batch": (
        wrong(source=Source(collection_task_id="t", lotno="1")),
        "it is of task t, batch 1, and the landing of task t",
    ),
    "too few rows": (wrong(1, total=6), "it makes 5 of the source's rows, and says that there are 6"),
    "too many rows": (wrong(1, total=4), "it makes 5 of the source's rows, and says that there are 4"),
    "a part that has landed": (
        lambda state, log: changed(commit_after(state, 2), parts=log[0].parts[:1] + log[2].parts),
        "has landed twice|are not the source's any more",
    ),
    "a part twice in it": (
        lambda state, log: changed(commit_after(state, 2), parts=commit_after(state, 1).parts * 2),
        "has landed twice",
    ),
    "earlier rows of no reset": (
        wrong(total=3, earlier_rows=2),
        "0 rows are not the source's any more, and it says 2",
    ),
    "a reset that forgets earlier rows": (
        wrong(begin="reset", total=5, earlier_rows=0),
        "3 rows are not the source's any more, and it says 0",
    ),
    "a decision on what has landed": (
        wrong_decision(1),
        "it decides on commit 1, of which no rows wait",
    ),
    "a decision on what is to come": (
        wrong_decision(2, about=7),
        "it decides on commit 7, of which no rows wait",
    ),
    "accepting fewer rows": (
        lambda state, log: changed(
            decision(state, commit_after(state, 0, 2), accepts=True), about=log[1].number
        ),
        "it has 2 rows of 1 that wait",
    ),
    "adding in the place of all": (wrong_decision(2, replaces=True), "it replaces: True"),
    "adding what would replace all": (wrong_decision(4, replaces=False), "it replaces: False"),
}


def usual_log() -> Model:
    """The log that :data:`WRONG` is about."""
    model = Model()
    model.land(2)
    model.land(0, 1)
    model.land(1)
    model.land(0, 1, "replace")
    return model


@pytest.mark.parametrize("case", WRONG)
def test_a_contradiction_is_refused(case: str) -> None:
    model = usual_log()
    make, said = WRONG[case]
    assert model.state is not None
    with pytest.raises(Contradiction, match=said) as refusal:
        fold(model.state, [make(model.state, model.commits)])
    assert refusal.value.number == 5


@pytest.mark.parametrize("accepts", [True, False])
def test_a_second_decision_is_refused(accepts: bool) -> None:
    model = usual_log()
    model.decide(0, accepts=accepts)
    assert model.state is not None
    with pytest.raises(Contradiction, match="it decides on commit 2, of which no rows wait"):
        fold(model.state, [decision(model.state, model.commits[1], accepts=False)])


@pytest.mark.parametrize("needing", [{"kind": "exported"}, {"kind": "decided", "about": 1}])
def test_a_log_does_not_begin_with_what_needs_another(needing: dict[str, Any]) -> None:
    with pytest.raises(Contradiction, match="nothing was landed before it"):
        fold(None, [changed(commit_after(None, 1), **needing)])


@given(logs(), st.data())
def test_a_log_that_lacks_a_commit_or_is_out_of_order_is_refused(model: Model, data: st.DataObject) -> None:
    others = data.draw(
        st.one_of(
            st.permutations(model.commits),
            st.integers(0, len(model.commits) - 1).map(
                lambda index: model.commits[:index] + model.commits[index + 1 :]
            ),
        )
    )
    if [commit.number for commit in others] == [*range(1, len(others) + 1)]:
        # nothing, or only the last one, is missing
        assert others in (model.commits, model.commits[:-1])
        return
    with pytest.raises(Contradiction, match="in the place of"):
        fold(None, others)


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
    model = usual_log()
    assert model.state is not None
    written = model.commits[0] if kind is Commit else model.state
    content = encode(written).replace(
        msgspec.json.encode(written.parts[0].name), msgspec.json.encode(name), 1
    )
    with pytest.raises(DestinationUnreadable, match="is not the name of a part"):
        decode(content, "there", kind)


def test_of_many_runs_and_decisions_the_last_ones_are_known() -> None:
    model = Model()
    for number in range(MOST_RECORDS + 5):
        model.land(1, 1, run=f"run {number}")
        model.decide(0, accepts=False, by=f"{number}")
    assert model.state is not None
    last = range(5, MOST_RECORDS + 5)
    assert [record.run.run_id for record in model.state.history] == [f"run {number}" for number in last]
    assert [decided.by for decided in model.state.decisions] == [*map(str, last)]


def test_the_commits_of_one_run_are_counted_together() -> None:
    model = Model()
    for run in ("r6", "r7", "r8", "r7"):
        model.land(2, run=run)
    assert model.state is not None
    (*_, record) = model.state.history
    assert (record.run.run_id, record.rows, record.commits) == ("r7", 4, (2, 4))
    assert model.state.record_of(record.run) == record
