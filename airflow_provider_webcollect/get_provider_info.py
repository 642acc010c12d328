"""The provider's metadata, which Airflow reads without importing the rest of the provider."""

from __future__ import annotations

from importlib.metadata import metadata
from typing import Any

from airflow_provider_webcollect.hooks.connection_fields import UI_FIELD_BEHAVIOUR, conn_fields

PACKAGE = "airflow-provider-webcollect"
INTEGRATION = "Web Data Collection"
#: The guides in this project's documentation, by the module of the transfer.
GUIDES = {
    "webcollect_to_object_storage": "/docs/guides/collect-and-land-on-a-schedule.md",
    "landing_to_warehouse": "/docs/guides/load-into-a-warehouse.md",
}
#: The targets of each transfer, under the names of integrations that other providers declare.
TARGETS = {
    "webcollect_to_object_storage": (
        "Amazon Simple Storage Service (S3)",
        "Common IO",
        "Google Cloud Storage (GCS)",
        "Iceberg",
        "Microsoft Azure Blob Storage",
    ),
    "landing_to_warehouse": ("Amazon Redshift", "Google BigQuery", "PostgreSQL", "Snowflake"),
}


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata in the form of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": PACKAGE,
        "name": INTEGRATION,
        "description": "Runs web data collection tasks, waits for them, lands their rows in object storage.",
        "integrations": [_integration()],
        **{
            kind: [
                {
                    "integration-name": INTEGRATION,
                    "python-modules": [f"airflow_provider_webcollect.{kind}.webcollect"],
                }
            ]
            for kind in ("hooks", "operators", "sensors", "triggers")
        },
        "transfers": [
            {
                "source-integration-name": INTEGRATION,
                "target-integration-name": target,
                "python-module": f"airflow_provider_webcollect.transfers.{module}",
                "how-to-guide": guide,
            }
            for module, guide in GUIDES.items()
            for target in TARGETS[module]
        ],
        # No "plugins": by default, Airflow loads only the plugins of entry points. If it loads both kinds
        # (lazy_discover_providers = False), Airflow 3 reports a plugin found twice as an import error.
        "extra-links": [
            "airflow_provider_webcollect.links.WebCollectTaskLink",
            "airflow_provider_webcollect.links.WebCollectExportLink",
        ],
        "config": {
            "webcollect": {
                "description": "Settings of the provider for the web data collection service.",
                "options": {
                    "token_store": {
                        "description": "Where processes share a connection's access token: "
                        "variable, memory (each process for itself), or the dotted path of a subclass of "
                        "airflow_provider_webcollect.service.tokens.TokenStore.",
                        "version_added": "1.0.0",
                        "type": "string",
                        "example": "my_company.tokens.VaultTokenStore",
                        "default": "variable",
                    },
                    "token_store_timeout": {
                        "description": "Seconds that reading and writing a Variable may take together, if "
                        "tokens are kept in Variables. A renewal waits one and a half times as long, so that "
                        "no two processes renew at once. Must be the same for all processes.",
                        "version_added": "1.0.0",
                        "type": "float",
                        "example": "5.0",
                        "default": "2.0",
                    },
                    "collection_tasks": {
                        "description": "The absolute path of a YAML or JSON file with the ids and names of "
                        "the service's tasks. Operators, sensors and the command line then accept a name "
                        "in place of an id.",
                        "version_added": "1.0.0",
                        "type": "string",
                        "example": "/opt/airflow/dags/collection_tasks.yaml",
                        "default": None,
                    },
                },
            }
        },
        "asset-uris": _asset_uris(),
        # the name of asset URIs in Airflow 2
        "dataset-uris": _asset_uris(),
        "connection-types": [
            {
                "connection-type": "webcollect",
                "hook-name": INTEGRATION,
                "hook-class-name": "airflow_provider_webcollect.hooks.webcollect.WebCollectHook",
                "conn-fields": conn_fields(),
                "ui-field-behaviour": {
                    name.replace("_", "-"): value for name, value in UI_FIELD_BEHAVIOUR.items()
                },
            }
        ],
    }


def _integration() -> dict[str, Any]:
    """Return the integration; its documentation's address is in ``[project.urls]``, empty until a release."""
    from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_1_PLUS

    integration: dict[str, Any] = {
        "integration-name": INTEGRATION,
        "how-to-guide": ["/docs/guides/connect.md", *GUIDES.values()],
        "tags": ["service"],
    }
    urls = dict(entry.split(", ", 1) for entry in metadata(PACKAGE).get_all("Project-URL", ()))
    if "Documentation" in urls:
        integration["external-doc-url"] = urls["Documentation"]
    if AIRFLOW_V_3_1_PLUS:
        # the web page's plugin serves it
        integration["logo"] = "/webcollect/static/logo.svg"
    return integration


def _asset_uris() -> list[dict[str, Any]]:
    module = "airflow_provider_webcollect.assets"
    return [
        {
            "schemes": ["webcollect"],
            "handler": f"{module}.sanitize_uri",
            "factory": f"{module}.create_asset",
            "to_openlineage_converter": f"{module}.convert_asset_to_openlineage",
        }
    ]
