"""Followers in a process of their own, so that what they cost counts neither as the agent's nor as the measurer's.

``python -m benchmarks.agent.load DIRECTORY JOB COUNT``: so many followers of a job, each with a connection of its own.
Says ``ready`` when all are being served, and on the end of its input, how many bytes they got in how many seconds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from airflow_provider.runtime.client import JobState, LogBytes, Owner
from airflow_provider.runtime.client.agent import AgentClient
from airflow_provider.runtime.transport.channel import UnixChannel

_OWNER = Owner("benchmark", 1)


class Followers:
    """A process of followers that runs.

    Attributes:
        bytes_per_second: What they got from the first to the last moment; known when they have ended.
    """

    bytes_per_second = 0.0


@asynccontextmanager
async def followers(directory: Path, job_id: int, count: int) -> AsyncIterator[Followers]:
    """So many followers of a job of the cluster in ``directory``, as long as the context."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.agent.load", str(directory), str(job_id), str(count)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        if await process.stdout.readline() != b"ready\n":
            raise RuntimeError("the followers did not start")
        found = Followers()
        yield found
        told, _ = await process.communicate()
        found.bytes_per_second = float(told)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class _Follower:
    def __init__(self) -> None:
        self.served = asyncio.Event()
        self.received = 0

    async def run(self, directory: Path, job_id: int) -> None:
        client = AgentClient(UnixChannel(directory / "agent", "agent.sock"))
        try:
            async for message in await client.follow(job_id, _OWNER, offset=0):
                if isinstance(message, LogBytes):
                    self.received += len(message.data)
                elif isinstance(message, JobState):
                    self.served.set()
        finally:
            await client.close()
        raise RuntimeError("the job that is followed ended")


async def _main(directory: Path, job_id: int, count: int) -> None:
    several = [_Follower() for _ in range(count)]
    tasks = [asyncio.create_task(follower.run(directory, job_id)) for follower in several]
    for follower in several:
        await follower.served.wait()
    print("ready", flush=True)
    begin, before = time.perf_counter(), sum(follower.received for follower in several)
    end_of_input = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    done, _ = await asyncio.wait([end_of_input, *tasks], return_when=asyncio.FIRST_COMPLETED)
    if end_of_input not in done:
        for task in done:
            task.result()  # raises what went wrong
    seconds = time.perf_counter() - begin
    print((sum(follower.received for follower in several) - before) / seconds, flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
