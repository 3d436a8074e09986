"""A job that writes a log, readers of it, and a disk that is slow."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from airflow_provider.runtime.agent.jobs.job import Changed
from airflow_provider.runtime.agent.logs.stream import JobText


class Writer:
    """A job that writes its log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changed = Changed()
        self.over = asyncio.Event()
        self.text = JobText(log=path, changed=self.changed, over=self.over)

    def write(self, data: bytes | str) -> None:
        with self.path.open("ab") as file:
            file.write(data.encode() if isinstance(data, str) else data)
        self.changed.notify()

    def end(self) -> None:
        self.over.set()
        self.changed.notify()

    async def read(self, *, follow: bool = False, **where: int) -> str:
        return "".join([piece async for piece in self.text.pieces(follow=follow, **where)])


class Reader:
    """Somebody who follows, and can be asked what he has seen."""

    def __init__(self, pieces: AsyncGenerator[str, None]) -> None:
        self.pieces: list[str] = []
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._read(pieces))

    async def _read(self, pieces: AsyncGenerator[str, None]) -> None:
        async with aclosing(pieces):
            async for piece in pieces:
                self.pieces.append(piece)
                self._news.set()

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    async def sees(self, text: str) -> None:
        async def wait() -> None:
            while self.text != text:
                self._news.clear()
                await self._news.wait()

        try:
            await asyncio.wait_for(wait(), 20)
        except asyncio.TimeoutError:
            assert self.text == text

    async def sees_to_the_end(self, text: str) -> None:
        await asyncio.wait_for(self.task, 20)
        assert self.text == text


class SlowDisk:
    """Reads wait for the gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.ended = 0
        self.sizes: list[int] = []

    def read(self, handle: int, position: int, size: int) -> bytes:
        self.begun.set()
        self.gate.wait()
        data = os.pread(handle, size, position)
        self.sizes.append(len(data))
        self.ended += 1
        return data
