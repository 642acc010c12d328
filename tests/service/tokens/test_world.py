"""Whatever the order, the clocks and the troubles: no refresh token is spent twice, and none is lost."""

from __future__ import annotations

import pytest

from airflow_provider_webcollect.service.tokens import renewal
from tests.conftest import ALL_HISTORIES
from tests.service.tokens.world import World

HISTORIES_PER_TEST = 80
#: All 2,080 histories, or the first 160 of them.
TESTS = 26 if ALL_HISTORIES else 2


@pytest.mark.parametrize("block", range(TESTS))
def test_no_history_loses_or_spends_twice(
    block: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(renewal, "_unsaved", {})
    caplog.set_level("CRITICAL")
    for seed in range(block * HISTORIES_PER_TEST, (block + 1) * HISTORIES_PER_TEST):
        world = World(seed)
        try:
            world.run()
            was_alive = world.is_alive()
            world.settle()
            works = all("ok" in process.results for process in world.processes)
            assert works or not was_alive, "the fleet does not work within two calls"
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}\n" + "\n".join(world.log[-60:]))
