"""What a question costs: a unary RPC through the tunnel, a poll of the peer's trigger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from benchmarks.report import Figure, median, quantile
from benchmarks.ssh import ours, peer
from benchmarks.ssh.bench import Bench, Way

_CALLS = 2000
_WARM_UP = 100
_PEER_CALLS = 50
_PEER_WARM_UP = 3


async def latencies(bench: Bench) -> list[Figure]:
    """Ask how a job is, again and again."""
    async with bench.host() as host:
        async with ours.cluster(bench.infra(host), "calls") as client:
            job_id = await ours.submit(client, "echo ready; sleep 1000")
            found = await _milliseconds(lambda: client.status(job_id), _CALLS, _WARM_UP)
            await client.cancel(job_id, ours.OWNER, limit=30)
        theirs = await _peer(bench.way(host))
    how = f"{_CALLS} calls one after the other; peer: {_PEER_CALLS} polls, each three commands in sessions"
    return [
        Figure("Status through the tunnel, p50", median(found), 1.2, "ms", how, peer.peer(median(theirs))),
        Figure(
            "Status through the tunnel, p99",
            quantile(found, 0.99),
            10,
            "ms",
            "the same calls",
            peer.peer(quantile(theirs, 0.99)),
        ),
    ]


async def _peer(way: Way) -> list[float]:
    trigger = await asyncio.to_thread(peer.submit, way, "echo ready; sleep 1000")
    async with peer.polling(trigger) as poll:
        return await _milliseconds(poll, _PEER_CALLS, _PEER_WARM_UP)


async def _milliseconds(call: Callable[[], Awaitable[object]], count: int, warm_up: int) -> list[float]:
    for _ in range(warm_up):
        await call()
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        await call()
        found.append((time.perf_counter() - begin) * 1000)
    return found
