"""`test_connection`: what the button in Airflow's connection form answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_webcollect.hooks.webcollect import WebCollectHook

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("airflow_database")


@pytest.fixture
def answer(set_connection: Callable[..., None]) -> Callable[..., tuple[bool, str]]:
    """What the test of a connection answers."""

    def answer(**connection: Any) -> tuple[bool, str]:
        set_connection(**connection)
        return WebCollectHook().test_connection()

    return answer


def test_a_working_token_passes_and_changes_nothing(answer: Any, sandbox: Sandbox) -> None:
    extra = {"access_token": sandbox.access_token}
    assert answer(extra=extra) == (True, "Connected; 0 tasks are extracting, 0 waiting.")
    assert [request["path"] for request in sandbox.control.requests()] == ["/cloudextraction/task/stats"]


@pytest.mark.webcollect_sandbox(refresh_reuse="revoke")
def test_a_refresh_token_is_not_spent_by_the_test(answer: Any, sandbox: Sandbox) -> None:
    passed, said = answer()

    assert passed
    assert "The refresh token itself was not tried" in said
    assert sandbox.control.requests("/token") == []
    hook = WebCollectHook()
    assert hook.get_running_counts()
    assert hook.test_connection() == (True, "Connected; 0 tasks are extracting, 0 waiting.")
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


def test_login_and_password_pass(answer: Any, sandbox: Sandbox) -> None:
    passed, said = answer(login=sandbox.username, password=sandbox.password, extra={})

    assert passed, said


def test_a_working_key_passes_and_its_limits_are_told(answer: Any, sandbox: Sandbox) -> None:
    passed, said = answer(extra={"api_key": sandbox.api_key})

    assert passed
    assert "the API key is accepted. Operations that take an access token will not work" in said
    assert [request["method"] for request in sandbox.control.requests()] == ["GET"]


@pytest.mark.parametrize("beside", ["ended access token", "API key"])
def test_what_is_beside_a_refresh_token_says_nothing_of_it(
    answer: Any, sandbox: Sandbox, beside: str
) -> None:
    extra = {"ended access token": {"access_token": "yesterday's"}, "API key": {"api_key": sandbox.api_key}}
    passed, said = answer(extra={"refresh_token": sandbox.refresh_token, **extra[beside]})

    assert passed
    assert "The refresh token itself was not tried" in said
    assert "will not work" not in said
    hook = WebCollectHook()
    assert hook.get_running_counts()
    hook.client.close()


def test_a_connection_with_a_keeper_is_not_told_to_wait_for_one(answer: Any, sandbox: Sandbox) -> None:
    passed, said = answer(extra={"refresh_token": sandbox.refresh_token, "token_refresh": "keeper"})

    assert passed
    assert "The refresh token itself was not tried" in said


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
    passed, said = answer(extra={"api_key": sandbox.api_key, "api_key_everywhere": "true"})

    assert (passed, said) == (True, "Connected; 0 tasks are extracting, 0 waiting.")


def test_a_plan_that_is_too_low_for_the_tests_call_passes(answer: Any, sandbox: Sandbox) -> None:
    sandbox.control.configure(tier="Flagship")
    passed, said = answer(extra={"access_token": sandbox.access_token})

    assert passed
    assert "The credential works; the plan does not include the test's call" in said


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"access_token": "wrong"}, "The service refused the token"),
        ({"api_key": "wrong"}, "The service refused the API key"),
        ({}, "the connection has no credential"),
        ({"read_timeout": "soon"}, "extra read_timeout"),
    ],
)
def test_a_bad_credential_is_told_apart(
    set_connection: Callable[..., None], extra: dict[str, str], expected: str
) -> None:
    set_connection(extra=extra)
    passed, said = WebCollectHook().test_connection()

    assert not passed
    assert expected in said
    assert "wrong" not in said


def test_a_service_that_is_not_there_is_told(answer: Any) -> None:
    passed, said = answer(host="http://127.0.0.1:9")

    assert not passed
    assert said.startswith("The service cannot be reached: ")


def test_a_connection_that_cannot_be_trusted_is_told(answer: Any, sandbox: Sandbox) -> None:
    passed, said = answer(host=sandbox.url.replace("http://", "https://"))

    assert not passed
    assert said.startswith("No trusted connection (TLS): ")


def test_a_service_in_trouble_is_asked_twice_at_most(answer: Any, sandbox: Sandbox) -> None:
    sandbox.control.fail("*", kind="drop", times=None)

    # a person waits for the answer; a usual call would try for a minute
    assert not answer()[0]
    assert len(sandbox.control.requests("/cloudextraction/task/stats")) == 2


def test_one_bad_moment_does_not_fail_the_test(answer: Any, sandbox: Sandbox) -> None:
    sandbox.control.fail("/cloudextraction/task/stats", kind="drop")

    assert answer()[0]
