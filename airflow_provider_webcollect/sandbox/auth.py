"""Identifying the caller by its credential."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_webcollect.sandbox import demo
from airflow_provider_webcollect.sandbox.errors import ServiceError, invalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_webcollect.sandbox.tokens import Tokens


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
