"""The task log over links that break and controllers that are replaced, on a real cluster."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.client.agent import AgentClient
from airflow_provider.runtime.control.status import Status
from airflow_provider.runtime.infra.base import ClusterHandle
from airflow_provider.runtime.state import TaskRecord
from tests.integration.clusters import eventually
from tests.integration.control.conftest import Lab, Log

LINES = 40_000
BLOCK = 4_000
DROPS = (1, 2, 4, 6, 9)
RESTARTS = (3, 7)


class Links:
    """The lab's infra, with a hand on the link to the cluster."""

    def __init__(self, lab: Lab) -> None:
        self._infra = lab.infra
        self._newest: AgentClient | None = None
        self.made = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._infra, name)

    async def connect(self, handle: ClusterHandle) -> AgentClient:
        self._newest = await self._infra.connect(handle)
        self.made += 1
        return self._newest

    async def drop(self) -> None:
        assert self._newest is not None
        await self._newest.close()


def acknowledged(lab: Lab, record: TaskRecord) -> int:
    """Return the offset at which a new controller would begin to read."""
    database = lab.folder / "clusters" / record.cluster_name / "agent" / "jobs.db"
    with closing(sqlite3.connect(database)) as connection:
        (offset,) = connection.execute("SELECT acknowledged FROM jobs").fetchone()
    return int(offset)


async def all_acknowledged(lab: Lab, record: TaskRecord, number: int) -> None:
    """Wait until the agent knows that line ``number`` and all before it are in the task log."""
    size = sum(len(f"L{n}\n") for n in range(1, number + 1))
    await eventually(lambda: acknowledged(lab, record) == size, "the last acknowledgement", 30)


async def test_k39_over_dropped_links_and_new_controllers_each_line_comes_in_order(
    lab: Lab, tmp_path: Path
) -> None:
    """No line is missing; within a controller none comes twice; a new controller repeats only what is new.

    The job prints a block of lines whenever it is let go, and meanwhile the link is dropped or the controller is
    replaced. Before a controller is replaced, all of the earlier blocks is acknowledged, as it is a second after it
    was printed: so the lines of the present block are those of "the last second", without a clock.
    """
    record = lab.intend(
        f"for i in $(seq 1 {LINES}); do "
        f"[ $((i % {BLOCK})) != 1 ] || until [ -e {tmp_path}/go-$((i / {BLOCK})) ]; do sleep 0.01; done; "
        "echo L$i; done"
    )
    links = Links(lab)
    log = Log()
    logs = [log]
    safe = [0]
    running = asyncio.create_task(lab.controller(record, infra=links, sink=log).run())
    for block in range(LINES // BLOCK):
        before = block * BLOCK
        if block in RESTARTS:
            await all_acknowledged(lab, record, before)
        (tmp_path / f"go-{block}").touch()
        await log.seen(f"L{before + 1}")
        if block in DROPS:
            await links.drop()
        elif block in RESTARTS:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            log = Log()
            logs.append(log)
            safe.append(before)
            running = asyncio.create_task(lab.controller(lab.claim(record), infra=links, sink=log).run())
        await log.seen(f"L{before + BLOCK}")
    ended = await asyncio.wait_for(running, 60)
    assert (ended.status, ended.attempt, ended.recoveries) == (Status.SUCCEEDED, 1, 0)
    assert links.made >= 1 + len(DROPS) + len(RESTARTS)

    last = 0
    for controller, shown in enumerate(logs):
        numbers = [int(re.fullmatch(r"L(\d+)", line)[1]) for line in shown.lines]  # type: ignore[index]
        first = numbers[0]
        assert safe[controller] < first <= last + 1, "it repeats only what was new, and leaves none out"
        last = numbers[-1]
        assert numbers == list(range(first, last + 1)), "in order, none twice"
    assert last == LINES
