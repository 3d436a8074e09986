"""From a submit to the job's first line, from its end to the client knowing; from nothing to an agent that answers."""

from __future__ import annotations

import time
from typing import NamedTuple

from airflow_provider.runtime.client import JobState, LogBytes
from airflow_provider.runtime.infra.local import LocalInfra
from benchmarks.agent.ours import ANY_CHOICE, OWNER, Ours, quiet
from benchmarks.agent.peer import Peer
from benchmarks.report import Figure, median, quantile
from benchmarks.report import Peer as PeerValue

_ROUNDS = 100
_PEER_ROUNDS = 3
_STARTS = 7

# Its last act is to print the time; what comes after is the agent's.
_JOB = "echo; date +%s.%N"


class _Times(NamedTuple):
    """Milliseconds of one short job."""

    to_first_line: float
    end_to_known: float


async def agent_start(infra: LocalInfra) -> list[Figure]:
    """Start agents, one after the other."""
    seconds = []
    for number in range(_STARTS):
        begin = time.perf_counter()
        handle = await infra.provision(f"start-{number}", ANY_CHOICE, quiet)
        client = await infra.connect(handle)
        await client.handshake()
        seconds.append(time.perf_counter() - begin)
        await client.close()
        await infra.tear_down(f"start-{number}")
    how = f"directory made to first answer, median of {_STARTS}"
    return [Figure("agent ready", median(seconds), 0.7, "s", how)]


async def short_jobs(ours: Ours, peer: Peer) -> list[Figure]:
    """Run short jobs on a warm agent, one after the other."""
    times = [await _job(ours) for _ in range(_ROUNDS + 5)][5:]
    theirs = [await _peer_job(peer) for _ in range(_PEER_ROUNDS)]
    first = [one.to_first_line for one in times]
    known = [one.end_to_known for one in times]
    their_first = [one.to_first_line for one in theirs]
    how = f"{_ROUNDS} jobs, warm local cluster; peer: {_PEER_ROUNDS} jobs"
    return [
        Figure("submit to the first line, p50", median(first), 60, "ms", how, PeerValue(median(their_first))),
        Figure(
            "submit to the first line, p99",
            quantile(first, 0.99),
            250,
            "ms",
            "the same jobs; peer: the slowest",
            PeerValue(max(their_first)),
        ),
        Figure(
            "job end to the client knowing, p50",
            median(known),
            50,
            "ms",
            "from the job's last act",
            PeerValue(median([one.end_to_known for one in theirs])),
        ),
    ]


async def _job(ours: Ours) -> _Times:
    begin = time.perf_counter()
    job_id = await ours.submit(_JOB)
    first = None
    text = b""
    async for message in await ours.client.follow(job_id, OWNER, offset=None):
        if isinstance(message, LogBytes):
            first = first or time.perf_counter() - begin
            text += message.data
        elif isinstance(message, JobState) and message.status.terminal and first is not None:
            return _Times(first * 1000, (time.time() - float(text.split()[-1])) * 1000)
    raise RuntimeError(f"the stream ended before the job did: {text!r}")


async def _peer_job(peer: Peer) -> _Times:
    begin = time.perf_counter()
    job_id = await peer.submit(_JOB)
    first = None
    text = ""
    async for piece in peer.log(job_id):
        first = first or time.perf_counter() - begin
        text += piece
    if first is None:
        raise RuntimeError("the peer's job printed nothing")
    return _Times(first * 1000, (time.time() - float(text.split()[0])) * 1000)
