"""A local stand-in for the web data collection service, for demos, tests and your own DAG tests.

Importing this package is cheap: the web server is imported when :class:`Sandbox` is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.sandbox.control import Control, SandboxError
from airflow_provider_webcollect.sandbox.settings import Settings

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox.server import Sandbox

__all__ = ["Control", "Sandbox", "SandboxError", "Settings"]


def __getattr__(name: str) -> Any:
    if name == "Sandbox":
        try:
            from airflow_provider_webcollect.sandbox.server import Sandbox
        except ImportError as error:
            need = "the sandbox needs an extra: pip install 'airflow-provider-webcollect[sandbox]'"
            raise ImportError(f"{need} ({error})") from error
        return Sandbox
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
