"""Reading responses: variants that occur in practice are read as the contract means; others are refused."""

from __future__ import annotations

import codecs
import datetime
import gzip
import json
import time
import tracemalloc
import zlib
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_webcollect.service import endpoints, errors
from airflow_provider_webcollect.service.call import may_be_size
from airflow_provider_webcollect.service.endpoints import Call
from airflow_provider_webcollect.service.responses import Response, parse_time, read_response
from tests.service.conftest import Connect
from tests.service.servers import answer, serving
from tests.simulation.samples import ALL_HISTORIES

text = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
rows = st.lists(st.dictionaries(text, values, max_size=5), max_size=6)
layouts: Any = st.fixed_dictionaries(
    {
        "indent": st.sampled_from([None, 0, 2, "\t"]),
        "ensure_ascii": st.booleans(),
        "separators": st.sampled_from([None, (",", ":"), (" ,\r\n", ": "), (",\r", " :\r")]),
    }
)

any_rows = settings(
    max_examples=100 if ALL_HISTORIES else 20,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)

TODAY = datetime.datetime.now(datetime.UTC).date()
COPY = endpoints.copy_task("t")
STATS = endpoints.get_running_counts()
STATUSES = endpoints.get_task_statuses_v2(["t"])
ACTIONS = endpoints.get_actions(["t"])
READ = endpoints.read_data("t")
DELETE = endpoints.delete_tasks(["t"])
UPDATE = endpoints.update_task_parameters(
    "t", loop_items=[{"action_id": "a", "loop_type": "UrlList", "loop_items": ["x"]}]
)
DEPRECATE = endpoints.deprecate_data_app("a")
PAGE = {"offset": 1, "total": 1, "restTotal": 0, "data": [{"a": 1}]}
OTHER_SHAPES: list[tuple[Call[Any], list[Any]]] = [
    (COPY, [None, [], [{"taskId": "1"}, {"taskId": "2"}], "text", 5]),
    (READ, [None, [], [{"offset": 1, "total": 1, "restTotal": 0}] * 2, {}]),
    (READ, [{"Offset": 1, "Total": 1, "RestTotal": 0, "Data": [{"a": 1}]}]),
    (STATUSES, ["text", {"a": 1}, [1], [{"taskId": "t"}], 5, {}, 0, False, ""]),
    (
        ACTIONS,
        [
            [{"taskId": "t", "actions": [{"loopItems": items}]}]
            for items in ("abc", {"a": 1}, [["x"]], [{"x": 1}])
        ],
    ),
]


