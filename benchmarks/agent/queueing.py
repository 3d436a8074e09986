"""The queue: what a driver that dies costs it, what a job costs it."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import psutil

from benchmarks.agent.ours import CPUS, Ours
from benchmarks.agent.peer import Peer
from benchmarks.report import Figure, median
from benchmarks.report import Peer as PeerValue

_DEATHS = 7
_PEER_PATIENCE = 60.0
_JOBS = 1000
_PEER_JOBS = 3
_AT_ONCE = 16


async def peer_after_death(peer: Peer) -> PeerValue:
    """Kill the peer's driver of a pending job; return the seconds until the next job runs, 60 at most."""
    dies = await peer.submit("true", early="time.sleep(600)")
    waits = await peer.submit("date +%s.%N")
    shell = await peer.driver(dies)
    begin = time.monotonic()
    for process in [*shell.children(recursive=True), shell]:
        process.kill()
    try:
        await asyncio.wait_for(peer.end(waits), _PEER_PATIENCE)
    except asyncio.TimeoutError:
        # What the skylet does by itself every 300 s, so that the next measurements need not wait for it.
        await peer.update()
        await peer.end(await peer.submit("true"))
        return PeerValue(_PEER_PATIENCE, unfinished=True)
    return PeerValue(time.monotonic() - begin)


async def after_death(ours: Ours, peer: PeerValue) -> list[Figure]:
    """Kill drivers of jobs that are being set up and hold the whole node."""
    seconds = [await _death(ours) for _ in range(_DEATHS)]
    return [
        Figure(
            "a dead driver of a pending job to the next job running",
            median(seconds),
            1,
            "s",
            f"SIGKILL during setup; its orphans are ended first; median of {_DEATHS}; peer: one, ended after "
            f"{_PEER_PATIENCE:g} s",
            peer,
        )
    ]


async def _death(ours: Ours) -> float:
    dies = await ours.submit("true", setup="echo ready; sleep 600", cpus=CPUS)
    waits = await ours.submit("date +%s.%N", cpus=CPUS)
    await ours.until(dies, b"ready")
    begin = time.time()
    os.kill(ours.driver(dies), signal.SIGKILL)
    text = b"".join([data async for data in ours.log(waits)])
    return float(text) - begin


async def many_jobs(ours: Ours, peer: Peer) -> list[Figure]:
    """Run a thousand jobs that do nothing, two at a time."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def submit() -> int:
        async with room:
            return await ours.submit("true", cpus=1)

    before = _cpu_seconds()
    begin = time.time()
    ids = await asyncio.gather(*(submit() for _ in range(_JOBS)))
    submitted = time.time() - begin
    # FIFO: when the youngest few have ended, all others have.
    for job_id in sorted(ids)[-CPUS:]:
        await ours.end(job_id)
    states = [state for state in await ours.client.jobs(all=True) if state.job_id in set(ids)]
    assert len(states) == _JOBS
    assert all(state.status.value == "SUCCEEDED" for state in states)
    wall = max(state.ended_at for state in states) - begin
    busy = _cpu_seconds() - before
    theirs = await _peer_jobs(peer)
    return [
        Figure(
            "short job in a queue of 1,000 on 2 CPUs, each",
            wall / _JOBS * 1000,
            60,
            "ms",
            f"`true`, {CPUS} at a time; first submit to last end; submitted {_AT_ONCE} at once within "
            f"{submitted:.0f} s while they run; the machine was busy for {busy / _JOBS * 1000:.0f} ms of CPU "
            f"per job; peer: a queue of {_PEER_JOBS}",
            PeerValue(theirs * 1000),
        )
    ]


async def _peer_jobs(peer: Peer) -> float:
    begin = time.monotonic()
    ids = [await peer.submit("true") for _ in range(_PEER_JOBS)]
    for job_id in ids:
        await peer.end(job_id)
    return (time.monotonic() - begin) / _PEER_JOBS


def _cpu_seconds() -> float:
    """Return what all processes of this machine have taken of its CPUs."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)
