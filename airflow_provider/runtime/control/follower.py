"""Following one cluster job: its log into the sink, its state changes out, acknowledgements back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from airflow_provider.runtime.blocking import outlast
from airflow_provider.runtime.client.base import ClientError, Heartbeat, JobState, LinkLost, LogBytes
from airflow_provider.runtime.control.joblog import JobLog
from airflow_provider.runtime.errors import Superseded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from airflow_provider.runtime.client.base import ClusterClient, FollowStream, Owner
    from airflow_provider.runtime.control.controller import Sink

_SETTLE_SECONDS = 0.5
"""How old a written line must be to be acknowledged: what a killed process had written last may not have reached the
log, so the newest half second is sent again after a crash."""


class Follower:
    """Follows one cluster job over any number of broken streams; within one process no line is written twice."""

    def __init__(self, job_id: int, sink: Sink) -> None:
        self.job_id = job_id
        self.log = JobLog()
        self._sink = sink

    async def events(self, client: ClusterClient, owner: Owner) -> AsyncGenerator[JobState | Heartbeat, None]:
        """Write the job's log to the sink and yield its states, and a heartbeat for each sign of life.

        Ends after the terminal state, when all of the log is written.

        Raises:
            ClientError: the stream broke; call again to go on where it did.
        """
        stream = await client.follow(self.job_id, owner, offset=self.log.position)
        acknowledging = asyncio.create_task(self._acknowledge(stream))
        try:
            async for message in stream:
                if isinstance(message, LogBytes):
                    await self._write(self.log.feed(message.offset, message.data))
                    yield Heartbeat()
                elif isinstance(message, JobState) and message.status.terminal:
                    await self._write(self.log.finish())
                    yield message
                    return
                else:
                    yield message
            raise LinkLost("the stream ended before the job did")
        finally:
            acknowledging.cancel()
            await stream.close()
            await outlast(acknowledging)

    async def _write(self, records: Iterator[str]) -> None:
        async def write() -> None:
            for text in records:
                await self._sink.output(text)

        # To its end, also when we are cancelled: else nobody knew whether the record in hand was written.
        writing = asyncio.create_task(write())
        await outlast(writing)
        writing.result()

    async def _acknowledge(self, stream: FollowStream) -> None:
        acknowledged, settled = None, self.log.written
        while True:
            await asyncio.sleep(_SETTLE_SECONDS)
            if settled is not None and settled != acknowledged:
                try:
                    await stream.acknowledge(settled)
                except (ClientError, Superseded):
                    return  # whoever reads the stream learns of it too, and decides
                acknowledged = settled
            settled = self.log.written
