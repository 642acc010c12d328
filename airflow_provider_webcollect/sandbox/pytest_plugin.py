"""A pytest plugin: its fixture ``webcollect_sandbox`` is a new running sandbox for each test that uses it.

The plugin is not loaded automatically. Enable it in the top-level ``conftest.py`` of a test suite::

    pytest_plugins = ["airflow_provider_webcollect.sandbox.pytest_plugin"]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_webcollect.sandbox import Sandbox


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "webcollect_sandbox(**settings): settings of the webcollect_sandbox fixture, "
        "by the names of airflow_provider_webcollect.sandbox.Settings.",
    )


@pytest.fixture
def webcollect_sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox for one test, configured by ``@pytest.mark.webcollect_sandbox(speed=60, ...)``."""
    from airflow_provider_webcollect.sandbox import Sandbox
    from airflow_provider_webcollect.sandbox.settings import make_settings

    settings: dict[str, object] = {}
    # The nearest marker comes last, so that a test's settings override its class's and module's settings.
    for marker in reversed(list(request.node.iter_markers("webcollect_sandbox"))):
        if marker.args:
            raise ValueError("the marker webcollect_sandbox takes settings by name, such as speed=60")
        settings |= marker.kwargs
    with Sandbox(make_settings(settings)) as sandbox:
        yield sandbox
