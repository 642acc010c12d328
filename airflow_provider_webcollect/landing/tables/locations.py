"""Where Delta Lake's library finds a folder of fsspec: its URL, and the options that open the storage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsspec import AbstractFileSystem


#: The tokens of gcsfs for credentials that the machine has.
_MACHINE_S = (None, "google_default", "cloud")


class Location(NamedTuple):
    """A folder for the library.

    :ivar options: for its storage; they may have credentials.
    """

    uri: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"<Location {self.uri}>"


def location_of(fs: AbstractFileSystem, root: str) -> Location:
    """Return where the library finds a folder, with the credentials that the filesystem has now.

    What a filesystem leaves to the machine (a role, a service account), the library finds there itself.

    :raises InvalidArgument: if it does not reach such a filesystem.
    """
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if protocols & {"file", "local"}:
        return Location(Path(root).as_uri(), {})
    path = quote(root.lstrip("/"))
    if "s3" in protocols:
        return Location(f"s3://{path}", _given(_s3_options(fs)))
    if "abfs" in protocols:
        return Location(f"az://{path}", _given(_azure_options(fs)))
    if "gs" in protocols:
        return Location(f"gs://{path}", _given(_gcs_options(fs)))
    raise InvalidArgument(
        "destination",
        fs.unstrip_protocol(root),
        "a table can be on a disk, S3, Azure or Google Cloud Storage",
    )


def _given(options: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in options.items() if value}


def _s3_options(fs: Any) -> dict[str, Any]:
    if not (fs.anon or fs.key or fs.session):
        # only then it knows a profile, or what else the machine has
        fs.connect()
    endpoint = fs.endpoint_url or fs.client_kwargs.get("endpoint_url")
    region = fs.client_kwargs.get("region_name") or (fs.session and fs.session.get_config_variable("region"))
    common = {
        "aws_endpoint_url": endpoint,
        "aws_allow_http": "true" if str(endpoint).startswith("http:") else None,
        # a server of one's own has no regions, but its requests are signed with one
        "aws_region": region or ("us-east-1" if endpoint else None),
    }
    if fs.anon:
        return {**common, "aws_skip_signature": "true"}
    key, secret, token = fs.key, fs.secret, fs.token
    if not key and fs.session and (found := _session_credentials(fs)):
        key, secret, token = found.access_key, found.secret_key, found.token
    return {
        **common,
        "aws_access_key_id": key,
        "aws_secret_access_key": secret,
        "aws_session_token": token,
    }


def _session_credentials(fs: Any) -> Any:
    """Return the credentials of a session, such as that of an Airflow connection."""
    from fsspec.asyn import sync

    async def read() -> Any:
        credentials = await fs.session.get_credentials()
        return credentials and await credentials.get_frozen_credentials()

    return sync(fs.loop, read)


def _azure_options(fs: Any) -> dict[str, Any]:
    parts = dict(each.split("=", 1) for each in (fs.connection_string or "").split(";") if "=" in each)
    endpoint = parts.get("BlobEndpoint")
    return {
        "azure_storage_account_name": fs.account_name or parts.get("AccountName"),
        "azure_storage_account_key": fs.account_key or parts.get("AccountKey"),
        "azure_storage_sas_token": fs.sas_token or parts.get("SharedAccessSignature"),
        "azure_storage_client_id": fs.client_id,
        "azure_storage_client_secret": fs.client_secret,
        "azure_storage_tenant_id": fs.tenant_id,
        "azure_endpoint": endpoint,
        "azure_allow_http": "true" if str(endpoint).startswith("http:") else None,
        "azure_skip_signature": "true" if fs.anon is True else None,
    }


def _gcs_options(fs: Any) -> dict[str, Any]:
    token = fs.credentials.token
    is_machine_s = token in _MACHINE_S or type(token).__module__.startswith("google.auth.compute_engine")
    if not (is_machine_s or token == "anon" or isinstance(token, dict) or str(token).startswith("/")):
        raise InvalidArgument(
            "object_storage_conn_id",
            "…",
            "Delta Lake's library cannot use its credentials on Google Cloud Storage: it takes a key as a "
            "file or as a dict, or what the machine has (application default credentials)",
        )
    return {
        "google_service_account_key": json.dumps(token) if isinstance(token, dict) else None,
        "google_service_account": token if isinstance(token, str) and token.startswith("/") else None,
        "google_skip_signature": "true" if token == "anon" else None,
    }
