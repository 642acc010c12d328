"""Identifiers that look like pieces of an address stay in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.service.api import endpoints
from airflow_provider_webcollect.service.errors import NotFound, RequestRejected

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Sandbox
    from tests.service.conftest import Driver

pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False)

ODD = [
    "../x?y",
    "a/b",
    "%2e%2e",
    "..%2f",
    "a&b=c#d+e %/?",
    "ü/自行车",
    "a;b",
    "...",
    "~a.b-c_d",
    "%",
    "\\..\\",
]


@pytest.mark.parametrize("app_id", ODD)
def test_an_app_id_stays_one_segment_of_the_path(driver: Driver, sandbox: Sandbox, app_id: str) -> None:
    with pytest.raises(NotFound):
        driver.send(endpoints.deprecate_data_app(app_id))
    (request,) = sandbox.control.requests()
    assert request["endpoint"] == "/v1/data-apps/{app_id}/deprecate"
    assert request["query_string"] == ""


def test_an_app_id_with_a_slash_is_found(driver: Driver) -> None:
    assert "/" in demo.APP_ID
    assert driver.send(endpoints.deprecate_data_app(demo.APP_ID)).status == "deprecated"


@pytest.mark.parametrize("value", ODD)
def test_a_query_value_stays_in_its_place(driver: Driver, sandbox: Sandbox, value: str) -> None:
    with pytest.raises(RequestRejected):
        driver.send(endpoints.read_batch_data(demo.FINISHED_TASK_ID, value, 5, 7))
    with pytest.raises(NotFound):
        driver.send(endpoints.copy_task(value, 3))
    read, copy = sandbox.control.requests()
    assert read["path"] == "/data/lotno/all"
    assert read["query"] == {"taskId": demo.FINISHED_TASK_ID, "offset": "5", "size": "7", "lotno": value}
    assert copy["path"] == "/task/copy"
    assert copy["query"] == {"taskId": value, "taskGroupId": "3"}


@pytest.mark.parametrize("value", ODD)
def test_a_task_id_of_a_form_stays_in_its_field(driver: Driver, sandbox: Sandbox, value: str) -> None:
    from airflow_provider_webcollect.service.api.url_file import url_list

    task = sandbox.control.add_task(task_id=f'{value}"\r\n--x')["task_id"]
    driver.send(endpoints.replace_urls(task, url_list(["https://a.example"])))
    assert sandbox.control.task(task)["urls"] == ["https://a.example"]
