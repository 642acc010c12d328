"""``docs/reference/sandbox.md`` tells all of it, and the truth."""

from __future__ import annotations

from dataclasses import Field, fields
from pathlib import Path
from typing import get_args

import pytest

from airflow_provider_webcollect.sandbox import Control, Settings, demo
from airflow_provider_webcollect.sandbox.state import Kind

GUIDE = (Path(__file__).parents[2] / "docs/reference/sandbox.md").read_text()


@pytest.mark.parametrize("setting", fields(Settings), ids=lambda setting: setting.name)
def test_every_setting_is_explained(setting: Field[object]) -> None:
    assert f"`{setting.name}`" in GUIDE
    assert setting.metadata["description"]


@pytest.mark.parametrize("name", [name for name in vars(Control) if not name.startswith("_")])
def test_every_control_command_is_named(name: str) -> None:
    assert f"`{name}(" in GUIDE


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_of_failure_is_explained(kind: str) -> None:
    assert f"| `{kind}` |" in GUIDE
    assert f"``{kind}``" in (Control.fail.__doc__ or "")


@pytest.mark.parametrize(
    "name",
    [
        *("USERNAME", "PASSWORD", "ACCESS_TOKEN", "REFRESH_TOKEN", "API_KEY", "DATAHUB_API_KEY"),
        *("TASK_ID", "FINISHED_TASK_ID", "GROUPED_TASK_ID", "APP_ID", "UNRELEASED_APP_ID", "OTHERS_APP_ID"),
    ],
)
def test_what_a_sandbox_starts_with_is_listed(name: str) -> None:
    assert f"`{getattr(demo, name)}`" in GUIDE
