"""Following one cluster job: its log into the sink, its state changes out, acknowledgements back."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import TYPE_CHECKING

from airflow_provider.runtime.blocking import outlast
from airflow_provider.runtime.client.base import ClientError, Heartbeat, JobState, LinkLost, LogBytes
from airflow_provider.runtime.control.joblog import JobLog
from airflow_provider.runtime.errors import Superseded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator

    from airflow_provider.runtime.client.base import ClusterClient, FollowStream, Owner
    from airflow_provider.runtime.control.sink import Sink

    Message = LogBytes | JobState | Heartbeat

_SETTLE_SECONDS = 0.5
"""How old a written line must be to be acknowledged: what a killed process had written last may not have reached the
log, so the newest half second is sent again after a crash."""

_LISTEN_SECONDS = 0.5
"""While a line is unfinished, so often is looked whether it waits for too long."""


class Follower:
    """Follows one cluster job over any number of broken streams; within one process no line is written twice."""

    def __init__(self, job_id: int, sink: Sink) -> None:
        self.job_id = job_id
        self.log = JobLog()
        self._sink = sink
        # Seconds in which we were ready for more of the log: the clock by which an unfinished line is overdue.
        self._listened = 0.0
        self._news = asyncio.Event()

    async def events(self, client: ClusterClient, owner: Owner) -> AsyncGenerator[JobState | Heartbeat, None]:
        """Write the job's log to the sink and yield its states, and a heartbeat for each sign of life.

        Ends after the terminal state, when all of the log is written.

        Raises:
            ClientError: the stream broke; call again to go on where it did.
        """
        stream = await client.follow(self.job_id, owner, offset=self.log.position)
        messages = aiter(stream)
        acknowledging = asyncio.create_task(self._acknowledge(stream))
        receiving: asyncio.Task[Message | None] | None = None
        try:
            while True:
                if self.log.unfinished:
                    receiving = asyncio.create_task(_next(messages))
                    await self._listen(receiving)
                    message = receiving.result()
                else:  # nothing can become overdue, and hundreds of quiet jobs cost less without a task each time
                    message = await _next(messages)
                if message is None:
                    raise LinkLost("the stream ended before the job did")
                if isinstance(message, LogBytes):
                    complete = self.log.feed(message.offset, message.data)
                    await self._write(chain(complete, self.log.overdue(self._listened)))
                    yield Heartbeat()
                elif isinstance(message, JobState) and message.status.terminal:
                    await self._write(self.log.finish())
                    yield message
                    return
                else:
                    yield message
        finally:
            tasks = [acknowledging] if receiving is None else [acknowledging, receiving]
            for task in tasks:
                task.cancel()
            await stream.close()
            await outlast(asyncio.gather(*tasks, return_exceptions=True))

    async def _listen(self, receiving: asyncio.Task[Message | None]) -> None:
        """Wait for the next message; write what a line has that stays unfinished meanwhile."""
        time = asyncio.get_running_loop().time
        while not receiving.done():
            begin = time()
            await asyncio.wait({receiving}, timeout=_LISTEN_SECONDS)
            # No more than we meant to wait: had the whole process paused, the line's rest may be here, yet unread.
            self._listened += min(time() - begin, _LISTEN_SECONDS)
            if not receiving.done():
                await self._write(self.log.overdue(self._listened))

    async def _write(self, records: Iterator[str]) -> None:
        async def write() -> None:
            for text in records:
                await self._sink.output(text)

        # To its end, also when we are cancelled: else nobody knew whether the record in hand was written.
        writing = asyncio.create_task(write())
        await outlast(writing)
        self._news.set()
        writing.result()

    async def _acknowledge(self, stream: FollowStream) -> None:
        """Acknowledge what was written, once it has settled; does nothing while nothing is written."""
        acknowledged = None
        while True:
            written = self.log.written
            if written is None or written == acknowledged:
                self._news.clear()
                await self._news.wait()
                continue
            await asyncio.sleep(_SETTLE_SECONDS)
            try:
                await stream.acknowledge(written)
            except (ClientError, Superseded):
                return  # whoever reads the stream learns of it too, and decides
            acknowledged = written


async def _next(messages: AsyncIterator[Message]) -> Message | None:
    return await anext(messages, None)
