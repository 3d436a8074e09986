"""Connections that describe pools, and what is read from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider.hooks.connection import BadConnection, ClusterSettings, read_connection
from airflow_provider.runtime.infra.ssh.pool import PoolHost, SshPool

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nTOPSECRETTOPSECRET\n-----END OPENSSH PRIVATE KEY-----\n"
LOGIN = {"user": "ada", "private_key": KEY}
PINNED = "ssh-ed25519 AAAAC3Nz"


def connection(conn_id: str = "gpus", conn_type: str = "managed_cluster", **fields: Any) -> Connection:
    return Connection(conn_id=conn_id, conn_type=conn_type, **fields)


def fetch(*known: Connection) -> Callable[[str], Connection]:
    by_id = {one.conn_id: one for one in known}

    def get(conn_id: str) -> Connection:
        if conn_id not in by_id:
            raise AirflowNotFoundException(f"The conn_id `{conn_id}` isn't defined")
        return by_id[conn_id]

    return get


def read(extra: dict[str, Any], *known: Connection, **fields: Any) -> ClusterSettings:
    return read_connection(connection(extra=json.dumps(extra), **fields), fetch(*known))


def pool(extra: dict[str, Any], *known: Connection, **fields: Any) -> SshPool:
    found = read({"infra": "ssh", **extra}, *known, **fields).pool
    assert found is not None
    return found


def problems(extra: dict[str, Any], *known: Connection, **fields: Any) -> list[str]:
    with pytest.raises(BadConnection) as caught:
        read({"infra": "ssh", **extra}, *known, **fields)
    text = str(caught.value)
    assert "TOPSECRET" not in text
    return text.splitlines()


def places(hosts: tuple[PoolHost, ...]) -> list[str]:
    return [str(host.target) for host in hosts]
