"""The steps of a call: credential, rate limit, request, response, retries. This module does no I/O.

``exchange`` is a generator of effects that both ``Client`` and ``AsyncClient`` run.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar
from urllib.parse import urljoin, urlsplit

import msgspec

import airflow_provider_webcollect
from airflow_provider_webcollect.service.api import endpoints
from airflow_provider_webcollect.service.api.call import Call, Credential, Retry
from airflow_provider_webcollect.service.client.responses import (
    NotConnected,
    Response,
    not_answered,
    read_response,
)
from airflow_provider_webcollect.service.client.retries import Policy, repeated
from airflow_provider_webcollect.service.errors import (
    ConnectionIncomplete,
    CredentialError,
    OutcomeUnknown,
    RedirectRefused,
    TokenRejected,
    TokenUnavailable,
    TooManyRequests,
    WebCollectError,
)
from airflow_provider_webcollect.service.flow import Authorize, Blocking, Flow, Request, Send, Sleep

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.service.api.records import TokenRecord
    from airflow_provider_webcollect.service.client.context import ClientContext
    from airflow_provider_webcollect.service.settings import Credentials

T = TypeVar("T")

#: How often a rejected access token is replaced within one attempt of a call: the token that replaces it may
#: come from another process and be rejected too.
REPLACEMENTS = 3
#: Attempts of a token call, seconds after which none is made, and seconds for its response.
TOKEN_TRIES, TOKEN_DEADLINE, TOKEN_TIMEOUT = 5, 5.0, 20.0
USER_AGENT = f"airflow-provider-webcollect/{airflow_provider_webcollect.__version__}"


def exchange(
    call: Call[T],
    context: ClientContext,
    *,
    check: Callable[[T], object] = lambda result: None,
    can_halve: bool = False,
) -> Flow[T]:
    """Send ``call``, as often as :mod:`.retries` says, and return its result.

    :param check: is given the result of each attempt, and raises if it is not good enough.
    :param can_halve: whether the call is for a page of which half can be requested.

    An interruption from outside (a signal's exception, a cancellation) is passed on. If a request that is not
    safe to repeat was in flight, its cause is an ``OutcomeUnknown``, see :func:`errors.unknown_outcome`.

    :raises WebCollectError: as :mod:`~airflow_provider_webcollect.service.errors` describes.
    """
    is_token_call = call.endpoint is endpoints.REFRESH_TOKEN
    policy = Policy(context.settings, can_halve=can_halve, is_part=is_token_call)
    attempts = repeated(lambda: _attempt(call, context), policy, check)
    # the renewal of the token handles a refusal itself
    return attempts if is_token_call else with_current_credential(attempts, context)


def with_current_credential(flow: Flow[T], context: ClientContext) -> Flow[T]:
    """Return the result of ``flow``, whose credential a person may replace in the connection meanwhile.

    :raises TokenUnavailable: if the credential is refused, but the connection has changed: another attempt
        may succeed.
    """
    try:
        return (yield from flow)
    except CredentialError as refusal:
        if not (yield Blocking(context.is_outdated)):
            raise
        raise TokenUnavailable(
            f"the connection has changed since it was read, and the next attempt uses it: {refusal.message}",
            endpoint=refusal.endpoint,
        ) from refusal


def reached(context: ClientContext, connect: Callable[[], object]) -> Flow[None]:
    """Try to connect to the service, as often as a call does; nothing is sent.

    :param connect: opens a connection, and raises ``NotConnected`` if that fails; it may block.
    :raises ServiceUnreachable: if there is no connection in the end.
    """
    return repeated(lambda: _connected(context, connect), Policy(context.settings))


def _connected(context: ClientContext, connect: Callable[[], object]) -> Flow[None]:
    try:
        yield Blocking(connect)
    except NotConnected as error:
        raise not_answered(error, context.settings.address_of(datahub=False)) from error


def _attempt(call: Call[T], context: ClientContext) -> Flow[T]:
    """Make one attempt; if the access token is rejected, replace it and repeat the request, a few times."""
    token = yield from _token(call, context, None)
    for _ in range(REPLACEMENTS):
        try:
            return (yield from _send(call, context, token))
        except TokenRejected:
            if token is None:
                raise
        token = yield from _token(call, context, token)
    return (yield from _send(call, context, token))


def is_accepted(token: str, context: ClientContext) -> Flow[bool]:
    """Find out, with a call that changes nothing, whether the service accepts an access token.

    Only an explicit rejection counts; any other error does not mean that the token is invalid.
    """
    try:
        yield from _send(endpoints.get_running_counts(), context, token)
    except TokenRejected:
        return False
    except WebCollectError:
        return True
    return True


def token_sender(context: ClientContext) -> Callable[[Call[TokenRecord]], Flow[TokenRecord]]:
    """Return a function that sends a token call before a claim on the renewal expires."""
    short = context.short_retries(TOKEN_TRIES, TOKEN_DEADLINE)
    timeout = min(TOKEN_TIMEOUT, short.settings.total_timeout)
    settings = dataclasses.replace(short.settings, total_timeout=timeout)
    return lambda call: exchange(call, dataclasses.replace(short, settings=settings))


def _token(call: Call[Any], context: ClientContext, rejected: str | None) -> Flow[str | None]:
    """Return the access token for the call, or None if it is sent with a key or without a credential."""
    if not _needs_token(call, context.credentials):
        return None
    return context.tokens.current(rejected) or (yield Authorize(rejected, context.tokens.failures))


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
            "the connection has only an API key, and this operation takes an access token: add "
            "`refresh_token` (or login and password) to the connection, or set its extra "
            "`api_key_everywhere` if the account's key is taken everywhere",
            endpoint=call.endpoint.name,
        )
    raise ConnectionIncomplete(
        "the connection has no credential: set its extra `refresh_token`, `access_token` or `api_key`, or "
        "its login and password",
        endpoint=call.endpoint.name,
    )


def _authorization(call: Call[Any], credentials: Credentials, token: str | None) -> dict[str, str]:
    """Return the header with the credential; a request never has two credentials."""
    if token is not None:
        return {"Authorization": f"Bearer {_sendable('access token', token)}"}
    match call.endpoint.credential:
        case Credential.NONE:
            return {}
        case Credential.DATAHUB_KEY:
            if not credentials.datahub_api_key:
                raise ConnectionIncomplete(
                    "the connection has no extra `datahub_api_key`, the key of the data-app service"
                )
            return {"Authorization": f"Bearer {_sendable('datahub_api_key', credentials.datahub_api_key)}"}
        case _:
            return {"x-api-key": _sendable("api_key", str(credentials.api_key))}


def _sendable(name: str, secret: str) -> str:
    """Return ``secret`` if it is valid in a header; otherwise an HTTP library's error would show it."""
    if secret.isascii() and secret.isprintable() and " " not in secret:
        return secret
    raise ConnectionIncomplete(
        f"the {name} holds a space, a line end or another character that none can have: copy it again"
    )


def _send(call: Call[T], context: ClientContext, token: str | None) -> Flow[T]:
    try:
        request = _request(call, context, token)
        came = yield from _rate_limited(call, context, request)
        if _is_redirect(came):
            came = yield from _rate_limited(call, context, _redirected(request, came))
        if _is_redirect(came):
            raise RedirectRefused("the service redirects time and again", status=came.status)
        address = context.settings.address_of(call.endpoint.credential is Credential.DATAHUB_KEY)
        return read_response(call, came, context.settings.timezone, address)
    except WebCollectError as error:
        error.endpoint = call.endpoint.name
        if isinstance(error, TooManyRequests):
            # all calls share the rate limit, so the pause that one response asks for is bounded here too
            pause = Policy(context.settings).requested_pause(error)
            context.rate_limiters.of(call.endpoint.rate_limit)[0].slow_down(pause)
        if call.retry is Retry.ONLY_IF_UNSENT and error.uncertain:
            raise OutcomeUnknown(
                f"sent, but it is not known whether the service acted on it: {error.message}",
                endpoint=call.endpoint.name,
                status=error.status,
                code=error.code,
                request_id=error.request_id,
            ) from error
        raise


def _rate_limited(call: Call[Any], context: ClientContext, request: Request) -> Flow[Response | Exception]:
    """Send a request when the rate limit allows it; return the response, or the driver's exception."""
    # token calls are rare, and the claim could expire while one waits for the rate limit
    is_token_call = call.endpoint is endpoints.REFRESH_TOKEN
    for limiter in () if is_token_call else context.rate_limiters.of(call.endpoint.rate_limit):
        if wait := limiter.reserve():
            limiter.notice.give(wait, "%s waits %.0f s for the rate limit.", call.endpoint.name, wait)
            yield Sleep(wait)
    try:
        return (yield Send(request))  # type: ignore[no-any-return]
    except Exception as failure:
        return failure
    except BaseException as interruption:
        # the renewal of the token handles its own interruptions; they do not concern the caller
        if call.retry is not Retry.ONLY_IF_UNSENT or is_token_call:
            raise
        raise interruption from OutcomeUnknown(
            "sent, but it is not known whether the service acted on it: interrupted before it answered "
            f"({type(interruption).__name__})",
            endpoint=call.endpoint.name,
        )


def _is_redirect(came: Response | Exception) -> TypeGuard[Response]:
    if not isinstance(came, Response):
        return False
    return came.status in {301, 302, 303, 307, 308} and "location" in came.headers


def _request(call: Call[Any], context: ClientContext, token: str | None) -> Request:
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "gzip, deflate",
        "User-Agent": USER_AGENT,
        **_authorization(call, context.credentials, token),
    }
    if call.body is not None:
        headers["Content-Type"] = "application/json"
    base = context.settings.base_of(call.endpoint.credential is Credential.DATAHUB_KEY)
    return Request(
        method=call.endpoint.method,
        url=base + call.target,
        headers=headers,
        total_timeout=context.settings.total_timeout,
        content=None if call.body is None else msgspec.json.encode(call.body),
        form=dict(call.form) if call.file else None,
        file=call.file,
    )


def _redirected(request: Request, answer: Response) -> Request:
    """Return the redirected request, if it goes to the same service and keeps its method.

    :raises RedirectRefused: otherwise; the credential must not go elsewhere, nor a POST become a GET.
    """
    location = answer.headers.get("location", "")
    try:
        target = urljoin(request.url, location)
        here, there = urlsplit(request.url), urlsplit(target)
    except ValueError:
        raise RedirectRefused("the service redirects to no valid address", status=answer.status) from None
    same_place = (here.scheme, here.netloc) == (there.scheme, there.netloc)
    if (
        not same_place
        or target == request.url
        or (request.method != "GET" and answer.status not in {307, 308})
    ):
        raise RedirectRefused(
            f"the service redirects to {there.scheme}://{there.netloc}{there.path}, which is not followed",
            status=answer.status,
        )
    return dataclasses.replace(request, url=target)
