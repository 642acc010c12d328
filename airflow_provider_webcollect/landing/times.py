"""Moments as the manifest has them."""

from __future__ import annotations

import pendulum


def now() -> str:
    """Return this moment, ISO 8601 in UTC."""
    return pendulum.now("UTC").isoformat(timespec="milliseconds")
