"""The client of a skylet, the agent of clusters that SkyPilot launched."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from airflow_provider.runtime.client.autostop import autostop_request
from airflow_provider.runtime.client.base import (
    AgentFailed,
    Autostop,
    FileProgress,
    JobRequest,
    JobState,
    JobStatus,
    LinkLost,
    NoSuchJob,
    Owner,
    RequestRefused,
)
from airflow_provider.runtime.client.calls import Transport, ask, ask_once
from airflow_provider.runtime.client.skylet_follow import SkyletFollowStream
from airflow_provider.runtime.client.skylet_janitor import script_path, send_janitor
from airflow_provider.runtime.client.skylet_program import IDLE_SECONDS, marker, path_part, program
from airflow_provider.runtime.client.skylet_rows import JANITOR, METADATA, Observation, Row, row
from airflow_provider.runtime.errors import Superseded
from airflow_provider.runtime.wire import autostop_pb2 as autostop_pb
from airflow_provider.runtime.wire import jobs_pb2 as pb
from airflow_provider.runtime.wire import managed_jobs_pb2, rpcs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import Any, BinaryIO

USER = "airflow-managed-jobs"
"""Whose our jobs are in the skylet's table; a listing by it costs nothing for the jobs of others."""

_SUBMIT_SECONDS = 30.0
_OTHERS_SECONDS = 5.0
"""How long a job may stay added and not queued before we queue it: who added it may have died at that."""
_RECONCILE_SECONDS = 5.0
"""How often at most the skylet is made to look whether its drivers live; by itself it looks every five minutes."""
_LAST_WORD_SECONDS = 60.0
"""How long, beyond the grace, a job that has ended for the skylet may take for its driver's last word: as long as a
driver takes at most to end what does not want to end, and less than who cancels a job waits for us."""
_DOUBT_SECONDS = 15.0
"""How long a driver that the skylet misses may take to show that it lives: the skylet misses one that has just been
started, and it takes that seconds to have SkyPilot's library."""
_CANCEL_AGAIN_SECONDS = 1.0
_POLL_SECONDS = 0.25


