"""The steps of a call: credential, rate limit, request, response, retries.

A :class:`Sender` performs the steps that take time: it sends a request, waits, and gets an access token.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urljoin, urlsplit

import msgspec
import tenacity

import airflow_provider_webcollect
from airflow_provider_webcollect.service import endpoints
from airflow_provider_webcollect.service.endpoints import Call, Credential, Retry, UrlFile
from airflow_provider_webcollect.service.errors import (
    ConnectionIncomplete,
    CredentialError,
    MalformedResponse,
    NoResponse,
    NotFound,
    OutcomeUnknown,
    PageTooLarge,
    PagingError,
    RedirectRefused,
    ResponseTooLarge,
    ServiceFailure,
    ServiceUnreachable,
    TokenRejected,
    TokenUnavailable,
    TooManyRequests,
    WebCollectError,
    only_a_key,
    spelling_of_code,
)
from airflow_provider_webcollect.service.rate_limit import RateLimiters, shared_rate_limiters
from airflow_provider_webcollect.service.responses import Response, no_response, read_response
from airflow_provider_webcollect.service.spans import Span, span
from airflow_provider_webcollect.service.threads import ThrottledLog
from airflow_provider_webcollect.service.tokens.renewal import Tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from airflow_provider_webcollect.service.rate_limit import RateLimiter
    from airflow_provider_webcollect.service.settings import Credentials, Settings
    from airflow_provider_webcollect.service.tokens import TokenStore

log = logging.getLogger(__name__)

T = TypeVar("T")

#: The advice in errors of the data-app service, which has its own address and key.
DATA_APP_ADVICE: dict[type[WebCollectError], str] = {
    TokenRejected: "Put a valid key into the connection extra `datahub_api_key`.",
    RedirectRefused: "Set the connection extra `datahub_url` to the service's real address.",
    ServiceUnreachable: "Check the connection extra `datahub_url`, the network and the proxy settings.",
    MalformedResponse: "If this persists, the connection extra `datahub_url` is probably wrong.",
}
#: Number of attempts at a page that may be too large, before half as many rows are requested.
TRIES_PER_SIZE = 3
#: Number of attempts at a page whose cursor does not advance, before that is an error.
STUCK_TRIES = 5
#: Maximum number of times that a rejected access token is replaced within one attempt of a call: the new
#: token may come from another process and be rejected too.
REPLACEMENTS = 3
#: The HTTP statuses of redirects.
REDIRECTS = {301, 302, 303, 307, 308}
USER_AGENT = f"airflow-provider-webcollect/{airflow_provider_webcollect.__version__}"


@dataclass(frozen=True, slots=True)
class ClientContext:
    """The settings and credentials of a connection, the rate limiters of its address, and its token.

    :ivar is_outdated: returns whether the connection has changed since settings and credentials were read
        from it; the call may block.
    :ivar hint: returns a sentence for people about tasks that the service does not know; empty for none.
    """

    settings: Settings
    credentials: Credentials
    rate_limiters: RateLimiters
    tokens: Tokens
    is_outdated: Callable[[], bool] = lambda: False
    hint: Callable[[Sequence[str]], str] = lambda task_ids: ""

    def short_retries(
        self,
        attempts: int = sys.maxsize,
        deadline: float = math.inf,
        timeout: float = math.inf,
        *,
        unreachable: float = math.inf,
    ) -> ClientContext:
        """Return this context with stricter limits for a call; by default, none is changed.

        :param attempts: maximum number of attempts.
        :param deadline: seconds after which no further attempt is made.
        :param timeout: maximum number of seconds for a response.
        :param unreachable: seconds after which no further attempt is made if there is no connection to the
            service.
        """
        retries = self.settings.retries
        settings = dataclasses.replace(
            self.settings,
            total_timeout=min(timeout, self.settings.total_timeout),
            retries=dataclasses.replace(
                retries,
                attempts=min(attempts, retries.attempts),
                deadline=min(deadline, retries.deadline),
                unreachable=min(unreachable, retries.unreachable),
            ),
        )
        return dataclasses.replace(self, settings=settings)

    def gauges(self) -> dict[str, float]:
        """Return metrics by name: the share of the rate limit, and the age of the token in seconds."""
        shares = [limiter.share for limiters in self.rate_limiters.values() for limiter in limiters]
        age = {} if self.tokens.age is None else {"webcollect.token.age": self.tokens.age}
        return {"webcollect.rate_limit.share": min(shares), **age}

    def base_of(self, *, datahub: bool) -> str:
        """Return the base URL of the main service, or of the data-app service.

        :raises ConnectionIncomplete: if the address of that service is not set.
        """
        if not datahub:
            return self.settings.base_url
        if self.settings.datahub_url is None:
            raise ConnectionIncomplete(
                "the connection has no extra `datahub_url`, the data-app service's address"
            )
        return self.settings.datahub_url

    def address_of(self, *, datahub: bool) -> str:
        """Return the base URL for a message, with its origin if that is known."""
        base, origin = self.base_of(datahub=datahub), self.settings.origin
        return f"{base} ({origin})" if origin else base


def make_context(
    settings: Settings,
    credentials: Credentials,
    name: str,
    store: TokenStore,
    learned: Callable[[str], None] = lambda secret: None,
    is_outdated: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    *,
    hint: Callable[[Sequence[str]], str] = lambda task_ids: "",
    reads_only: bool = False,
) -> ClientContext:
    """Create the context of a client.

    :param name: the name of the connection.
    :param store: the store in which the processes share the token.
    :param learned: called with every token obtained, so that it can be masked in logs.
    :param is_outdated: returns whether the connection has changed since it was read; the call may block.
    :param clock: a monotonic clock, in seconds, for the waits of the token's renewal.
    :param hint: returns a sentence for people about tasks that the service does not know; empty for none.
    :param reads_only: whether to use only the stored token, and neither renew it nor wait for another one.
    """
    return ClientContext(
        settings=settings,
        credentials=credentials,
        rate_limiters=shared_rate_limiters(settings.base_url, settings.requests_per_second),
        tokens=Tokens(
            credentials,
            settings,
            name,
            store,
            reads_only=reads_only,
            learned=learned,
            clock=clock,
        ),
        is_outdated=is_outdated,
        hint=hint,
    )


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request, ready to be sent. Its repr shows neither headers nor body.

    :ivar total_timeout: maximum number of seconds for the whole response.
    :ivar moments: by rate limiter, the time at which that limiter allows the request.
    """

    method: str
    url: str
    headers: dict[str, str]
    total_timeout: float
    content: bytes | None = None
    form: Mapping[str, str] = field(default_factory=dict)
    file: UrlFile | None = None
    moments: dict[RateLimiter, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Request({self.method} {self.url})"


class Sender(Protocol):
    """Sends the requests of a call."""

    @property
    def context(self) -> ClientContext:
        """Settings, credentials, rate limiters and the token."""

    def transmit(self, request: Request) -> Response:
        """Send a request and return the response; raises ``NotConnected``, or the HTTP library's error."""

    def sleep(self, seconds: float) -> None:
        """Wait for this number of seconds."""

    def authorize(self, rejected: str | None) -> str:
        """Return an access token other than ``rejected``."""


def exchange(
    call: Call[T],
    sender: Sender,
    *,
    check: Callable[[T], object] = lambda result: None,
    can_halve: bool = False,
    is_traced: bool = True,
) -> T:
    """Send ``call``, with the attempts that :class:`Policy` allows, and return its result.

    An interruption from outside, such as a signal's exception, is passed on. If a request that is not safe to
    repeat was in flight, the interruption has an ``OutcomeUnknown`` as its cause, see
    :func:`errors.unknown_outcome`.

    :param check: called with the result of each attempt; raises an error if the result cannot be used.
    :param can_halve: whether the call is for a page, and half as many rows can be requested.
    :param is_traced: whether the call has a span.
    :raises WebCollectError: as :mod:`~airflow_provider_webcollect.service.errors` describes.
    """
    is_token_call = call.endpoint is endpoints.refresh_token.endpoint
    policy = Policy(sender.context.settings, can_halve=can_halve, is_token_call=is_token_call)
    # the renewal of the token handles a refusal itself
    with (
        contextlib.nullcontext() if is_token_call else current_credential(sender.context),
        call_span(call, sender.context, is_sampled=is_traced) as recorded,
    ):
        return policy.retrying(sender.sleep)(functools.partial(_attempt, call, sender, check, recorded))


def call_span(
    call: Call[Any], context: ClientContext, *, is_sampled: bool = True
) -> contextlib.AbstractContextManager[Span]:
    """Record the block as the span of a call."""
    base_url = context.settings.datahub_url if _is_of_data_app(call) else context.settings.base_url
    attributes = {
        "webcollect.endpoint": call.endpoint.name,
        "http.request.method": call.endpoint.method,
        "url.template": call.endpoint.path,
        "server.address": urlsplit(base_url or "").hostname,
    }
    return span("call", attributes, kind="CLIENT", is_sampled=is_sampled)


@contextlib.contextmanager
def current_credential(context: ClientContext) -> Iterator[None]:
    """Run the block with a credential that a person may replace in the connection meanwhile.

    :raises TokenUnavailable: if the credential is refused, but the connection has changed, so another attempt
        may succeed.
    """
    try:
        yield
    except CredentialError as refusal:
        if not context.is_outdated():
            raise
        raise TokenUnavailable(
            f"the connection has changed since it was read, and the next attempt uses it: {refusal.message}",
            endpoint=refusal.endpoint,
        ) from refusal


def _attempt(call: Call[T], sender: Sender, check: Callable[[T], object], recorded: Span) -> T:
    """Make one attempt; repeat its request with a new access token, a few times, if the token is rejected."""
    token, replacements = _token(call, sender, None), 0
    while True:
        try:
            result = result_of(call, sender, _ready(call, sender, token, recorded), sender.transmit, recorded)
            check(result)
            return result
        except WebCollectError as error:
            facts = {"error.type": type(error).__qualname__, "http.response.status_code": error.status}
            recorded.add_event("attempt_failed", facts)
            if not isinstance(error, TokenRejected) or token is None or replacements == REPLACEMENTS:
                raise
        token, replacements = _token(call, sender, token), replacements + 1


def is_accepted(token: str, sender: Sender) -> bool:
    """Return whether the service accepts an access token; a call that changes nothing finds it out.

    Only an explicit rejection counts, since no other error shows that the token is invalid.
    """
    call = endpoints.get_running_counts()
    try:
        with call_span(call, sender.context) as recorded:
            result_of(call, sender, _ready(call, sender, token, recorded), sender.transmit, recorded)
    except TokenRejected:
        return False
    except WebCollectError:
        return True
    return True


def _token(call: Call[Any], sender: Sender, rejected: str | None) -> str | None:
    """Return the access token for the call; None if the call is sent with a key or without a credential.

    :param rejected: the token that the service has rejected; None if there is none.
    :raises ConnectionIncomplete: if the connection has no credential for the call.
    """
    credentials = sender.context.credentials
    if not _takes_token(call, credentials):
        return None
    if token := sender.context.tokens.current(rejected):
        return token
    if credentials.can_get_tokens:
        return sender.authorize(rejected)
    if credentials.api_key:
        raise only_a_key("this operation", call.endpoint.name, call.endpoint.with_key)
    raise ConnectionIncomplete(
        "the connection has no credential: set its extra `refresh_token`, `access_token` or `api_key`, or "
        "its login and password",
        endpoint=call.endpoint.name,
    )


def _takes_token(call: Call[Any], credentials: Credentials) -> bool:
    match call.endpoint.credential:
        case Credential.NONE | Credential.DATAHUB_KEY:
            return False
        case Credential.KEY_OR_TOKEN:
            return not credentials.api_key
    return not (credentials.api_key and credentials.api_key_everywhere)


def _authorization(call: Call[Any], credentials: Credentials, token: str | None) -> dict[str, str]:
    """Return the header with the credential of the call, if it needs one; there are never two."""
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


def is_sendable(secret: str) -> bool:
    """Return whether a credential is valid in a header."""
    return secret.isascii() and secret.isprintable() and " " not in secret


def _sendable(name: str, secret: str) -> str:
    """Return ``secret`` if it is valid in a header; if not, raise before an HTTP library's error shows it."""
    if is_sendable(secret):
        return secret
    raise ConnectionIncomplete(
        f"the {name} has a space, a line end or another character that is invalid in a header: copy it again"
    )


def request_now(call: Call[Any], context: ClientContext) -> Request | None:
    """Return the request of a call if it may be sent at once; None if it has to wait.

    :raises WebCollectError: if the credential for the call is missing or unusable.
    """
    token = None
    if _takes_token(call, context.credentials) and (token := context.tokens.current()) is None:
        return None
    request, limiters = _request(call, context, token), context.rate_limiters[call.endpoint.rate_limit]
    # a request that is sent later than its reserved moment could exceed the rate limit
    if not all(limiter.is_free() for limiter in limiters):
        return None
    for limiter in limiters:
        request.moments[limiter], wait = limiter.reserve()
        if wait:
            return None
    return request


def result_of(
    call: Call[T], sender: Sender, request: Request, transmit: Callable[[Request], Response], recorded: Span
) -> T:
    """Send the request of a call once, and return the result.

    :param transmit: sends the request.
    :param recorded: the call's span, which gets the status of the response.
    :raises WebCollectError: as :func:`exchange` does.
    """
    handled = sys.exception()
    try:
        with _no_response(call, sender.context):
            response = transmit(request)
        recorded.set({"http.response.status_code": response.status})
        if response.status in REDIRECTS and "location" in response.headers:
            raise _redirect_refused(request, response)
        timezone = sender.context.settings.timezone
        return read_response(call.result, response, timezone, of_data_app=_is_of_data_app(call))
    except WebCollectError as error:
        _forget_frames(error, handled)
        error.endpoint = call.endpoint.name
        if _is_of_data_app(call):
            error.advice = DATA_APP_ADVICE.get(type(error), error.advice)
        if isinstance(error, NotFound):
            if call.task_id:
                # the service's message may be about a group or a step
                error.message = f"{error.message.rstrip('.')} (asked for task {call.task_id})"
            error.advice = f"{error.advice} {sender.context.hint(call.task_ids)}".rstrip()
        if isinstance(error, TooManyRequests):
            # all calls share the rate limit, so the pause that a single response asks for is limited here too
            pause = Policy(sender.context.settings).requested_pause(error)
            limiter = sender.context.rate_limiters[call.endpoint.rate_limit][0]
            limiter.slow_down(pause, request.moments.get(limiter))
        if call.retry is Retry.ONLY_IF_UNSENT and error.uncertain:
            raise OutcomeUnknown(
                f"the request was sent, but it is not known whether it took effect: {error.message}",
                endpoint=call.endpoint.name,
                **error.facts,
            ) from error
        raise


def _ready(call: Call[Any], sender: Sender, token: str | None, recorded: Span) -> Request:
    """Wait until the rate limit allows the call, and return its request."""
    handled = sys.exception()
    # token calls are rare, and the claim on the renewal could expire while one of them waits
    is_limited = call.endpoint is not endpoints.refresh_token.endpoint
    try:
        request = _request(call, sender.context, token)
        for limiter in sender.context.rate_limiters[call.endpoint.rate_limit] if is_limited else ():
            request.moments[limiter], wait = limiter.reserve()
            if wait:
                limiter.wait_log.log(wait, "%s waits %.0f s for the rate limit.", call.endpoint.name, wait)
                recorded.add_event("rate_limit_wait", {"webcollect.seconds": wait})
                sender.sleep(wait)
    except WebCollectError as error:
        _forget_frames(error, handled)
        error.endpoint = call.endpoint.name
        raise
    return request


@contextlib.contextmanager
def _no_response(call: Call[Any], context: ClientContext) -> Iterator[None]:
    """Raise an error of the matching class if the block, which sends a request, gets no response."""
    handled = sys.exception()
    try:
        yield
    except WebCollectError:
        raise
    except Exception as failure:
        raise no_response(failure, context.address_of(datahub=_is_of_data_app(call))) from failure
    except BaseException as interruption:
        _forget_frames(interruption, handled)
        # the renewal of the token handles its own interruptions
        if call.retry is not Retry.ONLY_IF_UNSENT or call.endpoint is endpoints.refresh_token.endpoint:
            raise
        raise interruption from OutcomeUnknown(
            "the request was sent, but it is not known whether it took effect: interrupted before an answer "
            f"({type(interruption).__name__})",
            endpoint=call.endpoint.name,
        )


def _forget_frames(error: BaseException, handled: BaseException | None) -> None:
    """Drop the tracebacks of an error and its causes: their frames hold headers, bodies and tokens.

    :param handled: the exception that the caller was handling when it made the call, which keeps its
        traceback; None if there was none.
    """
    chained: BaseException | None = error
    while chained is not None and chained is not handled:
        chained.__traceback__ = None
        chained = chained.__cause__ or chained.__context__


def _is_of_data_app(call: Call[Any]) -> bool:
    return call.endpoint.credential is Credential.DATAHUB_KEY


def _request(call: Call[Any], context: ClientContext, token: str | None) -> Request:
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "gzip, deflate",
        "User-Agent": USER_AGENT,
        **_authorization(call, context.credentials, token),
    }
    if call.body is not None:
        headers["Content-Type"] = "application/json"
    base = context.base_of(datahub=_is_of_data_app(call))
    return Request(
        method=call.endpoint.method,
        url=base + call.target,
        headers=headers,
        total_timeout=context.settings.total_timeout,
        content=None if call.body is None else msgspec.json.encode(call.body),
        form=call.form,
        file=call.file,
    )


