"""The fixture for users' own tests."""

from __future__ import annotations

import os
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = ["pytester"]

PLUGIN = "airflow_provider_webcollect.sandbox.pytest_plugin"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    """Runs pytest elsewhere, with the plugin loaded as where the package is installed, or else by name."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    installed = entry_points(group="pytest11", name="webcollect_sandbox")
    plugin = [] if installed else ["-p", PLUGIN]
    return partial(pytester.runpytest_subprocess, *plugin, "--strict-markers", "-p", "no:cacheprovider")


def test_a_test_gets_a_running_sandbox_of_its_own(
    pytester: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("again", [1, 2])
        def test_it(webcollect_sandbox, again):
            webcollect_sandbox.control.add_task("mine")
            assert webcollect_sandbox.url.startswith("http://127.0.0.1:")
        """
    )

    result = run()

    result.assert_outcomes(passed=2)


def test_the_nearest_marker_sets_it(pytester: pytest.Pytester, run: Callable[..., pytest.RunResult]) -> None:
    pytester.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.webcollect_sandbox(speed=60, tier="Team")

        @pytest.mark.webcollect_sandbox(speed=5)
        def test_it(webcollect_sandbox):
            settings = webcollect_sandbox.control.configure()
            assert (settings["speed"], settings["tier"]) == (5, "Team")
        """
    )

    result = run()

    result.assert_outcomes(passed=1)


def test_an_unknown_setting_is_an_error(
    pytester: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.webcollect_sandbox(colour="red")
        def test_it(webcollect_sandbox):
            pass
        """
    )

    result = run()

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*unknown setting: colour*"])


def test_the_marker_is_known(run: Callable[..., pytest.RunResult]) -> None:
    result = run("--markers")

    result.stdout.fnmatch_lines(["@pytest.mark.webcollect_sandbox*"])
