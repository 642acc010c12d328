"""A real browser for Airflow's web interface: headless Chromium with a new profile."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

from demo.airflow_api import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from playwright.sync_api import Locator, Page

#: The environment variable that names the browser; if it is not set, ``chromium`` is looked up on the path.
VARIABLE = "WEBCOLLECT_BROWSER"
# Only the requested page: no updates, no accounts, no first-run pages.
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
HOOK_NAME = "Web Data Collection"


def find_browser() -> str | None:
    """Return the path of Chromium; None if there is none."""
    return shutil.which(os.environ.get(VARIABLE) or "chromium")


@contextmanager
def open_page(browser: str, width: int = 1200, height: int = 1000) -> Iterator[Page]:
    """Open an empty page, in the light theme; leaving the context ends the browser.

    :param browser: the path of Chromium
    :param width: width of the page, in pixels
    :param height: height of the page, in pixels
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=browser,
            headless=True,
            args=_FLAGS,
            viewport={"width": width, "height": height},
            color_scheme="light",
            reduced_motion="reduce",
        )
        try:
            context.set_default_timeout(PATIENCE_SECONDS * 1000)
            yield context.new_page()
        finally:
            context.close()


def add_connection(
    page: Page, airflow_url: str, conn_id: str, standard: Mapping[str, str], extras: Mapping[str, str]
) -> Locator:
    """Fill in Airflow's form of a new connection of the type ``webcollect``, and return it, not yet saved.

    :param standard: texts for the standard fields, by their labels
    :param extras: texts for the extra fields, by the names of the extras
    """
    page.goto(f"{airflow_url}/connections")
    page.get_by_role("button", name="Add Connection").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Connection ID").fill(conn_id)
    form.get_by_label("Connection Type").fill(HOOK_NAME)
    page.get_by_role("option", name=HOOK_NAME).click()
    for label, text in standard.items():
        form.get_by_label(label, exact=True).fill(text)
    form.get_by_text("Extra Fields", exact=True).click()
    fill_extras(form, extras)
    return form


def edit_connection(page: Page, airflow_url: str, conn_id: str) -> Locator:
    """Open Airflow's form of an existing connection at its extra fields, and return it."""
    page.goto(f"{airflow_url}/connections")
    row = page.get_by_role("row").filter(has_text=conn_id)
    row.get_by_role("button", name="Edit Connection").click()
    form = page.get_by_role("dialog")
    form.get_by_text("Extra Fields", exact=True).click()
    return form


def fill_extras(form: Locator, extras: Mapping[str, str]) -> None:
    """Type texts into the extra fields, by the names of the extras."""
    for name, text in extras.items():
        # not by its label, which in Airflow 3.3 is not linked to the input of a password field
        form.locator(f'input[name="element_{name}"]').fill(text)


def save(form: Locator) -> None:
    """Save a form, which closes when Airflow has accepted it."""
    form.get_by_role("button", name="Save").click()
    form.wait_for(state="hidden")
