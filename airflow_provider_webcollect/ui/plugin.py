"""What Airflow's plugin manager loads, in every process: so it imports nothing until a request comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import AirflowPlugin, conf
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_1_PLUS

from airflow_provider_webcollect import __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NAME = "Web collection"
PREFIX = "/webcollect"


async def application(scope: Any, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
    """Answer an ASGI request for the page or its data."""
    from airflow_provider_webcollect.ui.app import get_app

    answer: Awaitable[None] = get_app()(scope, receive, send)
    await answer


class WebCollectPlugin(AirflowPlugin):
    """Adds the page to the web interface of Airflow 3.1 and later; nothing to that of an earlier one."""

    name = "webcollect"

    if AIRFLOW_V_3_1_PLUS:
        fastapi_apps = [{"app": application, "url_prefix": PREFIX, "name": NAME}]
        react_apps = [
            {
                "name": NAME,
                # the version makes browsers load the file again after an upgrade
                "bundle_url": urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
                + f"{PREFIX}/static/page.js?version={__version__}",
                "destination": "nav",
                "category": "browse",
                "url_route": "webcollect",
            }
        ]
