"""What a `managed_cluster` connection may say."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider.hooks.cluster import ClusterHook
from airflow_provider.hooks.connection import ClusterSettings


def test_an_empty_connection_is_this_machine_with_the_defaults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))

    settings = ClusterSettings.from_extra("c", {})

    assert settings == ClusterSettings("local", tmp_path / "managed_jobs" / "clusters", 3600.0, 600.0)


def test_every_key_is_read() -> None:
    extra = {"infra": "local", "root": "/srv/c", "lease_seconds": "60", "unreachable_timeout": 5}

    assert ClusterSettings.from_extra("c", extra) == ClusterSettings("local", Path("/srv/c"), 60.0, 5.0)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"infra": "ssh"}, "connection c: infra 'ssh' is not supported yet"),
        (
            {"lease_second": 5},
            "connection c: unknown key 'lease_second' in extra; did you mean 'lease_seconds'",
        ),
        ({"zzz": 5}, "connection c: unknown key 'zzz' in extra; known are infra, root"),
        ({"lease_seconds": 0}, "lease_seconds is 0; it must be a positive number of seconds"),
        ({"lease_seconds": "soon"}, "lease_seconds is 'soon'; it must be a positive number"),
        ({"unreachable_timeout": "inf"}, "unreachable_timeout is 'inf'; it must be a positive number"),
        ({"unreachable_timeout": "nan"}, "unreachable_timeout is 'nan'; it must be a positive number"),
    ],
)
def test_what_is_wrong_is_said(extra: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClusterSettings.from_extra("c", extra)


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