def _redirect_refused(request: Request, response: Response) -> RedirectRefused:
    """Return the error for a redirect: another host must not get the credential, nor a POST become a GET."""
    try:
        target = urlsplit(urljoin(request.url, response.headers["location"]))
        address = f"{target.scheme}://{target.netloc.rpartition('@')[2]}{target.path}"
    except ValueError:
        address = "no valid address"
    return RedirectRefused(f"the service redirects to {address}, which is refused", status=response.status)


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules for repeating a failed attempt: how often and after which pauses, depending on its error.

    :ivar can_halve: whether the call is for a page, and half as many rows can be requested.
    :ivar is_token_call: whether this is a token call. Its attempts are not logged, since the attempts at the
        call that waits for the token are.
    """

    settings: Settings
    can_halve: bool = False
    is_token_call: bool = False

    def limits(self, error: BaseException | None) -> tuple[int, float]:
        """Return the maximum number of attempts, and the seconds after which no further attempt is made."""
        retries, timing = self.settings.retries, self.settings.timing
        match error:
            case PagingError():
                return STUCK_TRIES, retries.deadline
            case ServiceUnreachable():
                return retries.attempts, min(retries.deadline, retries.unreachable)
            case WebCollectError(retryable=True) if self.can_halve and may_be_size(error):
                return min(TRIES_PER_SIZE, retries.attempts), min(timing.long_failure, retries.deadline)
            case WebCollectError(retryable=True):
                return retries.attempts, retries.deadline
        return 1, 0.0

    def requested_pause(self, error: WebCollectError) -> float:
        """Return the pause in seconds that the service asks for, limited to the longest wait; 0 if none."""
        return min(error.retry_after or 0.0, self.settings.retries.longest_wait)

    def retrying(self, sleep: Callable[[float], None]) -> tenacity.Retrying:
        """Return the ``Retrying`` of tenacity that makes attempts until one succeeds or the policy ends them.

        :param sleep: waits for a number of seconds.
        """
        retries, wait_log = self.settings.retries, ThrottledLog(log)
        backoff = tenacity.wait_random_exponential(multiplier=retries.first_wait, max=retries.longest_wait)

        def wait(state: tenacity.RetryCallState) -> float:
            error = _error(state)
            if isinstance(error, PagingError):
                return self.settings.timing.stuck_wait
            return max(backoff(state), self.requested_pause(error))

        def stop(state: tenacity.RetryCallState) -> bool:
            attempts, seconds = self.limits(_error(state))
            return (tenacity.stop_after_attempt(attempts) | tenacity.stop_before_delay(seconds))(state)

        def announce(state: tenacity.RetryCallState) -> None:
            pause, error = state.upcoming_sleep, _error(state)
            wait_log.log(
                max(pause, wait_log.lasted),
                "Attempt %d of at most %d follows in %.1f s. %s",
                state.attempt_number + 1,
                self.limits(error)[0],
                pause,
                error,
                level=logging.WARNING,
            )

        return tenacity.Retrying(
            sleep=sleep,
            before_sleep=None if self.is_token_call else announce,
            stop=stop,
            wait=wait,
            retry=tenacity.retry_if_exception(lambda error: self.limits(error)[0] > 1),
            reraise=True,
        )


def _error(state: tenacity.RetryCallState) -> WebCollectError:
    error = state.outcome and state.outcome.exception()
    assert isinstance(error, WebCollectError), "only such an error is repeated"
    return error


def may_be_size(error: WebCollectError) -> bool:
    """Return whether a request for fewer rows may succeed."""
    match error:
        case NoResponse() | ResponseTooLarge() | PageTooLarge():
            return True
        case ServiceFailure(code=code) if spelling_of_code(code) == "servererror":
            # the service mostly reports its own failures with HTTP 400 (assumptions.md, Errors)
            return True
        case MalformedResponse() | ServiceFailure() if error.status in {200, 500}:
            return True
    return error.status in {413, 504}
