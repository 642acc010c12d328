"""Carrying a call out: credential, pace, sending, judging the answer, trying again. Written once, without I/O.

``exchange`` is a generator of effects, run by ``Client`` and ``AsyncClient`` alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urljoin, urlsplit

import msgspec
import tenacity

import airflow_provider_webcollect
from airflow_provider_webcollect.service.answers import Answer, read_answer
from airflow_provider_webcollect.service.call import Call, Credential, Repeat
from airflow_provider_webcollect.service.effects import Authorize, Request, Send, Sleep, Steps
from airflow_provider_webcollect.service.errors import (
    ConnectionIncomplete,
    OutcomeUnknown,
    RedirectRefused,
    TokenRejected,
    TooManyRequests,
    WebCollectError,
)

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.settings import Credentials, Retries
    from airflow_provider_webcollect.service.wire import Wire

T = TypeVar("T")

USER_AGENT = f"airflow-provider-webcollect/{airflow_provider_webcollect.__version__}"


def exchange(call: Call[T], wire: Wire) -> Steps[T]:
    """Carry ``call`` out and return its result.

    tenacity decides whether and when to try again; the waiting itself is left to the driver.

    :raises WebCollectError: as :mod:`~airflow_provider_webcollect.service.errors` describes.
    """
    pauses: list[float] = []
    for attempt in _tries(wire.settings.retries, pauses):
        if pauses:
            yield Sleep(pauses.pop())
        with attempt:
            return (yield from _attempt(call, wire))
    raise AssertionError("tenacity ends with a result or an error")


def _tries(retries: Retries, pauses: list[float]) -> tenacity.Retrying:
    backoff = tenacity.wait_random_exponential(multiplier=retries.first_wait, max=retries.longest_wait)

    def wait(state: tenacity.RetryCallState) -> float:
        asked = getattr(state.outcome and state.outcome.exception(), "retry_after", None)
        return max(backoff(state), min(asked or 0.0, retries.longest_wait))

    return tenacity.Retrying(
        sleep=pauses.append,
        stop=tenacity.stop_after_attempt(retries.attempts) | tenacity.stop_before_delay(retries.deadline),
        wait=wait,
        retry=tenacity.retry_if_exception(
            lambda error: isinstance(error, WebCollectError) and error.retryable
        ),
        reraise=True,
    )


def _attempt(call: Call[T], wire: Wire) -> Steps[T]:
    """Try once; a rejected access token is replaced and the request repeated, once."""
    token = yield from _token(call, wire, None)
    try:
        return (yield from _send(call, wire, token))
    except TokenRejected:
        if token is None:
            raise
    fresh = yield from _token(call, wire, token)
    return (yield from _send(call, wire, fresh))


def _token(call: Call[Any], wire: Wire, rejected: str | None) -> Steps[str | None]:
    """Return the access token that the call goes with, or None if it goes with a key or nothing."""
    if not _needs_token(call, wire.credentials):
        return None
    return wire.tokens.current(rejected) or (yield Authorize(rejected))


def _needs_token(call: Call[Any], credentials: Credentials) -> bool:
    wanted = call.endpoint.credential
    if wanted in {Credential.NONE, Credential.DATAHUB_KEY}:
        return False
    takes_key = wanted is Credential.KEY_OR_TOKEN or credentials.api_key_everywhere
    if takes_key and credentials.api_key:
        return False
    if credentials.can_get_tokens:
        return True
    if credentials.api_key:
        raise ConnectionIncomplete(
            "the connection has only an API key, and this operation takes an access token: add `refresh_token` "
            "(or login and password) to the connection, or set its extra `api_key_everywhere` if the account's "
            "key is taken everywhere",
            endpoint=call.endpoint.name,
        )
    raise ConnectionIncomplete(
        "the connection has no credential: set its extra `refresh_token`, `access_token` or `api_key`, or its "
        "login and password",
        endpoint=call.endpoint.name,
    )


def _authorization(call: Call[Any], credentials: Credentials, token: str | None) -> dict[str, str]:
    """Return the one header that proves who is calling; never two credentials at once."""
    if token is not None:
        return {"Authorization": f"Bearer {token}"}
    match call.endpoint.credential:
        case Credential.NONE:
            return {}
        case Credential.DATAHUB_KEY:
            if not credentials.datahub_api_key:
                raise ConnectionIncomplete(
                    "the connection has no extra `datahub_api_key`, the key of the data-app service",
                    endpoint=call.endpoint.name,
                )
            return {"Authorization": f"Bearer {credentials.datahub_api_key}"}
        case _:
            return {"x-api-key": str(credentials.api_key)}


def _send(call: Call[T], wire: Wire, token: str | None) -> Steps[T]:
    request = _request(call, wire, token)
    for pacer in wire.paces.of(call.endpoint.pace):
        if wait := pacer.reserve():
            yield Sleep(wait)
    try:
        answer: Answer = yield Send(request)
        if 300 <= answer.status < 400:
            answer = yield Send(_redirected(call, request, answer))
        return read_answer(call, answer, wire.settings.timezone)
    except WebCollectError as error:
        error.endpoint = call.endpoint.name
        if isinstance(error, TooManyRequests):
            wire.paces.of(call.endpoint.pace)[0].slow_down(error.retry_after)
        if call.repeat is Repeat.IF_UNSENT and error.retryable and not error.unsent:
            raise OutcomeUnknown(
                f"sent, but it is not known whether the service acted on it: {error}",
                endpoint=call.endpoint.name,
                status=error.status,
                code=error.code,
                request_id=error.request_id,
            ) from error
        raise


def _request(call: Call[Any], wire: Wire, token: str | None) -> Request:
    headers = {
        "Accept": "application/json",
        "User-Agent": USER_AGENT,
        **_authorization(call, wire.credentials, token),
    }
    if call.body is not None:
        headers["Content-Type"] = "application/json"
    base = wire.settings.base_of(call.endpoint.credential is Credential.DATAHUB_KEY)
    return Request(
        method=call.endpoint.method,
        url=base + call.target,
        headers=headers,
        content=None if call.body is None else msgspec.json.encode(call.body),
        form=dict(call.form) if call.file else None,
        file=call.file,
    )


def _redirected(call: Call[Any], request: Request, answer: Answer) -> Request:
    """Return the request that a redirect asks for, if it stays at this service and changes nothing else.

    :raises RedirectRefused: otherwise; the credential must not go elsewhere, and a POST must not become a GET.
    """
    target = urljoin(request.url, answer.headers.get("location", ""))
    here, there = urlsplit(request.url), urlsplit(target)
    same_place = (here.scheme, here.netloc) == (there.scheme, there.netloc)
    if (
        not same_place
        or target == request.url
        or (request.method != "GET" and answer.status not in {307, 308})
    ):
        raise RedirectRefused(
            f"the service redirects to {there.scheme}://{there.netloc}{there.path}, which is not followed",
            endpoint=call.endpoint.name,
            status=answer.status,
        )
    return Request(request.method, target, request.headers, request.content, request.form, request.file)
