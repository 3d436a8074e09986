"""The hosts of a pool as their owner describes them, and which of them suits a task best. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.jobs.placement import Demand, Device, Node, misfit

if TYPE_CHECKING:
    from airflow_provider.runtime.task import Candidate
    from airflow_provider.runtime.transport.ssh.target import SshTarget

DEFAULT_BASE = "~/.managed-jobs"


@dataclass(frozen=True)
class PoolHost:
    """A host of a pool.

    Attributes:
        target: How it is reached; ``target.name`` is its name in the pool.
        cpus: How many CPUs it has; None: what the host itself says.
        memory: GiB; None: what the host itself says.
        accelerators: Count by model; None: what the host itself says.
        labels: What tasks may ask for with ``resources.labels``.
        zone: Where it stands; tasks ask for it with ``infra: ssh/<pool>/<zone>``.
        python: The interpreter there, CPython 3.10 or newer.
        base: Directory on it for all that is ours; ``~`` is the account's home.
    """

    target: SshTarget
    cpus: float | None = None
    memory: float | None = None
    accelerators: dict[str, float] | None = None
    labels: dict[str, str] = field(default_factory=dict)
    zone: str | None = None
    python: str = "python3"
    base: str = DEFAULT_BASE

    @property
    def name(self) -> str:
        """Its name in the pool."""
        return self.target.name


@dataclass(frozen=True)
class SshPool:
    """Hosts that tasks may have.

    Attributes:
        name: What tasks call it: the id of its Airflow connection.
        hosts: All of them; their names differ.
        wheelhouse: Folder with wheels of grpcio and protobuf for hosts without a way to a package index.
        site: What this Airflow calls itself to others that share the hosts.
        lease_seconds: How long a cluster lives without hearing from a controller.
    """

    name: str
    hosts: tuple[PoolHost, ...]
    wheelhouse: str | None = None
    site: str = ""
    lease_seconds: float = 3600.0

    def host(self, name: str) -> PoolHost | None:
        """Return the host of that name, None when the pool has none."""
        return next((host for host in self.hosts if host.name == name), None)


@dataclass(frozen=True)
class Fit:
    """Which hosts of a pool can serve a candidate, the tightest first, and why the others cannot."""

    hosts: tuple[PoolHost, ...]
    reasons: tuple[str, ...]


def demand_of(candidate: Candidate) -> Demand:
    """Return what the candidate takes of its host."""
    return Demand(
        cpus=0.0 if candidate.cpus is None else candidate.cpus.amount,
        memory=0.0 if candidate.memory_gb is None else candidate.memory_gb.amount,
        accelerators=candidate.accelerators,
    )


def best_fit(pool: SshPool, candidate: Candidate) -> Fit:
    """Return the hosts that can serve the candidate as far as the pool's description tells.

    A task takes its host whole, so that the smallest host that will do comes first: devices count most, then CPUs, then
    memory. Hosts that the description says nothing about come last; they are measured when they are asked.
    """
    reasons: list[str] = []
    fitting: list[tuple[tuple[float, ...], PoolHost]] = []
    for host in pool.hosts:
        reason = _misfit(pool, host, candidate)
        if reason is None:
            fitting.append((_size(host), host))
        else:
            reasons.append(f"{host.name}: {reason}")
    # Sorting is stable: equals stay in the order in which the pool names them.
    return Fit(tuple(host for _, host in sorted(fitting, key=lambda pair: pair[0])), tuple(reasons))


def _misfit(pool: SshPool, host: PoolHost, candidate: Candidate) -> str | None:
    zone = zone_of(candidate)
    if zone is not None and host.zone != zone:
        return f"zone {zone!r} wanted, it is in {host.zone or 'none'}"
    labels = candidate.carried.get("labels")
    for label, wanted in (labels if isinstance(labels, dict) else {}).items():
        if host.labels.get(label) != str(wanted):
            return f"label {label}={wanted} wanted, it has {label}={host.labels.get(label, '')}"
    demand = demand_of(candidate)
    if host.accelerators is None:  # the host itself will say
        demand = replace(demand, accelerators={})
    return misfit(_described(host), demand, where="it")


def _described(host: PoolHost) -> Node:
    """Return the host as described; of what is not described there is enough."""
    models = [model for model, count in (host.accelerators or {}).items() for _ in range(int(count))]
    return Node(
        math.inf if host.cpus is None else host.cpus,
        math.inf if host.memory is None else host.memory,
        tuple(Device(str(index), model) for index, model in enumerate(models)),
    )


def zone_of(candidate: Candidate) -> str | None:
    """Return the zone that the candidate asks for, None for any."""
    parts = (candidate.infra or "").split("/")
    return parts[2] if len(parts) > 2 and parts[2] != "*" else None


def _size(host: PoolHost) -> tuple[float, ...]:
    return (
        math.inf if host.accelerators is None else sum(host.accelerators.values()),
        math.inf if host.cpus is None else host.cpus,
        math.inf if host.memory is None else host.memory,
    )
