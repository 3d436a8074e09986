"""The hosts of a benchmark, and how ours and the peer get to them: with the same account, key and host key."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from airflow_provider.runtime.infra.ssh.infra import SshInfra
from airflow_provider.runtime.infra.ssh.pool import PoolHost, SshPool
from airflow_provider.runtime.transport.ssh.target import HostKeys, Identity, SshTarget
from tests.hosts.host import Host
from tests.hosts.lab import Lab
from tests.hosts.settings import HostSettings


class Way(TypedDict):
    """How a host is reached, as JSON for another process."""

    name: str
    address: str
    user: str
    key: str
    host_key: str


class Bench:
    """A lab and a wheelhouse.

    Attributes:
        lab: Where the hosts are.
        wheelhouse: What clusters are installed from.
    """

    def __init__(self, lab: Lab, wheelhouse: Path) -> None:
        self.lab = lab
        self.wheelhouse = wheelhouse
        self._names = itertools.count(1)

    @asynccontextmanager
    async def hosts(self, count: int, **sshd_options: str) -> AsyncIterator[list[Host]]:
        """New hosts that answer, as long as the context."""
        settings = HostSettings(sshd_options=sshd_options)
        hosts = await asyncio.to_thread(self.lab.start, count, settings)
        try:
            yield hosts
        finally:
            for host in hosts:
                await asyncio.to_thread(self.lab.remove, host)

    @asynccontextmanager
    async def host(self, **sshd_options: str) -> AsyncIterator[Host]:
        """A new host that answers, as long as the context."""
        async with self.hosts(1, **sshd_options) as (host,):
            yield host

    def way(self, host: Host) -> Way:
        """Return how a host is reached."""
        return Way(
            name=host.name,
            address=host.address,
            user=host.user,
            key=self.lab.keys.ed25519.path.read_text(),
            host_key=host.disk.host_keys[0],
        )

    def infra(self, host: Host, *, silence_limit: float = SshTarget.silence_limit) -> SshInfra:
        """Return an infra whose pool is that host alone. It shares no SSH connection with another one."""
        # Only equal targets share a connection.
        patience = 10.0 + next(self._names) / 1000
        pool_host = PoolHost(
            replace(target(self.way(host), silence_limit=silence_limit), connect_timeout=patience)
        )
        return SshInfra(SshPool("bench", (pool_host,), wheelhouse=str(self.wheelhouse), site="benchmark"))


def target(way: Way, *, silence_limit: float = SshTarget.silence_limit) -> SshTarget:
    """Return how our own transport is told of a host."""
    return SshTarget(
        name=way["name"],
        host=way["address"],
        user=way["user"],
        identities=(Identity("the benchmark", text=way["key"]),),
        host_keys=HostKeys(pinned=(way["host_key"],)),
        silence_limit=silence_limit,
    )


def connection(way: Way) -> Mapping[str, str]:
    """Return the environment variable that makes a host an Airflow connection of type `ssh`; its id is the name."""
    extra = {"private_key": way["key"], "host_key": way["host_key"], "look_for_keys": "false"}
    described = {"conn_type": "ssh", "host": way["address"], "login": way["user"], "port": 22, "extra": extra}
    return {f"AIRFLOW_CONN_{connection_id(way).upper()}": json.dumps(described)}


def connection_id(way: Way) -> str:
    """Return the id of a host's Airflow connection."""
    return way["name"].replace("-", "_")


def logins(host: Host) -> int:
    """Return how many SSH connections have logged in to a host since it was made."""
    return host.sshd_log.count("Accepted publickey")
