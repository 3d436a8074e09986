"""How soon a line arrives, and how fast all of them do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from benchmarks.agent.ours import Ours
from benchmarks.agent.peer import Peer
from benchmarks.report import Figure, median, quantile
from benchmarks.report import Peer as PeerValue

_JOBS = 4
_PEER_JOBS = 2
_LINES = 60
_BYTES = 1_000_000_000
_PEER_BYTES = 50_000_000
_ROUNDS = 3
_LINE = "x" * 99

# Its clock, now and then: 0.1 to 1 s apart, most often a third.
_CLOCK = f"""exec python3 -uc '
import random, time
for _ in range({_LINES}):
    time.sleep(min(1.0, 0.1 + random.expovariate(5)))
    print(time.time())
'"""


async def delays(ours: Ours, peer: Peer) -> list[Figure]:
    """Follow jobs that print their clocks, several at a time, first ours and then the peer's."""
    ids = [await ours.submit(_CLOCK) for _ in range(_JOBS)]
    found = await _delays([_decoded(ours.log(job_id)) for job_id in ids])
    theirs = await _peer_delays(peer)
    how = (
        f"{len(found)} lines of {_JOBS} jobs at random moments 0.1 to 1 s apart; "
        f"peer: {len(theirs)} of {_PEER_JOBS}"
    )
    return [
        Figure("line printed to line received, p50", median(found), 60, "ms", how, PeerValue(median(theirs))),
        Figure(
            "line printed to line received, p99",
            quantile(found, 0.99),
            250,
            "ms",
            "the same lines",
            PeerValue(quantile(theirs, 0.99)),
        ),
    ]


async def throughput(ours: Ours, peer: Peer) -> list[Figure]:
    """Read a large log that is there, and one that a running job writes."""
    whole = await ours.submit(f"yes {_LINE} | head -c {_BYTES}")
    await ours.end(whole)
    (log,) = ours.directory.glob(f"sky_logs/{whole}-*/run.log")
    finished = [await _rate(ours.log(whole)) for _ in range(_ROUNDS)]
    running = []
    for _ in range(_ROUNDS):
        running.append(await _rate(ours.log(await ours.submit(f"exec cat {log}"))))
    theirs_whole = await peer.submit(f"yes {_LINE} | head -c {_PEER_BYTES}")
    await peer.end(theirs_whole)
    theirs = await _rate(peer.log(theirs_whole))
    size = f"{_BYTES / 1e9:g} GB in lines of {len(_LINE) + 1}, median of {_ROUNDS}"
    return [
        Figure(
            "log throughput, one follower of an ended job",
            median(finished),
            150,
            "MB/s",
            f"{size}, the measurer reads; peer: {_PEER_BYTES / 1e6:g} MB",
            PeerValue(theirs),
            more_is_better=True,
        ),
        Figure(
            "log throughput, one follower of a running `cat`",
            median(running),
            150,
            "MB/s",
            "the same; job, agent and reader share the cores",
            more_is_better=True,
        ),
    ]


async def _peer_delays(peer: Peer) -> list[float]:
    # They start one after the other, each start being seconds of work: none prints before that is over.
    go = peer.home / "go"
    ids = [await peer.submit(f"until [ -e {go} ]; do sleep 0.1; done; {_CLOCK}") for _ in range(_PEER_JOBS)]
    for job_id in ids:
        await peer.running(job_id)
    go.touch()
    return await _delays([peer.log(job_id) for job_id in ids])


async def _delays(logs: list[AsyncIterator[str]]) -> list[float]:
    return [delay for of_one in await asyncio.gather(*map(_delays_of, logs)) for delay in of_one]


async def _delays_of(log: AsyncIterator[str]) -> list[float]:
    """Return the milliseconds from each line's clock to its arrival."""
    found = []
    rest = ""
    async for piece in log:
        now = time.time()
        *lines, rest = (rest + piece).split("\n")
        # The peer's last line tells that the job has finished.
        found += [(now - float(line)) * 1000 for line in lines if line[:1].isdigit()]
    if len(found) != _LINES:
        raise RuntimeError(f"{len(found)} lines instead of {_LINES}")
    return found


async def _decoded(log: AsyncIterator[bytes]) -> AsyncIterator[str]:
    async for data in log:
        yield data.decode()


async def _rate(log: AsyncIterator[bytes] | AsyncIterator[str]) -> float:
    """Return the megabytes per second from the first piece to the last."""
    received = 0
    begin = end = time.perf_counter()
    async for piece in log:
        received += len(piece)
        end = time.perf_counter()
    return received / (end - begin) / 1e6
