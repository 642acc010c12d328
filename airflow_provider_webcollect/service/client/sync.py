"""The sync driver, on requests."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_webcollect.service.client.exchange import exchange, is_accepted
from airflow_provider_webcollect.service.client.network import ca_bundle, content_of, is_untrusted
from airflow_provider_webcollect.service.client.responses import Response
from airflow_provider_webcollect.service.errors import (
    ConnectionIncomplete,
    NoAnswer,
    ServiceUnreachable,
    TlsError,
    TransportError,
)
from airflow_provider_webcollect.service.flow import (
    Authorize,
    Blocking,
    Effect,
    Flow,
    Request,
    Send,
    Sleep,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import requests

    from airflow_provider_webcollect.service.api.call import Call
    from airflow_provider_webcollect.service.auth.token import StoredToken
    from airflow_provider_webcollect.service.client.context import ClientContext
    from airflow_provider_webcollect.service.settings import Settings

T = TypeVar("T")


class Client:
    """Sends calls to the service and waits for their results. May be shared by threads.

    :param context: settings, credentials, rate limiters and the token.
    :param sleep: waits so many seconds.
    :param connections: connections that are kept open at most.
    """

    def __init__(
        self,
        context: ClientContext,
        *,
        sleep: Callable[[float], None] = time.sleep,
        connections: int = 32,
    ) -> None:
        self.context = context
        self._sleep = sleep
        self._connections = connections
        self._renewing = threading.Lock()
        self._opening = threading.Lock()
        self._session: requests.Session | None = None
        self._proxies: dict[str, dict[str, str]] = {}

    def send(self, call: Call[T]) -> T:
        """Carry ``call`` out and return its result.

        :raises WebCollectError: see :mod:`~airflow_provider_webcollect.service.errors`.
        """
        return self.run(exchange(call, self.context))

    def run(self, flow: Flow[T]) -> T:
        """Run a piece of client logic to its end and return its result."""
        # first, since the rate limit counts from when a request may leave
        self._ready()
        try:
            effect = next(flow)
            while True:
                try:
                    outcome = self._perform(effect)
                except BaseException as error:  # whatever happens is the logic's to judge
                    effect = flow.throw(error)
                else:
                    effect = flow.send(outcome)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    def renew_token(self, after_share: float = 0.0) -> StoredToken:
        """Renew the access token and share it, if at least this share of its life has passed.

        See contract.md, endpoint 1. With a share above 0, the service is asked whether it still takes a
        token that is young enough (endpoint 16); one that it rejects is renewed.

        :return: the token that is valid now, new or not.
        :raises ConnectionIncomplete: if no credential of the connection leads to a new token.
        """
        if not self.context.credentials.can_renew_tokens:
            raise ConnectionIncomplete(
                "the connection has nothing to obtain an access token with: set its extra `refresh_token`, "
                "or its login and password",
                endpoint="refresh_token",
            )
        with self._renewing:
            return self.run(
                self.context.tokens.renew(
                    lambda call: exchange(call, self.context),
                    after_share,
                    lambda token: is_accepted(token, self.context),
                )
            )

    def close(self) -> None:
        """Close the connections to the service; a later call opens new ones."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Send(request):
                return self._exchange_bytes(request)
            case Sleep(seconds):
                return self._sleep(seconds)
            case Authorize(rejected):
                with self._renewing:
                    return self.run(
                        self.context.tokens.obtain(rejected, lambda call: exchange(call, self.context))
                    )
            case Blocking(function):
                return function()

    def _exchange_bytes(self, request: Request) -> Response:
        import requests
        import urllib3.exceptions

        try:
            return self._answer(request)
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
            raise _transport_error(error) from error

    def _answer(self, request: Request) -> Response:
        import requests

        session = self._ready()
        settings = self.context.settings
        with content_of(request) as (headers, content):
            # past the session, which would look into redirects and keep cookies
            prepared = requests.PreparedRequest()
            prepared.prepare_method(request.method)
            prepared.prepare_url(request.url, None)
            prepared.prepare_headers({**session.headers, **request.headers, **headers})
            prepared.prepare_body(content, None)
            response = session.get_adapter(request.url).send(
                prepared,
                stream=True,
                timeout=(settings.connect_timeout, settings.read_timeout),
                verify=session.verify or True,
                proxies=self._proxies_for(request.url),
            )
            with response:
                # one read of the whole body: requests' own loop takes 10 KiB at a time
                body = response.raw.read(decode_content=True)
        answer_headers = {name.lower(): value for name, value in response.headers.items()}
        return Response(response.status_code, answer_headers, body)

    def _proxies_for(self, url: str) -> dict[str, str]:
        from requests.utils import get_environ_proxies

        base = url.split("/", 3)[2]
        if base not in self._proxies:
            self._proxies[base] = get_environ_proxies(url)
        return self._proxies[base]

    def _ready(self) -> requests.Session:
        if session := self._session:
            return session
        with self._opening:
            self._session = session = self._session or _session(self.context.settings, self._connections)
            return session


def _session(settings: Settings, connections: int) -> requests.Session:
    import requests
    from requests.adapters import HTTPAdapter

    session = requests.Session()
    # the environment must not slip in a netrc credential; proxies and CA files are passed on
    session.trust_env = False
    session.verify = ca_bundle(settings) or True
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=connections))
    return session


def _transport_error(error: Exception) -> TransportError:
    """Say whether the request surely did not reach the service."""
    import requests.exceptions as failures
    import urllib3.exceptions

    reason = getattr(error.args[0], "reason", None) if error.args else None
    if isinstance(error, failures.SSLError) and is_untrusted(error):
        return TlsError(f"no trusted connection: {reason or error}")
    unsent = (failures.ConnectTimeout, failures.InvalidURL, urllib3.exceptions.NewConnectionError)
    if isinstance(error, unsent) or isinstance(reason, unsent) or _is_refused_by_proxy(reason):
        return ServiceUnreachable(f"no connection: {reason or error}")
    return NoAnswer(f"no complete answer: {reason or error}")


def _is_refused_by_proxy(reason: Any) -> bool:
    """Return whether a proxy took no request: a cut connection counts as a failure of the proxy too."""
    import urllib3.exceptions

    if not isinstance(reason, urllib3.exceptions.ProxyError):
        return False
    cause = reason.original_error
    not_connected = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)
    return isinstance(cause, not_connected) or str(cause).startswith("Tunnel connection failed")
