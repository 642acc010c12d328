"""All errors of the service's client, as one tree under :class:`WebCollectError`.

Attributes of each class say what a caller can do, so no message has to be parsed: whether the client may
repeat the call at once (``retryable``), whether the call certainly had no effect (``unsent``), whether it may
have had one (``uncertain``), whether retries are useless until a person acts (``permanent``), and what that
person should do (``advice``). ``make docs`` writes ``docs/reference/errors.md`` from the classes: the first
paragraph of a docstring says what has happened; the ``advice`` and the second paragraph say what to do.
"""

from __future__ import annotations

import re
from typing import Any


class WebCollectError(Exception):
    """Base of all errors of the service's client.

    :param message: what happened, without secrets.
    :param endpoint: the operation, by the name of the hook's method (``copy_task``).
    :param status: the HTTP status, if there was a response.
    :param code: the service's error code, if it sent one.
    :param request_id: the service's ``requestId``, for the vendor's support.
    :param category: the data-app service's category of the error (``forbidden``, …).
    :param retry_after: the number of seconds that the service asks to wait; None if it does not.
    """

    retryable: bool = False
    unsent: bool = False
    uncertain: bool = False
    permanent: bool = False
    advice: str = ""

    def __init__(
        self,
        message: str,
        *,
        endpoint: str | None = None,
        status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
        category: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.endpoint = endpoint
        self.status = status
        self.code = code
        self.request_id = request_id
        self.category = category
        self.retry_after = retry_after

    @property
    def facts(self) -> dict[str, Any]:
        """The facts about the response, for another error that is raised in place of this one."""
        return {"status": self.status, "code": self.code, "request_id": self.request_id}

    def __str__(self) -> str:
        answered = " ".join(
            part for part in (f"HTTP {self.status}" if self.status else "", self.code or "") if part
        )
        text = ": ".join(part for part in (self.endpoint, answered, self.message) if part)
        if self.request_id:
            text = f"{text} (requestId {self.request_id})"
        if not self.advice:
            return text
        return f"{text} {self.advice}" if text.endswith((".", "!", "?")) else f"{text}. {self.advice}"


class InvalidArgument(WebCollectError, ValueError):
    """An argument, or a field of the connection, breaks a rule; nothing was sent.

    Correct the value that the message names.

    :param argument: its name, and the place in it, such as ``task_ids[2]`` or ``file, line 3``.
    :param value: its value; only the repr is kept, so that the error can always be pickled.
    :param rule: what the value must be.
    :param as_text: shown in the message instead of the repr, if the value may be a secret.
    :ivar name: the argument's name alone, for callers whose users know the argument by another name.
    :ivar place: the place in the argument, such as ``[2]`` or ``, line 3``; empty for the whole argument.
    """

    permanent = True
    unsent = True

    def __init__(self, argument: str, value: object, rule: str, *, as_text: str | None = None) -> None:
        as_text = as_text or _short_repr(value)
        super().__init__(f"`{argument}` is {as_text}; {rule}")
        self.argument = argument
        self.name = re.split(r"[\[.,]", argument, maxsplit=1)[0]
        self.place = argument[len(self.name) :]
        self.value = as_text
        self.rule = rule

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self.args), self.__dict__


def _unpickled(kind: type[InvalidArgument], args: tuple[object, ...]) -> InvalidArgument:
    return kind.__new__(kind, *args)


def escaped(text: str) -> str:
    """Return text from a service or a website for a message, with escapes for some characters.

    Unprintable characters could begin a line of a log, or control a terminal. Backticks are reserved for the
    commands that our own messages show.

    :param text: text such as a message of the service, or the name of a column.
    """
    return "".join(
        character if character.isprintable() and character != "`" else f"\\u{ord(character):04x}"
        for character in text
    )


def quoted(value: object) -> str:
    """Return the repr of a value from a service or a website for a message, see :func:`escaped`.

    :param value: a value such as the name of a column.
    """
    return escaped(repr(value))


def _short_repr(value: object) -> str:
    """Return a repr of ``value`` that is short enough for a message."""
    try:
        text = repr(value)
    except Exception:  # for example an integer of thousands of digits
        text = f"a value of the type {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:197]}..."


