"""The agent on this machine: start, memory, time to the first line, time to know of the end."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psutil

from airflow_provider.runtime.client import JobRequest, JobState, JobStatus, LogBytes, Owner
from airflow_provider.runtime.client.base import ClusterClient
from airflow_provider.runtime.infra.base import ClusterHandle
from airflow_provider.runtime.infra.local import LocalInfra
from benchmarks.report import Figure, median, quantile

_ROUNDS = 100
_STARTS = 7
_OWNER = Owner("benchmark", 1)


class Times(NamedTuple):
    """Seconds of one short job."""

    to_first_line: float
    end_to_known: float


async def measure() -> list[Figure]:
    """Start agents and run short jobs one after the other on a warm one."""
    with TemporaryDirectory() as folder:
        infra = LocalInfra(Path(folder))
        starts = [await _start(infra, f"start-{number}") for number in range(_STARTS)]
        handle = await infra.provision("warm", _quiet)
        client = await infra.connect(handle)
        times = [await _job(client, number) for number in range(_ROUNDS + 5)][5:]
        resident = _resident(handle)
        await client.close()
        await infra.tear_down("warm")
    first = [one.to_first_line * 1000 for one in times]
    known = [one.end_to_known * 1000 for one in times]
    return [
        Figure(
            "submit to the first line, p50", median(first), 100, "ms", f"{_ROUNDS} jobs, warm local cluster"
        ),
        Figure("submit to the first line, p99", quantile(first, 0.99), 250, "ms", "the same jobs"),
        Figure("job end to the controller knowing, p50", median(known), 50, "ms", "from the job's last act"),
        Figure(
            "agent ready", median(starts), 0.7, "s", f"directory made to first answer, median of {_STARTS}"
        ),
        Figure("agent resident", resident, 60, "MB", f"VmRSS after {_ROUNDS} jobs"),
    ]


async def _quiet(_line: str) -> None:
    """Take progress lines and drop them."""


async def _start(infra: LocalInfra, name: str) -> float:
    begin = time.perf_counter()
    handle = await infra.provision(name, _quiet)
    client = await infra.connect(handle)
    await client.handshake()
    seconds = time.perf_counter() - begin
    await client.close()
    await infra.tear_down(name)
    return seconds


async def _job(client: ClusterClient, number: int) -> Times:
    # The job's last act is to print the time; what comes after is ours.
    request = JobRequest(name="short", setup="", run="echo; date +%s.%N", envs={}, secrets={})
    begin = time.perf_counter()
    job_id = await client.submit(f"benchmark:{number}", _OWNER, request)
    stream = await client.follow(job_id, _OWNER, offset=None)
    first = None
    text = b""
    async for message in stream:
        if isinstance(message, LogBytes):
            first = first or time.perf_counter() - begin
            text += message.data
        elif isinstance(message, JobState) and message.status.terminal:
            if message.status is not JobStatus.SUCCEEDED or first is None:
                raise RuntimeError(f"the benchmark's job ended {message}")
            return Times(first, time.time() - float(text.split()[-1]))
    raise RuntimeError("the stream ended before the job did")


def _resident(handle: ClusterHandle) -> float:
    pid = int((Path(handle.address["directory"]) / "agent" / "agent.lock").read_text())
    return float(psutil.Process(pid).memory_info().rss) / 1e6
