"""A clock and a cluster made up for the tests of autostop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider.runtime.agent.autostop.autostop import Autostop, Decision
from airflow_provider.runtime.agent.autostop.hooks import Hook
from airflow_provider.runtime.agent.autostop.idle import Action, AutostopConfig
from airflow_provider.runtime.agent.gate import Gate
from airflow_provider.runtime.agent.jobs.job import Changed
from tests.unit.agent.conftest import wait_for

MINUTE = 60.0
DOWN = AutostopConfig(MINUTE, down=True)
STOP = AutostopConfig(MINUTE, down=False)
HOOK = Hook("true", ("down",), 60.0)


@dataclass
class Cluster:
    """What an agent's autostop sees, and the agents that look at it one after the other."""

    directory: Path
    boot_id: str = "boot 1"
    now: float = 1000.0
    jobs: int = 0
    held: float = 0.0
    sessions: int = 0
    looks: int = 0
    gate: Gate = field(default_factory=Gate)

    async def agent(self, initial: AutostopConfig | None = None) -> Observed:
        self.gate = Gate()
        made = Observed(
            directory=self.directory,
            boot_id=self.boot_id,
            live=lambda: self.jobs,
            held=lambda: self.held,
            gate=self.gate,
            initial=initial,
            sessions=self._look,
            now=lambda: self.now,
        )
        await made.load()
        return made

    def _look(self) -> int:
        self.looks += 1
        return self.sessions

    async def pass_time(self, autostop: Observed, seconds: float) -> None:
        """Move the clock, and have a look taken as its timer would have."""
        self.now += seconds
        await autostop.look()


class Observed(Autostop):
    """Autostop that tells when it has looked."""

    due_task: asyncio.Task[Decision]

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.looked = Changed()

    async def _look(self) -> float:
        seconds = await super()._look()
        self.looked.notify()
        return seconds

    async def look(self) -> None:
        """Have one look taken that begins from now on; none is when the end is decided."""
        for _ in range(2):  # one may be under way
            change = self.looked.next()
            self.wake()
            looked = asyncio.create_task(change.wait())
            await asyncio.wait({looked, self.due_task}, return_when=asyncio.FIRST_COMPLETED)
            looked.cancel()


@asynccontextmanager
async def watched(autostop: Observed) -> AsyncIterator[asyncio.Task[Decision]]:
    """Run what waits for the end."""
    autostop.due_task = asyncio.create_task(autostop.due())
    await autostop.look()
    yield autostop.due_task
    autostop.due_task.cancel()
    await asyncio.wait({autostop.due_task})


async def decided(due: asyncio.Task[Decision]) -> Action:
    return (await asyncio.wait_for(asyncio.shield(due), 5)).action


async def until(condition: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(wait_for, condition, what)
