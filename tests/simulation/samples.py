"""By day a sample of the histories, interleavings and cases is tried, at night all of them.

A sample is drawn with SEED, which pytest prints; ``make test SEED=7`` draws the one of that seed again.
"""

from __future__ import annotations

import os
import random

import pytest

#: Whether all histories and interleavings are tried (``make nightly``); if not, a sample of them.
ALL_HISTORIES = os.environ.get("WEBCOLLECT_ALL_HISTORIES") == "1"
#: What the sample is drawn with.
SEED = os.environ.get("WEBCOLLECT_SEED", "1")


def leave_to_the_night(name: str, cases: list[pytest.Item], count: int) -> None:
    """Mark all cases but ``count`` of them, which are drawn with SEED."""
    kept = random.Random(f"{SEED} {name}").sample(cases, min(count, len(cases)))
    for case in cases:
        if case not in kept:
            case.add_marker(pytest.mark.at_night)