class SkyletClient:
    """A ClusterClient over one channel to a skylet. Owns the channel.

    What a skylet cannot do, and what that means here:

    - It remembers no keys. Ours is in the job's metadata, and the job with the lowest id that has it is the job. Jobs
      added twice by calls whose answers were lost are never queued; the skylet counts them as busy for some minutes.
    - It remembers no owners. An owner is refused when the job was submitted by a later generation; that somebody took
      the job over after that is not known to it, and not to us.
    - It knows no lease: its autostop ends a cluster that nobody needs.
    - It takes no files.
    - It has no name of its own, see ``handshake``.
    """

    def __init__(self, channel: Transport, *, instance: str = "", idle_seconds: float = IDLE_SECONDS) -> None:
        """Take over a channel.

        Args:
            channel: To the skylet.
            instance: What the caller calls this very cluster.
            idle_seconds: How often the log of a quiet job gets its idle mark.
        """
        self._transport = channel
        self._channel = channel.channel
        self._instance = instance
        self._idle_seconds = idle_seconds
        self._reconciled = float("-inf")
        self._missed: dict[int, float] = {}
        self._mourned: set[int] = set()
        self._unsettled: dict[int, float] = {}
        self._submitting: dict[str, tuple[asyncio.Lock, list[None]]] = {}

    async def handshake(self, *, lease_seconds: float = 0.0) -> str:
        """Return the instance in the newest job that we submitted to this skylet, else the one that we were made with.

        A skylet tells neither a boot id nor a name of its own. So another cluster in the place of ours is known by the
        jobs that were submitted to it under another instance; one without such jobs cannot be told from ours, until
        it is asked for a job. The lease is not for a skylet, see the class.
        """
        await ask(self._channel, rpcs.GET_VERSION, managed_jobs_pb2.GetVersionRequest())
        for job in await self._rows(USER):
            if job.instance:
                return job.instance
        return self._instance or "skylet"

    async def send_files(
        self,
        digest: str,
        size: int,
        read: Callable[[], BinaryIO],
        progress: Callable[[FileProgress], None] = lambda done: None,
    ) -> None:
        """Refuse: see ClusterClient for what it would do.

        Raises:
            RequestRefused: always.
        """
        raise RequestRefused("send files: a skylet takes no files over gRPC")

    async def submit(self, key: str, owner: Owner, job: JobRequest) -> int:
        """See ClusterClient.

        Nothing is repeated before a look at what the first try did: an id is asked for again only when the table has
        none for the key, and a job is queued again only while it is not queued. Should it be queued twice all the
        same, as a call may be carried out after its deadline, the second program finds that the first one runs or ran.
        """
        if job.files or job.git is not None:
            raise RequestRefused("submit: a skylet takes no files over gRPC and clones no repository")
        deadline = time.monotonic() + _SUBMIT_SECONDS
        metadata = {
            "key": key,
            "owner": owner.id,
            "generation": owner.generation,
            "grace_seconds": job.grace_seconds,
            "instance": self._instance,
        }
        # What cannot be sent is known before anything is changed.
        self._program(0, "", metadata, job)
        async with self._one_at_a_time(key):
            added = None
            found = await self._with_key(key)
            while found is None:
                try:
                    added = await self._add(metadata, job)
                except (LinkLost, AgentFailed):
                    found = await self._with_key(key)
                    if found is None and time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(_POLL_SECONDS)
                else:
                    found = await self._with_key(key)
            await self._queue(found, metadata, job, deadline, ours=found.job_id == added)
        return found.job_id

    async def _add(self, metadata: dict[str, Any], job: JobRequest) -> int:
        now = datetime.now(timezone.utc)
        task = job.managed
        answer = await ask_once(
            self._channel,
            rpcs.ADD_JOB,
            pb.AddJobRequest(
                job_name=path_part(job.name),
                username=USER,
                # Unlike any other: the skylet finds the row that it has just made by it.
                run_timestamp=f"sky-{now:%Y-%m-%d-%H-%M-%S-%f}-{uuid.uuid4().hex[:8]}",
                resources_str=(task.resources if task else "") or "1x[-]",
                metadata=json.dumps({METADATA: metadata}),
            ),
        )
        return answer.job_id

    async def _queue(
        self, job_row: Row, metadata: dict[str, Any], job: JobRequest, deadline: float, *, ours: bool
    ) -> None:
        """Queue a job unless it is queued.

        Args:
            job_row: The job.
            metadata: Ours.
            job: What to run.
            deadline: When to give up, on the monotonic clock.
            ours: It was added a moment ago by us, so nobody else has queued it.
        """
        log = ""
        wait = not ours
        while True:
            if wait and await self._gets_queued(job_row.job_id):
                return
            log = log or await self._log_directory(job_row.job_id)
            try:
                await ask_once(
                    self._channel,
                    rpcs.QUEUE_JOB,
                    pb.QueueJobRequest(
                        job_id=job_row.job_id,
                        codegen=self._program(job_row.job_id, f"{log}/run.log", metadata, job),
                        script_path=script_path(job_row.job_id),
                        # The skylet empties run.log there whenever it starts a program: not the job's own, then.
                        remote_log_dir=f"{log}/driver",
                    ),
                )
                # The skylet's look misses a driver that is only just there.
                self._reconciled = time.monotonic()
                return
            except (LinkLost, AgentFailed):
                if time.monotonic() > deadline:
                    raise
                wait = True

    async def _gets_queued(self, job_id: int) -> bool:
        """Return whether the job is queued now or within some seconds."""
        deadline = time.monotonic() + _OTHERS_SECONDS
        while True:
            found = await self._row(job_id)
            # One that waited too long for its queueing is FAILED_DRIVER by then and has not run.
            fresh = found.status is JobStatus.INIT or (
                found.status is JobStatus.FAILED_DRIVER and not found.began and found.end is None
            )
            if not fresh:
                return True
            if found.status is not JobStatus.INIT or time.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)

    def _program(self, job_id: int, log: str, metadata: dict[str, Any], job: JobRequest) -> str:
        return program(
            key=metadata["key"],
            marker=marker(metadata["key"]),
            job_id=job_id,
            log=log,
            metadata=metadata,
            job=job,
            idle_seconds=self._idle_seconds,
        )

    async def _log_directory(self, job_id: int) -> str:
        answer = await ask(
            self._channel, rpcs.GET_LOG_DIRS_FOR_JOBS, pb.GetLogDirsForJobsRequest(job_ids=[job_id])
        )
        return answer.job_log_dirs[job_id]

    async def status(self, job_id: int) -> JobState:
        """See ClusterClient. Makes the skylet look for drivers that died, every few seconds at most.

        A job that ended for the skylet is CANCELLING here until its driver program says that nothing of it is left; a
        driver that keeps silent is given up after the job's grace and a minute. That the skylet misses a driver is believed
        after a quarter of a minute.
        """
        return (await self.observe(job_id)).state

    async def observe(self, job_id: int) -> Observation:
        """Return what ``status`` returns, and more."""
        await self.reconcile()
        found = await self._row(job_id)
        codes: tuple[int, ...] = ()
        if found.status.terminal and found.end is None:
            answer = await ask(
                self._channel, rpcs.GET_JOB_EXIT_CODES, pb.GetJobExitCodesRequest(job_id=job_id)
            )
            codes = tuple(answer.exit_codes)
        doubted = self._doubted(found)
        if found.status is JobStatus.FAILED_DRIVER and not doubted and job_id not in self._mourned:
            # A driver that died before its job began holds up the queue; a cancel of what has ended moves it on.
            self._mourned.add(job_id)
            await ask(self._channel, rpcs.CANCEL_JOBS, pb.CancelJobsRequest(job_ids=[job_id]))
            if found.began:
                await self._clean_up(found)
        return Observation(
            self._state(found, codes),
            found.began or found.status not in {JobStatus.INIT, JobStatus.PENDING},
            found.end.log_size if found.end else None,
            not found.status.terminal,
        )

    def _state(self, found: Row, codes: tuple[int, ...] = ()) -> JobState:
        state = found.state(codes, ending=self._ending(found))
        if self._doubted(found):
            state = replace(state, status=JobStatus.RUNNING if found.started_at else JobStatus.PENDING)
        return state

    def _doubted(self, found: Row) -> bool:
        """Return whether the skylet misses the job's driver, but not for long enough to be believed."""
        if found.status is not JobStatus.FAILED_DRIVER or found.settled:
            self._missed.pop(found.job_id, None)
            return False
        since = self._missed.setdefault(found.job_id, time.monotonic())
        return time.monotonic() - since < _DOUBT_SECONDS

    async def reconcile(self) -> None:
        """Make the skylet look which drivers live, unless it did a moment ago."""
        now = time.monotonic()
        if now - self._reconciled >= _RECONCILE_SECONDS:
            self._reconciled = now
            await ask(self._channel, rpcs.UPDATE_STATUS, pb.UpdateStatusRequest())

    def _ending(self, found: Row) -> bool:
        """Return whether a job that has ended for the skylet may have processes left."""
        if not found.status.terminal or found.settled:
            self._unsettled.pop(found.job_id, None)
            return False
        since = self._unsettled.setdefault(found.job_id, time.monotonic())
        return time.monotonic() - since < found.grace_seconds + _LAST_WORD_SECONDS

    async def jobs(self, *, all: bool = False) -> list[JobState]:
        """See ClusterClient; jobs of others on the cluster are among them, jobs that were never queued are not."""
        rows = await self._rows(None, all_jobs=all)
        return [
            self._state(found)
            for found in rows
            if found.status is not JobStatus.INIT and JANITOR not in found.fields
        ]

    async def follow(self, job_id: int, owner: Owner, *, offset: int | None) -> SkyletFollowStream:
        """See ClusterClient. A skylet remembers no acknowledgements: without ``offset`` from the begin."""
        return SkyletFollowStream(self, self._channel, await self.observe(job_id), offset or 0)

    async def cancel(self, job_id: int, owner: Owner, *, limit: float) -> JobState:
        """See ClusterClient.

        Raises:
            Superseded: a later owner submitted the job.
            LinkLost: something of it is left after ``limit`` seconds.
        """
        deadline = time.monotonic() + limit
        found = await self._row(job_id)
        if found.generation > owner.generation:
            raise Superseded(
                f"cancel: job {job_id} is of generation {found.generation}, the caller of {owner.generation}"
            )
        begun, told, sent = time.monotonic(), float("-inf"), False
        while True:
            silent = found.key is not None and found.end is None
            if (silent or not found.settled) and time.monotonic() - told >= _CANCEL_AGAIN_SECONDS:
                # May be repeated: it ends what runs and changes nothing that has ended. It must be, as long as the
                # driver has not had its last word: the skylet misses a driver that is only just there.
                told = time.monotonic()
                await ask(self._channel, rpcs.CANCEL_JOBS, pb.CancelJobsRequest(job_ids=[job_id]))
                found = await self._row(job_id)
            # A program that has begun its job ends by itself and has removed its secrets.
            late = not found.started_at or time.monotonic() - begun > found.grace_seconds + _DOUBT_SECONDS
            if late and not sent and await self._clean_up(found):
                sent = True
            state = await self.status(job_id)
            if state.status.terminal:
                return state
            if time.monotonic() + _POLL_SECONDS > deadline:
                raise LinkLost(f"cancel: job {job_id} has not ended after {limit:.0f} s")
            await asyncio.sleep(_POLL_SECONDS)
            found = await self._row(job_id)

    async def _clean_up(self, found: Row) -> bool:
        """Start a janitor for a job of ours that ended for the skylet and not by itself; return whether it was one."""
        if found.key is None or found.end is not None or not found.status.terminal:
            return False
        await send_janitor(self._channel, found, log_directory=await self._log_directory(found.job_id))
        return True

    async def set_autostop(self, autostop: Autostop) -> None:
        """See ClusterClient."""
        # May be repeated: the same setting a second time changes nothing.
        await ask(self._channel, rpcs.SET_AUTOSTOP, autostop_request(autostop))

    async def autostopping(self) -> bool:
        """See ClusterClient."""
        answer = await ask(self._channel, rpcs.IS_AUTOSTOPPING, autostop_pb.IsAutostoppingRequest())
        return answer.is_autostopping

    async def close(self) -> None:
        """See ClusterClient."""
        await self._transport.close()

    async def _with_key(self, key: str) -> Row | None:
        return min(
            (found for found in await self._rows(USER) if found.key == key),
            key=lambda found: found.job_id,
            default=None,
        )

    async def _row(self, job_id: int) -> Row:
        for user in (USER, None):
            for found in await self._rows(user):
                if found.job_id == job_id:
                    return found
        raise NoSuchJob(f"the skylet has no job {job_id}")

    async def _rows(self, user: str | None, *, all_jobs: bool = True) -> list[Row]:
        answer = await ask(
            self._channel, rpcs.GET_JOB_QUEUE, pb.GetJobQueueRequest(user_hash=user, all_jobs=all_jobs)
        )
        return [row(info) for info in answer.jobs]

    @asynccontextmanager
    async def _one_at_a_time(self, key: str) -> AsyncIterator[None]:
        """Let one submit of a key of this client in; others wait and find what it did."""
        lock, users = self._submitting.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._submitting[key]
