"""Optional packages."""

from __future__ import annotations

import importlib

from airflow_provider_webcollect.landing.formats.errors import ExtraMissing


def require(package: str, extra: str, what: str) -> None:
    """Import ``package``.

    :param extra: the extra of this provider that installs it.
    :param what: the argument that needs it.
    :raises ExtraMissing: if it cannot be imported.
    """
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise ExtraMissing(
            f"{what} needs the package {package}, which cannot be imported here ({error}); install "
            f"airflow-provider-webcollect[{extra}] where the task runs"
        ) from error
