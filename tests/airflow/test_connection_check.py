"""`test_connection`: what the button in Airflow's connection form answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.sandbox import demo

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("airflow_database")
CONNECTED = (True, "Connected; 0 tasks are extracting, 0 waiting.")


@pytest.fixture
def answer(set_connection: Callable[..., None]) -> Callable[..., tuple[bool, str]]:
    """What the test of a connection answers."""

    def answer(**connection: Any) -> tuple[bool, str]:
        set_connection(**connection)
        return WebCollectHook().test_connection()

    return answer


def test_a_working_token_passes_and_changes_nothing(answer: Any, sandbox: Sandbox) -> None:
    extra = {"access_token": sandbox.access_token}
    assert answer(extra=extra) == CONNECTED
    assert [request["path"] for request in sandbox.control.requests()] == ["/cloudextraction/task/stats"]


@pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
def test_a_refresh_token_is_not_spent_by_the_test(answer: Any, sandbox: Sandbox) -> None:
    passed, said = answer()

    assert passed
    assert "The refresh token itself was not tried" in said
    assert sandbox.control.requests("/token") == []
    hook = WebCollectHook()
    assert hook.get_running_counts()
    assert hook.test_connection() == CONNECTED
    assert len(sandbox.control.requests("/token")) == 1
    hook.client.close()


@pytest.mark.parametrize("credential", ["refresh_token", "access_token", "api_key"])
@pytest.mark.parametrize("status", [200, 401, 403, 404, 502])
def test_a_page_is_never_taken_for_the_service(
    answer: Any, sandbox: Sandbox, credential: str, status: int
) -> None:
    sandbox.control.fail("*", kind="html", status=status, times=None)
    passed, said = answer(extra={credential: getattr(sandbox, credential)})

    assert not passed
    assert said.startswith("Something answered, but not the service; is the host right?")


@pytest.mark.parametrize(
    "beside", [{"access_token": "yesterday's"}, {"api_key": demo.API_KEY}, {"token_refresh": "keeper"}]
)
def test_what_is_beside_a_refresh_token_says_nothing_of_it(
    answer: Any, sandbox: Sandbox, beside: dict[str, str]
) -> None:
    passed, said = answer(extra={"refresh_token": sandbox.refresh_token, **beside})

    assert passed
    assert "The refresh token itself was not tried" in said
    assert "will not work" not in said
    if "token_refresh" not in beside:
        hook = WebCollectHook()
        assert hook.get_running_counts()
        hook.client.close()


def test_a_stored_token_that_has_ended_says_nothing_of_the_refresh_token(
    answer: Any, sandbox: Sandbox
) -> None:
    answer()
    hook = WebCollectHook()
    assert hook.get_running_counts()
    sandbox.control.expire_tokens()
    passed, said = hook.test_connection()

    assert passed
    assert "The refresh token itself was not tried" in said
    hook.client.close()


@pytest.mark.beyond_the_contract
def test_a_key_that_is_taken_everywhere_is_tested_like_a_token(answer: Any, sandbox: Sandbox) -> None:
    sandbox.control.configure(api_key_everywhere=True)

    assert answer(extra={"api_key": sandbox.api_key, "api_key_everywhere": "true"}) == CONNECTED


def test_a_plan_that_is_too_low_for_the_tests_call_passes(answer: Any, sandbox: Sandbox) -> None:
    sandbox.control.configure(tier="Flagship")
    passed, said = answer(extra={"access_token": sandbox.access_token})

    assert passed
    assert "The credential works; the plan does not include the test's call" in said


@pytest.mark.parametrize(
    ("connection", "passes", "expected"),
    [
        ({"login": demo.USERNAME, "password": demo.PASSWORD, "extra": {}}, True, "Connected; "),
        (
            {"extra": {"api_key": demo.API_KEY}},
            True,
            "the API key is accepted. Operations that take an access token will not work",
        ),
        ({"extra": {"access_token": "mistyped"}}, False, "The service refused the token"),
        ({"extra": {"api_key": "mistyped"}}, False, "The service refused the API key"),
        ({"extra": {}}, False, "the connection has no credential"),
        ({"extra": {"read_timeout": "soon"}}, False, "extra read_timeout"),
        ({"host": "http://127.0.0.1:9"}, False, "The service cannot be reached: "),
        ({"schema": "https"}, False, "No trusted connection (TLS): "),
    ],
)
def test_each_connection_is_told_what_it_is(
    answer: Any, sandbox: Sandbox, connection: dict[str, Any], passes: bool, expected: str
) -> None:
    if "schema" in connection:
        connection = {**connection, "host": sandbox.url.removeprefix("http://")}
    passed, said = answer(**connection)

    assert passed == passes, said
    assert expected in said
    assert "mistyped" not in said
    if connection.get("extra", {}).get("api_key") == demo.API_KEY:
        # the call that changes nothing
        assert [request["method"] for request in sandbox.control.requests()] == ["GET"]


def test_a_service_in_trouble_is_asked_twice_at_most(answer: Any, sandbox: Sandbox) -> None:
    sandbox.control.fail("*", kind="drop", times=None)

    # a person waits for the answer; a usual call would try for a minute
    assert not answer()[0]
    assert len(sandbox.control.requests("/cloudextraction/task/stats")) == 2


def test_one_bad_moment_does_not_fail_the_test(answer: Any, sandbox: Sandbox) -> None:
    sandbox.control.fail("/cloudextraction/task/stats", kind="drop")

    assert answer()[0]
