"""The service ``jobs.v1.JobsService``: the queue as SkyPilot's clients know it.

What differs from SkyPilot's skylet is meant to: bad input is named and never INTERNAL, a repeated call does nothing
twice, what has ended stays as it is, and CANCELLED means that nothing of the job is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from airflow_provider.runtime.agent.guard import BadRequest, Missing, answering, streaming
from airflow_provider.runtime.agent.jobs.job import Job, UnknownJob
from airflow_provider.runtime.agent.jobs.jobdir import Order
from airflow_provider.runtime.agent.jobs.jobs import DEFAULT_GRACE_SECONDS, Jobs
from airflow_provider.runtime.agent.jobs.placement import demand_of_words, unsound
from airflow_provider.runtime.agent.jobs.table import ADDED, JobRow, JobTable, NewJob
from airflow_provider.runtime.agent.logs.stream import JobText
from airflow_provider.runtime.agent.waiting import within
from airflow_provider.runtime.wire import jobs_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence

    from google.protobuf.message import Message

    from airflow_provider.runtime.agent.lease import Lease
    from airflow_provider.runtime.agent.managed.managed import ManagedJobs

    Context = grpc.aio.ServicerContext[Message, Message]

MAX_PROGRAM_BYTES = 32 * 1024 * 1024
_ANSWER_SECONDS = 0.5
"""An answer is sent at least so long before the caller's deadline."""

_PAGE = 500
"""So many jobs are looked up at once."""

_NOT_FINISHED = 101
_NOT_FOUND = 102
_EXIT_CODES = {"SUCCEEDED": 0, "FAILED": 100, "FAILED_SETUP": 100, "FAILED_DRIVER": 100, "CANCELLED": 103}
"""Of TailLogs, by status, as in SkyPilot."""

_STATUSES = {
    "INIT": pb.JOB_STATUS_INIT,
    "PENDING": pb.JOB_STATUS_PENDING,
    "SETTING_UP": pb.JOB_STATUS_SETTING_UP,
    "RUNNING": pb.JOB_STATUS_RUNNING,
    # This wire has no word for a job that is being ended: it still runs.
    "CANCELLING": pb.JOB_STATUS_RUNNING,
    "FAILED_DRIVER": pb.JOB_STATUS_FAILED_DRIVER,
    "SUCCEEDED": pb.JOB_STATUS_SUCCEEDED,
    "FAILED": pb.JOB_STATUS_FAILED,
    "FAILED_SETUP": pb.JOB_STATUS_FAILED_SETUP,
    "CANCELLED": pb.JOB_STATUS_CANCELLED,
}


