"""The errors of encoding rows."""

from __future__ import annotations

from airflow_provider_webcollect.landing.errors import LandingError


class ExtraMissing(LandingError):
    """A format or compression needs a package that is not installed."""

    permanent = True


class CastFailed(LandingError):
    """A value cannot be read as its column's type; the part was not written."""

    permanent = True


class UnreadableRow(LandingError):
    """A row is not a JSON object, or holds what no file can store; the part was not written.

    Readers raise it too, for a row of a part with content that Python cannot read.
    """

    permanent = True
