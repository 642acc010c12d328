"""Deprecating a data app: endpoint 20, another service with its own key and errors."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
import requests

from airflow_provider_webcollect.sandbox import demo
from tests.interruption import PATIENCE
from tests.sandbox.plain_client import Client


def deprecate(
    client: Client, app_id: str, key: str | None = demo.DATAHUB_API_KEY, safe: str = ""
) -> requests.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    path = f"/v1/data-apps/{quote(app_id, safe)}/deprecate"
    return client.session.post(client.sandbox.datahub_url + path, headers=headers, timeout=PATIENCE)


def error(response: requests.Response) -> dict[str, Any]:
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"code", "category", "message", "retryable"}
    return {"status": response.status_code, **body["error"]}


def test_an_app_exists_for_its_author_only(client: Client) -> None:
    assert deprecate(client, demo.APP_ID, demo.OTHER_DATAHUB_API_KEY).status_code == 404
    assert deprecate(client, demo.OTHERS_APP_ID, demo.OTHER_DATAHUB_API_KEY).status_code == 200


@pytest.mark.parametrize("key", [None, "wrong", demo.ACCESS_TOKEN, demo.API_KEY])
def test_the_main_services_credentials_are_no_good_here(client: Client, key: str | None) -> None:
    refusal = error(deprecate(client, demo.APP_ID, key))
    assert (refusal["status"], refusal["code"], refusal["category"]) == (401, "unauthorized", "forbidden")


def test_wrong_paths_and_methods_answer_in_this_services_form(client: Client) -> None:
    get = client.get("/datahub/v1/data-apps/x/deprecate")
    nowhere = client.post("/datahub/v1/data-apps//deprecate")
    assert (error(get)["status"], error(get)["code"]) == (405, "method-not-allowed")
    assert (error(nowhere)["status"], error(nowhere)["code"]) == (404, "not-found")
    assert get.headers["Allow"] == "POST"


def test_a_planned_failure_comes_in_this_services_form(client: Client) -> None:
    client.control.fail("/v1/data-apps/{app_id}/deprecate", status=503, code="busy", message="Later.")
    assert error(deprecate(client, demo.APP_ID)) == {
        "status": 503,
        "code": "busy",
        "category": "internal",
        "message": "Later.",
        "retryable": True,
    }
    client.control.fail("/v1/data-apps/{app_id}/deprecate", status=401)
    assert error(deprecate(client, demo.APP_ID))["code"] == "invalid-token"


def test_an_app_id_is_one_segment_or_two(client: Client) -> None:
    for safe in ("", "/"):
        assert deprecate(client, demo.APP_ID, safe=safe).json()["data"]["app_name"] == "Price watch"
