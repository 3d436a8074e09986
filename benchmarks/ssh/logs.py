"""How fast a large log comes through."""

from __future__ import annotations

import asyncio
import time

from airflow_provider.runtime.client.agent import AgentClient
from benchmarks.report import Figure, median
from benchmarks.ssh import ours, peer
from benchmarks.ssh.bench import Bench, Way

_BYTES = 300_000_000
_ROUNDS = 3
_PEER_BYTES = 64_000_000
_PEER_RECORDS = 4
_LINE = "x" * 99


async def throughput(bench: Bench) -> list[Figure]:
    """Read a log that a job has printed."""
    async with bench.host() as host:
        async with ours.cluster(bench.infra(host), "logs") as client:
            job_id = await ours.submit(client, f"yes {_LINE} | head -c {_BYTES}")
            async for _ in ours.log(client, job_id):  # to its end
                pass
            found = [await _rate(client, job_id) for _ in range(_ROUNDS)]
        theirs = await _peer_rate(bench.way(host))
    return [
        Figure(
            "log throughput through the tunnel",
            median(found),
            60,
            "MB/s",
            f"{_BYTES / 1e6:g} MB in lines of {len(_LINE) + 1}, median of {_ROUNDS}; agent, sshd and reader share the "
            f"cores; peer: a log of {_PEER_BYTES / 1e6:g} MB, {_PEER_RECORDS} polls",
            peer.peer(theirs),
            more_is_better=True,
        )
    ]


async def _rate(client: AgentClient, job_id: int) -> float:
    """Return the megabytes per second from the first piece to the last."""
    received = 0
    begin = end = time.perf_counter()
    async for piece in ours.log(client, job_id):
        received += len(piece)
        end = time.perf_counter()
    if received != _BYTES:
        raise RuntimeError(f"{received} bytes of {_BYTES} came")
    return received / (end - begin) / 1e6


async def _peer_rate(way: Way) -> float:
    """Return the megabytes per second that reach the task's log, from one poll to a later one."""
    command = f"yes {_LINE} | head -c {_PEER_BYTES}; sleep 1000"
    trigger = await asyncio.to_thread(peer.submit, way, command)
    async with peer.watched(trigger) as next_record:
        first = await next_record()
        later = [await next_record() for _ in range(_PEER_RECORDS)]
    received = sum(len(record.getMessage()) + 1 for record in later)
    return received / (later[-1].created - first.created) / 1e6