class JobsService:
    """One method per RPC of the table in ``wire/rpcs.py``."""

    def __init__(self, *, jobs: Jobs, managed: ManagedJobs, lease: Lease, root: Path) -> None:
        self._jobs = jobs
        self._managed = managed
        self._lease = lease
        self._root = root
        self._queueing = asyncio.Lock()

    @answering
    async def add_job(self, request: pb.AddJobRequest, context: Context) -> pb.AddJobResponse:
        """Give a job an id and a log directory; asked again before it is queued, the same ones."""
        self._lease.renew()
        demand = demand_of_words(request.resources_str)
        problem = unsound(demand)
        if problem is not None:
            raise BadRequest(f"resources_str is {request.resources_str[:200]!r}: {problem}")
        job = await self._jobs.add(
            NewJob(
                key=ADDED + os.urandom(16).hex(),
                name=request.job_name if request.HasField("job_name") else "-",
                grace_seconds=DEFAULT_GRACE_SECONDS,
                username=request.username,
                run_timestamp=request.run_timestamp,
                resources=request.resources_str,
                metadata=_metadata(request.metadata),
            ),
            demand=demand,
        )
        return pb.AddJobResponse(job_id=job.row.job_id, log_dir=str(job.directory.logs))

    @answering
    async def queue_job(self, request: pb.QueueJobRequest, context: Context) -> pb.QueueJobResponse:
        """Queue a job that was added; a repeated call changes nothing.

        Its program is kept in the job's own directory, whatever ``script_path`` says: that is read when no program
        comes with the request, and never written.
        """
        self._lease.renew()
        job = await self._jobs.get(request.job_id)
        logs = str(job.directory.logs)
        if request.remote_log_dir and str(_expanded(request.remote_log_dir)) != logs:
            raise BadRequest(
                f"remote_log_dir is {request.remote_log_dir[:200]!r}, the log directory of the job is {logs!r}"
            )
        if not job.row.program:
            raise BadRequest(f"job_id is {request.job_id}, which is no job of AddJob")
        program = job.directory.program_file
        # One after the other: a repeated call must not exchange the program of a job that is queued meanwhile.
        async with self._queueing:
            if job.row.status == "INIT":
                if request.HasField("codegen"):
                    await asyncio.to_thread(_write_program, program, request.codegen.encode())
                else:
                    await asyncio.to_thread(self._copy_program, request.script_path, program)
            await self._jobs.enqueue(
                job,
                lambda marker, home: Order(
                    marker=marker,
                    setup="",
                    run="",
                    home=home,
                    files=[],
                    grace_seconds=DEFAULT_GRACE_SECONDS,
                    program=str(program),
                ),
            )
        return pb.QueueJobResponse()

    def _copy_program(self, script_path: str, program: Path) -> None:
        """Take the program that the client brought over by other means."""
        homes = (Path.home().resolve(), self._root.resolve())
        try:
            path = _expanded(script_path).resolve()
            found = path.is_file()
            size = path.stat().st_size if found else 0
        except (OSError, ValueError, RuntimeError) as error:  # too long, NUL, a link to itself
            why = error.strerror if isinstance(error, OSError) else error
            raise BadRequest(f"script_path is {script_path[:200]!r}: {why}") from None
        if not script_path.startswith(("/", "~/")) or not any(path.is_relative_to(home) for home in homes):
            raise BadRequest(
                f"script_path is {script_path[:200]!r}: a file below {homes[0]} or {homes[1]} is needed"
            )
        if not found:
            raise Missing(
                f"script_path is {script_path[:200]!r}, and no program came with the request: there is no such file"
            )
        if size > MAX_PROGRAM_BYTES:
            raise BadRequest(f"script_path: {script_path[:200]!r} is larger than {MAX_PROGRAM_BYTES} bytes")
        _write_program(program, path.read_bytes())

    @answering
    async def update_status(
        self, request: pb.UpdateStatusRequest, context: Context
    ) -> pb.UpdateStatusResponse:
        """Do nothing: drivers are watched, so every status is up to date."""
        self._lease.renew()
        return pb.UpdateStatusResponse()

    @answering
    async def get_job_queue(self, request: pb.GetJobQueueRequest, context: Context) -> pb.GetJobQueueResponse:
        """Return the jobs that wait or run, or all; the newest first."""
        self._lease.renew()
        username = request.user_hash if request.HasField("user_hash") else None
        launched = {job.row.job_id: job.directory for job in self._jobs.live() if job.launched}
        pids = await asyncio.to_thread(
            lambda: {job_id: directory.driver_pid() for job_id, directory in launched.items()}
        )
        answer = pb.GetJobQueueResponse()
        before: int | None = None
        while True:
            # Piece by piece: with many thousands of jobs, others are served in between.
            look = partial(
                JobTable.page, before=before, limit=_PAGE, all_jobs=request.all_jobs, username=username
            )
            rows = await self._jobs.read(look)
            answer.jobs.extend(self._info(row, pids.get(row.job_id)) for row in rows)
            if len(rows) < _PAGE:
                return answer
            before = rows[-1].job_id

    def _info(self, row: JobRow, pid: int | None) -> pb.JobInfo:
        return pb.JobInfo(
            job_id=row.job_id,
            job_name=row.name,
            username=row.username,
            submitted_at=row.submitted_at,
            status=_STATUSES[row.status],
            run_timestamp=row.run_timestamp,
            start_at=row.started_at or None,
            end_at=row.ended_at or None,
            resources=row.resources,
            pid=pid,
            log_path=str(self._jobs.logs(row)),
            metadata=row.metadata,
        )

    @answering
    async def cancel_jobs(self, request: pb.CancelJobsRequest, context: Context) -> pb.CancelJobsResponse:
        """End jobs and return the ids of those that were not over, once nothing of them is left.

        Named ids, all (of a user), or neither: then the newest job (of the user) that runs. A deadline that is shorter
        than the job's end ends the wait, not the cancel.
        """
        self._lease.renew()
        mine = [
            job
            for job in self._jobs.live()
            if not request.HasField("user_hash") or job.row.username == request.user_hash
        ]
        if request.cancel_all:
            chosen = mine
        elif request.job_ids:
            wanted = set(request.job_ids)
            chosen = [job for job in self._jobs.live() if job.row.job_id in wanted]
        else:
            chosen = [job for job in mine if job.row.status in ("SETTING_UP", "RUNNING")][-1:]
        for job in reversed(chosen):  # those that wait before those that make room for them
            await self._jobs.cancel(job)
        await _while_time_is_left(context, (self._jobs.ended(job) for job in chosen))
        ids = [job.row.job_id for job in chosen if job.row.status in ("CANCELLING", "CANCELLED")]
        return pb.CancelJobsResponse(cancelled_job_ids=ids)

    @answering
    async def fail_all_in_progress_jobs(
        self, request: pb.FailAllInProgressJobsRequest, context: Context
    ) -> pb.FailAllInProgressJobsResponse:
        """End every job as FAILED_DRIVER, with an end time."""
        self._lease.renew()
        jobs = self._jobs.live()
        for job in reversed(jobs):  # those that wait before those that make room for them
            await self._jobs.fail(job, "all jobs in progress were failed on request")
        await _while_time_is_left(context, (self._jobs.ended(job) for job in jobs))
        return pb.FailAllInProgressJobsResponse()

    @streaming
    async def tail_logs(
        self, request: pb.TailLogsRequest, context: Context
    ) -> AsyncIterator[pb.TailLogsResponse]:
        """Stream a job's log as text; the last message carries nothing but the exit code."""
        self._lease.renew()
        try:
            job = await self._chosen(request.job_id if request.HasField("job_id") else 0)
        except UnknownJob as error:
            yield pb.TailLogsResponse(log_line=f"Job not found: {error}\n")
            yield pb.TailLogsResponse(exit_code=_NOT_FOUND)
            return
        text = JobText(log=job.directory.log, changed=job.changed, over=job.over)
        pieces = text.pieces(
            follow=request.follow,
            tail=request.tail,
            tail_offset=request.tail_offset,
            marked=job.row.program,
        )
        last = "\n"
        with self._lease.held(), self._jobs.following(job):
            async with aclosing(pieces):
                async for piece in pieces:
                    last = piece[-1]
                    yield pb.TailLogsResponse(log_line=piece)
        if job.row.terminal:
            begin = "" if last == "\n" else "\n"
            yield pb.TailLogsResponse(log_line=f"{begin}Job finished (status: {job.row.status}).\n")
        unfinished = _NOT_FINISHED if request.follow else 0
        yield pb.TailLogsResponse(exit_code=_EXIT_CODES.get(job.row.status, unfinished))

    @answering
    async def get_job_status(
        self, request: pb.GetJobStatusRequest, context: Context
    ) -> pb.GetJobStatusResponse:
        """Return statuses by id; of no id the newest job's, of an unknown one UNSPECIFIED."""
        self._lease.renew()
        rows = await self._rows(request.job_ids)
        statuses = dict.fromkeys(request.job_ids, pb.JOB_STATUS_UNSPECIFIED)
        return pb.GetJobStatusResponse(
            job_statuses=statuses | {row.job_id: _STATUSES[row.status] for row in rows}
        )

    @answering
    async def get_job_submitted_timestamp(
        self, request: pb.GetJobSubmittedTimestampRequest, context: Context
    ) -> pb.GetJobSubmittedTimestampResponse:
        """Return when a job was submitted, in seconds since the epoch."""
        self._lease.renew()
        moment = (await self._chosen(request.job_id)).row.submitted_at
        return pb.GetJobSubmittedTimestampResponse(timestamp=moment, exact_timestamp=moment)

    @answering
    async def get_job_ended_timestamp(
        self, request: pb.GetJobEndedTimestampRequest, context: Context
    ) -> pb.GetJobEndedTimestampResponse:
        """Return when a job ended, in seconds since the epoch."""
        self._lease.renew()
        job = await self._chosen(request.job_id)
        if not job.row.terminal:
            raise Missing(f"job {job.row.job_id} is {job.row.status} and has not ended")
        return pb.GetJobEndedTimestampResponse(timestamp=job.row.ended_at, exact_timestamp=job.row.ended_at)

    @answering
    async def get_log_dirs_for_jobs(
        self, request: pb.GetLogDirsForJobsRequest, context: Context
    ) -> pb.GetLogDirsForJobsResponse:
        """Return log directories by id; of no id the newest job's, of unknown ones nothing."""
        self._lease.renew()
        return pb.GetLogDirsForJobsResponse(
            job_log_dirs={row.job_id: str(self._jobs.logs(row)) for row in await self._rows(request.job_ids)}
        )

    @answering
    async def get_job_exit_codes(
        self, request: pb.GetJobExitCodesRequest, context: Context
    ) -> pb.GetJobExitCodesResponse:
        """Return the exit codes of a job's ranks; a job that has none yet has an empty list."""
        self._lease.renew()
        return pb.GetJobExitCodesResponse(exit_codes=(await self._chosen(request.job_id)).row.exit_codes)

    @answering
    async def set_job_info_without_job_id(
        self, request: pb.SetJobInfoWithoutJobIdRequest, context: Context
    ) -> pb.SetJobInfoWithoutJobIdResponse:
        """Register managed jobs that have no cluster job yet."""
        self._lease.renew()
        return pb.SetJobInfoWithoutJobIdResponse(job_ids=await self._managed.register(request))

    async def _chosen(self, job_id: int) -> Job:
        """Return the job of the id, the newest one for 0."""
        if job_id:
            return await self._jobs.get(job_id)
        latest = await self._jobs.read(lambda table: table.latest())
        if latest is None:
            raise UnknownJob("this cluster has had no job yet")
        return await self._jobs.get(latest.job_id)

    async def _rows(self, job_ids: Sequence[int]) -> list[JobRow]:
        """Return the rows of these jobs as far as there are any, of no id the newest job's."""
        live = {job.row.job_id: job.row for job in self._jobs.live()}
        if job_ids and live.keys() >= set(job_ids):
            return [live[job_id] for job_id in job_ids]  # what runs is in memory
        if job_ids:
            rows = await self._jobs.read(lambda table: table.many(job_ids))
        else:
            latest = await self._jobs.read(lambda table: table.latest())
            rows = [] if latest is None else [latest]
        return [live.get(row.job_id, row) for row in rows]


def _metadata(text: str) -> str:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"metadata is {text[:200]!r}: a JSON object is needed ({error})") from None
    if not isinstance(found, dict):
        raise BadRequest(f"metadata is {text[:200]!r}: a JSON object is needed")
    return text or "{}"


def _expanded(path: str) -> Path:
    return Path.home() / path[2:] if path.startswith("~/") else Path(path)


def _write_program(path: Path, code: bytes) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    # A name of its own: the thread of a caller that gave up may still be at work.
    part = path.with_name(f".program.{secrets.token_hex(4)}")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(code)
    part.replace(path)


async def _while_time_is_left(context: Context, ends: Iterable[Awaitable[None]]) -> None:
    """Wait for all of them, but answer before the caller's deadline."""
    left: float | None = context.time_remaining()
    limit = None if left is None else max(0.0, left - _ANSWER_SECONDS)
    with suppress(asyncio.TimeoutError):
        await within(limit, asyncio.gather(*ends))
