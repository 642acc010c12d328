"""``docs/reference/sandbox.md`` names all commands, kinds of failures and demo data that the sandbox has."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from airflow_provider_webcollect.sandbox import Control, Settings, demo
from airflow_provider_webcollect.sandbox.state import Kind

GUIDE = (Path(__file__).parents[2] / "docs/reference/sandbox.md").read_text()


#: The names in ``demo`` of what a sandbox has when it starts.
FOUND_THERE = (
    *("USERNAME", "PASSWORD", "ACCESS_TOKEN", "REFRESH_TOKEN", "API_KEY", "DATAHUB_API_KEY"),
    *("TASK_ID", "FINISHED_TASK_ID", "GROUPED_TASK_ID", "APP_ID", "UNRELEASED_APP_ID", "OTHERS_APP_ID"),
)


@pytest.mark.parametrize(
    "told",
    [
        *(f"`{command}(" for command in vars(Control) if not command.startswith("_")),
        *(f"`{kind}`" for kind in get_args(Kind)),
        *(f"`{getattr(demo, name)}`" for name in FOUND_THERE),
    ],
)
def test_the_page_names_commands_failures_and_demo_data(told: str) -> None:
    assert told in GUIDE


def test_settings_and_kinds_of_failure_are_told_of_in_the_code() -> None:
    assert all(setting.metadata["description"] for setting in fields(Settings))
    assert all(f"``{kind}``" in (Control.fail.__doc__ or "") for kind in get_args(Kind))
