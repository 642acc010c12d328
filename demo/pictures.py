"""The documentation's pictures, taken from Airflow's web interface after the demo's run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from demo import browser

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import FloatRect, Page

    from demo.real_airflow import RealAirflow

#: Maximum height of a picture of the page.
_MOST_PIXELS = 1600
_PANELS_KEY = "react-resizable-panels:grid-ltr"
# Widths in percent of the page: the grid, and the table of task instances.
_PANELS = {"details-panel,main-panel": {"expandToSizes": {}, "layout": [20, 80]}}
_SHOW_PANELS = f"localStorage.setItem({_PANELS_KEY!r}, {json.dumps(_PANELS)!r})"
# Airflow shows some durations with a dozen digits.
_HIDDEN_COLUMNS = ("Map Index", "Duration")


@dataclass(frozen=True)
class Pictures:
    """Takes screenshots of Airflow with the browser ``chromium`` and stores them in ``folder``."""

    chromium: str
    folder: Path

    def take_connection_form(self, airflow: RealAirflow) -> None:
        """Take a picture of the connection form with credentials typed in; nothing is saved."""
        secrets = {"refresh_token": "x" * 32, "api_key": "x" * 24}
        with browser.open_page(self.chromium, width=1200, height=1800) as page:
            form = browser.add_connection(
                page, airflow.url, "webcollect_default", {"Base URL": "https://openapi.example.com"}, secrets
            )
            # removes the focus from the last field
            form.get_by_role("heading").first.click()
            _settle(page)
            below = form.get_by_text("Connect timeout", exact=True).bounding_box()
            assert below is not None
            clip: FloatRect = {"x": 0, "y": 0, "width": 1200, "height": below["y"] - 22}
            page.screenshot(path=self.folder / "connection-form.png", clip=clip)

    def take_dag_run(self, airflow: RealAirflow, name: str, dag_id: str, run_id: str) -> None:
        """Take a picture of a run: the grid, and the table of its task instances in the order they ran.

        :param name: name of the picture's file, without ``.png``.
        """
        with browser.open_page(self.chromium, width=1500, height=720) as page:
            page.add_init_script(_SHOW_PANELS)
            page.goto(f"{airflow.url}/dags/{dag_id}/runs/{run_id}")
            page.locator("th").filter(has_text="Start Date").get_by_role("button").click()
            # the button is enabled only in a DAG with groups
            for expand in page.get_by_role("button", name="Expand all task groups", disabled=False).all():
                expand.click()
            page.get_by_role("button", name="Filter table columns").click()
            for column in _HIDDEN_COLUMNS:
                page.get_by_role("menuitem", name=column).click()
            page.keyboard.press("Escape")
            # removes the focus, and the tooltip, from the button
            page.get_by_role("heading", name="Task Instances").click()
            _settle(page)
            page.screenshot(path=self.folder / f"{name}.png")

    def take_log(self, airflow: RealAirflow, name: str, dag_id: str, run_id: str, task_id: str) -> None:
        """Take a picture of the log of a task that is in a group, beside the grid.

        :param name: name of the picture's file, without ``.png``.
        """
        with browser.open_page(self.chromium, width=1500, height=540) as page:
            page.add_init_script(_SHOW_PANELS)
            page.goto(f"{airflow.url}/dags/{dag_id}/runs/{run_id}/tasks/{task_id}")
            page.get_by_role("button", name="Expand all task groups", disabled=False).click()
            page.get_by_text("Pre Execute").wait_for()
            # removes the tooltip from the button
            page.get_by_role("heading", name=task_id).click()
            _settle(page)
            page.screenshot(path=self.folder / f"{name}.png")

    def take_page(
        self, airflow: RealAirflow, name: str, selector: str, theme: str = "light", width: int = 1400
    ) -> None:
        """Take a picture of the provider's page, ``page-<name>.png``.

        :param selector: selector of an element that the page has once it is complete
        :param theme: ``light`` or ``dark``
        :param width: width of the browser, in pixels
        """
        with browser.open_page(self.chromium, width=width, height=800) as page:
            page.add_init_script(f"localStorage.setItem('theme', {theme!r})")
            page.goto(f"{airflow.url}/plugin/webcollect")
            page.locator(selector).first.wait_for()
            _settle(page)
            height = page.locator("webcollect-page").evaluate("page => page.scrollHeight")
            page.set_viewport_size({"width": width, "height": min(max(400, height), _MOST_PIXELS)})
            page.screenshot(path=self.folder / f"page-{name}.png")


def _settle(page: Page) -> None:
    page.wait_for_load_state("networkidle")
    page.evaluate("document.fonts.ready")
    # time for Airflow's animations
    page.wait_for_timeout(1500)
