"""The page *Browse → Web collection* in Airflow's web interface, from Airflow 3.1 on.

Airflow's plugin manager loads this module in every process, so it imports the page only at the first request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import AirflowPlugin, conf
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_1_PLUS

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "Web collection"
PREFIX = "/webcollect"


async def application(scope: Any, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
    """Answer an ASGI request for the page or its data."""
    from airflow_provider_webcollect.ui.app import app

    await app(scope, receive, send)


def _base_path() -> str:
    """Return the path prefix of the API server's URL, which Airflow does not add to a plugin's URLs."""
    base_url: str = conf.get("api", "base_url", fallback="")
    return urlsplit(base_url).path.rstrip("/")


class WebCollectPlugin(AirflowPlugin):
    """Adds the page to the web interface of Airflow 3.1 and later; earlier versions get no page."""

    name = "webcollect"

    if AIRFLOW_V_3_1_PLUS:
        fastapi_apps = [{"app": application, "url_prefix": PREFIX, "name": NAME}]
        react_apps = [
            {
                "name": NAME,
                "bundle_url": f"{_base_path()}{PREFIX}/static/page.js",
                "destination": "nav",
                "category": "browse",
                "url_route": "webcollect",
                "icon": f"{_base_path()}{PREFIX}/static/logo.svg",
            },
            {
                "name": f"{NAME} tile",
                "bundle_url": f"{_base_path()}{PREFIX}/static/tile.js",
                "destination": "dashboard",
            },
        ]
