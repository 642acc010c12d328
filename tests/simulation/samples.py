"""By day a sample of the histories, interleavings and cases is tried, at night all of them.

A sample is drawn with SEED, which pytest prints; ``make test SEED=7`` draws another, the same each time. A
random history comes from its number alone: with ``WEBCOLLECT_HISTORY=1234``, that one is tried and no other.
"""

from __future__ import annotations

import os
import random

import pytest

#: Whether all histories and interleavings are tried (``make nightly``); if not, a sample of them.
ALL_HISTORIES = os.environ.get("WEBCOLLECT_ALL_HISTORIES") == "1"
#: The seed of the sample.
SEED = os.environ.get("WEBCOLLECT_SEED", "1")
#: The number of the only history that is tried; None for a sample or all.
HISTORY = os.environ.get("WEBCOLLECT_HISTORY")


def chance_of(name: str) -> random.Random:
    """Return the random generator of a test, which depends on SEED and the test's name."""
    return random.Random(f"{SEED} {name}")


def histories(name: str, every: int, *, by_day: int) -> list[int]:
    """Return the numbers of the random histories that are tried.

    :param every: number of all histories.
    :param by_day: number of the histories in the sample.
    """
    if HISTORY is not None:
        return [int(HISTORY)]
    return [*range(every)] if ALL_HISTORIES else chance_of(name).sample(range(every), by_day)


def leave_to_the_night(name: str, cases: list[pytest.Item], count: int) -> None:
    """Mark all cases ``at_night``, except for ``count`` of them, which are drawn with SEED."""
    kept = chance_of(name).sample(cases, min(count, len(cases)))
    for case in cases:
        if case not in kept:
            case.add_marker(pytest.mark.at_night)
