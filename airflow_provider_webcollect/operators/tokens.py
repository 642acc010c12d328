"""Operators for the connection's access token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pendulum

from airflow_provider_webcollect.common.arguments import check_now
from airflow_provider_webcollect.operators.base import WebCollectOperator
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_webcollect.hooks.webcollect import WebCollectHook


class WebCollectRefreshTokenOperator(WebCollectOperator):
    """Renews the connection's access token and shares it with all workers (contract.md, endpoint 1).

    For connections with ``token_refresh = "keeper"``, whose workers never renew the token. A token that is
    not old enough to renew is tested (contract.md, endpoint 16); if the service rejects it, it is renewed.

    Returns ``{"renewed", "expires_at"}``; the time is ISO 8601 in UTC, or None if the service gave none.

    :param renew_after: share of the token's life that must have passed, from 0 (always renew) to 1; 0.5 by
        default.
    :param webcollect_conn_id: the Airflow connection of the service. (templated)
    :raises AirflowFailException: if a retry cannot help, such as if the service rejects the refresh token.
    :raises WebCollectError: for any other error of the service; the task is retried.
    """

    template_fields: Sequence[str] = ("webcollect_conn_id",)

    def __init__(self, *, renew_after: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.renew_after = renew_after
        check_now(self, self._check, ("renew_after",))

    def _check(self) -> None:
        if not isinstance(self.renew_after, int | float) or not 0 <= self.renew_after <= 1:
            raise InvalidArgument("renew_after", self.renew_after, "it must be a share from 0 to 1")

    def perform(self, hook: WebCollectHook) -> dict[str, Any]:
        """Renew the token if it is old enough, and return its expiry time."""
        self._check()
        began = pendulum.now("UTC")
        token = hook.client.renew_token(self.renew_after)
        renewed = token.obtained_at >= began.timestamp()
        ends = None if token.expires_at is None else pendulum.from_timestamp(token.expires_at).isoformat()
        self.log.info(
            "The access token is %s and valid until %s.", "new" if renewed else "young enough", ends
        )
        return {"renewed": renewed, "expires_at": ends}
