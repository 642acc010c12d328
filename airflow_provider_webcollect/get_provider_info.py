"""The provider's metadata, which Airflow reads without importing the rest of the provider."""

from __future__ import annotations

from typing import Any

from airflow_provider_webcollect.hooks.connection_fields import UI_FIELD_BEHAVIOUR, conn_fields

INTEGRATION = "Web Data Collection"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata in the form of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-webcollect",
        "name": INTEGRATION,
        "description": "Runs web data collection tasks, waits for them, lands their rows in object storage.",
        "integrations": [{"integration-name": INTEGRATION, "tags": ["service"]}],
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
                "target-integration-name": INTEGRATION,
                "python-module": f"airflow_provider_webcollect.transfers.{module}",
            }
            for module in ("landing_to_warehouse", "webcollect_to_object_storage")
        ],
        "extra-links": [
            "airflow_provider_webcollect.links.WebCollectTaskLink",
            "airflow_provider_webcollect.links.WebCollectExportLink",
        ],
        "config": {
            "webcollect": {
                "description": "How the provider of the web data collection service works.",
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
                        "description": "Seconds that reading and writing a Variable may take together where "
                        "tokens are kept in Variables. A renewal waits one and a half times as long, so that "
                        "no two processes renew at once. The same for all processes.",
                        "version_added": "1.0.0",
                        "type": "float",
                        "example": "5.0",
                        "default": "2.0",
                    },
                    "collection_tasks": {
                        "description": "The absolute path of a file, YAML or JSON, with the ids and names of "
                        "the service's tasks. Where operators, sensors and the command line take an id, they "
                        "then take a name too.",
                        "version_added": "1.0.0",
                        "type": "string",
                        "example": "/opt/airflow/dags/collection_tasks.yaml",
                        "default": None,
                    },
                },
            }
        },
        "asset-uris": _asset_uris(),
        # the name in Airflow 2
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
