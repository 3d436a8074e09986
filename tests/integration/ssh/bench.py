"""Pools made of real SSH hosts, and what is seen on the hosts themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from airflow_provider.runtime.agent.process import processes
from airflow_provider.runtime.infra.ssh.infra import SshInfra
from airflow_provider.runtime.infra.ssh.pool import PoolHost, SshPool
from airflow_provider.runtime.infra.ssh.sightings import Sightings
from airflow_provider.runtime.transport.ssh.target import HostKeys, Identity, SshTarget
from tests.hosts.host import Host
from tests.hosts.keys import ClientKeys

BASE = ".managed-jobs"
LEASES = "var/tmp/managed-jobs-lease"


class Bench:
    """Makes pools out of hosts."""

    def __init__(self, keys: ClientKeys) -> None:
        self._keys = keys

    def target(self, host: Host, *, user: str = "worker", **fields: object) -> SshTarget:
        """Return how an account of the host is reached."""
        target = SshTarget(
            name=host.name,
            host=host.address,
            user=user,
            identities=(Identity(source="the test", text=self._keys.ed25519.path.read_text()),),
            host_keys=HostKeys(pinned=tuple(host.disk.host_keys)),
            connect_timeout=4.0,
            silence_limit=2.7,
        )
        return replace(target, **fields)  # type: ignore[arg-type]

    def pool(self, *hosts: Host, user: str = "worker", site: str = "test site", **fields: object) -> SshPool:
        """Return a pool of the hosts."""
        members = tuple(PoolHost(target=self.target(host, user=user)) for host in hosts)
        return SshPool(name="pool", hosts=members, site=site, **fields)  # type: ignore[arg-type]

    def infra(self, *hosts: Host, **fields: object) -> SshInfra:
        """Return the infra of such a pool, with a memory of its own: as another Airflow would be."""
        return SshInfra(self.pool(*hosts, **fields), sightings=Sightings())  # type: ignore[arg-type]


def assert_nothing_left(host: Host) -> None:
    """Check that no cluster, lease or process of ours is on the host; the runtime and pieces of files may stay."""
    for home in (host.home, host.disk.path / "root"):
        clusters = home / BASE / "clusters"
        assert (sorted(clusters.iterdir()) if clusters.exists() else []) == []
        assert not (home / "sky_workdir").exists()
    leases = host.disk.path / LEASES
    assert sorted(path.name for path in leases.glob("*.json")) == []
    marked = [pid for pid in host.processes() if processes.CLUSTER_MARKER.encode() in _environment(pid)]
    assert marked == []


def lease_of(host: Host) -> dict[str, object]:
    """Return who has the host, as its file says."""
    (file,) = (host.disk.path / LEASES).glob("*.json")
    found: dict[str, object] = json.loads(file.read_text())
    return found


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended
        return b""


def agent_pid(host: Host) -> int:
    """Return the pid of the agent on the host, as this machine counts."""
    (lock,) = host.home.glob(f"{BASE}/clusters/*/agent/agent.lock")
    there = lock.read_text().strip()
    (pid,) = [pid for pid in host.processes() if _pid_there(pid) == there]
    return pid


def _pid_there(pid: int) -> str:
    """Return how the host itself counts a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[-1] for line in lines if line.startswith("NSpid:"))


async def in_thread(function: Callable[..., object], *arguments: object) -> None:
    """Do to a host what blocks."""
    await asyncio.to_thread(function, *arguments)
