"""What Airflow is told about this provider. Imports nothing: Airflow reads it in every process."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata."""
    return {
        "package-name": "airflow-provider-managed-jobs",
        "name": "Managed jobs",
        "description": "Chains of tasks on clusters that may vanish.",
        "integrations": [
            {
                "integration-name": "Managed jobs",
                "tags": ["service"],
            }
        ],
        "operators": [
            {
                "integration-name": "Managed jobs",
                "python-modules": ["airflow_provider.operators.managed_task"],
            }
        ],
        "hooks": [{"integration-name": "Managed jobs", "python-modules": ["airflow_provider.hooks.cluster"]}],
        "triggers": [
            {
                "integration-name": "Managed jobs",
                "python-modules": ["airflow_provider.triggers.managed_task"],
            }
        ],
        "connection-types": [
            {
                "hook-class-name": "airflow_provider.hooks.cluster.ClusterHook",
                "hook-name": "Managed cluster",
                "connection-type": "managed_cluster",
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "password", "port"],
                    "relabeling": {},
                    "placeholders": {},
                },
                "conn-fields": {
                    "infra": {
                        "label": "Infra",
                        "description": "Where clusters come from. This version has: local.",
                        "schema": {"type": ["string", "null"], "default": "local"},
                    },
                    "root": {
                        "label": "Folder of local clusters",
                        "description": "By default managed_jobs/clusters below AIRFLOW_HOME.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "lease_seconds": {
                        "label": "Lease (seconds)",
                        "description": "How long a cluster lives without hearing from a controller.",
                        "schema": {"type": ["number", "null"], "default": 3600},
                    },
                    "unreachable_timeout": {
                        "label": "Unreachable time-out (seconds)",
                        "description": "Without contact for so long, a cluster counts as lost.",
                        "schema": {"type": ["number", "null"], "default": 600},
                    },
                },
            }
        ],
        "config": {
            "managed_jobs": {
                "description": "Settings of the managed-jobs provider.",
                "options": {
                    "database_url": {
                        "description": (
                            "SQLAlchemy URL of the state store, which worker and triggerer share. "
                            "By default a SQLite file below AIRFLOW_HOME."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "sensitive": True,
                        "example": "postgresql+psycopg2://user@host/managed_jobs",
                        "default": "",
                    },
                    "blob_path": {
                        "description": (
                            "Where the files of tasks are kept while they are needed: a path or an "
                            "ObjectStoragePath URL, which worker and triggerer share. "
                            "By default a folder below AIRFLOW_HOME."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "s3://bucket/managed-jobs",
                        "default": "",
                    },
                },
            }
        },
    }
