"""An argument is parsed by its annotation: what each kind accepts, and what the error says."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any, Literal

import msgspec
import pendulum
import pytest

from airflow_provider_webcollect.service.arguments import (
    AnyText,
    Flag,
    Length,
    Range,
    Seconds,
    Word,
    declared,
    parse,
    parse_call,
    parse_struct,
    share,
)
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.service.models import LoopType


class Entry(msgspec.Struct, kw_only=True):
    name: str
    kind: Annotated[str, Word(LoopType)]
    is_new: Flag = False


class Markup(str):
    """A subclass of ``str``, as templates return; encoders refuse it."""

    __slots__ = ()


class Options(msgspec.Struct, frozen=True, kw_only=True):
    page_size: Annotated[int, Range(1, 1000), "rows per request"] = 1000
    mode: Annotated[Literal["full", "incremental"] | None, "how rows are landed"] = None


ENTRY = {"name": "a", "kind": "TextList"}


@pytest.mark.parametrize(
    ("annotation", "value", "parsed"),
    [
        (str, " a\n", "a"),
        (str, 7, "7"),
        (str, Markup("a"), "a"),
        (AnyText, " ", " "),
        (int, " -7\n", -7),
        (int, HTTPStatus.OK, 200),
        (Annotated[int, Range(1, 9), "help"], 9, 9),
        (Annotated[int | None, Range(1, 9)], None, None),
        (Annotated[int, Range(1, 9)] | None, None, None),
        (Annotated[float, Seconds(may_be_timedelta=True)], datetime.timedelta(minutes=1), 60.0),
        (Annotated[float, Seconds(may_be_zero=True)], 0, 0.0),
        (Annotated[float, share], 0.5, 0.5),
        (bool, True, True),
        (Flag, " TRUE\n", True),
        (Flag, "false", False),
        (Annotated[str, Word(LoopType)], " textlist", "TextList"),
        (Literal["full", "incremental"], "full", "full"),
        (datetime.date, "2026-01-31", datetime.date(2026, 1, 31)),
        (datetime.date, datetime.date(2026, 1, 31), datetime.date(2026, 1, 31)),
        (datetime.date, datetime.datetime(2026, 1, 31, 23), datetime.date(2026, 1, 31)),
        (datetime.date, pendulum.datetime(2026, 2, 1, tz="Europe/Berlin"), pendulum.date(2026, 1, 31)),
        (list[int], ("1", 2), [1, 2]),
        (list[int], iter({1: "a"}.keys()), [1]),
        (Sequence[Annotated[str, Word(LoopType)]], ["TEXTLIST"], ["TextList"]),
        (Annotated[list[str], Length(may_be_empty=True)], [], []),
        (list[Entry], [ENTRY], [Entry(name="a", kind="TextList")]),
    ],
)
def test_a_value_takes_the_form_of_its_annotation(annotation: Any, value: object, parsed: object) -> None:
    result = parse("it", annotation, value)
    assert result == parsed
    assert type(result) is type(parsed)


@pytest.mark.parametrize(
    ("annotation", "value", "argument", "rule"),
    [
        *((str, odd, "it", "a non-empty string") for odd in (None, " ", 5.0, True)),
        (str, "a\ud800", "it", "not contain a lone surrogate; there is one at position 1"),
        (AnyText, 7, "it", "a string"),
        *((int, odd, "it", "an integer") for odd in (True, 1.5, None, "1_000", "+1", "1e3", "\u0663")),
        pytest.param(int, "9x" * 10_000, "it", "an integer", id="20,000 characters"),
        pytest.param(int, 10**5000, "it", "an integer", id="5,001 digits"),
        (int, -(2**64), "it", "from -9223372036854775808 to 9223372036854775807"),
        (Annotated[int, Range(1)], "9" * 40, "it", "from 1 to 9223372036854775807"),
        (Annotated[int, Range(1, 9), "help"], 10, "it", "from 1 to 9"),
        (Annotated[int | None, Range(1)], "", "it", "1 or more"),
        (Annotated[float, Seconds()], datetime.timedelta(1), "it", "a number of seconds above 0"),
        (Annotated[float, share], 1.1, "it", "a share from 0 to 1"),
        (bool, "true", "it", "True or False"),
        (Flag, "yes", "it", "True or False"),
        (Literal["full", "incremental"], "most", "it", "one of full, incremental"),
        *(
            (Annotated[str, Word(LoopType)], odd, "it", "one of TextList, UrlList")
            for odd in (["UrlList"], None)
        ),
        *((datetime.date, odd, "it", "yyyy-MM-dd") for odd in ("31.1.2026", 20260131)),
        (list[int], [1, "x"], "it[1]", "an integer"),
        *((list[int], odd, "it", "a list") for odd in ("12", {"1": 2}, 5)),
        (list[int], [], "it", "at least one entry"),
        (Annotated[list[int], Length(most=1)], [1, 2], "it", "at most 1 entries, not 2"),
        (list[Entry], [ENTRY, {"name": "a"}], "it[1]", "a dict with kind, name, optionally is_new"),
        (list[Entry], [ENTRY, {**ENTRY, "other": 1}], "it[1]", "a dict with kind, name, optionally is_new"),
        (list[Entry], [{**ENTRY, "kind": "x"}], "it[0].kind", "one of TextList, UrlList"),
    ],
)
def test_an_error_names_place_and_rule(annotation: Any, value: object, argument: str, rule: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        parse("it", annotation, value)
    assert refusal.value.argument == argument
    assert len(str(refusal.value)) < 300
    assert rule in refusal.value.rule


def test_an_annotation_without_a_rule_is_refused() -> None:
    with pytest.raises(TypeError, match="float"):
        parse("it", float, 1.0)


class TestDeclarations:
    def test_arguments_are_parsed_and_defaults_stay(self) -> None:
        def move(task_id: str, group_id: Annotated[int, Range(1)] = 0) -> None: ...

        assert parse_call(move, " t ") == {"task_id": "t"}
        assert parse_call(move, "t", group_id="7") == {"task_id": "t", "group_id": 7}
        with pytest.raises(InvalidArgument, match="`group_id` is 0"):
            parse_call(move, "t", 0)
        with pytest.raises(TypeError, match="task_id"):
            parse_call(move)

    def test_the_values_of_a_struct_are_parsed(self) -> None:
        assert parse_struct(Options, {"page_size": "10"}) == Options(page_size=10)
        assert parse_struct(Options, {}) == Options()
        with pytest.raises(InvalidArgument, match="`page_size` is 0; it must be an integer from 1 to 1000"):
            parse_struct(Options, {"page_size": 0})

    def test_another_value_is_refused_and_the_place_is_the_callers(self) -> None:
        with pytest.raises(InvalidArgument, match="there is no such option; the options are page_size, mode"):
            parse_struct(Options, {"pages": 1})
        with pytest.raises(InvalidArgument, match=r"`options\['mode'\]` is 'x'"):
            parse_struct(Options, {"mode": "x"}, "options[{!r}]".format)

    def test_a_declaration_says_what_help_and_tables_need(self) -> None:
        def start(
            names: Annotated[Sequence[Annotated[str, Word(LoopType)]], Length(most=9), "The names."],
            size: Annotated[int, Range(1)] | None = None,
        ) -> None: ...

        names, size = declared(start).values()
        assert (names.kind, names.is_list, names.limits) == (str, True, "at most 9")
        assert (names.choices, names.help) == (("TextList", "UrlList"), "The names.")
        assert (size.kind, size.limits, size.default, size.help) == (int, "1 or more", None, "")
        mode = declared(Options)["mode"]
        assert (mode.choices, mode.default) == (("full", "incremental"), None)
        assert declared(Options)["page_size"].default == 1000
