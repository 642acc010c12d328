"""``sandbox``: the stand-in for the service, started by the command line that is then used with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_webcollect.cli.main import main
from airflow_provider_webcollect.sandbox import Control, demo
from tests.cli.conftest import Run
from tests.cli.processes import Started
from tests.interruption import until


def test_it_serves_with_the_options_given_until_ctrl_c(
    start: Callable[..., Started], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = tmp_path / "url"
    serving = start("sandbox", "--port", 0, "--ready-file", ready, "--speed", 50, "--no-enforce-limits")
    until(ready.exists)
    url = ready.read_text()
    until(lambda: "Ctrl-C" in serving.out)
    (export,) = [line for line in serving.out.splitlines() if line.startswith("export WEBCOLLECT_URL=")]
    for setting in export.split()[1:]:
        monkeypatch.setenv(*setting.split("="))
    assert Control(url).configure()["speed"] == 50
    [row] = run("status", demo.FINISHED_TASK_ID, "-o", "json").json
    assert row["status"] == "Finished"
    serving.interrupt()
    assert serving.end() == 0
    assert serving.err == ""


def test_its_help_is_the_sandbox_s_own_by_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sandbox", "--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert said.startswith("usage: webcollect sandbox ")
    assert "--refresh-reuse" in said
