"""Infra ``ssh``: a cluster is a host of a pool, taken for a while and given back.

The host itself knows who has it; what is kept here is how to reach it. Nothing is done on a host before the caller has
stored that it may be done.
"""

from __future__ import annotations

import asyncio
import shlex
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.host.clusters import RELAY_NAME
from airflow_provider.runtime.agent.host.operations import DemandArguments, UpArguments
from airflow_provider.runtime.agent.waiting import within
from airflow_provider.runtime.client.base import ClientError, LinkLost
from airflow_provider.runtime.infra.base import (
    Choice,
    ClusterHandle,
    Health,
    InfraError,
    NotFeasible,
    NothingFree,
    OutOfReach,
    Probe,
)
from airflow_provider.runtime.infra.ssh.host import HostProblem
from airflow_provider.runtime.infra.ssh.pool import best_fit, demand_of
from airflow_provider.runtime.infra.ssh.sightings import SHARED, Finding, Sighting, Sightings
from airflow_provider.runtime.infra.ssh.visit import visit
from airflow_provider.runtime.transport.ssh.errors import SshError, SshRefused
from airflow_provider.runtime.transport.ssh.links import open_link

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from airflow_provider.runtime.agent.host.operations import Holder
    from airflow_provider.runtime.client.agent import AgentClient
    from airflow_provider.runtime.infra.ssh.pool import PoolHost, SshPool
    from airflow_provider.runtime.infra.ssh.visit import Visit
    from airflow_provider.runtime.task import Candidate, TaskSpec
    from airflow_provider.runtime.transport.ssh.target import SshTarget

    Say = Callable[[str], Awaitable[None]]
    Intend = Callable[[ClusterHandle], Awaitable[None]]

_CHECK_SECONDS = 15.0
_FIRST_LEASE_SECONDS = 180.0
"""Lease of a cluster that nobody has spoken to yet: one that is forgotten half-made is soon gone."""


@dataclass(frozen=True)
class HostReport:
    """What a check found out about one host of the pool."""

    host: str
    ok: bool
    text: str