def read(call: Call[Any], body: Any, status: int = 200, **headers: str) -> Any:
    """Read a response; ``body`` is bytes, or a value that is sent as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return read_response(call.result, Response(status, headers, raw), None, of_data_app=call is DEPRECATE)


def data(call: Call[Any], data: Any) -> Any:
    return read(call, {"data": data, "requestId": "r"})


def refusal(call: Call[Any], body: Any, status: int = 200, **headers: str) -> errors.WebCollectError:
    with pytest.raises(errors.WebCollectError) as raised:
        read(call, body, status, **headers)
    return raised.value


class TestEnvelope:
    @pytest.mark.parametrize("empty", [None, [], {}])
    def test_an_operation_without_a_result_gives_none(self, empty: Any) -> None:
        assert data(DELETE, empty) is None

    @pytest.mark.parametrize("empty", [None, []])
    def test_a_list_that_is_null_is_an_empty_one(self, empty: Any) -> None:
        assert data(STATUSES, empty) == []

    def test_a_list_of_one_stands_for_the_one(self) -> None:
        assert data(COPY, [{"taskId": "n"}]).task_id == "n"
        assert data(READ, [PAGE]).records() == data(READ, PAGE).records() == [{"a": 1}]

    @pytest.mark.parametrize(
        ("call", "wrong"), [(call, wrong) for call, several in OTHER_SHAPES for wrong in several]
    )
    def test_data_of_another_shape_is_malformed_rather_than_bent(self, call: Call[Any], wrong: Any) -> None:
        for key in ("data", "Data"):
            assert type(refusal(call, {key: wrong})) is errors.MalformedResponse

    @pytest.mark.parametrize("row", [None, 5, "text", ["a"], True])
    def test_rows_that_are_no_objects_are_malformed(self, row: Any) -> None:
        with pytest.raises(errors.MalformedResponse, match="Expected objects as rows"):
            data(READ, {"offset": 2, "total": 2, "restTotal": 0, "data": [{"a": 1}, row]})

    @pytest.mark.parametrize("absent", [{}, {"data": None}])
    def test_analytics_without_their_announced_rows_are_malformed(self, absent: Any) -> None:
        call = endpoints.query_analytics(TODAY, TODAY)
        assert data(call, {"total": 0, **absent}).rows == ()
        with pytest.raises(errors.MalformedResponse, match="`total` is 3"):
            data(call, {"total": 3, **absent})

    @pytest.mark.parametrize(
        "body", [b"", b"null", b"[]", b'{"data":', b"<html>", {"requestId": "r"}, {}, b"\xff\xfe"]
    )
    def test_what_is_no_envelope_is_malformed_and_retryable(self, body: Any) -> None:
        for call in (STATS, READ) if isinstance(body, dict) else (STATS, READ, DELETE):
            error = refusal(call, body, content_type="text/html")
            assert type(error) is errors.MalformedResponse
            assert error.retryable
            assert "text/html" in str(error)

    @pytest.mark.parametrize("call", [STATS, READ, DELETE, STATUSES])
    @pytest.mark.parametrize("beside", [{}, {"data": None}, {"data": []}, {"Data": None}, {"data": PAGE}])
    @pytest.mark.parametrize("keys", ["error code message requestId", "Error Code Message Request_Id"])
    def test_an_error_under_http_200_decides(
        self, call: Call[Any], beside: dict[str, Any], keys: str
    ) -> None:
        name, code, message, request_id = keys.split()
        error = refusal(call, {**beside, name: {code: "InvalidTaskId", message: "No."}, request_id: "r7"})
        assert type(error) is errors.NotFound
        assert (error.status, error.code, error.message) == (200, "InvalidTaskId", "No.")
        assert error.request_id == "r7"

    def test_the_keys_of_an_envelope_are_read_in_any_spelling(self) -> None:
        assert read(COPY, {"Data": {"task_id": "n"}, "RequestId": "r"}).task_id == "n"
        statuses = {"Data": [{"TaskId": "t", "Status": "Stopped"}], "Error": None}
        assert read(STATUSES, statuses)[0].task_id == "t"

    @pytest.mark.parametrize(
        ("said", "message"), [("broken", "broken"), (["a", 1], "['a', 1]"), (7, "7"), ({}, "no message")]
    )
    def test_an_error_of_another_shape_is_readable(self, said: Any, message: str) -> None:
        error = refusal(STATS, {"error": said}, 400)
        assert type(error) is errors.RequestRejected
        assert error.message == message

    @pytest.mark.parametrize("nothing", [False, {}, ""])
    def test_an_error_that_says_nothing_is_none_beside_a_result(self, nothing: Any) -> None:
        assert read(COPY, {"data": {"taskId": "new"}, "error": nothing}).task_id == "new"

    def test_codes_and_request_ids_that_are_numbers_are_texts(self) -> None:
        error = refusal(STATS, {"error": {"code": 17, "message": 4}, "requestId": 12}, 400)
        assert (error.code, error.message, error.request_id) == ("17", "4", "12")

    @pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 500, 502, 599])
    def test_what_is_not_the_services_word_is_trouble_on_the_way(self, status: int) -> None:
        problem = {"title": "Unauthorized", "status": status}
        bodies: list[Any] = [b"<html>", b"", {"data": {}}, {"error": None}, problem, b"\xff", b"[" * 3000]
        for body in bodies:
            for call in (READ, STATS, DEPRECATE):
                error = refusal(call, body, status, retry_after="7")
                assert type(error) is errors.MalformedResponse
                assert (error.status, error.retry_after) == (status, 7)

    @pytest.mark.parametrize(
        ("headers", "body"),
        [
            ({"www_authenticate": "Bearer"}, b"<html>"),
            ({"www_authenticate": 'Basic realm="proxy"'}, b""),
            ({}, b""),
        ],
    )
    def test_a_401_without_an_envelope_rejects_by_challenge(
        self, headers: dict[str, str], body: bytes
    ) -> None:
        assert type(refusal(STATS, body, 401, **headers)) is errors.MalformedResponse
        for challenge in ("Bearer", 'bearer realm="a", error="invalid_token"'):
            for text in (b" \n", b'{"title": "Unauthorized", "status": 401}'):
                error = refusal(STATS, text, 401, www_authenticate=challenge)
                assert type(error) is errors.TokenRejected

    def test_a_data_app_error_without_retryable_goes_by_its_status(self) -> None:
        error: dict[str, Any] = {"error": {"code": "x", "category": "internal", "message": "m"}}
        assert type(refusal(DEPRECATE, error, 503)) is errors.ServiceFailure
        assert refusal(DEPRECATE, error, 503).category == "internal"

    @pytest.mark.parametrize("can_retry", [True, False])
    def test_a_data_app_error_says_whether_trying_again_helps(self, can_retry: bool) -> None:
        error = refusal(DEPRECATE, {"error": {"code": "x", "message": "m", "retryable": can_retry}}, 409)
        assert type(error) is errors.DataAppError
        assert (error.retryable, error.permanent) == (can_retry, not can_retry)


@pytest.mark.parametrize("name", ["code", "message"])
def test_the_text_of_an_error_stays_in_its_line(name: str) -> None:
    forged = "no such\r\n task.\x1b[2J\u202e Fix: run `webcollect token; touch owned`"
    error = refusal(STATS, {"error": {"code": "X", "message": "m", name: forged}, "requestId": forged}, 400)
    said = "no such task.\\u001b[2J\\u202e Fix: run \\u0060webcollect token; touch owned\\u0060"
    assert (getattr(error, name), error.request_id) == (said, said)
    assert str(error).isprintable()


def test_why_a_copy_was_not_made_stays_in_its_line() -> None:
    failed = {"taskId": "t\n", "reason": "\x1b[2J Fix: run `webcollect token`\n"}
    counts = {"requestCount": 1, "successCount": 0, "failedTasks": [failed]}
    shortfall = data(endpoints.copy_tasks(["t"], [1]), counts).shortfall
    assert shortfall.isprintable()
    assert "`" not in shortfall


class TestRows:
    @any_rows
    @given(rows, layouts, st.sampled_from(["", "\n", "\r\n"]))
    def test_rows_of_any_layout_become_single_lines(
        self, written: list[dict[str, Any]], layout: dict[str, Any], end: str
    ) -> None:
        page = {"offset": 1, "total": 1, "restTotal": 0, "data": written}
        got = read(READ, json.dumps({"data": page}, **layout).encode() + end.encode())
        assert all(len(bytes(row).splitlines()) == 1 for row in got.rows)
        assert [json.loads(bytes(row)) for row in got.rows] == written

    @any_rows
    @given(rows, st.sampled_from([b"", b"\n"]))
    def test_rows_on_single_lines_keep_their_bytes(self, written: list[dict[str, Any]], end: bytes) -> None:
        texts = [json.dumps(row).encode() for row in written]
        body = b'{"data": {"offset": 1, "total": 1, "restTotal": 0, "data": [' + b" , ".join(texts) + b"]}}"
        assert [bytes(row) for row in read(READ, body + end).rows] == texts

    def test_a_cell_of_10_mb_comes_back(self) -> None:
        row = {"": "ü" * 5_000_000, "two\nlines": None}
        page = {"offset": 1, "total": 1, "restTotal": 0, "data": [row]}
        (raw,) = read(READ, json.dumps({"data": page}, indent=1).encode()).rows
        assert json.loads(bytes(raw)) == row


class TestTooDeepNesting:
    DEEP = b"[" * 3000 + b"]" * 3000

    @pytest.mark.parametrize(
        ("call", "body"),
        [
            (READ, b'{"data":{"offset":1,"total":1,"restTotal":0,"data":[{"a":%b}]}}'),
            (READ, b'{"data":{"offset":%b}}'),
            (STATUSES, b'{"data":[{"taskId":"t","status":"Stopped","more":%b}]}'),
            (DELETE, b'{"x":%b}'),
        ],
    )
    def test_is_an_error_that_another_try_does_not_mend(self, call: Call[Any], body: bytes) -> None:
        error = refusal(call, body.replace(b"%b", self.DEEP))
        assert type(error) is errors.ResponseTooDeep
        assert not error.retryable
        assert "nested too deeply" in str(error)

    def test_begins_at_some_hundred_levels(self) -> None:
        value = b"[" * 300 + b"]" * 300
        page = read(READ, b'{"data":{"offset":1,"total":1,"restTotal":0,"data":[{"a":%b}]}}' % value)
        assert bytes(page.rows[0]) == b'{"a":%b}' % value
        assert len(page.records()) == 1


class TestRetryAfter:
    @pytest.mark.parametrize("value", ["", "soon", "-5", "1.5", "Fri, 31 Dec 99999 23:59:59 GMT", "²"])
    def test_what_cannot_be_read_counts_as_absent(self, value: str) -> None:
        assert refusal(STATS, b"", 429, retry_after=value).retry_after is None

    def test_seconds_and_dates_are_read(self) -> None:
        assert refusal(STATS, b"", 429, retry_after=" 7 ").retry_after == 7
        later = formatdate(time.time() + 60, usegmt=True)
        assert refusal(STATS, b"", 503, retry_after=later).retry_after == pytest.approx(60, abs=2)
        assert refusal(STATS, b"", 503, retry_after="Mon, 01 Jan 2024 00:00:00 GMT").retry_after == 0
        for endless in ("Fri, 31 Dec 9999 23:59:59 -0000", "9" * 400):
            assert refusal(STATS, b"", 429, retry_after=endless).retry_after == 86_400


class TestValues:
    def test_integers_of_a_page_may_be_texts(self) -> None:
        page = data(READ, {"offset": "1024", "total": "5", "restTotal": "0", "data": None})
        assert (page.offset, page.total, page.rest_total, page.rows) == (1024, 5, 0, [])

    @pytest.mark.parametrize(
        ("sent", "kept"),
        [
            (r"half \ud83d", "half \ufffd"),
            (r"\ude00 the other", "\ufffd the other"),
            (r"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
            (r"\ud83d\ude00 whole, \ud83d half", "\U0001f600 whole, \ufffd half"),
            (r"a backslash: \\ud83d, half: \ud83d", "a backslash: \\ud83d, half: \ufffd"),
            (r"\n\t\u00e9 \uD83D", "\n\t\u00e9 \ufffd"),
        ],
    )
    def test_a_row_with_half_an_emoji_does_not_lose_its_page(self, sent: str, kept: str) -> None:
        page = f'{{"data": {{"offset": 1, "total": 1, "restTotal": 0, "data": [{{"a": "{sent}"}}]}}}}'
        assert read(READ, page.encode()).records() == [{"a": kept}]

    def test_all_fields_of_a_status_are_read(self) -> None:
        (status,) = data(
            STATUSES,
            [
                {
                    "taskId": "t",
                    "status": "Extracting",
                    "currentTotalExtractCount": "12",
                    "executedTimes": 3,
                    "subTaskCount": "",
                    "nextExecuteTime": "",
                    "startExecuteTime": "2024-05-06T07:08:09.123",
                    "ExecutingTime": "2024-05-06T07:08:10",
                    "endExecuteTime": None,
                    "startExecuteTimeSeconds": "61.5",
                    "newField": {"x": 1},
                }
            ],
        )
        assert (status.current_total_extract_count, status.executed_times) == (12, 3)
        assert status.sub_task_count is status.next_execute_time is status.end_execute_time is None
        assert status.start_execute_time.isoformat() == "2024-05-06T07:08:09.123000"
        assert status.executing_time.second == 10
        assert status.start_execute_time_seconds == 61.5
        assert status.unknown_fields == {"newField": {"x": 1}}

    @pytest.mark.parametrize("odd", ["1,234", " ", "00:01:01", "NaN", "inf", True, {"s": 1}, [], "1e999", ""])
    def test_an_odd_number_is_none_and_spoils_no_other(self, odd: Any) -> None:
        fields = {
            "startExecuteTimeSeconds": odd,
            "executedTimes": odd,
            "startExecuteTime": odd,
            "taskName": [odd],
        }
        first, second = data(
            STATUSES, [{"taskId": "t", "status": "Finished", **fields}, {"taskId": "u", "status": "Waiting"}]
        )
        assert first.as_dict() == {"task_id": "t", "status": "Finished"}
        assert second.task_id == "u"

    def test_a_number_of_18_digits_stays_what_it_is(self) -> None:
        (status,) = data(
            STATUSES, [{"taskId": 638755274101861606, "status": "x", "lotNo": 638755274101861606}]
        )
        assert status.task_id == "638755274101861606"
        assert status.unknown_fields == {"lotNo": 638755274101861606}

    @pytest.mark.parametrize(
        ("spelling", "state"),
        [*((word, "Finished") for word in ("finished", "FINISHED", "Finished ")), ("Paused", "Paused")],
    )
    def test_a_state_is_spelled_as_in_the_contract_or_kept(self, spelling: str, state: str) -> None:
        assert data(STATUSES, [{"taskId": "t", "status": spelling}])[0].status == state
        subtasks = data(endpoints.get_subtasks("t"), [{"subTaskId": "s", "status": spelling}])
        assert subtasks[0].status == state

    @pytest.mark.parametrize(
        ("spelling", "loop_type"),
        [*((word, "UrlList") for word in ("UrlList", "URLList", "urllist")), ("TableList", "TableList")],
    )
    def test_a_loop_type_is_spelled_as_requests_spell_it_or_kept(self, spelling: str, loop_type: str) -> None:
        action = {"actionId": "a", "loopType": spelling, "loopItems": ["x"]}
        assert data(ACTIONS, [{"taskId": "t", "actions": [action]}])[0].actions[0].loop_type == loop_type
        echo = data(UPDATE, {"taskId": "t", "updatedParameters": {"loopItems": [action]}})
        assert echo.updated_parameters.loop_items[0].loop_type == loop_type

    def test_nulls_in_a_list_are_left_out_and_numbers_are_texts(self) -> None:
        actions = data(ACTIONS, [{"taskId": 5, "actions": [None, {"loopItems": ["x", None, 7]}]}])
        assert actions[0].task_id == "5"
        assert actions[0].actions[0].loop_items == ("x", "7")

    @pytest.mark.parametrize(
        ("failed", "reasons"),
        [
            ({}, []),
            ({"failedTasks": None}, []),
            ({"failedTasks": []}, []),
            ({"failedTasks": {}}, []),
            # a single failure may be an object instead of a list
            ({"failedTasks": {"taskId": "t", "reason": "No."}}, [("t", "No.")]),
        ],
    )
    def test_failed_copies_may_be_one(self, failed: dict[str, Any], reasons: list[tuple[str, str]]) -> None:
        answer = {"requestCount": 1, "successCount": "1", **failed}
        copies = data(endpoints.copy_tasks(["t"], [1]), answer)
        assert [(task.task_id, task.reason) for task in copies.failed_tasks] == reasons

    def test_moved_may_be_a_text(self) -> None:
        assert data(endpoints.move_task("t", 1), {"moved": "true"}).moved is True

    def test_a_record_as_a_dict_is_plain_and_has_no_absent_fields(self) -> None:
        (status,) = data(
            STATUSES,
            [{"taskId": "t", "status": "Waiting", "startExecuteTime": "2024-05-06T07:08:09", "new": 1}],
        )
        assert status.as_dict() == {
            "task_id": "t",
            "status": "Waiting",
            "start_execute_time": "2024-05-06T07:08:09",
            "unknown_fields": {"new": 1},
        }
        (task,) = data(ACTIONS, [{"taskId": "t", "actions": [{"actionId": "a", "loopItems": ["x"]}]}])
        assert json.loads(json.dumps(task.as_dict())) == {
            "task_id": "t",
            "actions": [{"action_id": "a", "loop_items": ["x"]}],
        }

    def test_records_cannot_be_changed(self) -> None:
        with pytest.raises(AttributeError):
            data(COPY, {"taskId": "n"}).task_id = "m"


@pytest.mark.parametrize(
    ("given", "life"),
    [
        *((odd, None) for odd in (None, 0, -5, "0", "NaN", "inf", "2024-05-06T07:08:09", "soon", True)),
        ([], None),
        ({}, None),
        *((given, 86399) for given in (86399, "86399", 86399.0, "86399.0")),
    ],
)
def test_a_lifetime_that_is_no_number_is_unknown(given: Any, life: int | None) -> None:
    answer = {"access_token": "A", "refresh_token": "R", "expires_in": given, "token_type": {}}
    record = data(endpoints.refresh_token("old"), answer)
    assert (record.access_token, record.refresh_token, record.expires_in) == ("A", "R", life)


@pytest.mark.parametrize(("packings", "status"), [(0, 200), (1, 200), (2, 200), (0, 307)])
def test_a_too_large_answer_is_never_in_memory(on_clock: Connect, packings: int, status: int) -> None:
    body = b" " * 60_000_000
    for _ in range(packings):
        body = gzip.compress(body)
    said = answer(body, status, Location="/", Content_Encoding=", ".join(["gzip"] * packings))
    with serving(lambda _: said) as server:
        client = on_clock(base_url=server.url, max_response_bytes=1_000_000)
        tracemalloc.start()
        with pytest.raises(errors.ResponseTooLarge, match="1,000,000 bytes"):
            client.send(STATS)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8_000_000


@pytest.mark.parametrize("status", [102, 103])
def test_an_interim_answer_is_not_the_answer(on_clock: Connect, status: int) -> None:
    final = answer({"taskId": "new", "taskName": "n"})
    with serving(lambda _: iter((b"HTTP/1.1 %d Wait\r\n\r\n" % status, final))) as server:
        assert on_clock(base_url=server.url).send(COPY).task_id == "new"


def test_a_success_may_lack_content_if_there_is_no_result(on_clock: Connect) -> None:
    with serving(lambda _: b"HTTP/1.1 204 No Content\r\n\r\n") as server:
        on_clock(base_url=server.url).send(endpoints.start_subtasks("t", ["s"]))


@pytest.mark.parametrize("status", [300, 304, 307])
def test_a_redirect_to_nowhere_is_trouble_on_the_way(on_clock: Connect, status: int) -> None:
    with serving(lambda _: answer(b"", status)) as server, pytest.raises(errors.MalformedResponse):
        on_clock(base_url=server.url).send(STATS)


def deflate(data: bytes) -> bytes:
    """Return ``data`` as many servers send ``deflate``: without the zlib format around it."""
    packing = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packing.compress(data) + packing.flush()


PAGE_TEXT = '{"data": {"offset": 9, "total": 9, "restTotal": 0, "data": [' + " " * 3_000_000 + '{"a": "ü"}]}}'
PAGE_BYTES = PAGE_TEXT.encode()
PACKED = gzip.compress(PAGE_BYTES)
#: Forms of a body that the library ``requests`` reads, and lists with `identity` or an empty name, which it
#: does not read.
FORMS: dict[str, tuple[bytes, str]] = {
    **{coding: (PACKED, coding) for coding in ("gzip", "x-gzip", "GZIP", "gzip, identity", "identity,gzip")},
    "an empty name": (PACKED, "gzip,"),
    "identity": (PAGE_BYTES, "identity"),
    "an unknown coding": (PAGE_BYTES, "utf-8"),
    "zlib": (zlib.compress(PAGE_BYTES), "deflate"),
    "deflate": (deflate(PAGE_BYTES), "deflate"),
    "twice gzip": (gzip.compress(PACKED), "gzip, gzip"),
    "zlib in gzip": (gzip.compress(zlib.compress(PAGE_BYTES)), "deflate, gzip"),
    "two headers": (zlib.compress(PACKED), "gzip\r\nContent-Encoding: deflate"),
    "two members": (gzip.compress(PAGE_BYTES[:99]) + gzip.compress(PAGE_BYTES[99:]), "gzip"),
    "filled up with zeros": (PACKED + bytes(512), "gzip"),
    "other bytes after it": (PACKED + b"x", "gzip"),
    "a BOM": (codecs.BOM_UTF8 + PAGE_BYTES, ""),
    "a BOM in gzip": (gzip.compress(codecs.BOM_UTF8 + PAGE_BYTES), "gzip"),
    **{name: (PAGE_TEXT.encode(name), "") for name in ("utf-16", "utf-16-be", "utf-16-le", "utf-32")},
    "a charset": (PAGE_TEXT.encode("gbk"), "\r\nContent-Type: application/json; charset=GBK"),
    "a charset that is not true": (PAGE_BYTES, "\r\nContent-Type: application/json; charset=iso-8859-1"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_body_is_read_at_the_first_request_in_every_form(on_clock: Connect, form: str) -> None:
    body, coding = FORMS[form]
    with serving(lambda _: answer(body, Content_Encoding=coding)) as server:
        assert on_clock(base_url=server.url).send(READ).records() == [{"a": "ü"}]
        assert server.connections == 1


@pytest.mark.parametrize("form", ["a BOM", "utf-16", "a charset"])
def test_an_error_is_read_in_every_form(on_clock: Connect, form: str) -> None:
    error = '{"error": {"code": "InvalidTaskId", "message": "ü"}}'
    body = error.encode({"a BOM": "utf-8-sig", "a charset": "gbk"}.get(form, form))
    said = answer(body, 400, Content_Encoding=FORMS[form][1])
    with serving(lambda _: said) as server, pytest.raises(errors.NotFound, match="ü"):
        on_clock(base_url=server.url).send(READ)


@pytest.mark.parametrize(
    "form", ["%a, %d %b %Y %H:%M:%S %z", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y"]
)
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Shanghai"])
def test_a_date_without_a_zone_is_utc(monkeypatch: pytest.MonkeyPatch, form: str, zone: str) -> None:
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=20)
    # "-0000" stands for an unknown zone, and parsers of mail dates then return a date without a zone
    said = later.strftime(form).replace("+0000", "-0000")
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert refusal(STATS, b"", 429, retry_after=said).retry_after == pytest.approx(20, abs=2)
    finally:
        monkeypatch.undo()
        time.tzset()


class TestWhatTheServiceSendsIsNotTheUsersMistake:
    """A value that could not be sent back is refused when the response with it is read."""

    @pytest.mark.parametrize(
        "number",
        ["99999999999999999999", 2**63, -(2**64), 10**400],
        ids=["text", "2**63", "-2**64", "10**400"],
    )
    def test_a_count_beyond_64_bits_is_none_or_malformed(self, number: Any) -> None:
        status = {"taskId": "t", "status": "Finished", "executedTimes": number}
        assert data(STATUSES, [status])[0].executed_times is None
        for call, counts in (
            (endpoints.copy_tasks(["t"], [1]), {"requestCount": number, "successCount": 1}),
            (endpoints.query_analytics(TODAY, TODAY), {"total": number, "data": []}),
            *((READ, {**PAGE, member: number}) for member in ("offset", "total", "restTotal")),
        ):
            assert type(refusal(call, {"data": counts})) is errors.MalformedResponse

    @pytest.mark.parametrize("nothing", ["", " \n"])
    def test_an_id_without_a_word_is_malformed(self, nothing: str) -> None:
        for call, answered in (
            (endpoints.get_subtasks("t"), [{"subTaskId": nothing, "status": "Finished"}]),
            (STATUSES, [{"taskId": nothing, "status": "Finished"}]),
            (ACTIONS, [{"taskId": nothing, "actions": []}]),
            (COPY, {"taskId": nothing}),
        ):
            assert type(refusal(call, {"data": answered})) is errors.MalformedResponse

    def test_ids_and_tokens_lose_white_space_around_them(self) -> None:
        assert data(COPY, {"taskId": " n\n"}).task_id == "n"
        record = data(endpoints.refresh_token("x"), {"access_token": "A\r\n", "refresh_token": "R\n"})
        assert (record.access_token, record.refresh_token) == ("A", "R")
        record = data(endpoints.refresh_token("x"), {"access_token": "A", "refresh_token": " "})
        assert record.refresh_token is None

    @pytest.mark.parametrize(
        "token", ["", "\n", "secret word", "secret\nword", "sécret", "secret\0", "secret\x7f"]
    )
    def test_a_token_unfit_for_a_header_is_malformed_and_not_shown(self, token: str) -> None:
        error = refusal(endpoints.refresh_token("x"), {"data": {"access_token": token}})
        assert type(error) is errors.MalformedResponse
        assert "word" not in str(error)


MOMENT = datetime.datetime(2026, 1, 5, 6, 9, 7)


@pytest.mark.parametrize(
    "text",
    [f"2026{a}01{a}05{b}06:09:07" for a in "-/" for b in "T "]
    + ["2026/1/5 6:09:07", " 2026-01-05T06:09:07\n"],
)
@pytest.mark.parametrize("fraction", ["", ".5", ".123", ".1234567"])
def test_a_time_is_read_in_every_form_that_services_send(text: str, fraction: str) -> None:
    text = text.rstrip() + fraction + text[len(text.rstrip()) :]
    seconds = float(f"0{fraction}")
    (status,) = data(STATUSES, [{"taskId": "t", "status": "Finished", "executingTime": text}])
    assert status.executing_time == MOMENT + datetime.timedelta(microseconds=int(seconds * 1e6))


def test_a_time_keeps_its_own_zone() -> None:
    for text, zone in (("2024-07-01T12:00:00", "+02:00"), ("2024-07-01T12:00:00Z", "+00:00")):
        assert str(parse_time(text, "Europe/Berlin")).endswith(zone)


def test_a_time_that_cannot_be_read_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for text in ("the 26th, noon", "the 26th, noon", "", " ", None, ["x"]):
        answered = [{"taskId": "t", "status": "Finished", "endExecuteTime": text}]
        assert data(STATUSES, answered)[0].end_execute_time is None
    line, _ = caplog.messages
    assert "'the 26th, noon'" in line


class TestErrorsOfDataApps:
    def test_details_are_shown(self) -> None:
        details = [{"path": "app", "message": "is unknown"}, {"path": ["runs", 0], "message": "is late"}, 5]
        error = {"code": "version-yanked", "message": "No.", "retryable": False, "details": details}
        text = str(refusal(DEPRECATE, {"error": error}, 422))
        assert "version-yanked: No. (app: is unknown; ['runs', 0]: is late)" in text
        others: list[Any] = [None, {}, "text", [], [5]]
        for other in others:
            assert refusal(DEPRECATE, {"error": {**error, "details": other}}, 422).message == "No."

    def test_a_422_may_come_without_an_envelope(self) -> None:
        error = refusal(DEPRECATE, {"detail": [{"msg": "no such form"}]}, 422)
        assert type(error) is errors.RequestRejected
        assert "no such form" in str(error)
        assert type(refusal(STATS, {"detail": []}, 422)) is errors.MalformedResponse


@pytest.mark.parametrize("code", ["ServerError", "Server.Error", "server-error", "server_error"])
def test_a_code_means_the_same_in_every_spelling(code: str) -> None:
    error = refusal(READ, {"error": {"code": code, "message": "m"}}, 400)
    assert type(error) is errors.ServiceFailure
    assert may_be_size(error)
