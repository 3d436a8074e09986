"""What a `managed_cluster` connection may say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider.hooks.cluster import ClusterHook
from airflow_provider.hooks.connection import BadConnection, ClusterSettings, read_connection


def read(extra: dict[str, Any], conn_type: str = "managed_cluster") -> ClusterSettings:
    def nobody(conn_id: str) -> Connection:
        raise AssertionError(f"{conn_id} is asked for")

    return read_connection(Connection(conn_id="c", conn_type=conn_type, extra=json.dumps(extra)), nobody)


def test_an_empty_connection_is_this_machine_with_the_defaults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))

    settings = read({})

    assert settings == ClusterSettings(
        "local", tmp_path / "managed_jobs" / "clusters", None, lease_seconds=3600.0, unreachable_timeout=600.0
    )


def test_every_key_is_read() -> None:
    extra = {"infra": "local", "root": "/srv/c", "lease_seconds": "60", "unreachable_timeout": 5}

    assert read(extra) == ClusterSettings("local", Path("/srv/c"), None, 60.0, 5.0)


def test_fields_that_the_form_leaves_empty_count_as_not_given() -> None:
    empty = {
        "infra": "local",
        "root": "",
        "hosts": None,
        "lease_seconds": None,
        "ssh_conn_ids": [],
        "site": "",
    }

    assert read(empty) == read({})


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"infra": "slurm"}, "connection c: infra is 'slurm'; this version has: local, ssh"),
        ({"hosts": "a", "infra": "local"}, "connection c: hosts is for infra ssh, and infra is local"),
        ({"lease_seconds": True}, "connection c: lease_seconds is a bool; it must be text"),
        (
            {"lease_second": 5},
            "connection c: unknown key 'lease_second'; did you mean 'lease_seconds'?",
        ),
        ({"zzz": 5}, "connection c: unknown key 'zzz'; known are infra, lease_seconds"),
        ({"lease_seconds": 0}, "lease_seconds is '0'; it must be a positive number of seconds"),
        ({"lease_seconds": "soon"}, "lease_seconds is 'soon'; it must be a positive number"),
        ({"unreachable_timeout": "inf"}, "unreachable_timeout is 'inf'; it must be a positive number"),
        ({"unreachable_timeout": "nan"}, "unreachable_timeout is 'nan'; it must be a positive number"),
    ],
)
def test_what_is_wrong_is_said(extra: dict[str, object], message: str) -> None:
    with pytest.raises(BadConnection, match=re.escape(message)):
        read(extra)


@pytest.mark.parametrize("extra", ["not json", '["hosts"]', '"hosts"'])
@pytest.mark.parametrize("conn_type", ["managed_cluster", "ssh"])
def test_an_extra_that_cannot_be_read_does_not_count_as_empty(extra: str, conn_type: str) -> None:
    """Airflow takes it so, and the task would run on this machine instead of in the pool."""
    connection = Connection(conn_id="c", conn_type=conn_type, host="h", login="u", password="p", extra=extra)
    with pytest.raises(BadConnection, match="connection c: its extra is not a JSON object"):
        read_connection(connection, lambda conn_id: connection)


def test_a_way_to_log_in_means_a_pool_of_hosts() -> None:
    with pytest.raises(BadConnection, match="connection c: has no hosts; list them in hosts"):
        read({"private_key": "x", "hosts": []})


def test_a_connection_of_another_type_is_refused() -> None:
    with pytest.raises(
        BadConnection, match="is of type 'http'; it must be of type 'managed_cluster' or 'ssh'"
    ):
        read({}, conn_type="http")


def test_the_hook_reads_the_connection_from_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MINE", '{"conn_type": "managed_cluster", "extra": {"root": "/srv/c"}}')

    assert ClusterHook("mine").settings().root == Path("/srv/c")
    assert ClusterHook("mine").test_connection() == (True, "clusters of infra local below /srv/c")


def test_the_default_connection_need_not_exist_but_any_other_must() -> None:
    assert ClusterHook().settings().infra == "local"

    with pytest.raises(AirflowNotFoundException):
        ClusterHook("absent").settings()
    works, message = ClusterHook("absent").test_connection()
    assert not works
    assert "absent" in message
