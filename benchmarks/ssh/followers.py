"""``python -m benchmarks.ssh.followers``: follows quiet jobs on agents behind SSH, a client for each.

Says ``imported``, reads a line with a list of ``Agents`` as JSON, gives each agent a quiet job, says ``ready`` when all
are followed, and ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from typing import TypedDict

from airflow_provider.runtime.client import JobRequest, JobState, JobStatus, Owner
from airflow_provider.runtime.client.agent import AgentClient
from airflow_provider.runtime.client.base import Demand
from airflow_provider.runtime.control.follower import Follower
from airflow_provider.runtime.transport.ssh.channel import TunnelChannel
from airflow_provider.runtime.transport.ssh.target import SshTarget
from benchmarks.ssh.bench import Way, target

_OWNER = Owner("benchmark", 1)
_AT_ONCE = 20
_RELAY = "false"
"""These hosts forward to sockets: no other way is to be tried."""


class Agents(TypedDict):
    """Agents on one host: how it is reached, and their sockets there."""

    way: Way
    sockets: list[str]


class _Sink:
    async def output(self, text: str) -> None:
        """Drop it."""

    async def say(self, message: str) -> None:
        """Drop it."""


async def main() -> None:
    """Follow until the end of the input."""
    print("imported", flush=True)
    order: list[Agents] = json.loads(await asyncio.to_thread(sys.stdin.readline))
    room = asyncio.Semaphore(_AT_ONCE)
    running = []
    followed = []
    for agents in order:
        there = target(agents["way"])
        for socket in agents["sockets"]:
            begun = asyncio.Event()
            followed.append(begun)
            running.append(asyncio.create_task(_follow(there, socket, room, begun)))
    await _unless(running, asyncio.create_task(_all(followed)))
    print("ready", flush=True)
    await _unless(running, asyncio.create_task(asyncio.to_thread(sys.stdin.read)))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def _follow(there: SshTarget, socket: str, room: asyncio.Semaphore, begun: asyncio.Event) -> None:
    async with room:
        client = AgentClient(await TunnelChannel.open(there, socket=socket, relay=_RELAY))
        await client.handshake(lease_seconds=3600)
        request = JobRequest("quiet", "", "sleep 100000", envs={}, secrets={}, demand=Demand(cpus=0.0))
        job_id = await client.submit(uuid.uuid4().hex, _OWNER, request)
    try:
        async for event in Follower(job_id, _Sink()).events(client, _OWNER):
            if isinstance(event, JobState):
                if event.status is JobStatus.RUNNING:
                    begun.set()
                elif event.status.terminal:
                    raise RuntimeError(f"the job that is followed ended: {event}")
    finally:
        await client.close()


async def _all(followed: list[asyncio.Event]) -> None:
    for begun in followed:
        await begun.wait()


async def _unless(running: list[asyncio.Task[None]], other: asyncio.Task[None] | asyncio.Task[str]) -> None:
    """Wait for ``other``; a follower that fails meanwhile is an error."""
    await asyncio.wait([*running, other], return_when=asyncio.FIRST_COMPLETED)
    for task in running:
        if task.done():
            task.result()


if __name__ == "__main__":
    asyncio.run(main())
