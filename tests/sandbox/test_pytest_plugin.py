"""The fixture for users' own tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

# pytester forgets modules that a run imports first, so that each run would import the server again
import airflow_provider_webcollect.sandbox.server  # noqa: F401

pytest_plugins = ["pytester"]

PLUGIN = "airflow_provider_webcollect.sandbox.pytest_plugin"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def elsewhere(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    """Runs pytest in a folder of its own, where the package can be imported."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    # loading this environment's plugins takes seconds
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return partial(pytester.runpytest_inprocess, "--strict-markers", "-p", "no:cacheprovider")


@pytest.fixture
def run(
    pytester: pytest.Pytester, elsewhere: Callable[..., pytest.RunResult]
) -> Callable[..., pytest.RunResult]:
    """Runs pytest in a folder whose conftest.py asks for the plugin."""
    pytester.makeconftest(f"pytest_plugins = ['{PLUGIN}']")
    return elsewhere


def test_who_does_not_ask_for_the_plugin_does_not_get_it(elsewhere: Callable[..., pytest.RunResult]) -> None:
    result = elsewhere("--markers")
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*webcollect*")


SETTINGS = """
import pytest

pytestmark = pytest.mark.webcollect_sandbox(speed=60, tier="Team")

@pytest.mark.webcollect_sandbox({marker})
@pytest.mark.parametrize("number", [1, 2])
def test_it(webcollect_sandbox, number):
    webcollect_sandbox.control.add_task("mine")
    settings = webcollect_sandbox.control.configure()
    assert (settings["speed"], settings["tier"]) == (5, "Team")
"""


@pytest.mark.parametrize(
    ("marker", "outcome", "said"),
    [
        ("speed=5", "passed", "2 passed"),
        ("colour='red'", "errors", "unknown setting: colour"),
        ("{'speed': 5}", "errors", "the marker webcollect_sandbox takes settings by name, such as speed=60"),
    ],
)
def test_each_test_has_its_own_sandbox_set_by_its_nearest_marker(
    pytester: pytest.Pytester, run: Callable[..., pytest.RunResult], marker: str, outcome: str, said: str
) -> None:
    pytester.makepyfile(SETTINGS.format(marker=marker))
    result = run()
    result.assert_outcomes(**{outcome: 2})
    result.stdout.fnmatch_lines([f"*{said}*"])
