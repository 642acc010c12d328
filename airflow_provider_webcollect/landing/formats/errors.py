"""What can go wrong while rows are encoded."""

from __future__ import annotations

from airflow_provider_webcollect.landing.errors import LandingError


class ExtraMissing(LandingError):
    """A format or compression needs a package that is not installed."""

    permanent = True


class CastFailed(LandingError):
    """A value cannot be read as its column's type; the part was not written."""

    permanent = True


class UnreadableRow(LandingError):
    """A row is no JSON object, or holds what no file can take; the part was not written.

    Raised by readers too, for a row of a part that holds what Python cannot read.
    """

    permanent = True
