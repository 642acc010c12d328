"""What all calls of one client share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_webcollect.service.pace import Paces, shared_paces
from airflow_provider_webcollect.service.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_webcollect.service.settings import Credentials, Settings


@dataclass(frozen=True, slots=True)
class Wire:
    """Settings and credentials, the address's paces, and the token at hand."""

    settings: Settings
    credentials: Credentials
    paces: Paces
    tokens: Tokens


def make_wire(
    settings: Settings,
    credentials: Credentials,
    name: str,
    learned: Callable[[str], None] = lambda secret: None,
) -> Wire:
    """Put together what a client needs.

    :param name: names the connection; processes of a host with one name renew its token one at a time.
    :param learned: told every token obtained, for masking it in logs.
    """
    return Wire(
        settings=settings,
        credentials=credentials,
        paces=shared_paces(settings.base_url, settings.requests_per_second),
        tokens=Tokens(
            credentials,
            name,
            base_url=settings.base_url,
            keeper_only=settings.token_refresh == "keeper",
            learned=learned,
        ),
    )