class SshInfra:
    """Clusters on the hosts of one pool.

    Args:
        pool: The hosts.
        sightings: What is known of hosts from earlier attempts; by default what this process knows.
    """

    name = "ssh"

    def __init__(self, pool: SshPool, *, sightings: Sightings = SHARED) -> None:
        self._pool = pool
        self._sightings = sightings
        # Hosts that this task's clusters were lost with: the last to be tried again.
        self._shunned: list[str] = []

    def choose(self, task: TaskSpec) -> Choice:
        """See Infra."""
        if task.num_nodes > 1:
            raise NotFeasible(
                f"num_nodes: {task.num_nodes}: infra 'ssh' runs a task on one host in this version. Set num_nodes to 1"
            )
        reasons: list[str] = []
        for candidate in task.resources.candidates:
            reason = self._why_not(candidate)
            if reason is None:
                return Choice(candidate, tuple(reasons))
            reasons.append(reason)
        raise NotFeasible("; ".join(reasons))

    def _why_not(self, candidate: Candidate) -> str | None:
        infra, _, place = (candidate.infra or self.name).partition("/")
        if infra not in (self.name, "*"):
            return f"infra {candidate.infra} is not to be had from connection {self._pool.name}, an SSH pool"
        pool = place.partition("/")[0]
        if pool not in ("", "*", self._pool.name):
            return f"infra {candidate.infra} names another pool than {self._pool.name}"
        fit = best_fit(self._pool, candidate)
        if not fit.hosts:
            return f"no host of pool {self._pool.name} suits: " + "; ".join(fit.reasons)
        return None

    async def provision(
        self,
        name: str,
        choice: Choice,
        say: Say,
        *,
        previous: ClusterHandle | None = None,
        intend: Intend | None = None,
    ) -> ClusterHandle:
        """See Infra."""
        found: dict[str, Sighting] = {}
        hosts = self._in_order(choice, previous)
        known = [(host, self._sightings.of(host.target)) for host in hosts]
        if all(seen and seen.finding in (Finding.FAILED, Finding.REFUSED) for _, seen in known):
            # Old news alone would use up a task's launches within seconds, with no host being asked.
            for host, seen in known:
                if seen and seen.finding is Finding.FAILED:
                    self._sightings.forget(host.target)
        for number, host in enumerate(hosts, 1):
            seen = self._sightings.of(host.target)
            if seen is None or (previous is not None and previous.address["host"] == host.name):
                mine = previous if previous is not None and previous.address["host"] == host.name else None
                got = await self._take(host, name, choice.candidate, say, previous=mine, intend=intend)
                if isinstance(got, ClusterHandle):
                    return got
                self._sightings.note(host.target, got)
                if got.finding is Finding.FAILED:
                    await self._knock(hosts[number:])
                seen = got
            found[host.name] = seen
        raise _nothing_had(self._pool.name, found)

    async def _knock(self, hosts: list[PoolHost]) -> None:
        """Note which of the hosts do not answer, of all at once: one after the other each would cost its time-out."""

        async def knock(host: PoolHost) -> None:
            try:
                await (await open_link(host.target)).close()
            except SshError as error:
                self._sightings.note(host.target, _failed(error))

        await asyncio.gather(*(knock(host) for host in hosts if self._sightings.of(host.target) is None))

    def _in_order(self, choice: Choice, previous: ClusterHandle | None) -> list[PoolHost]:
        fitting = best_fit(self._pool, choice.candidate).hosts
        first = "" if previous is None else previous.address["host"]
        return sorted(fitting, key=lambda host: (host.name != first, host.name in self._shunned))

    async def _take(
        self,
        host: PoolHost,
        name: str,
        candidate: Candidate,
        say: Say,
        *,
        previous: ClusterHandle | None,
        intend: Intend | None,
    ) -> ClusterHandle | Sighting:
        """Return the cluster on this host, or why it cannot be there."""
        self._sightings.being_asked(host.target)
        try:
            async with visit(host, wheelhouse=self._pool.wheelhouse, say=say) as there:
                facts = await there.facts()
                handle = self._handle(there, name, previous)
                if facts["holder"] is not None and facts["holder"]["instance"] != handle.instance:
                    return _taken(facts["holder"])
                if intend is not None:
                    await intend(handle)
                arguments = self._arguments(there, handle, _FIRST_LEASE_SECONDS)
                answer = await there.up({**arguments, "demand": _demand(candidate)})
        except (HostProblem, SshError) as error:
            return _failed(error)
        if answer["status"] == "taken":
            return _taken(answer["holder"])
        if answer["status"] == "misfit":
            return Sighting(Finding.MISFIT, answer["reason"])
        self._sightings.note(host.target, _held_by(self._pool.site or host.target.user, name))
        return _located(handle, answer["root"], answer["socket"])

    async def wait_for_room(self, seconds: float) -> None:
        """See Infra; what this process gives back wakes those who wait in it, one for each host."""
        await self._sightings.wait(seconds, (host.target for host in self._pool.hosts))

    async def connect(self, handle: ClusterHandle) -> AgentClient:
        """See Infra."""
        # grpc is imported with the client: checking a task must not need it.
        from airflow_provider.runtime.client.agent import AgentClient
        from airflow_provider.runtime.transport.ssh.channel import TunnelChannel

        host = self._host(handle)
        if host is None:
            raise LinkLost(self._not_in_pool(handle))
        address = handle.address
        relay = f"{address['root']}/{RELAY_NAME}"
        try:
            channel = await TunnelChannel.open(
                _pinned(host.target, address["host_key"]),
                socket=address["socket"],
                relay=shlex.join([address["python"], relay, address["socket"]]),
            )
        except SshError as error:
            raise LinkLost(f"cluster {handle.name}: {error}") from error
        client = AgentClient(channel)
        try:
            await client.handshake(lease_seconds=self._pool.lease_seconds)
        except BaseException:
            await client.close()
            raise
        return client

    async def probe(self, handle: ClusterHandle) -> Probe:
        """See Infra."""
        host = self._host(handle)
        if host is None:
            return Probe(Health.GONE, self._not_in_pool(handle))
        try:
            async with self._revisit(host, handle) as there:
                if _is_another_machine(there, handle):
                    return Probe(
                        Health.UNREACHABLE, f"another machine answers in the place of host {host.name}"
                    )
                if there.installed.boot_id != handle.address["boot_id"]:
                    return Probe(Health.GONE, f"host {host.name} was booted since the cluster was made")
                seen = await there.probe(handle.name, handle.instance)
        except (HostProblem, SshError) as error:
            return Probe(Health.UNREACHABLE, str(error))
        if not seen["present"]:
            return Probe(Health.GONE, f"host {host.name}: {seen['reason']}")
        if seen["lease"] == "other" and seen["holder"] is not None:
            return Probe(Health.GONE, f"host {host.name} is {_taken(seen['holder']).reason}")
        if not seen["agent"]:
            return Probe(Health.AGENT_DOWN, f"host {host.name} is there, the agent is not")
        return await self._answers(handle)

    async def _answers(self, handle: ClusterHandle) -> Probe:
        try:
            client = await self.connect(handle)
            try:
                instance = await client.handshake()
            finally:
                await client.close()
        except ClientError as error:
            return Probe(Health.UNREACHABLE, f"the agent process is there and does not answer ({error})")
        if instance != handle.instance:
            return Probe(Health.GONE, "another cluster answers under this name")
        return Probe(Health.ALIVE, "the agent answers")

    async def restart_agent(self, handle: ClusterHandle) -> None:
        """See Infra."""
        host = self._host(handle)
        if host is None:
            raise InfraError(self._not_in_pool(handle))
        try:
            async with self._revisit(host, handle) as there:
                answer = await there.restart(self._arguments(there, handle, self._pool.lease_seconds))
        except SshError as error:
            raise InfraError(f"the agent of cluster {handle.name} cannot be started: {error}") from error
        if answer["status"] == "taken":
            raise InfraError(f"host {host.name} is {_taken(answer['holder']).reason}")
        if answer["status"] == "gone":
            raise InfraError(f"host {host.name}: {answer['reason']}")

    async def tear_down(self, name: str, handle: ClusterHandle | None) -> None:
        """See Infra."""
        if handle is None:
            return  # nothing is done on a host before it is recorded
        host = self._host(handle)
        if host is None:
            raise OutOfReach(self._not_in_pool(handle))
        try:
            async with self._revisit(host, handle) as there:
                if _is_another_machine(there, handle):
                    raise OutOfReach(f"another machine answers in the place of host {host.name}")
                await there.down(name, handle.instance)
        except SshError as error:
            self._shunned.append(host.name)
            raise OutOfReach(str(error)) from error
        self._sightings.forget(host.target)

    async def find(self, name: str) -> ClusterHandle | None:
        """Return the cluster of that name on whichever host of the pool has it, None when no host has.

        Raises:
            OutOfReach: no host that answers has it, and some do not answer.
        """
        found = await asyncio.gather(*(self._find_on(host, name) for host in self._pool.hosts))
        for handle in found:
            if isinstance(handle, ClusterHandle):
                return handle
        if silent := [reason for reason in found if isinstance(reason, str)]:
            text = f"no host of pool {self._pool.name} that answers has cluster {name}; it may be where none does: "
            raise OutOfReach(text + "; ".join(silent))
        return None

    async def _find_on(self, host: PoolHost, name: str) -> ClusterHandle | str | None:
        """Return the cluster on this host, None when it has none, or why the host cannot say."""
        try:
            async with visit(host, wheelhouse=self._pool.wheelhouse, again=True) as there:
                seen = await there.find(name)
                if seen["instance"] is None:
                    return None
                handle = replace(self._handle(there, name, None), instance=seen["instance"])
                return _located(handle, seen["root"], seen["socket"])
        except (SshError, HostProblem) as error:
            return str(error)

    async def check(self) -> list[HostReport]:
        """Return whether each host of the pool can be used, within some seconds whatever is wrong with them."""
        return list(await asyncio.gather(*(self._check(host) for host in self._pool.hosts)))

    async def _check(self, host: PoolHost) -> HostReport:
        doing = "no answer"

        async def told(line: str) -> None:
            nonlocal doing
            doing = line

        async def look() -> HostReport:
            async with visit(host, wheelhouse=self._pool.wheelhouse, say=told) as there:
                facts = await there.facts()
            taken = "free" if facts["holder"] is None else _taken(facts["holder"]).reason
            return HostReport(host.name, True, f"{facts['cpus']:g} CPUs, {facts['memory']:.1f} GiB, {taken}")

        try:
            return await within(_CHECK_SECONDS, look())
        except asyncio.TimeoutError:
            return HostReport(host.name, False, f"not done within {_CHECK_SECONDS:.0f} s: {doing}")
        except (SshError, HostProblem) as error:
            return HostReport(host.name, False, str(error))

    def _revisit(self, host: PoolHost, handle: ClusterHandle) -> AbstractAsyncContextManager[Visit]:
        target = _pinned(host.target, handle.address["host_key"])
        return visit(host, target=target, wheelhouse=self._pool.wheelhouse, again=True)

    def _arguments(self, there: Visit, handle: ClusterHandle, lease_seconds: float) -> UpArguments:
        return UpArguments(
            base=there.installed.base,
            name=handle.name,
            instance=handle.instance,
            site=self._pool.site,
            lease_seconds=lease_seconds,
            runtime=there.installed.runtime_hash,
            python=there.installed.python,
        )

    def _handle(self, there: Visit, name: str, previous: ClusterHandle | None) -> ClusterHandle:
        return ClusterHandle(
            infra=self.name,
            name=name,
            instance=uuid.uuid4().hex if previous is None else previous.instance,
            address={
                "pool": self._pool.name,
                "host": there.host.name,
                "user": there.host.target.user,
                "base": there.installed.base,
                "host_key": there.link.host_key,
                "boot_id": there.installed.boot_id,
                "python": there.installed.python,
                "node_ip": there.installed.address,
            },
        )

    def _host(self, handle: ClusterHandle) -> PoolHost | None:
        """Return the host of a cluster, None when it is not in the pool any more.

        The account and the base are those of the cluster: where the pool names others since, it is not there.
        """
        host = self._pool.host(handle.address["host"])
        if host is None:
            return None
        user = handle.address.get("user", host.target.user)
        base = handle.address.get("base", host.base)
        return replace(host, base=base, target=replace(host.target, user=user))

    def _not_in_pool(self, handle: ClusterHandle) -> str:
        return f"host {handle.address['host']} is not in pool {self._pool.name} any more"


