"""Control of a sandbox: tasks, time, settings, the request log."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import pytest
import requests

from airflow_provider_webcollect.sandbox import Control, Sandbox, SandboxError, Settings, demo
from tests.interruption import PATIENCE
from tests.sandbox.conftest import RealTime, StartSandbox
from tests.sandbox.plain_client import Client, data

STATS = "/cloudextraction/task/stats"


def test_importing_the_package_does_not_import_the_server() -> None:
    code = (
        "import sys; from airflow_provider_webcollect.sandbox import Control, Settings, pytest_plugin;"
        "print([m for m in ('starlette', 'uvicorn', 'uvloop', 'airflow') if m in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_the_package_has_no_other_names() -> None:
    import airflow_provider_webcollect.sandbox as package

    with pytest.raises(AttributeError, match="no attribute 'Sandpit'"):
        _ = package.Sandpit


def test_a_sandbox_stops_though_a_connection_to_it_is_open() -> None:
    with Sandbox() as sandbox:
        session = requests.Session()
        session.get(sandbox.url, timeout=PATIENCE)
    with pytest.raises(requests.ConnectionError):
        session.get(sandbox.url, timeout=PATIENCE)


def test_a_sandbox_stops_while_it_is_answering() -> None:
    with Sandbox() as sandbox:
        sandbox.control.fail("*", kind="drip", seconds=3600)
        dripping = requests.get(sandbox.url + STATS, stream=True, timeout=PATIENCE)
        assert dripping.raw.read(1) == b"{"
        sandbox.control.fail("*", kind="slow", seconds=3600)
        with pytest.raises(requests.Timeout):
            requests.get(sandbox.url + STATS, timeout=(PATIENCE, 0.1))
    dripping.close()


def test_sandboxes_do_not_know_each_other(start_sandbox: StartSandbox) -> None:
    one, other = start_sandbox(), start_sandbox()
    one.control.add_task("mine")
    assert [t["task_id"] for t in other.control.tasks()].count("mine") == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "sandbox.example"])
def test_only_this_machine_is_served_unless_allowed(host: str) -> None:
    with pytest.raises(ValueError, match="not a loopback address"):
        Sandbox(host=host)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2", "::1"])
def test_any_loopback_address_will_do(host: str) -> None:
    with Sandbox(host=host) as sandbox:
        assert sandbox.control.now() > 0


def test_a_taken_port_is_an_error() -> None:
    with Sandbox() as sandbox:
        port = int(sandbox.url.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            Sandbox(port=port).__enter__()


@pytest.mark.parametrize(
    "wrong", [{"speed": 0}, {"tier": "Gold"}, {"seed": "x"}, {"general_rate": 0}, {"data": "/nowhere.csv"}]
)
def test_a_wrong_setting_is_an_error(wrong: dict[str, object]) -> None:
    with pytest.raises((ValueError, OSError)):
        Sandbox(Settings(**wrong)).__enter__()  # type: ignore[arg-type]


def test_a_task_is_described_in_full(client: Client) -> None:
    added = client.control.add_task("id-1", "Name", rows=9, subtasks=2, group_id=7, lots=2, fields=["a", "b"])
    assert added == client.control.task("id-1")
    assert added["group_id"] == 7
    assert client.control.groups()[7] == "Group 7"
    assert [run["rows"] for run in added["runs"]] == [9, 9]
    values = [added[name] for name in ("name", "state", "executed_times", "rows")]
    assert values == ["Name", "Finished", 2, 18]
    assert len(added["subtasks"]) == 2
    types = {action["action_type"] for action in added["actions"]}
    assert types == {"LoopAction", "NavigateAction", "EnterTextAction"}


def test_earlier_runs_ended_an_hour_apart_the_last_an_hour_ago(client: Client) -> None:
    now = client.control.now()
    task = client.control.add_task(rows=9, lots=2)
    lasts = sum(client.control.configure()[name] for name in ("wait_seconds", "run_seconds"))
    starts = [datetime.fromisoformat(run["start"] + "+00:00").timestamp() for run in task["runs"]]
    # the service gives times in milliseconds
    assert [now - start - lasts for start in starts] == pytest.approx([7200, 3600], abs=0.001)


def test_a_task_gets_an_id_from_the_seed(start_sandbox: StartSandbox) -> None:
    first, second = (start_sandbox().control.add_task()["task_id"] for _ in range(2))
    assert first == second
    assert len(first) == 36


def test_a_task_with_a_past_can_be_running(client: Client) -> None:
    task = client.control.add_task(rows=100, lots=[50], state="Extracting")
    assert (task["state"], task["executed_times"]) == ("Extracting", 2)
    assert 50 < task["rows"] < 150


@pytest.mark.parametrize(
    "call",
    [
        lambda control: control.add_task(demo.TASK_ID),
        lambda control: control.add_task(lots=2),
        lambda control: control.add_task(lots=-1, rows=5),
        lambda control: control.add_task(rows="many"),
        lambda control: control.task("unknown"),
        lambda control: control.true_rows("unknown"),
        lambda control: control.grow(demo.TASK_ID, 5),
        lambda control: control.rename_task("unknown", "Prices"),
        lambda control: control.configure(colour="red"),
        lambda control: control.configure(speed=-1),
        lambda control: control.configure(data="/nowhere.csv"),
        lambda control: control.fail("/task/copy", kind="raw", body="a text"),
        lambda control: control.add_task(subtasks=0),
        lambda control: control.add_task(rows=-1),
        lambda control: control.advance("long"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused(client: Client, call: Callable[[Control], object]) -> None:
    with pytest.raises(SandboxError):
        call(client.control)


@pytest.mark.parametrize(
    ("command", "arguments", "status", "problem"),
    [
        ("explode", None, 404, "There is no command explode."),
        ("advance", {"hours": 1, "seconds": 1}, 400, "hours"),
    ],
)
def test_an_unknown_command_or_argument_is_refused(
    client: Client, command: str, arguments: dict[str, int] | None, status: int, problem: str
) -> None:
    answer = client.post(f"/_sandbox/{command}", arguments)
    assert answer.status_code == status
    assert problem in answer.json()["error"]


def test_reading_commands_need_no_body(client: Client) -> None:
    assert client.post("/_sandbox/now").json() > 0


#: Requests that a browser may send for a web page: from another site, under a host name that points to this
#: machine, or for an image or a link. Each has its method, its headers and the status of the response.
OF_PAGES = [
    *(
        ("POST", {"Origin": origin}, 403)
        for origin in (
            *("null", "https://evil.example", "http://127.0.0.1", "http://127.0.0.1:1", ""),
            *("https://127.0.0.1:{port}", "http://127.0.0.1:{port}/"),
        )
    ),
    *(
        ("POST", {"Host": host, **origin}, 403)
        for host in (
            *("evil.example:{port}", "127.0.0.1.evil.example:{port}", "localhost", "127.0.0.1:1"),
            *("[::1:{port}", "x:y", ""),
        )
        for origin in ({}, {"Origin": f"http://{host}"})
    ),
    *((method, {}, 405) for method in ("GET", "HEAD", "PUT", "OPTIONS")),
]


def reset(client: Client, method: str, headers: dict[str, str]) -> requests.Response:
    """Send the command ``reset``, by which the sandbox forgets everything, with a method and headers."""
    port = client.sandbox.url.rpartition(":")[2]
    headers = {name: value.format(port=port) for name, value in headers.items()}
    return client.call(method, "/_sandbox/reset", headers)


@pytest.mark.parametrize(("method", "headers", "status"), OF_PAGES)
def test_a_web_page_cannot_control(client: Client, method: str, headers: dict[str, str], status: int) -> None:
    client.control.add_task("mine")
    answer = reset(client, method, headers)
    assert (answer.status_code, answer.headers["Allow"]) == (status, "POST")
    assert method == "HEAD" or list(answer.json()) == ["error"]
    assert client.control.task("mine")


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "LocalHost:{port}", "127.1.2.3:{port}", "[::1]:{port}"])
def test_every_loopback_name_with_the_own_port_can_control(client: Client, host: str) -> None:
    client.control.add_task("mine")
    assert reset(client, "POST", {"Host": host, "Origin": f"http://{host}"}).status_code == 200
    assert "mine" not in [task["task_id"] for task in client.control.tasks()]


def test_a_remote_sandbox_takes_any_host_name_but_no_origin() -> None:
    with Sandbox(host="0.0.0.0", allow_remote=True) as sandbox:
        now = f"{sandbox.url}/_sandbox/now"
        by_name = requests.post(now, headers={"Host": "sandbox:8155"}, timeout=PATIENCE)
        by_page = requests.post(now, headers={"Origin": "https://evil.example"}, timeout=PATIENCE)
        assert sandbox.url.startswith("http://0.0.0.0:")
        assert sandbox.control.now() > 0
    assert (by_name.status_code, by_page.status_code) == (200, 403)


def test_the_service_itself_is_not_particular_about_names(client: Client) -> None:
    headers = {**client.bearer, "Host": "service.example", "Origin": "https://elsewhere.example"}
    assert client.get(STATS, headers).status_code == 200


def test_a_proxy_of_the_environment_is_not_used(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert client.control.now() > 0


@pytest.mark.webcollect_sandbox(speed=100)
def test_the_clock_is_advanced_and_is_no_faster_than_any(client: Client, real_time: RealTime) -> None:
    before = client.control.now()
    assert client.control.advance(3600) - before == pytest.approx(3600, abs=0.01)
    real_time.sleep(1)
    assert client.control.now() - before == pytest.approx(3601, abs=0.01)


def test_settings_can_be_changed_while_it_runs(client: Client) -> None:
    settings = client.control.configure(tier="Team", general_rate=3)
    expected = asdict(Settings(enforce_limits=False, tier="Team", general_rate=3))
    assert settings == client.control.configure() == {**expected, "stale_shows": []}
    assert client.get(STATS).status_code == 403


def test_a_table_can_be_given_while_it_runs(client: Client, tmp_path: Path) -> None:
    table = tmp_path / "table.jsonl"
    table.write_text('{"n": "1"}')
    client.control.configure(data=table)
    client.run(demo.TASK_ID)
    assert client.rows(demo.TASK_ID) == [{"n": "1"}]


def test_a_table_is_read_only_if_another_is_set(client: Client, tmp_path: Path) -> None:
    (table := tmp_path / "rows.jsonl").write_text('{"a": "1"}\n')
    client.control.configure(data=table)
    table.unlink()
    assert client.control.configure(speed=5)["speed"] == 5


def test_a_task_with_an_empty_batch_is_exported(client: Client) -> None:
    task = client.control.add_task(lots=[10, 0])
    assert client.post("/data/markexported", {"taskId": task["task_id"]}).status_code == 200
    assert client.control.task(task["task_id"])["exported"]


def test_rows_are_added_after_too_many_were_removed(client: Client) -> None:
    task_id = client.control.add_task(lots=[10])["task_id"]
    for rows in (-50, 20):
        client.control.grow(task_id, rows)
    assert len(client.control.true_rows(task_id)) == 20


def test_the_refresh_token_works_after_a_reset(client: Client) -> None:
    token = client.sandbox.refresh_token
    client.renew(token)
    client.control.reset()
    assert client.sandbox.refresh_token == token
    assert client.renew(token).status_code == 200


def test_a_run_keeps_the_durations_that_it_began_with(client: Client) -> None:
    client.start(demo.TASK_ID)
    client.control.configure(run_seconds=10_000)
    client.control.advance(300)
    assert client.status(demo.TASK_ID)["status"] == "Finished"


def test_a_reset_makes_everything_as_new(client: Client) -> None:
    as_new, rows = client.control.tasks(), client.control.true_rows(demo.FINISHED_TASK_ID)
    client.control.change_rows(demo.FINISHED_TASK_ID, "price", "missing", from_row=0)
    client.control.configure(tier="Team")
    client.control.expire_tokens()
    client.control.fail("*", times=None)
    client.control.start_task(demo.TASK_ID)
    client.control.advance(10**6)
    client.get(STATS)
    client.control.reset()
    assert client.control.requests() == []
    assert client.get(STATS).status_code == 200
    assert client.rows(demo.FINISHED_TASK_ID) == rows
    # The demo tasks' earlier runs are counted back from the moment of the reset.
    forget_times = [[{**run, "start": ""} for run in task["runs"]] for task in client.control.tasks()]
    assert forget_times == [[{**run, "start": ""} for run in task["runs"]] for task in as_new]


def test_requests_are_logged_without_secrets(client: Client) -> None:
    client.get("/data/all", taskId="é", offset=0, size=5)
    client.post("/data/markexported", {"taskId": "x"}, client.key)
    client.token(grant_type="refresh_token", refresh_token="secret-1")
    client.token(grant_type="password", username="demo", password="secret-2")
    client.post("/token", headers={"Authorization": "secret-3"}, data=b'refresh_token "secret-4"')
    client.post("/token", headers={}, data=b'{"refresh_token": "secret-5", "more": ' + b"[" * 3000)

    read, mark, *tokens = client.control.requests()

    assert (read["method"], read["path"], read["status"]) == ("GET", "/data/all", 400)
    assert read["query"] == {"taskId": "é", "offset": "0", "size": "5"}
    assert (read["headers"]["authorization"], read["credential"]) == ("Bearer ***", "bearer")
    assert (mark["headers"]["x-api-key"], mark["credential"]) == ("***", "api_key")
    assert mark["body"] == '{"taskId": "x"}'
    assert mark["client_port"] > 0
    assert tokens[0]["body"] == '{"grant_type":"refresh_token","refresh_token":"***"}'
    assert tokens[0]["credential"] == "none"
    logged = str(client.control.requests())
    assert "secret" not in logged
    assert client.sandbox.access_token not in logged
    assert client.sandbox.api_key not in logged


def test_the_log_can_be_asked_by_path_and_emptied(client: Client) -> None:
    client.get(STATS)
    client.get("/nowhere")
    client.post("/datahub/v1/data-apps/a%2Fb/deprecate")
    assert [entry["path"] for entry in client.control.requests("/nowhere")] == ["/nowhere"]
    by_contract = client.control.requests("/v1/data-apps/{app_id}/deprecate")
    assert by_contract == client.control.requests("/datahub/v1/data-apps/a%2Fb/deprecate")
    assert len(by_contract) == 1
    client.control.clear_requests()
    assert client.control.requests() == []
    assert client.control.counters() == {}


def test_control_is_not_counted_against_limits(start_sandbox: StartSandbox) -> None:
    client = start_sandbox(general_rate=1)
    for _ in range(5):
        client.control.now()
    assert data(client.get(STATS))
