"""The contract's limits: what breaks one is refused before anything is sent."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pendulum
import pytest
import time_machine

from airflow_provider_webcollect.sandbox import Sandbox
from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.service.url_file import url_list

NOON = datetime.datetime(2024, 5, 31, 12, tzinfo=datetime.UTC)
DAY = "2024-05-31"


@pytest.fixture(autouse=True)
def _in_may() -> Any:
    with time_machine.travel(NOON, tick=True):
        yield


def analytics(**arguments: Any) -> Any:
    return endpoints.query_analytics(arguments.pop("start", DAY), arguments.pop("end", DAY), **arguments)


def loop(**changes: Any) -> Any:
    arguments = {"task_id": "t", "action_id": "a", "loop_type": "TextList", "loop_items": ["x"], **changes}
    return endpoints.update_loop_items(**arguments)


def parameters(**entries: Any) -> Any:
    return endpoints.update_task_parameters("t", **entries)


ENTRY = {"action_id": "a", "loop_type": "TextList", "loop_items": ["x"]}
ACTION = {"action_type": "EnterTextAction", "action_id": "a", "properties": {"TextToSet": "x"}}

REFUSED: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: analytics(page=0), "`page` is 0", "an integer of 1 or more"),
    (lambda: analytics(page="x"), "`page` is 'x'", "an integer of 1 or more"),
    (lambda: analytics(page=True), "`page` is True", "an integer"),
    (lambda: analytics(page=1.5), "`page` is 1.5", "an integer"),
    (lambda: analytics(page="9x" * 10_000), "`page` is '9x9x9x", "an integer"),
    (lambda: analytics(page_size=0), "`page_size` is 0", "from 1 to 500"),
    (lambda: analytics(page_size=501), "`page_size` is 501", "from 1 to 500"),
    (lambda: analytics(task_ids=["t"] * 101), "`task_ids` is ['t',", "at most 100 entries, not 101"),
    (lambda: analytics(task_ids=[]), "`task_ids` is []", "at least one entry"),
    (lambda: analytics(task_ids="t"), "`task_ids` is 't'", "a list"),
    (lambda: analytics(member_names=["m"] * 101), "`member_names`", "at most 100 entries"),
    (lambda: analytics(member_names=["m", ""]), "`member_names[1]` is ''", "a non-empty string"),
    (lambda: analytics(collection_method="cloud"), "`collection_method` is 'cloud'", "Cloud, Local, All"),
    (lambda: analytics(time_granularity="Year"), "`time_granularity` is 'Year'", "Day, Week, Month"),
    (lambda: analytics(end="2024-06-01"), "`end` is '2024-06-01'", "not be after the current UTC date"),
    (lambda: analytics(end="2024-05-30"), "`end` is '2024-05-30'", "not be before `start`"),
    (lambda: analytics(start="2024-02-28"), "`start` is '2024-02-28'", "latest 3 months"),
    (lambda: analytics(start="31.5.2024"), "`start` is '31.5.2024'", "yyyy-MM-dd"),
    (lambda: analytics(end=20240531), "`end` is 20240531", "yyyy-MM-dd"),
    (lambda: loop(task_id=" "), "`task_id` is ' '", "a non-empty string"),
    (lambda: loop(task_id=5.0), "`task_id` is 5.0", "a non-empty string"),
    (lambda: loop(task_id=True), "`task_id` is True", "a non-empty string"),
    (lambda: loop(action_id=""), "`action_id` is ''", "a non-empty string"),
    (lambda: loop(loop_type="URLs"), "`loop_type` is 'URLs'", "TextList, UrlList"),
    (lambda: loop(loop_type=["UrlList"]), "`loop_type` is ['UrlList']", "TextList, UrlList"),
    (lambda: loop(loop_type=None), "`loop_type` is None", "TextList, UrlList"),
    (lambda: loop(loop_items=[]), "`loop_items` is []", "at least one entry"),
    (lambda: loop(loop_items="abc"), "`loop_items` is 'abc'", "a list"),
    (lambda: loop(loop_items={"a": "b"}), "`loop_items` is {'a': 'b'}", "a list"),
    (lambda: loop(loop_items=["a", 1]), "`loop_items[1]` is 1", "a string"),
    (lambda: loop(is_append="yes"), "`is_append` is 'yes'", "True or False"),
    (lambda: parameters(), "`actions` is None", "at least one entry"),
    (lambda: parameters(actions=[], loop_items=[]), "`actions` is []", "at least one entry"),
    (lambda: parameters(actions=ACTION), "`actions` is {'action_type'", "a list"),
    (lambda: parameters(loop_items=ENTRY), "`loop_items` is {'action_id'", "a list"),
    (lambda: parameters(loop_items=5), "`loop_items` is 5", "a list"),
    (lambda: parameters(actions=["a"]), "`actions[0]` is 'a'", "a dict with action_id"),
    (lambda: parameters(actions=[{**ACTION, "x": 1}]), "`actions[0]`", "a dict with action_id"),
    (
        lambda: parameters(actions=[{**ACTION, "action_type": "Click"}]),
        "`actions[0].action_type` is 'Click'",
        "LoopAction, NavigateAction, EnterTextAction",
    ),
    (lambda: parameters(actions=[{**ACTION, "properties": {}}]), "`actions[0].properties`", "not empty"),
    (lambda: parameters(actions=[{**ACTION, "properties": "x"}]), "`actions[0].properties`", "a dict, or"),
    (
        lambda: parameters(actions=[ACTION, {**ACTION, "properties": {"a": 1}}]),
        "`actions[1].properties[0].value` is 1",
        "a string",
    ),
    (
        lambda: parameters(actions=[{**ACTION, "properties": [{"name": "a"}]}]),
        "`actions[0].properties[0]`",
        "name, value",
    ),
    (lambda: parameters(loop_items=[{"action_id": "a"}]), "`loop_items[0]`", "optionally is_append"),
    (
        lambda: parameters(loop_items=[{**ENTRY, "loop_type": "List"}]),
        "`loop_items[0].loop_type` is 'List'",
        "TextList, UrlList",
    ),
    (lambda: endpoints.get_actions([]), "`task_ids` is []", "at least one entry"),
    (lambda: endpoints.get_actions(["t"], []), "`action_types` is []", "at least one entry"),
    (lambda: endpoints.get_actions(["t"], ["Click"]), "`action_types[0]` is 'Click'", "LoopAction"),
    (lambda: url_list([]), "`urls` is []", "at least one entry"),
    (lambda: url_list("https://a.example"), "`urls` is 'https://a.example'", "a list"),
    (lambda: url_list(["https://a.example", 5]), "`urls[1]` is 5", "a string"),  # type: ignore[list-item]
    (lambda: url_list(["https://a.example", ""]), "`urls[1]` is ''", "no line may be blank"),
    (lambda: url_list(["https://a.example\nhttps://b.example"]), "`urls[0]`", "one http(s) URL"),
    (lambda: url_list(["gopher://a.example"]), "`urls[0]` is 'gopher://a.example'", "one http(s) URL"),
    (lambda: url_list(["https://\ud800.example"]), "`urls[0]`", "it must be UTF-8"),
    (lambda: url_list({"https://a.example": 1}), "`urls` is {'https:", "a list"),
    (lambda: url_list(5), "`urls` is 5", "a list"),  # type: ignore[arg-type]
    (lambda: endpoints.copy_task(""), "`task_id` is ''", "a non-empty string"),
    (lambda: endpoints.copy_task("t", "two"), "`group_id` is 'two'", "an integer"),  # type: ignore[arg-type]
    (lambda: endpoints.copy_tasks([], [1]), "`task_ids` is []", "at least one entry"),
    (lambda: endpoints.copy_tasks(["t"], {1: "a"}), "`group_ids` is {1: 'a'}", "a list"),  # type: ignore[arg-type]
    (lambda: endpoints.copy_tasks(["t"], []), "`group_ids` is []", "at least one entry"),
    (lambda: endpoints.copy_tasks(["t"], [None]), "`group_ids[0]` is None", "an integer"),  # type: ignore[list-item]
    (lambda: endpoints.move_task("t", None), "`group_id` is None", "an integer"),  # type: ignore[arg-type]
    (lambda: endpoints.delete_tasks([]), "`task_ids` is []", "at least one entry"),
    (lambda: endpoints.delete_tasks({"t": "x"}), "`task_ids` is {'t': 'x'}", "a list"),  # type: ignore[arg-type]
    (lambda: endpoints.delete_task_groups([]), "`group_ids` is []", "at least one entry"),
    *(
        (lambda text=text: endpoints.delete_task_groups([text]), f"`group_ids[0]` is {text!r}", "an integer")
        for text in ("\u0663", "1_000", "\uff11", "+1", "1e3", "9" * 40)
    ),
    (lambda: endpoints.get_task_statuses([]), "`task_ids` is []", "at least one entry"),
    (lambda: endpoints.get_task_statuses_v2([]), "`task_ids` is []", "at least one entry"),
    (lambda: endpoints.get_subtasks("t", 0), "`page` is 0", "1 or more"),
    (lambda: endpoints.get_subtasks("t", 1, 0), "`size` is 0", "from 1 to 20"),
    (lambda: endpoints.get_subtasks("t", 1, 21), "`size` is 21", "from 1 to 20"),
    (lambda: endpoints.start_subtasks("t", []), "`subtask_ids` is []", "at least one entry"),
    (lambda: endpoints.read_data("t", 0, 0), "`size` is 0", "from 1 to 1000"),
    (lambda: endpoints.read_data("t", 0, 1001), "`size` is 1001", "from 1 to 1000"),
    (lambda: endpoints.read_data("t", "x"), "`offset` is 'x'", "an integer"),  # type: ignore[arg-type]
    (lambda: endpoints.read_batch_data("t", ""), "`lotno` is ''", "a non-empty string"),
    (lambda: endpoints.read_batch_data("t", "1", 0, 1001), "`size` is 1001", "from 1 to 1000"),
    (lambda: endpoints.mark_exported(""), "`task_id` is ''", "a non-empty string"),
    (lambda: endpoints.deprecate_data_app(""), "`app_id` is ''", "a non-empty string"),
    *(
        (lambda app=app: endpoints.deprecate_data_app(app), f"`app_id` is {app!r}", "or namespace/app_name")
        for app in (".", "..", "a/..", "./a", "a/../b", "a/b/c", "/", "/a", "a/", "a//b")
    ),
    (lambda: endpoints.refresh_token(""), "`refresh_token` is ''", "a non-empty string"),
    (
        lambda: endpoints.copy_task("a\ud800"),
        "`task_id` is '\\ud800'",
        "half a character, as there is at position 1",
    ),
    (lambda: endpoints.copy_task(10**5000), "`task_id` is", "integer"),  # type: ignore[arg-type]
    (lambda: endpoints.copy_task("t", 10**5000), "`group_id` is", "integer"),
    (lambda: endpoints.delete_tasks(["t", "\udfff"]), "`task_ids[1]` is '\\udfff'", "half a character"),
    (lambda: loop(loop_items=["\ud83d"]), "`loop_items[0]` is '\\ud83d'", "half a character"),
    (lambda: endpoints.deprecate_data_app("\ud800"), "`app_id` is '\\ud800'", "half a character"),
    (
        lambda: parameters(actions=[{**ACTION, "properties": {"TextToSet": "\ud800"}}]),
        "`actions[0].properties[0].value` is '\\ud800'",
        "half a character",
    ),
    (lambda: endpoints.first_token("me", "SECRET\ud800"), "`password` is '\\ud800'", "at position 6"),
    *(
        (lambda page=page: analytics(page=page), f"`page` is {page!r}", "from 1 to 9223372036854775807")
        for page in (2**63, 10**30, "9" * 40)
    ),
    (lambda: endpoints.move_task("t", -(2**64)), "`group_id` is", "from -9223372036854775808 to"),
    (
        lambda: parameters(loop_items=[{**ENTRY, "is_append": "yes"}]),
        "`loop_items[0].is_append` is 'yes'",
        "True",
    ),
]


@pytest.mark.parametrize(("make", "what", "rule"), REFUSED, ids=[what for _, what, _ in REFUSED])
def test_what_breaks_a_limit_is_refused_and_nothing_is_sent(
    client: Client, sandbox: Sandbox, make: Callable[[], Any], what: str, rule: str
) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        client.send(make())
    assert what in str(refusal.value)
    assert rule in str(refusal.value)
    assert len(str(refusal.value)) < 300
    assert isinstance(refusal.value, ValueError)
    assert refusal.value.permanent
    assert sandbox.control.requests() == []


@pytest.mark.parametrize(
    ("make", "sent"),
    [
        (lambda: analytics(page=1, page_size=1), {"page": 1, "pageSize": 1}),
        (lambda: analytics(page="2", page_size=500), {"page": 2, "pageSize": 500}),
        (lambda: analytics(task_ids=["t"] * 100), {"taskIds": ["t"] * 100}),
        (lambda: analytics(member_names=["m"] * 100), {"memberNames": ["m"] * 100}),
        (lambda: analytics(start="2024-02-29"), {"start": "2024-02-29", "end": DAY}),
        (lambda: analytics(collection_method="Local"), {"collectionMethod": "Local"}),
        (lambda: analytics(time_granularity="Week"), {"timeGranularity": "Week"}),
        (lambda: loop(loop_items=[""]), {"loopItems": [""], "isAppend": False}),
        (lambda: loop(is_append=True), {"isAppend": True}),
        (lambda: loop(loop_items=["HTTPS://a.example"]), {"loopItems": ["HTTPS://a.example"]}),
        (lambda: endpoints.delete_tasks({"t"}), {"taskIds": ["t"]}),  # type: ignore[arg-type]
        (lambda: endpoints.delete_tasks({"t": 1}.keys()), {"taskIds": ["t"]}),  # type: ignore[arg-type]
        (lambda: endpoints.read_data("t", -1, 1), {"offset": -1, "size": 1}),
        (lambda: endpoints.read_data("t", "5", 1000), {"offset": 5, "size": 1000}),  # type: ignore[arg-type]
        (lambda: endpoints.get_subtasks("t"), {"page": 1, "size": 20}),
        (lambda: endpoints.get_subtasks("t", 9, 1), {"page": 9, "size": 1}),
        (lambda: endpoints.get_task_statuses_v2(iter(["t"])), {"taskIds": ["t"]}),
        (lambda: endpoints.delete_tasks(["t\n", " u"]), {"taskIds": ["t", "u"]}),
        (lambda: endpoints.start_subtasks(" t ", ["s\r\n"]), {"taskId": "t", "subTaskIds": ["s"]}),
        (lambda: endpoints.read_batch_data("t", "000001\n"), {"lotno": "000001"}),
        (lambda: endpoints.delete_task_groups([" 7\n", "-1"]), {"groupIds": [7, -1]}),  # type: ignore[list-item]
    ],
)
def test_what_is_just_within_a_limit_is_sent(make: Callable[[], Any], sent: dict[str, Any]) -> None:
    call = make()
    content = {**call.query, **(call.body or {})}
    assert {name: content[name] for name in sent} == sent


@pytest.mark.parametrize(
    ("spelling", "endpoint_3", "endpoint_4"),
    [
        ("UrlList", "UrlList", "UrlList"),
        ("URLList", "URLList", "URLList"),
        ("urllist", "UrlList", "URLList"),
        ("TEXTLIST", "TextList", "TextList"),
        ("textList", "TextList", "TextList"),
    ],
)
def test_a_loop_type_is_sent_as_it_was_spelled_or_else_as_the_endpoints_sample_spells_it(
    spelling: str, endpoint_3: str, endpoint_4: str
) -> None:
    assert loop(loop_type=spelling).body["loopType"] == endpoint_3
    (entry,) = parameters(loop_items=[{**ENTRY, "loop_type": spelling}]).body["loopItems"]
    assert entry["loopType"] == endpoint_4


def test_optional_fields_that_are_not_used_are_left_out() -> None:
    assert set(analytics().body) == {"start", "end"}
    assert set(analytics(member_names=[]).body) == set(analytics().body)
    assert endpoints.copy_task("t").query == {"taskId": "t"}
    assert set(parameters(actions=[ACTION]).body) == {"taskId", "actions"}
    assert set(parameters(loop_items=[ENTRY]).body) == {"taskId", "loopItems"}


class TestDates:
    @pytest.mark.parametrize(
        "day",
        [
            datetime.date(2024, 5, 31),
            datetime.datetime(2024, 5, 31, 23),
            datetime.datetime.fromisoformat("2024-06-01T01:00:00+02:00"),
            pendulum.datetime(2024, 6, 1, 1, tz="Europe/Berlin"),
            pendulum.date(2024, 5, 31),
        ],
    )
    def test_dates_and_times_of_all_kinds_mean_their_day_in_utc(self, day: Any) -> None:
        assert analytics(start=day, end=day).body["start"] == DAY

    def test_today_is_the_day_in_utc_wherever_the_worker_is(self) -> None:
        with time_machine.travel(datetime.datetime.fromisoformat("2024-06-01T01:00:00+02:00"), tick=False):
            assert analytics().body["end"] == DAY
            with pytest.raises(InvalidArgument, match="2024-05-31"):
                analytics(end="2024-06-01")
        with time_machine.travel(datetime.datetime.fromisoformat("2024-06-01T00:00:00+00:00"), tick=False):
            assert analytics(end="2024-06-01").body["end"] == "2024-06-01"

    @pytest.mark.parametrize(
        ("today", "oldest"), [("2024-05-31", "2024-02-29"), ("2023-05-30", "2023-02-28")]
    )
    def test_three_months_end_with_a_short_month(self, today: str, oldest: str) -> None:
        with time_machine.travel(f"{today}T12:00:00+00:00"):
            before = datetime.date.fromisoformat(oldest) - datetime.timedelta(days=1)
            assert analytics(start=oldest, end=today).body["start"] == oldest
            with pytest.raises(InvalidArgument, match="latest 3 months"):
                analytics(start=before, end=today)


def test_a_subclass_of_str_or_int_is_taken_as_what_it_is(client: Client, sandbox: Sandbox) -> None:
    class Markup(str):
        __slots__ = ()

    class Id(int):
        pass

    task = sandbox.control.add_task(loop_items=["a"])
    (loop_step,) = (step for step in task["actions"] if step["action_type"] == "LoopAction")
    call = endpoints.update_loop_items(
        Markup(task["task_id"]), Markup(loop_step["action_id"]), "TextList", [Markup("b")]
    )
    assert client.send(call)
    assert client.send(endpoints.copy_tasks([Markup(task["task_id"])], [Id(task["group_id"])]))


@pytest.mark.parametrize("text", ["true", "True", " TRUE\n", "false"])
def test_a_truth_value_from_a_template_is_one(text: str) -> None:
    body = parameters(loop_items=[{**ENTRY, "is_append": text}]).body
    assert body["loopItems"][0]["isAppend"] is ("true" in text.lower())
