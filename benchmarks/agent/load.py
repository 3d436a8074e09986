"""Followers in a process of their own: what they cost counts neither as the agent's nor as the measurer's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class Followers:
    """A process of followers.

    Attributes:
        bytes_per_second: What they got together; known when they have ended.
    """

    bytes_per_second = 0.0


@asynccontextmanager
async def followers(directory: Path, job_id: int, count: int) -> AsyncIterator[Followers]:
    """So many followers of a job of the cluster in ``directory``, as long as the context."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.agent.crowd", str(directory), str(job_id), str(count)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        if await process.stdout.readline() != b"ready\n":
            raise RuntimeError("the followers did not start")
        found = Followers()
        yield found
        told, _ = await process.communicate(b"")  # which closes its input
        found.bytes_per_second = float(told)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
