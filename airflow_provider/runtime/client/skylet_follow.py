"""Following a job of a skylet: its log from TailLogs, its states and the skylet's life from polls."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import grpc
import grpc.aio

from airflow_provider.runtime.agent.waiting import happens
from airflow_provider.runtime.client.base import Heartbeat, JobState, JobStatus, LinkLost, LogBytes, NoSuchJob
from airflow_provider.runtime.client.calls import ask, translated
from airflow_provider.runtime.client.skylet_text import SkyletText
from airflow_provider.runtime.wire import jobs_pb2 as pb
from airflow_provider.runtime.wire import rpcs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from airflow_provider.runtime.client.skylet_rows import Observation

_START_SECONDS = 1.0
"""How long a driver that was started is left alone: to tail a log makes the skylet look at the driver's process, and
it misses one that is only just there."""
_POLL_SECONDS = 1.0
_CHANGING_POLL_SECONDS = 0.25
"""Between polls of a job that is about to change."""
_SILENCE_SECONDS = 10.0
"""How long a skylet may leave polls unanswered before the link counts as lost."""
_DRAIN_SECONDS = 30.0
"""How long a job that has ended may keep its follower waiting for a log that does not come."""
_PIECES = 16
"""Pieces of log, 64 KiB at most each, that may wait for a slow reader."""
_ENDS = 3
"""How often the log of a job that has ended is asked for when it is shorter than it should be."""
_PAUSE_SECONDS = 0.2
_MAX_PAUSE_SECONDS = 2.0

_NOT_FINISHED, _NOT_FOUND = 101, 102


class Observer(Protocol):
    """What a follower needs of the client."""

    async def observe(self, job_id: int) -> Observation:
        """Return the job as it is now."""
        ...

    async def reconcile(self) -> None:
        """Make the skylet look which drivers live, unless it did a moment ago."""
        ...


class SkyletFollowStream:
    """One follower. Broken TailLogs calls are made again and go on at the byte where they broke.

    The polls tell whether the skylet lives, so a log may be quiet for as long as it likes; and they alone tell how the
    job ended. Offsets count the bytes of the log as the skylet tells it, see SkyletText.
    """

    def __init__(
        self, observer: Observer, channel: grpc.aio.Channel, first: Observation, offset: int
    ) -> None:
        self._observer = observer
        self._channel = channel
        self._seen = first
        self._job_id = first.state.job_id
        self._position = offset
        self._queue: asyncio.Queue[LogBytes | JobState | Heartbeat | Exception] = asyncio.Queue(_PIECES)
        self._call: grpc.aio.UnaryStreamCall[pb.TailLogsRequest, pb.TailLogsResponse] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._readable = asyncio.Event()
        self._ended = asyncio.Event()
        self._look = asyncio.Event()
        self._looks = 0
        self._begun_at: float | None = None
        self._cut = False
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[LogBytes | JobState | Heartbeat]:
        """Yield the log and the states; see FollowStream."""
        tail = asyncio.create_task(self._told(self._tail()))
        self._tasks = [tail, asyncio.create_task(self._told(self._watch(tail)))]
        try:
            while True:
                if self._closed:
                    raise LinkLost("follow: the stream is closed")
                item = await self._queue.get()
                if isinstance(item, Exception):
                    raise item
                yield item
                if isinstance(item, JobState) and item.status.terminal:
                    return
        finally:
            await self.close()

    async def acknowledge(self, offset: int) -> None:
        """Do nothing: a skylet remembers no offsets."""

    async def close(self) -> None:
        """See FollowStream."""
        self._closed = True
        if self._call is not None:
            self._call.cancel()
        for task in self._tasks:
            task.cancel()
        with suppress(asyncio.QueueFull):  # who waits for something to come, waits at an empty queue
            self._queue.put_nowait(LinkLost("follow: the stream is closed"))

    async def _told(self, work: Coroutine[None, None, None]) -> None:
        """Do the work and tell the reader of its failure."""
        try:
            await work
        except Exception as error:
            await self._queue.put(error)

    async def _watch(self, tail: asyncio.Task[None]) -> None:
        """Tell states and signs of life; at the end, after the log, the last state."""
        known: JobState | None = None
        while True:
            state = self._seen.state
            if self._may_read():
                self._readable.set()
            if state.status.terminal:
                break
            if state != known:
                known = state
                await self._queue.put(state)
            else:
                with suppress(asyncio.QueueFull):  # what waits in the queue is sign enough
                    self._queue.put_nowait(Heartbeat())
            self._look.clear()
            running = state.status is JobStatus.RUNNING
            await happens(self._look, _POLL_SECONDS if running else _CHANGING_POLL_SECONDS)
            if not (running and self._seen.live) or await self._left(pb.JOB_STATUS_RUNNING):
                self._seen = await self._observer.observe(self._job_id)
            self._looks += 1
        self._ended.set()
        if self._whole and self._call is not None:
            self._cut = True
            self._call.cancel()
        await self._drained(tail)
        await self._queue.put(state)

    def _may_read(self) -> bool:
        """Return whether the log may be asked for."""
        if not self._seen.began:
            return False
        if self._begun_at is None:
            self._begun_at = time.monotonic()
        just_started = self._seen.state.status is JobStatus.PENDING
        return not just_started or time.monotonic() - self._begun_at >= _START_SECONDS

    async def _really_ended(self) -> bool:
        """Wait until the job has ended, as the skylet says that it has; False when the skylet takes that back."""
        before = self._looks
        self._look.set()
        while not await happens(self._ended, _CHANGING_POLL_SECONDS):
            # The first look since then may have been under way before.
            if self._looks > before + 1 and self._seen.live:
                return False
        return True

    async def _left(self, status: pb.JobStatus) -> bool:
        """Return whether the job has another status than this one."""
        await self._observer.reconcile()
        answer = await ask(
            self._channel,
            rpcs.GET_JOB_STATUS,
            pb.GetJobStatusRequest(job_ids=[self._job_id]),
            seconds=_SILENCE_SECONDS,
        )
        return answer.job_statuses[self._job_id] != status

    @property
    def _whole(self) -> bool:
        """Whether the whole log is known to be read."""
        return self._seen.log_size is not None and self._position >= self._seen.log_size

    async def _drained(self, tail: asyncio.Task[None]) -> None:
        """Wait for the end of the log, not for ever: the job's end is known."""
        while not tail.done():
            before = self._position
            await asyncio.wait({tail}, timeout=_DRAIN_SECONDS)
            if self._position == before and not self._queue.full():
                tail.cancel()

    async def _tail(self) -> None:
        """Read the log to its end."""
        pause, ends = _PAUSE_SECONDS, 0
        await self._readable.wait()
        while not (self._ended.is_set() and (self._whole or ends >= _ENDS)):
            before, ended = self._position, self._ended.is_set()
            text = SkyletText(self._position)
            try:
                with translated("TailLogs"):
                    code = await self._read(text)
            except LinkLost:  # whether the link is lost for good, the polls find out
                code = _NOT_FINISHED
            if code == _NOT_FOUND:
                raise NoSuchJob(f"the skylet has no log of job {self._job_id}")
            if code == _NOT_FINISHED:
                pause = _PAUSE_SECONDS if self._position > before else min(_MAX_PAUSE_SECONDS, pause * 1.6)
                await asyncio.sleep(pause)
                continue
            if not await self._really_ended():
                continue
            await self._take(text, text.finish(self._seen.log_size))
            if (
                self._seen.log_size is None and ended
            ):  # a call made earlier may lack a last line without its end
                return
            ends += 1

    async def _read(self, text: SkyletText) -> int:
        """Read one TailLogs call to its end and return its exit code; without one, that the job goes on."""
        code = _NOT_FINISHED
        call = rpcs.TAIL_LOGS.download(self._channel)(
            pb.TailLogsRequest(job_id=self._job_id, follow=True), timeout=None
        )
        self._call = call
        try:
            async for message in call:
                if message.log_line:
                    await self._take(text, text.feed(message.log_line))
                else:
                    code = message.exit_code
        except asyncio.CancelledError:
            if not self._cut:  # else the call was cancelled, not the task
                raise
        finally:
            call.cancel()
        return code

    async def _take(self, text: SkyletText, data: bytes) -> None:
        if data:
            await self._queue.put(LogBytes(text.position - len(data), data))
            self._position = text.position