def _located(handle: ClusterHandle, root: str, socket: str) -> ClusterHandle:
    """Return the handle with what is only known once the cluster is there."""
    return replace(handle, address={**handle.address, "root": root, "socket": socket})


def _pinned(target: SshTarget, key: str) -> SshTarget:
    """Return the target with the key that the host had when its cluster was made, where no other rule checks it."""
    rules = target.host_keys
    if rules.pinned or (rules.verify and not rules.trust_first):
        return target
    return replace(target, host_keys=replace(rules, pinned=(key,), verify=True))


def _is_another_machine(there: Visit, handle: ClusterHandle) -> bool:
    """Return whether the host shows another key of the same kind than when the cluster was made."""
    kind, key = there.link.host_key.split()
    kind_then, key_then = handle.address["host_key"].split()
    return kind == kind_then and key != key_then


def _failed(error: HostProblem | SshError) -> Sighting:
    lasting = isinstance(error, SshRefused) or (isinstance(error, HostProblem) and error.lasting)
    return Sighting(Finding.REFUSED if lasting else Finding.FAILED, str(error))


def _taken(holder: Holder) -> Sighting:
    return _held_by(holder["site"] or holder["account"], holder["cluster"])


def _held_by(site: str, cluster: str) -> Sighting:
    return Sighting(Finding.TAKEN, f"taken by {site} ({cluster})")


def _demand(candidate: Candidate) -> DemandArguments:
    demand = demand_of(candidate)
    return DemandArguments(cpus=demand.cpus, memory=demand.memory, accelerators=dict(demand.accelerators))


def _nothing_had(pool: str, found: dict[str, Sighting]) -> InfraError:
    """Return the error that says why no host could be had, host by host."""
    reasons = "; ".join(f"{host}: {sighting.reason}" for host, sighting in found.items())
    findings = {sighting.finding for sighting in found.values()}
    if Finding.TAKEN in findings:
        return NothingFree(f"no host of pool {pool} is free: {reasons}")
    if findings <= {Finding.REFUSED, Finding.MISFIT}:
        return NotFeasible(f"no host of pool {pool} can be used: {reasons}")
    return InfraError(f"no host of pool {pool} could be used: {reasons}")
