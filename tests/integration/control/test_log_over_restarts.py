"""The task log over links that break and controllers that are replaced, on a real cluster."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.client.agent import AgentClient
from airflow_provider.runtime.control.status import Status
from airflow_provider.runtime.infra.base import ClusterHandle
from airflow_provider.runtime.state import TaskRecord
from airflow_provider.runtime.transport.channel import UnixChannel
from tests.integration.clusters import eventually
from tests.integration.control.lab import Lab, Log

LINES = 40_000
BLOCK = 4_000
CUTS = (1, 2, 4, 6, 9)
RESTARTS = (3, 7)


class Links:
    """The lab's infra with a link to the cluster that can be cut: all bytes to and from the agent pass through here."""

    def __init__(self, lab: Lab) -> None:
        self._infra = lab.infra
        self._near, self._far = lab.folder / "link", lab.folder / "clusters"
        self._carrying: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.made = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._infra, name)

    async def connect(self, handle: ClusterHandle) -> AgentClient:
        if self._server is None:
            self._near.mkdir()
            with short_name(self._near) as near:
                self._server = await asyncio.start_unix_server(
                    partial(self._carry, self._far / handle.name / "agent"), f"{near}/agent.sock"
                )
        self.made += 1
        return AgentClient(UnixChannel(self._near, "agent.sock"))

    async def cut(self) -> None:
        """Break all connections."""
        assert self._carrying
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._carrying:
            task.cancel()

    async def _carry(self, agent: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        with short_name(agent) as far:
            far_reader, far_writer = await asyncio.open_unix_connection(f"{far}/agent.sock")
        copies = [
            asyncio.create_task(copy(reader, far_writer)),
            asyncio.create_task(copy(far_reader, writer)),
        ]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in (writer, far_writer):
                end.transport.abort()
            for part in copies:
                part.cancel()
            await asyncio.gather(*copies, return_exceptions=True)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 14):
        writer.write(data)
        await writer.drain()


@contextmanager
def short_name(directory: Path) -> Iterator[str]:
    """Give a path that is short enough for the address of a socket in the directory."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@pytest.fixture
async def links(lab: Lab) -> AsyncIterator[Links]:
    made = Links(lab)
    yield made
    await made.close()


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


async def test_k39_over_links_that_break_and_new_controllers_each_line_comes_in_order(
    lab: Lab, links: Links, tmp_path: Path
) -> None:
    """No line is missing; within a controller none comes twice; a new controller repeats only what is new.

    The job prints a block of lines whenever it is let go, and meanwhile the link is cut or the controller is
    replaced. Before a controller is replaced, all of the earlier blocks is acknowledged, as it is a second after it
    was printed: so the lines of the present block are those of "the last second", without a clock.
    """
    record = lab.intend(
        f"for i in $(seq 1 {LINES}); do "
        f"[ $((i % {BLOCK})) != 1 ] || until [ -e {tmp_path}/go-$((i / {BLOCK})) ]; do sleep 0.01; done; "
        "echo L$i; done"
    )
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
        if block in CUTS:
            await links.cut()
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
    assert links.made >= 1 + len(CUTS) + len(RESTARTS)

    last = 0
    for controller, shown in enumerate(logs):
        numbers = [int(re.fullmatch(r"L(\d+)", line)[1]) for line in shown.lines]  # type: ignore[index]
        first = numbers[0]
        assert safe[controller] < first <= last + 1, "it repeats only what was new, and leaves none out"
        last = numbers[-1]
        assert numbers == list(range(first, last + 1)), "in order, none twice"
    assert last == LINES
