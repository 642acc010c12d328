"""The connection form in a real browser at a real Airflow: a task uses what was typed into it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page

from airflow_provider_webcollect.sandbox import Sandbox, Settings
from demo import browser
from demo.real_airflow import RealAirflow

pytestmark = [
    pytest.mark.real_airflow,
    pytest.mark.at_night,
    pytest.mark.skipif(
        browser.find_browser() is None, reason=f"no Chromium: neither {browser.VARIABLE} nor on the path"
    ),
]
DAGS = ("asks_the_service.py",)
CONN_ID = "from_the_form"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Settings(refresh_reuse="revoke")) as sandbox:
        yield sandbox


@pytest.fixture
def conn_id(airflow: RealAirflow) -> Iterator[str]:
    yield CONN_ID
    airflow.delete_connection(CONN_ID)


@pytest.fixture
def page(sign_in: Callable[..., None]) -> Iterator[Page]:
    with browser.open_page(str(browser.find_browser())) as page:
        sign_in(page)
        yield page


def ask(airflow: RealAirflow) -> list[float]:
    run_id = airflow.trigger("asks_the_service")
    state = airflow.wait("asks_the_service", run_id)
    (task,) = airflow.task_instances("asks_the_service", run_id)
    assert state == "success", airflow.task_log("asks_the_service", run_id, task)
    return list(airflow.xcom("asks_the_service", run_id, "ask"))


def test_a_task_works_with_a_typed_and_an_edited_connection(
    airflow: RealAirflow, sandbox: Sandbox, page: Page, conn_id: str
) -> None:
    secrets = {"refresh_token": sandbox.refresh_token, "api_key": sandbox.api_key}
    form = browser.add_connection(page, airflow.url, conn_id, {"Base URL": sandbox.url}, secrets)
    browser.save(form)
    saved = json.loads(airflow.get(f"connections/{conn_id}")["extra"])
    # their names look secret to Airflow, but nobody has typed a secret into them
    assert (saved["api_key_everywhere"], saved["token_refresh"]) == (None, None)
    assert ask(airflow) == [0, 60]

    form = browser.edit_connection(page, airflow.url, conn_id)
    browser.fill_extras(form, {"read_timeout": "45"})
    browser.save(form)
    assert ask(airflow) == [0, 45]
