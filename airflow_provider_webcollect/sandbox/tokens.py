"""Access tokens that expire, refresh tokens that work once, and what a request's credentials permit."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.sandbox.bodies import ServiceError, invalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_webcollect.sandbox.settings import Settings
    from airflow_provider_webcollect.sandbox.world import Clock


@dataclass
class _Family:
    """All tokens that were issued from one first token."""

    user: str
    revoked: bool = False


@dataclass
class Tokens:
    """
    The existing tokens; times are those of :meth:`Clock.wall`.

    :param first_refresh: a refresh token that works at first, beside the demo account's. No other sandbox has
        it: a client that stores what it got for a refresh token must not take one sandbox for another.
    """

    clock: Clock
    first_refresh: str = field(default_factory=lambda: f"{demo.REFRESH_TOKEN}-{secrets.token_hex(8)}")
    _access: dict[str, tuple[_Family, float]] = field(default_factory=dict)
    _refresh: dict[str, _Family] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)

    def seed(self, settings: Settings) -> None:
        """Make the demo account's first tokens valid."""
        family = _Family(demo.USERNAME)
        self._access[demo.ACCESS_TOKEN] = (family, self.clock.wall() + settings.token_lifetime)
        self._refresh[demo.REFRESH_TOKEN] = self._refresh[self.first_refresh] = family

    def user_of(self, access_token: str) -> str | None:
        """Return the owner of a valid access token; ``None`` if it is unknown, expired or revoked."""
        family, expires = self._access.get(access_token, (None, 0.0))
        return family.user if family and not family.revoked and self.clock.wall() < expires else None

    def log_in(self, settings: Settings, username: str, password: str) -> dict[str, Any]:
        """Return a token record for a user name and password."""
        if (username, password) != (demo.USERNAME, demo.PASSWORD):
            raise ServiceError("Invalid.Grant", "The user name or password is wrong.")
        return self._issue(settings, _Family(username))

    def refresh(self, settings: Settings, refresh_token: str) -> dict[str, Any]:
        """Return a token record for a refresh token, which is used up by this."""
        family = self._refresh.get(refresh_token)
        if family is not None and refresh_token in self._used and settings.refresh_reuse == "revoke":
            family.revoked = True
        reused = refresh_token in self._used and settings.refresh_reuse != "allow"
        if family is None or family.revoked or reused:
            raise ServiceError("Invalid.Grant", "The refresh token is invalid.")
        self._used.add(refresh_token)
        return self._issue(settings, family)

    def expire(self, refresh_tokens: bool) -> None:
        """Expire all access tokens, and optionally all refresh tokens."""
        self._access.clear()
        if refresh_tokens:
            self._refresh.clear()

    def _issue(self, settings: Settings, family: _Family) -> dict[str, Any]:
        # recognizable, so that a test can search for them in places where they must not appear
        access = f"sandbox-access-{secrets.token_urlsafe(32)}"
        refresh = f"sandbox-refresh-{secrets.token_urlsafe(32)}"
        self._access[access] = (family, self.clock.wall() + settings.token_lifetime)
        self._refresh[refresh] = family
        return {
            "access_token": access,
            "expires_in": str(int(settings.token_lifetime)),
            "token_type": "Bearer",
            "refresh_token": refresh,
        }


def main_service_user(headers: Mapping[str, str], tokens: Tokens, takes_api_key: bool) -> str:
    """
    The user whose credential a main-service request carries.

    :param headers: request headers, names in lower case.
    :param takes_api_key: whether the endpoint accepts ``x-api-key`` instead of a token.
    :raises ServiceError: HTTP 400 if both credentials are sent, 401 if none is valid.
    """
    token, api_key = headers.get("authorization"), headers.get("x-api-key")
    if token is not None and api_key is not None:
        raise invalid("Send either Authorization or x-api-key, not both.")
    if api_key is not None:
        if not takes_api_key:
            raise _bad_token("This endpoint takes an access token, not an API key.")
        if api_key != demo.API_KEY:
            raise _bad_token("The API key is invalid.")
        return demo.USERNAME
    user = tokens.user_of(_bearer(token))
    if user is None:
        raise _bad_token("The access token is missing, invalid or expired.")
    return user


def refuse_credentials(headers: Mapping[str, str]) -> None:
    """Refuse credentials in the headers of a request to the token endpoint."""
    if "authorization" in headers or "x-api-key" in headers:
        raise invalid("The token endpoint takes no Authorization and no x-api-key header.")


def data_app_author(headers: Mapping[str, str]) -> str:
    """
    The author whose API key a data-app request carries as Bearer.

    :raises ServiceError: HTTP 400 if the main service's key is sent too, 401 if the key is not valid.
    """
    if "authorization" in headers and "x-api-key" in headers:
        raise invalid("Send Authorization only, not x-api-key.")
    authors = {demo.DATAHUB_API_KEY: demo.USERNAME, demo.OTHER_DATAHUB_API_KEY: demo.STRANGER}
    author = authors.get(_bearer(headers.get("authorization")))
    if author is None:
        raise ServiceError("unauthorized", "The API key is missing or invalid.", status=401)
    return author


def _bearer(header: str | None) -> str:
    scheme, _, value = (header or "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""


def _bad_token(message: str) -> ServiceError:
    return ServiceError("Invalid.Token", message, status=401, headers={"WWW-Authenticate": "Bearer"})
