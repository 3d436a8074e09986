"""What Airflow is told about this provider. Imports nothing: Airflow reads it in every process."""

from __future__ import annotations

from typing import Any


def _field(label: str, description: str, **schema: Any) -> dict[str, Any]:
    return {
        "label": label,
        "description": description,
        "schema": {"type": ["string", "null"], **schema},
    }


_NUMBER: dict[str, Any] = {"type": ["number", "null"]}
_CONNECTION_FIELDS: dict[str, Any] = {
    "infra": _field(
        "Infra",
        "Where clusters come from: local is this machine, ssh a pool of hosts. By default ssh when hosts are given.",
        enum=["local", "ssh"],
    ),
    "hosts": _field(
        "Hosts",
        "user@host:port, one a line; or YAML: a list of mappings with address, port, user, cpus, memory, "
        "accelerators (V100:4), labels, zone, ssh_conn_id, host_key and more.",
        format="multiline",
    ),
    "ssh_conn_ids": _field(
        "SSH connections",
        "Ids of connections of type ssh that are hosts of the pool, with commas between them.",
    ),
    "private_key": _field(
        "Private key",
        "The key itself, for hosts that have no SSH connection of their own.",
        format="password",
    ),
    "private_key_passphrase": _field(
        "Passphrase", "What the private key is encrypted with.", format="password"
    ),
    "key_file": _field("Key file", "Instead of a pasted key: a file that workers and triggerers all have."),
    "host_key_policy": _field(
        "Host keys",
        "strict: known_hosts or a pinned key; trust_first: the first key that a host shows; none: any key.",
        enum=["strict", "trust_first", "none"],
    ),
    "host_key": _field("Host key", "Of a pool of one: its line as ssh-keyscan shows it."),
    "known_hosts": _field("known_hosts", "A file with host keys that workers and triggerers all have."),
    "proxy_jump": _field(
        "Jump hosts", "user@host:port, or ids of SSH connections, with commas between them, in order."
    ),
    "proxy_command": _field("Proxy command", "Instead of jump hosts: its input and output lead to the host."),
    "ssh_config": _field(
        "ssh_config",
        "A file in OpenSSH's format that workers and triggerers all have; hosts are its aliases.",
    ),
    "connect_timeout": _field(
        "Connect time-out (seconds)", "For one attempt to log in; 10 by default.", **_NUMBER
    ),
    "silence_limit": _field(
        "Silence limit (seconds)",
        "Without a sign of life for so long, a connection counts as dead; 9 by default.",
        **_NUMBER,
    ),
    "python": _field("Python", "The interpreter on the hosts; python3 by default."),
    "base": _field("Base folder", "For all that is ours on a host; ~/.managed-jobs by default."),
    "wheelhouse": _field(
        "Wheelhouse", "Folder with wheels of grpcio and protobuf for hosts without a way to a package index."
    ),
    "site": _field(
        "Site", "What others that share the hosts read about who has one; by default Airflow's URL."
    ),
    "root": _field(
        "Folder of local clusters", "Of infra local; by default managed_jobs/clusters below AIRFLOW_HOME."
    ),
    "lease_seconds": _field(
        "Lease (seconds)",
        "How long a cluster lives without hearing from a controller; 3600 by default.",
        **_NUMBER,
    ),
    "unreachable_timeout": _field(
        "Unreachable time-out (seconds)",
        "Without contact for so long, a cluster counts as lost; 600 by default.",
        **_NUMBER,
    ),
}


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
                    "hidden-fields": ["schema"],
                    "relabeling": {"host": "Host (pool of one)", "login": "User on the hosts"},
                    "placeholders": {
                        "host": "of infra ssh, for a pool of a single host",
                        "login": "the account that jobs run in",
                        "password": "unless a key is given below",
                        "port": "22",
                    },
                },
                "conn-fields": _CONNECTION_FIELDS,
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
