"""What a DAG author and the connection form see of a pool: the button, named clusters, and how faults are told (K17)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider.hooks.cluster import ClusterHook
from airflow_provider.runtime.client.base import JobStatus
from airflow_provider.runtime.infra.base import NotFeasible
from tests.hosts.host import Host
from tests.hosts.keys import ClientKeys
from tests.integration.ssh.bench import lease_of


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, client_keys: ClientKeys) -> Callable[..., ClusterHook]:
    """Write a connection with a pool of hosts and return its hook."""

    def connect(*hosts: Host, **extra: Any) -> ClusterHook:
        entries = [
            {"name": host.name, "address": host.address, "host_key": "\n".join(host.disk.host_keys)}
            for host in hosts
        ]
        key = client_keys.ed25519.path.read_text()
        said = {"user": "worker", "private_key": key, "hosts": entries, "connect_timeout": 4, **extra}
        monkeypatch.setenv("AIRFLOW_CONN_GPUS", json.dumps({"conn_type": "managed_cluster", "extra": said}))
        return ClusterHook("gpus")

    return connect


def test_a_command_runs_on_a_host_of_the_pool_and_gives_it_back(
    connect: Callable[..., ClusterHook], clean_hosts: Callable[[int], list[Host]]
) -> None:
    (host,) = clean_hosts(1)
    with connect(host, site="here").cluster("digits") as cluster:
        lines: list[str] = []
        assert cluster.run("whoami; hostname", log=lines.append).succeeded
        assert lines == ["worker", host.name]
        lease = lease_of(host)
        assert "here" in json.dumps(lease)
        again = connect(host).cluster("digits")
        assert [job.status for job in again.jobs(all=True)] == [JobStatus.SUCCEEDED]
        assert lease_of(host)["cluster"] == lease["cluster"], "the second hook found the first one's cluster"
        again.close()


def test_the_button_tells_of_each_host(
    connect: Callable[..., ClusterHook], clean_hosts: Callable[[int], list[Host]]
) -> None:
    good, bad = clean_hosts(2)
    hook = connect(good, bad)
    works, told = hook.test_connection()
    assert works, told
    assert told.splitlines()[0] == "2 of 2 hosts can be used"

    other = [
        {"name": "good", "address": good.address, "host_key": "\n".join(good.disk.host_keys)},
        {"name": "bad", "address": bad.address, "host_key": "\n".join(good.disk.host_keys)},
        {"name": "closed", "address": good.address, "port": 2, "host_key_policy": "none"},
    ]
    works, told = connect(hosts=other).test_connection()
    first, *hosts = told.splitlines()
    assert (works, first) == (True, "1 of 3 hosts can be used")
    assert [line.partition(", ")[0] for line in hosts] == ["good: ok", "bad: FAILED", "closed: FAILED"]

    works, told = connect(hosts=other[1:]).test_connection()
    assert not works


async def test_k17_a_key_that_no_host_takes_ends_with_that_reason(
    connect: Callable[..., ClusterHook], clean_hosts: Callable[[int], list[Host]]
) -> None:
    (host,) = clean_hosts(1)
    hook = connect(host, private_key="not a key")
    with pytest.raises(NotFeasible, match="connection gpus, private_key"):
        await asyncio.wait_for(hook.cluster("digits").arun("true"), 60)
