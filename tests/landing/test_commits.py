"""The fold of a log: any order of commits that a log can have, in pieces and whole; contradictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_webcollect.landing.commits import MOST_RECORDS, Commit, Manifest, Source, decode, encode
from airflow_provider_webcollect.landing.errors import DestinationUnreadable
from airflow_provider_webcollect.landing.fold import Contradiction, fold, following
from tests.landing.logs import Begin, commit_after, decision, restoring


@dataclasses.dataclass
class Model:
    """What commits make of a landing, counted by hand.

    :ivar landed: commit and name of each part, in order.
    :ivar waiting: the commits whose rows are quarantined.
    :ivar before: what had landed when the landing began again.
    :ivar ever: all parts that have landed, with the commit that a loader knows them by.
    """

    commits: list[Commit] = dataclasses.field(default_factory=list)
    states: list[Manifest] = dataclasses.field(default_factory=list)
    landed: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    waiting: dict[int, Commit] = dataclasses.field(default_factory=dict)
    before: tuple[Manifest, list[tuple[int, str]], dict[int, Commit]] | None = None
    ever: set[tuple[int, str]] = dataclasses.field(default_factory=set)

    @property
    def state(self) -> Manifest | None:
        return self.states[-1] if self.states else None

    def do(self, move: str, number: int) -> None:
        """Make the next commit, if there can be one of that kind.

        :param number: how many rows it has, or which rows it is about.
        """
        state = self.state
        if move in ("landed", "quarantined", "discarded"):
            self.add(commit_after(state, number, kind=move, run=f"r{number}"))  # type: ignore[arg-type]
        elif state is None:
            return
        elif move in ("reset", "replace"):
            self.add(commit_after(state, number, begin=move, run=f"r{number}"))  # type: ignore[arg-type]
        elif move == "exported":
            self.add(following(state, "exported", state.run))
        elif move == "restore" and self.before is not None:
            self.add(restoring(state, self.before[0]))
        elif move in ("accept", "discard") and self.waiting:
            about = [*self.waiting.values()][number % len(self.waiting)]
            self.add(decision(state, about, "accepted" if move == "accept" else "discarded"))

    def add(self, commit: Commit) -> None:
        """Add a commit."""
        state = fold(self.state, [commit])
        assert state is not None
        if commit.kind == "restored":
            assert self.before is not None
            now = (self.states[-1], self.landed, self.waiting)
            (_, self.landed, self.waiting), self.before = self.before, now
        elif commit.replaces:
            self.before = (self.states[-1], self.landed, self.waiting)
            self.landed, self.waiting = [], {}
        if commit.about is not None and commit.kind != "restored":
            self.waiting = {number: each for number, each in self.waiting.items() if number != commit.about}
        if commit.kind in ("landed", "accepted"):
            own = [(commit.number, part.name) for part in commit.parts]
            self.landed = [*self.landed, *own]
            self.ever.update(own)
        if commit.kind == "quarantined":
            self.waiting = {**self.waiting, commit.number: commit}
        self.commits.append(commit)
        self.states.append(state)

    def check(self) -> None:
        """The last state has what was counted."""
        state = self.state
        assert state is not None
        assert [(part.commit, part.name) for part in state.parts] == self.landed
        assert state.rows == state.part_count == len(self.landed)
        assert {each.commit for each in state.quarantined} == {*self.waiting}
        assert state.source_rows == state.total
        assert len(state.history) <= MOST_RECORDS
        assert state.commit == len(self.commits)


MOVES = [
    *("landed", "landed", "quarantined", "discarded", "reset", "replace"),
    *("accept", "discard", "exported", "restore"),
]


@st.composite
def logs(draw: st.DrawFn) -> Model:
    """Logs of at least one commit."""
    model = Model()
    model.do(draw(st.sampled_from(["landed", "quarantined", "discarded"])), draw(st.integers(1, 3)))
    for move in draw(st.lists(st.sampled_from(MOVES), max_size=15)):
        model.do(move, draw(st.integers(1, 3)))
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
def test_whoever_remembers_a_commit_gets_each_part_once(model: Model, data: st.DataObject) -> None:
    loaded, since = [], 0
    for state in data.draw(st.lists(st.sampled_from(model.states), unique_by=id).map(in_order)):
        loaded += [part.name for part in state.parts if (part.commit or 0) > since]
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


#: Commits that do not follow from a log of: 2 rows landed, 1 quarantined, 1 landed.
WRONG: dict[str, tuple[Make, str]] = {
    "a gap": (wrong(number=5), "it is commit 5 in the place of 4"),
    "the same number again": (lambda state, log: log[-1], "it is commit 3 in the place of 4"),
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
        lambda state, log: decision(state, log[0], "accepted"),
        "it decides on commit 1, of which no rows wait",
    ),
    "a decision on what is to come": (
        lambda state, log: changed(decision(state, log[1], "discarded"), about=7),
        "it decides on commit 7, of which no rows wait",
    ),
    "accepting other rows": (
        lambda state, log: changed(decision(state, log[1], "accepted"), parts=commit_after(state, 2).parts),
        "it has 2 rows of 1 that were set apart",
    ),
    "setting no rows apart": (wrong(0, kind="quarantined"), "it is quarantined, and has no rows"),
    "accepting in the place of all": (
        lambda state, log: changed(decision(state, log[1], "accepted"), replaces=True),
        "nothing was landed before it",
    ),
}


def usual_log() -> Model:
    """Two rows that are landed, one that is quarantined, and one that is landed."""
    model = Model()
    for move, rows in (("landed", 2), ("quarantined", 1), ("landed", 1)):
        model.do(move, rows)
    return model


@pytest.mark.parametrize("case", WRONG)
def test_a_contradiction_is_refused(case: str) -> None:
    model = usual_log()
    make, said = WRONG[case]
    assert model.state is not None
    with pytest.raises(Contradiction, match=said) as refusal:
        fold(model.state, [make(model.state, model.commits)])
    assert refusal.value.number == 4


@pytest.mark.parametrize("about", [1, 2])
def test_a_second_decision_is_refused(about: int) -> None:
    model = usual_log()
    model.do("accept" if about == 1 else "discard", 0)
    assert model.state is not None
    with pytest.raises(Contradiction, match="it decides on commit 2, of which no rows wait"):
        fold(model.state, [decision(model.state, model.commits[1], "discarded")])


@pytest.mark.parametrize("needing", [{"kind": "exported"}, {"kind": "accepted", "about": 1}])
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


def test_of_many_runs_the_last_ones_can_be_compared_with() -> None:
    model = Model()
    for number in range(MOST_RECORDS + 5):
        model.add(commit_after(model.state, 1, run=f"run {number}"))
    assert model.state is not None
    assert [record.run.run_id for record in model.state.history] == [
        f"run {number}" for number in range(5, MOST_RECORDS + 5)
    ]


def test_the_commits_of_one_run_are_counted_together() -> None:
    model = usual_log()
    for run in ("r7", "r8", "r7"):
        model.add(commit_after(model.state, 2, run=run))
    assert model.state is not None
    (*_, record) = model.state.history
    assert (record.run.run_id, record.rows, record.commits) == ("r7", 4, (4, 6))
    assert model.state.record_of(record.run) == record
