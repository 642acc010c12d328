"""``python -m airflow_provider_webcollect.sandbox``."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import requests

from airflow_provider_webcollect.sandbox import Control, demo
from airflow_provider_webcollect.sandbox.__main__ import main
from tests.airflow_commands import in_shell, shell_environment
from tests.interruption import PATIENCE, until
from tests.sandbox.command import Running


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts a sandbox with options on its command line."""
    started: list[Running] = []

    def start(*options: str) -> Running:
        started.append(Running(tmp_path, *options))
        return started[-1]

    yield start
    for sandbox in started:
        sandbox.kill()


def test_it_serves_with_the_settings_given(start: Callable[..., Running]) -> None:
    running = start(
        *("--speed", "50", "--tier", "Team", "--rows-per-item", "7", "--refresh-reuse", "revoke"),
        *("--no-enforce-limits", "--null-metrics", "--api-key-everywhere", "--executed-times-offset", "-2"),
        *("--stale-shows", "executed_times", "start_time"),
    )

    def ask(path: str) -> int:
        headers = {"Authorization": f"Bearer {demo.ACCESS_TOKEN}"}
        return requests.get(running.url + path, headers=headers, timeout=PATIENCE).status_code

    assert {ask("/data/all") for _ in range(30)} == {400}
    assert ask("/cloudextraction/task/stats") == 403
    settings = Control(running.url).configure()
    assert (settings["speed"], settings["rows_per_item"], settings["refresh_reuse"]) == (50, 7, "revoke")
    assert (settings["null_metrics"], settings["api_key_everywhere"]) == (True, True)
    assert settings["stale_shows"] == ["executed_times", "start_time"]
    assert settings["executed_times_offset"] == -2


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_cleanly_and_has_said_where_it_was(start: Callable[..., Running], by: int) -> None:
    running = start()
    running.process.send_signal(by)
    assert running.process.wait(timeout=PATIENCE) == 0
    assert running.url in running.output
    assert "docs/reference/sandbox.md" in running.output


def test_without_options_a_run_takes_seconds(start: Callable[..., Running]) -> None:
    sandbox = start()
    settings = Control(sandbox.url).configure()
    seconds = re.search(r"a run takes ([0-9.]+) s \(--speed ([0-9.]+)\)", sandbox.output)
    assert seconds is not None
    assert float(seconds[2]) == settings["speed"]
    expected = (settings["wait_seconds"] + settings["run_seconds"]) / settings["speed"]
    assert float(seconds[1]) == pytest.approx(expected)
    assert expected < 10


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_times_are_in_utc_wherever_it_runs(
    start: Callable[..., Running], zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    control = Control(start("--speed", "100000").url)
    # the service gives times in milliseconds
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    control.start_task(demo.TASK_ID)
    until(lambda: control.task(demo.TASK_ID)["state"] == "Finished")
    (run,) = control.task(demo.TASK_ID)["runs"]
    assert before < datetime.fromisoformat(f"{run['start']}Z") < datetime.now(UTC)


USE = """
import sys
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook

hook = WebCollectHook()
ids = [status.task_id for status in hook.get_task_statuses_v2(sys.argv[1:])]
print(*ids, hook.deprecate_data_app("demo/price-watch").status)
"""


@pytest.mark.at_night
def test_the_printed_variable_connects_to_the_tasks(start: Callable[..., Running], tmp_path: Path) -> None:
    sandbox = start()
    ids = re.findall(r"^[0-9a-f]{8}-\S+(?= )", sandbox.output, re.MULTILINE)
    said = in_shell(
        shell_environment(tmp_path / "airflow") | {"AIRFLOW__WEBCOLLECT__TOKEN_STORE": "memory"},
        sandbox.line("export AIRFLOW_"),
        shlex.join(["python", "-c", USE, *ids]),
    )
    assert ids == [demo.TASK_ID, demo.FINISHED_TASK_ID, demo.GROUPED_TASK_ID]
    assert " ".join([*ids, "deprecated"]) in said.splitlines()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "not a loopback address"),
        (["--port", "99999"], "port 99999 is not from 0 to 65535"),
        (["--speed", "fast"], "speed"),
        (["--stale-shows", "end_time"], "stale_shows"),
        (["--data", "/nowhere.csv"], "nowhere.csv"),
    ],
)
def test_wrong_options_are_explained(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(SystemExit) as ended:
        main(["--port", "0", *options])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_without_its_extra_the_sandbox_says_so() -> None:
    hidden = "import sys; sys.modules['uvicorn'] = None; sys.argv = ['sandbox']; "
    for code in (
        "from airflow_provider_webcollect.sandbox.__main__ import main; main()",
        "from airflow_provider_webcollect.sandbox import Sandbox",
    ):
        ended = subprocess.run([sys.executable, "-c", hidden + code], capture_output=True, text=True)
        assert ended.returncode != 0
        assert "needs an extra: pip install 'airflow-provider-webcollect[sandbox]'" in ended.stderr
        assert ("Traceback" in ended.stderr) is ("main" not in code)
