"""Whatever the order, the clocks and the troubles: no refresh token is spent twice, and none is lost."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from airflow_provider_webcollect.service.tokens import renewal
from tests.conftest import ALL_HISTORIES, SEED
from tests.service.tokens.world import World

HISTORIES = range(2080)
#: All histories in 26 tests, or 40 of them in one.
BLOCKS = (
    [HISTORIES[start::26] for start in range(26)]
    if ALL_HISTORIES
    else [random.Random(SEED).sample(HISTORIES, 40)]
)


@pytest.mark.parametrize("block", BLOCKS, ids=map(str, range(len(BLOCKS))))
def test_no_history_loses_or_spends_twice(
    block: Sequence[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(renewal, "_unsaved", {})
    caplog.set_level("CRITICAL")
    for seed in block:
        world = World(seed)
        try:
            world.run()
            was_alive = world.is_alive()
            world.settle()
            works = all("ok" in process.results for process in world.processes)
            assert works or not was_alive, "the fleet does not work within two calls"
        except AssertionError as error:
            world.end()
            pytest.fail(f"seed {seed}: {error}\n" + "\n".join(world.log[-60:]))
