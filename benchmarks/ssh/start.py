"""From a host to the first line of a job there: with everything of ours on it, and with nothing."""

from __future__ import annotations

import asyncio
import time

from airflow_provider.runtime.infra.base import ClusterHandle
from airflow_provider.runtime.infra.ssh.infra import SshInfra
from benchmarks.report import Figure, median
from benchmarks.ssh import ours, peer
from benchmarks.ssh.bench import Bench, Way
from tests.hosts.host import Host

_ROUNDS = 10
_COLD_ROUNDS = 3
_COMMAND = "echo first"
# It must not have ended when its trigger looks first: then its line would come from the worker, later.
_PEER_COMMAND = "echo first; sleep 30"


async def warm(bench: Bench) -> list[Figure]:
    """Run jobs on a host where our runtime is installed, with and without a running agent."""
    async with bench.host() as host:
        theirs = [await _peer_round(bench.way(host)) for _ in range(_ROUNDS)]
        await _gone(bench.infra(host), "warm")
        installed = [await _without_agent(bench, host) for _ in range(_ROUNDS)]
        running = await _with_agent(bench, host)
    how = (
        f"provision to the job's first line, a new SSH connection each time, median of {_ROUNDS}; "
        f"peer: execute to its trigger's first record, no worker or triggerer between"
    )
    beside = peer.peer(median(theirs))
    return [
        Figure("warm host, agent there, to the first line, p50", median(running), 1.0, "s", how, beside),
        Figure(
            "warm host, no agent yet, to the first line, p50",
            median(installed),
            None,
            "s",
            "the same, with the agent's start",
            beside,
        ),
    ]


async def cold(bench: Bench) -> list[Figure]:
    """Run the first job ever on new hosts, which have no way to a package index."""
    seconds = []
    for _ in range(_COLD_ROUNDS):
        async with bench.host() as host:
            infra = bench.infra(host)
            seconds.append(await _first_line(infra, "cold"))
            await _gone(infra, "cold")
    how = f"wheelhouse; the slowest of {_COLD_ROUNDS} new hosts, runtime sent and installed, agent started"
    return [Figure("cold host to the first line", max(seconds), 15, "s", how)]


async def _without_agent(bench: Bench, host: Host) -> float:
    infra = bench.infra(host)
    seconds = await _first_line(infra, "warm")
    await _gone(infra, "warm")
    return seconds


async def _with_agent(bench: Bench, host: Host) -> list[float]:
    infra = bench.infra(host)
    handle = await ours.provision(infra, "running")
    try:
        return [await _first_line(bench.infra(host), "running", handle) for _ in range(_ROUNDS)]
    finally:
        await infra.tear_down("running", handle)


async def _first_line(infra: SshInfra, name: str, previous: ClusterHandle | None = None) -> float:
    begin = time.perf_counter()
    handle = await ours.provision(infra, name, previous)
    client = await infra.connect(handle)
    try:
        lines = ours.Lines()
        ours.check(await ours.follow(client, await ours.submit(client, _COMMAND), lines))
    finally:
        await client.close()
    return lines.first_at - begin


async def _gone(infra: SshInfra, name: str) -> None:
    """Leave no cluster of that name on the host, and our runtime installed."""
    await infra.tear_down(name, await infra.find(name) or await ours.provision(infra, name))


async def _peer_round(way: Way) -> float:
    begin = time.time()
    trigger = await asyncio.to_thread(peer.submit, way, _PEER_COMMAND)
    async with peer.watched(trigger) as next_record:
        record = await next_record()
    if record.getMessage() != "first":
        raise RuntimeError(f"the peer's trigger said: {record.getMessage()}")
    return record.created - begin
