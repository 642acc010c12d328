"""The connection for which the sandbox prints a command; `docs/tutorial.md` shows how to use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.airflow_commands import in_shell, shell_environment
from tests.sandbox.command import Running

pytestmark = [
    pytest.mark.real_airflow,
    pytest.mark.at_night,
    # it needs none of the processes of the other tests' Airflow
    pytest.mark.xdist_group("airflow's commands"),
]


def test_the_printed_command_makes_a_connection_that_works(tmp_path: Path) -> None:
    sandbox = Running(tmp_path)
    lines = (
        "airflow db migrate",
        sandbox.line("airflow connections add "),
        "airflow connections test webcollect_default",
    )
    try:
        assert "Connection success" in in_shell(shell_environment(tmp_path / "airflow"), *lines)
    finally:
        sandbox.kill()