class ConnectionIncomplete(WebCollectError):
    """The connection lacks what the call needs; nothing was sent.

    Add to the connection what the message names.
    """

    permanent = True
    unsent = True


def only_a_key(what: str, endpoint: str, instead: str = "") -> ConnectionIncomplete:
    """Return the error for an action that needs a token, when the connection has only an API key.

    :param what: the action, as the subject of a sentence.
    :param endpoint: the operation.
    :param instead: an action that the key alone allows, as an imperative; empty if there is none.
    """
    add = f"{instead}, or add" if instead else "add"
    return ConnectionIncomplete(
        f"the connection has only an API key, and {what} needs an access token: {add} `refresh_token` (or "
        "login and password) to the connection, or set its extra `api_key_everywhere` if every endpoint "
        "accepts the account's key",
        endpoint=endpoint,
    )


class Stopped(WebCollectError):
    """The Airflow task has ended, for example by its ``execution_timeout``; nothing was sent.

    A retry continues.
    """

    unsent = True


class FileUnreadable(WebCollectError):
    """The file of URLs cannot be read now."""

    advice = "If this persists, check its storage."


class TransportError(WebCollectError):
    """Base of the errors without a complete response."""


class ServiceUnreachable(TransportError):
    """There is no connection to the host or the proxy."""

    retryable = True
    unsent = True
    advice = "Check the connection's host, the network and the proxy settings."


class ProxyUnusable(TransportError):
    """The proxy has a wrong address, wants a login (407), or needs the library for SOCKS."""

    permanent = True
    unsent = True
    advice = "Check the environment variables HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY."


class TlsError(TransportError):
    """The certificate is not trusted, or there is no common TLS version."""

    unsent = True
    advice = "Check the host name; for a private certificate authority set the connection extra `ca_file`."


class NoResponse(TransportError):
    """The request was sent, but no complete response came."""

    retryable = True
    uncertain = True
    advice = "Check the network, or raise the connection extras `read_timeout` and `total_timeout`."


class RedirectRefused(WebCollectError):
    """The service redirects, which is not followed."""

    permanent = True
    advice = "Set the connection's host to the service's real address."


class MalformedResponse(WebCollectError):
    """The response is broken JSON, or a gateway's page."""

    retryable = True
    uncertain = True
    advice = (
        "If every call fails like this, the connection's host is probably wrong; if only some do, a gateway "
        "is failing."
    )


class ResponseTooLarge(MalformedResponse):
    """The response is larger than the client's limit."""

    retryable = False
    advice = "Ask for fewer rows, or raise the connection extra `max_response_bytes`."


class ResponseTooDeep(MalformedResponse):
    """The response is nested some hundred levels deep."""

    retryable = False
    advice = "Ask for fewer rows to find the row; only the service can change its nested value."


class ServiceError(WebCollectError):
    """Base of the errors that the service has sent."""


class CredentialError(ServiceError):
    """Base of the errors of a refused credential."""

    permanent = True
    unsent = True
    advice = (
        "Put a valid `refresh_token`, `access_token` or `api_key`, or login and password, into the "
        "connection."
    )


class TokenRejected(CredentialError):
    """The access token or API key is wrong or has expired (401)."""


class GrantRejected(CredentialError):
    """The refresh token is spent, revoked or wrong."""

    advice = (
        "A refresh token works once. Put a new `refresh_token`, or login and password, into the connection."
    )


class LoginRejected(GrantRejected):
    """Login and password were refused."""

    advice = "Put the right login and password into the connection, or a `refresh_token`."


class TokenUnavailable(WebCollectError):
    """No other process has provided a token in time, or the connection has a new credential.

    If this persists, check that the DAG of the token keeper runs.
    """

    unsent = True


class TokenStoreUnavailable(TokenUnavailable):
    """The shared token store cannot be read or written in time, so no refresh token is used.

    Check Airflow's database, or raise ``token_store_timeout``. Delete an unreadable Variable.
    """


class PermissionDenied(ServiceError):
    """The plan is too low, or the object belongs to another account (403)."""

    permanent = True
    unsent = True
    advice = "Check the account's plan, and that the object is its own."


class TooManyRequests(ServiceError):
    """The service's rate limit was exceeded (429)."""

    retryable = True
    unsent = True
    advice = "Lower the connection extra `requests_per_second` if other programs share this address."


