"""``python -m benchmarks.agent.crowd DIRECTORY JOB COUNT``: so many followers of a job, each with its own connection.

Says ``ready`` when all are being served, and on the end of its input, how many bytes a second they got together.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Coroutine
from pathlib import Path

from airflow_provider.runtime.client import FollowStream, JobState, LinkLost, LogBytes, Owner
from airflow_provider.runtime.client.agent import AgentClient
from airflow_provider.runtime.transport.channel import UnixChannel

_OWNER = Owner("benchmark", 1)


class _Follower:
    def __init__(self, client: AgentClient) -> None:
        self.served = asyncio.Event()
        self.received = 0
        self._client = client
        self._stream: FollowStream | None = None
        self._stopped = False

    async def run(self, job_id: int) -> None:
        self._stream = await self._client.follow(job_id, _OWNER, offset=0)
        try:
            async for message in self._stream:
                if isinstance(message, LogBytes):
                    self.received += len(message.data)
                elif isinstance(message, JobState):
                    self.served.set()
        except LinkLost:
            if self._stopped:
                return
            raise
        raise RuntimeError("the job that is followed ended")

    async def stop(self) -> None:
        self._stopped = True
        if self._stream is not None:
            await self._stream.close()
        await self._client.close()


async def main(directory: Path, job_id: int, count: int) -> None:
    """Follow until the end of the input."""
    crowd = [_Follower(AgentClient(UnixChannel(directory / "agent", "agent.sock"))) for _ in range(count)]
    running = asyncio.create_task(_run(crowd, job_id))
    await _unless(running, _all_served(crowd))
    print("ready", flush=True)
    begin, before = time.perf_counter(), sum(follower.received for follower in crowd)
    await _unless(running, _end_of_input())
    got = sum(follower.received for follower in crowd) - before
    print(got / (time.perf_counter() - begin), flush=True)
    for follower in crowd:
        await follower.stop()
    await running


async def _run(crowd: list[_Follower], job_id: int) -> None:
    await asyncio.gather(*(follower.run(job_id) for follower in crowd))


async def _all_served(crowd: list[_Follower]) -> None:
    for follower in crowd:
        await follower.served.wait()


async def _end_of_input() -> None:
    await asyncio.to_thread(sys.stdin.read)


async def _unless(running: asyncio.Task[None], other: Coroutine[None, None, None]) -> None:
    """Wait for ``other``; a follower that fails meanwhile is an error."""
    await asyncio.wait([running, asyncio.create_task(other)], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
