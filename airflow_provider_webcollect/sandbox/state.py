"""The state of a running sandbox."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_webcollect.sandbox.clock import Clock
from airflow_provider_webcollect.sandbox.faults import Faults
from airflow_provider_webcollect.sandbox.limits import Limits
from airflow_provider_webcollect.sandbox.request_log import RequestLog
from airflow_provider_webcollect.sandbox.rows import BlockCache, load_table
from airflow_provider_webcollect.sandbox.settings import Settings, as_json, make_settings
from airflow_provider_webcollect.sandbox.tokens import Tokens
from airflow_provider_webcollect.sandbox.world import World


class State:
    """The whole state; :meth:`reset` restores its beginning."""

    def __init__(self, settings: Settings) -> None:
        self._initial = make_settings(as_json(settings))
        self.reset()

    def reset(self) -> None:
        """Restore the initial state and settings."""
        self.settings = self._initial
        self.clock = Clock(self.settings.speed)
        self.tokens = Tokens(self.clock)
        self.tokens.seed(self.settings)
        self.world = World(self.settings, self.clock)
        self.limits = Limits()
        self.faults = Faults(self.settings.seed)
        self.log = RequestLog()
        self.blocks = BlockCache(self.settings.cache_mb * 1_000_000)

    def configure(self, changes: dict[str, object]) -> None:
        """
        Change settings; existing objects do not change.

        :raises ValueError: a name is unknown or a value is invalid.
        :raises OSError: the table cannot be read.
        """
        settings = make_settings({**as_json(self.settings), **changes})
        self.world.table = load_table(settings)
        self.settings = self.world.settings = settings
        self.clock.set_speed(self.settings.speed)


@dataclass(frozen=True)
class Call:
    """
    One accepted request.

    :param user: the caller; for a data-app call, the author.
    :param path_id: the identifier in the path, decoded.
    :param form: fields of a multipart body: text, or a file's bytes.
    """

    user: str
    query: bytes
    content_type: str
    body: bytes
    path_id: str
    form: dict[str, str | bytes]
