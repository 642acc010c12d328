"""Rules about values: how they are declared, which rows break them, and what the checks find."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_webcollect.landing.checks import (
    CheckOutcome,
    Checks,
    Counts,
    Example,
    RuleCounts,
    make_checks,
)
from airflow_provider_webcollect.landing.formats import FileFormat, make_format
from airflow_provider_webcollect.landing.formats.profile import Profile, Profiler
from airflow_provider_webcollect.landing.formats.writing import BATCH_BYTES
from airflow_provider_webcollect.landing.rules import ValueRules, evaluate
from airflow_provider_webcollect.service.errors import InvalidArgument

JSONL = make_format()
PARQUET: dict[str, Any] = {"file_format": "parquet"}
TYPED = make_format(**PARQUET, column_types={"v": "int64"})


@pytest.mark.parametrize("kind", ["string", "bool", "date32", "timestamp", "timestamptz"])
@pytest.mark.parametrize("bound", ["min", "max"])
def test_a_bound_of_a_column_that_is_no_number_is_refused(kind: str, bound: str) -> None:
    with pytest.raises(InvalidArgument, match=f"column_types makes the column {kind}, which is not a number"):
        make_checks({"columns": {"price": {bound: 1}}}, make_format(**PARQUET, column_types={"price": kind}))
    for number in ("int32", "int64", "float32", "float64", "decimal(10,2)"):
        typed = make_format(**PARQUET, column_types={"price": number})
        assert make_checks({"columns": {"price": {bound: 1, "pattern": "x", "values": [1]}}}, typed)


@pytest.mark.parametrize("none", [0, 0.0, "0", None])
def test_no_share_of_wrong_rows_is_the_default(none: Any) -> None:
    assert make_checks({"rows": {"max_wrong": none}}, JSONL) is None


def rules_of(columns: dict[str, Any], file_format: FileFormat = JSONL, max_wrong: float = 0.5) -> ValueRules:
    checks = make_checks({"rows": {"max_wrong": max_wrong}, "columns": columns}, file_format)
    return ValueRules(checks or Checks(), file_format)


def raw(*rows: Any) -> list[msgspec.Raw]:
    """Return rows as the client returns them; bytes are JSON already."""
    return [msgspec.Raw(row if isinstance(row, bytes) else json.dumps(row).encode()) for row in rows]


def broken_by(rules: ValueRules, *rows: Any) -> list[tuple[str, ...]]:
    page = raw(*rows)
    good, wrong = rules.split(page)
    left = iter(wrong)
    kept = iter(good)
    by_row = {id(row): broke for broke, row in wrong}
    assert [id(row) for row in page] == [
        id(next(left).row if id(row) in by_row else next(kept)) for row in page
    ]
    return [tuple(by_row.get(id(row), ())) for row in page]


#: A rule, values that keep it, and values that break it.
JUDGED: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "required": ({"required": True}, ["x", 0, False, [0], {"a": None}], [None, "", " \t\n\u3000", [], {}]),
    "pattern": ({"pattern": r"\d+\.\d\d"}, ["1.50", None, "", " ", []], ["1.5", "1.500", 1.5, "x1.50", True]),
    "pattern of JSON": ({"pattern": r"12|true|\[1\]"}, [12, "12", True, [1]], [13, False, [1, 2], {"a": 1}]),
    "min": (
        {"min": -1.5},
        [-1.5, "-1.5", 0, " 7 ", "+3", "1e2", "1.", ".5", None, " ", [], "1e400", "-15e-1"],
        [-2, "-1.51", "-1e400", "x", "1_0", "nan", "inf", "0x10", "1,5", True, [1], "٣", "1 2", "--1", "."],
    ),
    "max": (
        {"max": "10"},
        [10, "10.0", b"1e1", -5, "", None],
        [10.01, "11", b"1e400", "ten", False, "1e1000"],
    ),
    "values": (
        {"values": ["Berlin", 1, 2.5, True]},
        ["Berlin", 1, "1", 2.5, "2.5", True, "true", None, "", {}],
        ["berlin", "Berlin ", 2, "1.0", b"2.50", False, "True", ["Berlin"]],
    ),
    "very many values": ({"values": [f"{number}" for number in range(100_000)]}, [0, 99_999], [100_000]),
    "unique": ({"unique": True}, ["a", "A", 1, None, None, "", "", [], [2]], ["a", 1, "1", [2]]),
}


@pytest.mark.parametrize("name", JUDGED)
@pytest.mark.parametrize("is_alone", [False, True])
def test_values_that_keep_and_break_a_rule(name: str, is_alone: bool) -> None:
    column, kept, broken = JUDGED[name]
    (check,) = column
    rules = rules_of({"v": column})
    values = [
        b'{"v": ' + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"}"
        for value in [*kept, *broken]
    ]
    pages = [[value] for value in values] if is_alone else [values]
    found = [broke for page in pages for broke in broken_by(rules, *page)]
    assert found == [()] * len(kept) + [(f"columns.v.{check}",)] * len(broken)
    assert rules.counts.broken == {f"columns.v.{check}": len(broken)}
    assert rules.counts.wrong_rows == len(broken)


class Number(str):
    """A JSON number as it was sent."""


def text_of(value: Any) -> str:
    """Return the text of a value; empty for none."""
    if value in (None, [], {}) or (isinstance(value, str) and not value.strip()):
        return ""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def oracle(checks: Checks, rows: Sequence[bytes]) -> list[tuple[str, ...]]:
    """Return the rules that each row breaks: found row by row in the plainest way."""
    seen: set[tuple[str, str]] = set()
    found = []
    for row in rows:
        values = json.loads(row, parse_int=Number, parse_float=Number)
        broke = []
        for name, column in checks.columns.items():
            text = text_of(values.get(name))
            wrong = []
            if not text:
                wrong += ["required"] * column.required
            else:
                is_number = re.fullmatch(
                    r"[ \t\r\n]*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[ \t\r\n]*", text, re.ASCII
                )
                number = float(text) if is_number else float("nan")
                if column.pattern is not None and not re.fullmatch(column.pattern, text):
                    wrong.append("pattern")
                if column.min is not None and not column.min <= number:
                    wrong.append("min")
                if column.max is not None and not number <= column.max:
                    wrong.append("max")
                if column.values is not None and text not in column.values:
                    wrong.append("values")
                if column.unique and (name, text) in seen:
                    wrong.append("unique")
                seen.add((name, text))
            broke += [f"columns.{name}.{check}" for check in wrong]
        found.append(tuple(broke))
    return found


TEXTS = st.sampled_from(
    ["", " ", "a", "ab", "é", "x\ny", "1", "1.5", " 2 ", "3e1", "-4", "1_0", "nan", "\x00", '"']
)
VALUES = st.one_of(
    TEXTS,
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(-9, 9),
    st.sampled_from([[], {}, [1], {"a": "é"}]),
)
COLUMNS = st.fixed_dictionaries(
    {},
    optional={
        "required": st.booleans(),
        "pattern": st.sampled_from([r"[a-z]+", r"-?\d+(\.\d+)?", r"(.|\n)*", ""]),
        "min": st.integers(-4, 0),
        "max": st.integers(0, 4),
        "values": st.lists(st.sampled_from(["a", "1", 1, 1.5, True, "é"]), min_size=1),
        "unique": st.booleans(),
    },
)
ROWS = st.dictionaries(st.sampled_from(["a", "b", 'c"', "d"]), VALUES).map(
    lambda row: json.dumps(row).encode()
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    columns=st.dictionaries(st.sampled_from(["a", "b", 'c"', "no such"]), COLUMNS, min_size=1),
    pages=st.lists(st.lists(ROWS, max_size=8), max_size=4),
)
def test_pages_are_split_as_single_rows_would_be(columns: dict[str, Any], pages: list[list[bytes]]) -> None:
    checks = make_checks({"rows": {"max_wrong": 1}, "columns": columns}, JSONL)
    assert checks
    rules = ValueRules(checks, JSONL)
    expected = oracle(checks, [row for page in pages for row in page])
    assert [broke for page in pages for broke in broken_by(rules, *page)] == expected
    assert sum(rules.counts.broken.values()) == sum(map(len, expected))
    assert rules.counts.wrong_rows == sum(map(bool, expected))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    columns=st.dictionaries(st.sampled_from(["a", "b", "no such"]), COLUMNS, min_size=1),
    rows=st.lists(ROWS, max_size=8),
)
def test_rows_that_are_only_counted_are_counted_alike(columns: dict[str, Any], rows: list[bytes]) -> None:
    counted, split = rules_of(columns, max_wrong=0), rules_of(columns)
    split.split(raw(*rows))
    values = [json.loads(row) for row in rows]
    names = ["a", "b", "d"]
    counted.add(names, [[row.get(name, msgspec.UNSET) for row in values] for name in names], len(rows))
    assert counted.counts.broken == split.counts.broken
    assert counted.counts.wrong_rows == 0


HUNDRED = {f"c{number}": {"min": number} for number in range(100)}
#: Rules, pages of rows, and the rules that each row breaks.
PAGES: dict[str, tuple[dict[str, Any], list[list[Any]], list[str]]] = {
    "a hundred columns": (
        {**HUNDRED, "no such": {"required": True}},
        [[dict.fromkeys(HUNDRED, 98)], [{**dict.fromkeys(HUNDRED, 99), "no such": "x"}]],
        ["c99.min no such.required", ""],
    ),
    "a very large row": (
        {"v": {"pattern": "y*", "max": 5}, "w": {"min": 0}},
        [[{"w": 1}, {"v": "x" * (5 * 1024 * 1024), "w": "-1"}, {"v": "y", "w": 1}]],
        ["", "v.pattern v.max w.min", "v.max"],
    ),
    "a page of many batches": (
        {"w": {"min": 0}},
        [[{"w": number % 2 - 1, "text": "z" * (BATCH_BYTES // 4)} for number in range(12)]],
        ["w.min", ""] * 6,
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_all_rules_that_a_row_breaks_are_named(name: str) -> None:
    columns, pages, expected = PAGES[name]
    rules = rules_of(columns)
    found = [broke for page in pages for broke in broken_by(rules, *page)]
    assert [" ".join(broke).replace("columns.", "") for broke in found] == expected
    assert rules.counts.wrong_rows == sum(map(bool, expected))


DEEP = b'{"v": 1, "deep": ' + b"[" * 5000 + b"]" * 5000 + b"}"
#: Nested as deeply as can be decoded here, but maybe not with more calls on the stack.
EDGE = b'{"v": 1, "deep": ' + b"[" * 930 + b"]" * 930 + b"}"
LONG = b'{"v": 1, "number": ' + b"9" * 5000 + b"}"
LIST, NULL = b'["v"]', b"null"
ODD = [DEEP, LONG, LIST, NULL, EDGE]


@pytest.mark.parametrize(
    "options", [{}, {"columns": ["v"]}, {"file_format": "csv"}, PARQUET, {**PARQUET, "columns": ["v"]}]
)
def test_a_row_that_cannot_be_judged_is_wrong_alone(options: Any) -> None:
    rules = rules_of({"v": {"min": 1}}, make_format(**options))
    rows = [b'{"v": 0}', *ODD, *[b'{"v": 5}'] * 1000, b'{"v": "\xff"}', b'{"v": 1e400, "\xff": "\xff"}']
    broken = dict(zip(rows, broken_by(rules, *rows), strict=True))
    assert {row for row in broken if broken[row] == ("rows.readable",)} == set(ODD)
    assert {row for row in broken if broken[row] == ("columns.v.min",)} == {b'{"v": 0}', b'{"v": "\xff"}'}
    assert rules.counts.broken == {"columns.v.min": 2, "rows.readable": len(ODD)}


@pytest.mark.parametrize(
    ("options", "refused"),
    [({}, [LIST, NULL]), ({"columns": ["v"]}, [DEEP, LIST, NULL, EDGE]), ({"file_format": "csv"}, ODD)],
)
def test_without_rules_the_format_decides_which_rows_are_wrong(options: Any, refused: list[bytes]) -> None:
    _, wrong = rules_of({}, make_format(**options)).split(raw(*ODD))
    assert [bytes(single.row) for single in wrong] == refused


@pytest.mark.parametrize(
    "options", [{}, {"columns": ["v", "deep", "number"]}, {"file_format": "csv"}, PARQUET]
)
def test_what_is_good_can_be_written(options: Any) -> None:
    chosen = make_format(**options)
    good, _ = rules_of({"v": {"required": True}}, chosen).split(
        raw(*ODD, b'{"v": "\xff", "deep": 1e400}', *[{"v": "x"}] * 5)
    )
    assert len(good) >= 6
    with chosen.writer(io.BytesIO(), chosen.columns_after(), Profiler()) as writer:
        assert writer.write(good)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("int32", [1, "2", " 3 ", None, "", 2147483647], ["x", "1.5", 2147483648, True, []]),
        ("decimal(4,2)", ["1.5", 12.34, "1e1"], ["123.4", "1.234", "1e-39"]),
        ("date32", ["2024-02-29"], ["2023-02-29", "today"]),
        ("bool", [True, "1", "false"], ["yes"]),
    ],
)
def test_a_row_that_cannot_be_cast_is_wrong_or_null(kind: str, good: list[Any], bad: list[Any]) -> None:
    fails = make_format(**PARQUET, column_types={"v": kind, "never": "int64"})
    rows = [{"v": value} for value in (*good, *bad)]
    rules = rules_of({}, fails)
    assert broken_by(rules, *rows) == [()] * len(good) + [("columns.v.type",)] * len(bad)
    nulls = make_format(**PARQUET, column_types={"v": kind}, on_cast_error="null")
    assert broken_by(rules_of({}, nulls), *rows) == [()] * len(rows)


def judged(
    declared: dict[str, Any], *rows: Any, file_format: FileFormat = JSONL, history: Sequence[Counts] = ()
) -> tuple[CheckOutcome, ...]:
    """Return the outcomes of the declared checks when the rows land."""
    checks = make_checks(declared, file_format)
    assert checks
    rules = ValueRules(checks, file_format)
    rules.offset = 7
    good = rules.split(raw(*rows))[0] if rules.is_split else raw(*rows)
    profiler = Profiler(rules)
    values = [json.loads(bytes(row)) for row in good]
    names = [*dict.fromkeys(name for row in values for name in row)]
    profiler.add(names, [[row.get(name, msgspec.UNSET) for row in values] for name in names], len(values))
    return evaluate(checks, len(rows), profiler.profile(len(good)), rules.counts, history)


#: Half of the rows may break rules.
HALF: dict[str, Any] = {"rows": {"max_wrong": 0.5}}
WITHOUT = [{"w": 1}] * 4
#: Checks, rows, and what is found.
OUTCOMES: dict[str, tuple[dict[str, Any], list[Any], list[str]]] = {
    "without a share each broken rule has failed": (
        {"columns": {"v": {"required": True, "min": 2, "max": 2, "values": [2, 3, "x"], "unique": True}}},
        [{"v": 2}, {"v": "3"}, {"v": "x"}, {"v": ""}, {}],
        [
            "failed columns.v.required: 2 of 5 rows have no value ('' at offset 7, missing at offset 7)",
            "failed columns.v.min: 1 of 3 values are below 2 or no number ('x' at offset 7)",
            "failed columns.v.max: 2 of 3 values are above 2 or no number ('3' at offset 7, 'x' at offset 7)",
            "passed columns.v.values: 0 of 3 values are not allowed",
            "passed columns.v.unique: 0 of 3 values are duplicates",
        ],
    ),
    "with a share they are warnings, and other checks are about what lands": (
        {**HALF, "columns": {"v": {"min": 2, "filled": 0.6}}},
        [{"v": 0}, {"v": 2}, {"v": ""}],
        [
            "passed rows.max_wrong: 1 of 3 rows break rules about values",
            "failed columns.v.filled: filled in 50 % of 2 rows, without 1 that break rules ('' at offset 7)",
            "warning columns.v.min: 1 of the values in 3 rows are below 2 or no number (0 at offset 7)",
        ],
    ),
    "a column that no row has": (
        {"columns": {"v": {"min": 2}}},
        WITHOUT,
        ["failed columns.v.present: no row has it"],
    ),
    "a column that each row must have": (
        {"columns": {"v": {"required": True, "filled": 1}}},
        WITHOUT,
        ["failed columns.v.required: 4 of 4 rows have no value (missing at offset 7)"],
    ),
    "a column that no right row has": (
        {**HALF, "columns": {"v": {"max": 2}}},
        [*WITHOUT, {"v": 3}],
        [
            "passed rows.max_wrong: 1 of 5 rows break rules about values",
            "warning columns.v.max: 1 of the values in 5 rows are above 2 or no number (3 at offset 7)",
        ],
    ),
    "no rows": ({"columns": {"v": {"required": True, "filled": 1}}}, [], []),
    "rows that cannot": (
        HALF,
        [{"v": 1}, {"v": "x"}, LIST],
        [
            "failed rows.max_wrong: 2 of 3 rows break rules about values",
            "warning columns.v.type: 1 of 3 rows have a value of another type ('x' at offset 7)",
            "warning rows.readable: 1 of 3 rows cannot be read ('[\"v\"]' at offset 7)",
        ],
    ),
}
#: What each check in OUTCOMES expects, by its name.
EXPECTED = {
    "rows.max_wrong": "at most 50 % of the rows",
    "columns.v.required": "a value in each row",
    "columns.v.min": "each value is a number of at least 2",
    "columns.v.max": "each value is a number of at most 2",
    "columns.v.values": "each value is one of 2, 3, x",
    "columns.v.unique": "no duplicates",
    "columns.v.filled": "filled in at least 60 % of the rows",
    "columns.v.present": "a column of this name",
    "columns.v.type": "each value fits the type of the column",
    "rows.readable": "each row can be read",
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_outcomes_of_rows(name: str) -> None:
    declared, rows, found = OUTCOMES[name]
    outcomes = judged(declared, *rows, file_format=TYPED if declared is HALF else JSONL)
    assert [f"{outcome.state} {outcome}".partition("; expected: ")[0] for outcome in outcomes] == found
    assert all(outcome.expected == EXPECTED[outcome.check] for outcome in outcomes)
    assert all(outcome.column == ("v" if "columns" in outcome.check else None) for outcome in outcomes)


@pytest.mark.parametrize("share", [0.01, 0.07, 0.29, 0.55, 1e-05])
def test_the_bound_of_wrong_rows_is_exact(share: float) -> None:
    checks = make_checks({"rows": {"max_wrong": share}}, JSONL)
    assert checks
    most = round(share * 100_000)
    for wrong in (most, most + 1):
        (outcome,) = evaluate(checks, 100_000, Profile(), RuleCounts(wrong_rows=wrong), ())
        assert outcome.state == ("passed" if wrong == most else "failed")


def landed(filled: int | None, rows: int = 100, *, is_cut: bool = False) -> Counts:
    return Counts(rows=rows, filled={} if filled is None else {"v": filled}, is_cut=is_cut)


@pytest.mark.parametrize(
    ("history", "filled", "state"),
    [
        ([landed(80)] * 3, 0, "skipped"),
        ([landed(80)] * 4, 40, "passed"),
        ([landed(80)] * 4, 39, "failed"),
        # neither a landing without rows nor one with too many columns says how often the column was filled
        ([landed(80)] * 3 + [landed(None, 0), landed(None, is_cut=True)], 0, "skipped"),
        # landings without the column had it in no row
        ([landed(80)] * 2 + [landed(None)] * 3, 1, "passed"),
        # only the last ten count
        ([landed(100)] * 9 + [landed(10)] * 10, 5, "passed"),
        # exact: 0.55 times 20 % is 11 %
        ([landed(20)] * 4, 11, "passed"),
    ],
)
def test_a_share_is_compared_with_the_usual_one(history: list[Counts], filled: int, state: str) -> None:
    rows = [{"v": "x"}] * filled + [{"v": ""}] * (100 - filled)
    share = 0.55 if filled == 11 else 0.5
    (outcome,) = judged({"columns": {"v": {"filled_of_usual": share}}}, *rows, history=history)
    assert outcome.state == state
    if state == "failed":
        assert str(outcome) == (
            "columns.v.filled_of_usual: filled in 39 % of 100 rows ('' at offset 7); expected: filled in at "
            "least 0.5 times 80 %, the median of the last landings (80 %, 80 %, 80 %, 80 %)"
        )


def test_examples_of_empty_values_are_of_rows_that_land() -> None:
    rules = rules_of({"v": {"filled": 1}, "w": {"min": 1}})
    good, _ = rules.split(raw({"v": "", "w": 0}, {"v": " ", "w": 1}))
    Profiler(rules).add(["v", "w"], [[" "], [1]], len(good))
    assert rules.counts == RuleCounts(
        {"columns.w.min": 1},
        {"columns.w.min": (Example("0", 0),), "columns.v.filled": (Example("' '", 0),)},
        ("v", "w"),
        wrong_rows=1,
    )
