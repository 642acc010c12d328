"""The contract's limits: an argument that breaks one is refused before anything is sent."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

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


def step(**changes: Any) -> Any:
    return parameters(actions=[{**ACTION, **changes}])


def entry(**changes: Any) -> Any:
    return parameters(loop_items=[{**ENTRY, **changes}])


REFUSED: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: analytics(page=0), "`page` is 0", "an integer of 1 or more"),
    (lambda: analytics(page_size=0), "`page_size` is 0", "from 1 to 500"),
    (lambda: analytics(page_size=501), "`page_size` is 501", "from 1 to 500"),
    (lambda: analytics(task_ids=["t"] * 101), "`task_ids` is ['t',", "at most 100 entries, not 101"),
    (lambda: analytics(task_ids=[]), "`task_ids` is []", "at least one entry"),
    (lambda: analytics(member_names=["m"] * 101), "`member_names`", "at most 100 entries"),
    (lambda: analytics(member_names=["m", ""]), "`member_names[1]` is ''", "a non-empty string"),
    (lambda: analytics(collection_method="cloud"), "`collection_method` is 'cloud'", "Cloud, Local, All"),
    (lambda: analytics(time_granularity="Year"), "`time_granularity` is 'Year'", "Day, Week, Month"),
    (lambda: analytics(end="2024-06-01"), "`end` is '2024-06-01'", "not be after the current UTC date"),
    (lambda: analytics(end="2024-05-30"), "`start` is '2024-05-31'", "not be after `end`"),
    (lambda: loop(task_id=" "), "`task_id` is ' '", "a non-empty string"),
    (lambda: loop(action_id=""), "`action_id` is ''", "a non-empty string"),
    (lambda: loop(loop_type="URLs"), "`loop_type` is 'URLs'", "TextList, UrlList"),
    (lambda: loop(loop_items=[]), "`loop_items` is []", "at least one entry"),
    (lambda: loop(loop_items=["a", 1]), "`loop_items[1]` is 1", "a string"),
    (lambda: loop(is_append="yes"), "`is_append` is 'yes'", "True or False"),
    (lambda: parameters(), "`actions` is None", "at least one entry"),
    (lambda: parameters(actions=[], loop_items=[]), "`actions` is []", "at least one entry"),
    (lambda: parameters(actions=ACTION), "`actions` is {'action_type'", "a list"),
    (lambda: parameters(actions=["a"]), "`actions[0]` is 'a'", "a dict with action_id"),
    (lambda: step(x=1), "`actions[0]`", "a dict with action_id"),
    (lambda: step(action_type="Click"), "`actions[0].action_type` is 'Click'", "LoopAction, NavigateAction"),
    (lambda: step(properties={}), "`actions[0].properties`", "not empty"),
    (lambda: step(properties="x"), "`actions[0].properties`", "a dict, or"),
    (lambda: step(properties={"a": 1}), "`actions[0].properties[0].value` is 1", "a string"),
    (lambda: step(properties=[{"name": "a"}]), "`actions[0].properties[0]`", "name, value"),
    (lambda: parameters(loop_items=[{"action_id": "a"}]), "`loop_items[0]`", "optionally is_append"),
    (lambda: entry(loop_type="List"), "`loop_items[0].loop_type` is 'List'", "TextList, UrlList"),
    (lambda: entry(is_append="yes"), "`loop_items[0].is_append` is 'yes'", "True"),
    (lambda: endpoints.get_actions([]), "`task_ids` is []", "at least one entry"),
    (lambda: endpoints.get_actions(["t"], []), "`action_types` is []", "at least one entry"),
    (lambda: endpoints.get_actions(["t"], ["Click"]), "`action_types[0]` is 'Click'", "LoopAction"),
    (lambda: url_list([]), "`urls` is []", "at least one entry"),
    (lambda: url_list(["https://a.example", 5]), "`urls[1]` is 5", "a string"),  # type: ignore[list-item]
    (lambda: url_list(["https://a.example", ""]), "`urls[1]` is ''", "no line may be blank"),
    (lambda: url_list(["https://a.example\nhttps://b.example"]), "`urls[0]`", "one http(s) URL"),
    (lambda: url_list(["https://\ud800.example"]), "`urls[0]`", "it must be UTF-8"),
    (lambda: endpoints.copy_task(""), "`task_id` is ''", "a non-empty string"),
    (lambda: endpoints.copy_task("t", "two"), "`group_id` is 'two'", "an integer"),  # type: ignore[arg-type]
    (lambda: endpoints.copy_tasks([], [1]), "`task_ids` is []", "at least one entry"),
    (lambda: endpoints.copy_tasks(["t"], []), "`group_ids` is []", "at least one entry"),
    (lambda: endpoints.move_task("t", None), "`group_id` is None", "an integer"),  # type: ignore[arg-type]
    (lambda: endpoints.delete_tasks([]), "`task_ids` is []", "at least one entry"),
    (lambda: endpoints.delete_task_groups([]), "`group_ids` is []", "at least one entry"),
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
    (lambda: endpoints.deprecate_data_app("\ud800"), "`app_id` is '\\ud800'", "a lone surrogate"),
    (lambda: endpoints.first_token("me", "SECRET\ud800"), "`password` is '\\ud800'", "at position 6"),
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
        (lambda: analytics(page_size=500), {"pageSize": 500}),
        (lambda: analytics(task_ids=["t"] * 100), {"taskIds": ["t"] * 100}),
        (lambda: analytics(member_names=["m"] * 100), {"memberNames": ["m"] * 100}),
        (lambda: endpoints.read_data("t", -1, 1), {"offset": -1, "size": 1}),
        (lambda: endpoints.read_data("t", 5, 1000), {"offset": 5, "size": 1000}),
        (lambda: endpoints.get_subtasks("t"), {"page": 1, "size": 20}),
        (lambda: endpoints.get_subtasks("t", 9, 1), {"page": 9, "size": 1}),
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
def test_a_loop_type_is_sent_as_spelled_or_corrected(spelling: str, endpoint_3: str, endpoint_4: str) -> None:
    assert loop(loop_type=spelling).body["loopType"] == endpoint_3
    assert entry(loop_type=spelling).body["loopItems"][0]["loopType"] == endpoint_4


def test_no_member_names_are_left_out() -> None:
    assert set(analytics(member_names=[]).body) == {"start", "end"}


class TestDates:
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
