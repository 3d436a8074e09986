"""What followers cost: memory, and how long another call takes beside them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import grpc.aio

from airflow_provider.runtime.wire import jobs_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from benchmarks.agent.load import followers
from benchmarks.agent.ours import Ours
from benchmarks.agent.peer import Peer
from benchmarks.report import Figure, median, quantile
from benchmarks.report import Peer as PeerValue

_FOLLOWERS = 200
_CALLS = 3000
_WARM_UP = 50
_BUSY_BYTES = 50_000_000
_PEER_PATIENCE = 10.0
_MOST_PEER_FOLLOWERS = 64

# So many bytes a second in lines of 100, written every hundredth of a second.
_THROTTLED = f"""exec python3 -c '
import os, time
data = (b"x" * 99 + b"\\n") * ({_BUSY_BYTES} // 100 // 100)
due = time.monotonic()
while True:
    os.write(1, data)
    due += 0.01
    time.sleep(max(0.0, due - time.monotonic()))
'"""


class _Memory(NamedTuple):
    """Megabytes."""

    agent: float
    zygote: float
    both: float


def _memory(ours: Ours) -> _Memory:
    agent = ours.agent.memory_info().rss / 1e6
    zygote = ours.zygote
    # What both have of the same files is in memory once.
    return _Memory(agent, zygote.memory_info().rss / 1e6, agent + zygote.memory_full_info().uss / 1e6)


async def idle_memory(ours: Ours, peer: Peer) -> list[Figure]:
    """Look at agents that have run some jobs and have none."""
    found = _memory(ours)
    how = f"VmRSS of the agent ({found.agent:.1f}) and what its zygote (VmRSS {found.zygote:.1f}) does not share"
    return [
        Figure("memory, idle", found.both, 50, "MB", how, PeerValue(peer.process.memory_info().rss / 1e6))
    ]


async def beside_followers(ours: Ours, peer: Peer) -> list[Figure]:
    """Ask for a job's status while 200 follow it in silence and one follows another that prints 50 MB/s."""
    theirs_idle = await _latencies(lambda: peer.status(1))
    theirs, enough = await _starved(peer)
    idle = await ours.submit("echo ready; sleep 1000")
    await ours.until(idle, b"ready")
    connection = ours.connection()
    call = rpcs.GET_JOB_STATUS.unary(connection.channel)
    request = pb.GetJobStatusRequest(job_ids=[idle])
    alone = await _latencies(lambda: call(request))
    async with followers(ours.directory, idle, _FOLLOWERS):
        memory = _memory(ours)
        silent = await _latencies(lambda: call(request))
        busy = await ours.submit(_THROTTLED)
        async with followers(ours.directory, busy, 1) as reader:
            beside = await _latencies(lambda: call(request))
        await ours.cancel(busy)
    await ours.cancel(idle)
    await connection.close()
    rate = reader.bytes_per_second / 1e6
    how = (
        f"{_FOLLOWERS} connections that are silent, one that reads {rate:.0f} MB/s; "
        f"{_CALLS} calls one after the other; agent, job, reader and caller share the cores"
    )
    return [
        Figure(
            f"memory, {_FOLLOWERS} followers",
            memory.both,
            120,
            "MB",
            f"as above, VmRSS {memory.agent:.1f} and {memory.zygote:.1f}; each has a connection; "
            f"the peer serves none any more from {enough} on",
        ),
        Figure(
            "GetJobStatus, idle, p50",
            median(alone),
            None,
            "ms",
            f"nothing else happens; {_CALLS} calls one after the other",
            PeerValue(median(theirs_idle)),
        ),
        Figure(
            f"GetJobStatus, {_FOLLOWERS} silent followers, p50",
            median(silent),
            None,
            "ms",
            f"peer: {enough} followers, one call, ended after {_PEER_PATIENCE:g} s",
            theirs,
        ),
        Figure("GetJobStatus, those and a busy one, p50", median(beside), 1.5, "ms", how, theirs),
        Figure(
            "GetJobStatus, those and a busy one, p99", quantile(beside, 0.99), 15, "ms", "the same", theirs
        ),
    ]


async def _latencies(call: Callable[[], Awaitable[object]]) -> list[float]:
    """Return the milliseconds of calls, one after the other."""
    for _ in range(_WARM_UP):
        await call()
    found = []
    for _ in range(_CALLS):
        begin = time.perf_counter()
        await call()
        found.append((time.perf_counter() - begin) * 1000)
    return found


async def _starved(peer: Peer) -> tuple[PeerValue, int]:
    """Follow a silent job of the peer's ever more often until it answers nobody else; return what a call takes then."""
    go = peer.home / "enough"
    job_id = await peer.submit(f"echo ready; until [ -e {go} ]; do sleep 0.1; done")
    await peer.running(job_id)
    async with _silent(peer, job_id) as more:
        try:
            for count in range(1, _MOST_PEER_FOLLOWERS + 1):
                await more()
                try:
                    await peer.status(job_id, seconds=_PEER_PATIENCE)
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                        raise
                    return PeerValue(_PEER_PATIENCE * 1000, unfinished=True), count
        finally:
            # Followers that leave go on to use the skylet's threads: only the job's end frees them.
            go.touch()
    raise RuntimeError(f"{_MOST_PEER_FOLLOWERS} followers do not starve the peer")


@asynccontextmanager
async def _silent(peer: Peer, job_id: int) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Give a function that adds a follower of a job; all of them leave at the end."""
    tasks: list[asyncio.Task[None]] = []

    async def more() -> None:
        served = asyncio.Event()

        async def follow() -> None:
            async for _ in peer.log(job_id):
                served.set()

        tasks.append(asyncio.create_task(follow()))
        waiting = asyncio.create_task(served.wait())
        await asyncio.wait([waiting, tasks[-1]], timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()

    try:
        yield more
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