class ServiceFailure(ServiceError):
    """The service failed (5xx, 408).

    If this persists, ask the service's support.
    """

    retryable = True
    uncertain = True


class NotFound(ServiceError):
    """The task, step or app does not exist, or belongs to another account (404).

    A name needs a file of collection tasks.
    """

    permanent = True
    advice = "Check the id, and that it belongs to this account."


class TaskBusy(ServiceError):
    """The task is running, or its last file of URLs is being processed."""

    advice = "Try again once the run or upload has ended."


class MemberNotAllowed(ServiceError):
    """An analytics query names somebody outside the account's team."""

    permanent = True
    advice = "Correct `member_names`."


class RequestRejected(ServiceError):
    """The service refused the request.

    The message has the service's reason.
    """

    permanent = True


class PageTooLarge(RequestRejected):
    """A page has more bytes than the service sends at once."""

    advice = "Ask for fewer rows: a smaller `size`, or `page_size`."


class TooManyTasks(RequestRejected):
    """A status query names more than 100 tasks."""

    advice = "Lower the connection extra `status_batch_size`."


class DataAppError(ServiceError):
    """The data-app service refused the request, or failed. It is permanent if no retry can help.

    The message has the service's reason.

    :param can_retry: whether the service says that a retry can help.
    """

    retryable = True
    uncertain = True

    def __init__(self, message: str, *, can_retry: bool = False, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.retryable = self.uncertain = can_retry
        self.permanent = not can_retry


class OutcomeUnknown(WebCollectError):
    """It is unknown whether the service acted on the request."""

    permanent = True
    uncertain = True
    advice = "Check in the service whether it took effect before repeating it."


def unknown_outcome(error: BaseException) -> OutcomeUnknown | None:
    """Return ``error`` if it is an OutcomeUnknown, or the OutcomeUnknown that caused it; otherwise None.

    An interruption (a signal's exception, a cancellation) keeps its type, so the call that it interrupted
    makes the unknown outcome its cause.

    :param error: the exception that ended the call.
    """
    for cause in (error, error.__cause__):
        if isinstance(cause, OutcomeUnknown):
            return cause
    return None


class PagingError(WebCollectError):
    """The cursor does not advance, or the counts contradict the rows.

    If this persists, ask the service's support.
    """


def spelling_of_code(code: str | None) -> str:
    """Return an error code in a form that is the same for ``Invalid.Grant`` and ``invalid-grant``."""
    return re.sub(r"[._-]", "", code or "").lower()


#: The error class for each code that is known from the contract or from practice.
CODES: dict[str, type[ServiceError]] = {
    "InvalidGrant": GrantRejected,
    "InvalidToken": TokenRejected,
    "Unauthorized": TokenRejected,
    "PermissionDenied": PermissionDenied,
    "TooManyRequests": TooManyRequests,
    "ServerError": ServiceFailure,
    "ServiceUnavailable": ServiceFailure,
    "UpdateTaskParametersUnexpectedError": ServiceFailure,
    "InvalidTaskId": NotFound,
    "TaskNotFound": NotFound,
    "TaskNotFoundForUpdate": NotFound,
    "TaskNotBelongToYou": NotFound,
    "GroupNotFound": NotFound,
    "TaskSettingsNotFound": NotFound,
    "TaskExecuting": TaskBusy,
    "FileProcessing": TaskBusy,
    "LimitTraffic": PageTooLarge,
    "InvalidTasks": TooManyTasks,
    "MemberNotAllowed": MemberNotAllowed,
}
_BY_CODE = {spelling_of_code(code): kind for code, kind in CODES.items()}
_BY_STATUS: dict[int, type[ServiceError]] = {
    401: TokenRejected,
    403: PermissionDenied,
    404: NotFound,
    408: ServiceFailure,
    429: TooManyRequests,
}


def service_error_type(status: int, code: str | None) -> type[ServiceError]:
    """Return the error class for a response of the main service.

    The code takes precedence over the status, since most errors come with HTTP 400 (assumptions.md, Errors).
    """
    kind = _BY_CODE.get(spelling_of_code(code)) or _BY_STATUS.get(status)
    if kind:
        return kind
    return ServiceFailure if status >= 500 else RequestRejected
