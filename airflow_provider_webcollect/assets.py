"""Assets ``webcollect://<conn_id>/<task id>`` stand for what a collection task collects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from airflow.providers.common.compat.sdk import Asset

SCHEME = "webcollect"
_FORM = "a webcollect asset is webcollect://<connection id>/<collection task id>, or with /<batch number>"


def create_asset(
    *,
    collection_task_id: str,
    lotno: str | None = None,
    webcollect_conn_id: str = "webcollect_default",
    extra: dict[str, Any] | None = None,
) -> Asset:
    """Return the asset of a task's rows, or of one batch of them."""
    from airflow.providers.common.compat.sdk import Asset

    parts = [collection_task_id] if lotno is None else [collection_task_id, lotno]
    path = "/".join(quote(part, safe="") for part in parts)
    return Asset(uri=f"{SCHEME}://{webcollect_conn_id}/{path}", extra=extra)


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Check the URI of an asset, and return it in the one form that all spellings of it have.

    :raises ValueError: if it is none.
    """
    parts = [unquote(part) for part in uri.path.strip("/").split("/")]
    if not uri.netloc or not all(parts) or len(parts) > 2 or uri.query or uri.fragment:
        raise ValueError(f"{uri.geturl()}: {_FORM}")
    return uri._replace(path="/" + "/".join(quote(part, safe="") for part in parts))
