"""``python -m airflow_provider_webcollect.sandbox``."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
import requests

from airflow_provider_webcollect.sandbox import Control, demo
from airflow_provider_webcollect.sandbox.__main__ import main, make_parser, settings_from

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMAND = [sys.executable, "-m", "airflow_provider_webcollect.sandbox"]


class Running:
    """A sandbox in a process of its own."""

    def __init__(self, tmp_path: Path, *options: str) -> None:
        ready = tmp_path / "url"
        self.process = subprocess.Popen(
            [*COMMAND, "--port", "0", "--ready-file", str(ready), *options], stdout=subprocess.PIPE, text=True
        )
        until = time.monotonic() + 20
        while not ready.exists():
            assert self.process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        self.url = ready.read_text()

    def stop(self, by: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(by)
        output, _ = self.process.communicate(timeout=10)
        return self.process.returncode, output


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    sandbox = Running(tmp_path, "--speed", "60", "--tier", "Team", "--no-limits")
    yield sandbox
    sandbox.process.kill()
    sandbox.process.communicate()


def test_it_serves_with_the_settings_given(running: Running) -> None:
    headers = {"Authorization": f"Bearer {demo.ACCESS_TOKEN}"}
    statuses = {
        requests.get(f"{running.url}/data/all", headers=headers, timeout=10).status_code for _ in range(30)
    }

    assert statuses == {400}
    assert (
        requests.get(f"{running.url}/cloudextraction/task/stats", headers=headers, timeout=10).status_code
        == 403
    )
    assert Control(running.url).configure()["speed"] == 60


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_cleanly_and_has_said_where_it_was(running: Running, by: int) -> None:
    code, output = running.stop(by)

    assert code == 0
    assert running.url in output
    assert "docs/sandbox.md" in output


def test_it_prints_no_credentials(running: Running) -> None:
    requests.get(f"{running.url}/data/all", headers={"x-api-key": demo.API_KEY}, timeout=10)
    _, output = running.stop()

    for secret in (demo.ACCESS_TOKEN, demo.REFRESH_TOKEN, demo.API_KEY, demo.DATAHUB_API_KEY, demo.PASSWORD):
        assert secret not in output


def test_its_options_are_the_settings() -> None:
    arguments = make_parser().parse_args(
        [
            *("--rows-per-item", "7", "--refresh-reuse", "revoke", "--api-key-everywhere"),
            *("--no-enforce-limits", "--large-pages", "refuse", "--null-metrics", "0.5", "--long-lotnos"),
            *("--execution-seconds-text", "1,234"),
            *("--stale-shows", "executed_times", "start_time", "--executed-times-offset", "-2"),
        ]
    )

    settings = settings_from(arguments)

    assert (settings.rows_per_item, settings.refresh_reuse) == (7, "revoke")
    assert (settings.api_key_everywhere, settings.enforce_limits) == (True, False)
    assert (settings.large_pages, settings.null_metrics, settings.long_lotnos) == ("refuse", 0.5, True)
    assert settings.execution_seconds_text == "1,234"
    assert (settings.stale_shows, settings.executed_times_offset) == (("executed_times", "start_time"), -2)


def test_its_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])

    text = capsys.readouterr().out
    assert "how many times faster than real time" in text
    assert "--no-limits" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "not a loopback address"),
        (["--speed", "fast"], "speed"),
        (["--stale-shows", "end_time"], "stale_shows"),
        (["--data", "/nowhere.csv"], "nowhere.csv"),
    ],
)
def test_what_cannot_be_served_is_explained(options: list[str], message: str) -> None:
    ended = subprocess.run(
        [*COMMAND, "--port", "0", *options], capture_output=True, text=True, timeout=20, check=False
    )

    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
