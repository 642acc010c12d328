"""The trigger that waits for a person's answer on Airflow 3.1 and 3.2; on 3.3 a task needs none for that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.triggers.hitl import HITLTrigger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow.triggers.base import TriggerEvent


class AnswerTrigger(HITLTrigger):
    """Airflow's trigger for answers, which also outlasts errors, such as an API server that is restarted.

    A trigger that fails would have the task retried, and a retry sends again what may have taken effect.
    """

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the trigger's path and its arguments."""
        _, arguments = super().serialize()
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the answer as one event."""
        while True:
            try:
                async for event in super().run():
                    yield event
                return
            except Exception as error:
                self.log.warning(
                    "The answer cannot be read; the next try follows in %.0f s. %s", self.poke_interval, error
                )
                await asyncio.sleep(self.poke_interval)
