"""Following one cluster job: its log into the sink, its state changes out, acknowledgements back."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

from airflow_provider.runtime.client.base import Heartbeat, JobState, LinkLost, LogBytes
from airflow_provider.runtime.control.joblog import JobLog

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

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
        self._written: deque[tuple[float, int]] = deque()

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
                    for text in self.log.feed(message.offset, message.data):
                        await self._sink.output(text)
                    self._written.append((time.monotonic(), self.log.written or 0))
                    yield Heartbeat()
                elif isinstance(message, JobState) and message.status.terminal:
                    for text in self.log.finish():
                        await self._sink.output(text)
                    yield message
                    return
                else:
                    yield message
            raise LinkLost("the stream ended before the job did")
        finally:
            acknowledging.cancel()
            await stream.close()

    async def _acknowledge(self, stream: FollowStream) -> None:
        while True:
            await asyncio.sleep(_SETTLE_SECONDS)
            settled = None
            while self._written and self._written[0][0] <= time.monotonic() - _SETTLE_SECONDS:
                settled = self._written.popleft()[1]
            if settled is not None:
                try:
                    await stream.acknowledge(settled)
                except LinkLost:
                    return  # whoever reads the stream learns of it too, and decides
