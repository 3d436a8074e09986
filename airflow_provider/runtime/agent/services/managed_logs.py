"""StreamLogs: the log of a managed job, which is that of its tasks one after the other."""

from __future__ import annotations

from contextlib import aclosing, nullcontext
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.guard import BadRequest, Missing
from airflow_provider.runtime.agent.jobs.job import UnknownJob
from airflow_provider.runtime.agent.logs.stream import JobText
from airflow_provider.runtime.agent.managed.rows import CANCELLED, LIVE, PENDING, STATUS_OF_JOB, SUCCEEDED
from airflow_provider.runtime.agent.waiting import happens
from airflow_provider.runtime.wire import managed_jobs_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from airflow_provider.runtime.agent.jobs.job import Job
    from airflow_provider.runtime.agent.jobs.jobs import Jobs
    from airflow_provider.runtime.agent.lease import Lease
    from airflow_provider.runtime.agent.managed.managed import ManagedJobs

EXIT_SUCCEEDED = 0
EXIT_FAILED = 100
EXIT_LIVE = 101
EXIT_NOT_FOUND = 102
EXIT_CANCELLED = 103

_ACCEPTING_SECONDS = 0.2
"""How long to wait before looking again at a job that is just being accepted, which tells nobody when it is."""


class ManagedLogs:
    """Serves log streams of managed jobs."""

    def __init__(self, managed: ManagedJobs, jobs: Jobs, lease: Lease) -> None:
        self._managed = managed
        self._jobs = jobs
        self._lease = lease

    async def stream(self, request: pb.StreamLogsRequest) -> AsyncGenerator[pb.StreamLogsResponse, None]:
        """Yield the text of each task's newest job, in the tasks' order, then the exit code.

        Whoever follows gets all until every task has ended, or one has not succeeded: a controller that tries again
        does so with another job, and most likely on another cluster. ``tail`` counts for each task on its own.

        Raises:
            BadRequest: the job is given in two ways.
            Missing: the controller's log is wanted, which is not here.
        """
        if request.controller:
            raise Missing("a managed job's controller runs in Airflow: its log is that of the Airflow task")
        if request.HasField("job_id") and request.HasField("job_name"):
            raise BadRequest("both job_id and job_name are set: one is needed")
        job_id = await self._job_id(request)
        tasks = [] if job_id is None else await self._managed.tasks(job_id)
        if job_id is None or not tasks:
            wanted = f"{request.job_id}" if request.HasField("job_id") else f"{request.job_name!r}"
            yield pb.StreamLogsResponse(log_line=f"Managed job {wanted} is not found on this cluster.\n")
            yield pb.StreamLogsResponse(exit_code=EXIT_NOT_FOUND)
            return
        reading = _Reading(self._managed, self._jobs, job_id, follow=request.follow, tail=request.tail)
        with self._lease.held():
            async with aclosing(reading.pieces()) as pieces:
                async for piece in pieces:
                    yield pb.StreamLogsResponse(log_line=piece)
        code = exit_code(reading.statuses.values())
        if code == EXIT_LIVE and not request.follow:
            code = EXIT_SUCCEEDED  # all that was asked for was shown
        yield pb.StreamLogsResponse(exit_code=code)

    async def _job_id(self, request: pb.StreamLogsRequest) -> int | None:
        """Return which job is meant: the newest of the name, or of all when nothing is said."""
        if request.HasField("job_id"):
            return request.job_id
        ids = await self._managed.ids(request.job_name if request.HasField("job_name") else None)
        return ids[0] if ids else None


class _Reading:
    """One reader's way through the tasks of a job.

    Attributes:
        statuses: How each of the tasks stood when it was last looked at, by index.
    """

    def __init__(self, managed: ManagedJobs, jobs: Jobs, job_id: int, *, follow: bool, tail: int) -> None:
        self._managed = managed
        self._jobs = jobs
        self._job_id = job_id
        self._follow = follow
        self._tail = tail
        self._in_line = False  # whether the last line that was shown has not ended
        self.statuses: dict[int, str] = {}

    async def pieces(self) -> AsyncGenerator[str, None]:
        """Yield the text of all tasks; see ``ManagedLogs.stream``."""
        stopped = False  # whether no further task of the chain will start
        position = 0
        shown: int | None = None  # the last job that was shown of the task at the position
        while True:
            change = self._managed.changed.next()
            tasks = await self._managed.tasks(self._job_id)
            for task in tasks[position:]:
                self.statuses[task.task_id] = task.status
            if position >= len(tasks):
                return
            task = tasks[position]
            try:
                job = None if task.cluster_job is None else await self._jobs.get(task.cluster_job)
            except UnknownJob:
                continue  # it was not accepted in the end
            accepting = job is not None and job.row.status == "INIT"
            if job is not None and not accepting:
                # What it says of itself: the table may have to wait for a disk that is full.
                self.statuses[task.task_id] = STATUS_OF_JOB[job.row.status]
                if job.row.job_id != shown:
                    async with aclosing(self._text(job)) as pieces:
                        async for piece in pieces:
                            yield piece
                    shown = job.row.job_id
                    continue  # there may be a newer job of the task by now
            status = self.statuses[task.task_id]
            if status in LIVE and self._follow and not stopped:
                await happens(change, _ACCEPTING_SECONDS if accepting else None)
                continue
            stopped = stopped or status != SUCCEEDED
            position += 1
            shown = None

    async def _text(self, job: Job) -> AsyncGenerator[str, None]:
        text = JobText(log=job.directory.log, changed=job.changed, over=job.over)
        with self._jobs.following(job) if self._follow else nullcontext():
            async with aclosing(text.pieces(follow=self._follow, tail=self._tail)) as pieces:
                # The line that one task left without an end is not the beginning of another one's.
                apart = self._in_line
                async for piece in pieces:
                    yield f"\n{piece}" if apart else piece
                    apart = False
                    self._in_line = not piece.endswith("\n")


def exit_code(statuses: Iterable[str]) -> int:
    """Return SkyPilot's exit code of a job whose tasks stand so.

    A chain has failed if one of its tasks has, else is live if one runs, else cancelled if one is: what waits for a
    cancelled task never starts.
    """
    all_of_them = set(statuses)
    if any(status.startswith("FAILED") for status in all_of_them):
        return EXIT_FAILED
    if CANCELLED in all_of_them and all_of_them.isdisjoint(LIVE - {PENDING}):
        return EXIT_CANCELLED
    return EXIT_SUCCEEDED if all_of_them.isdisjoint(LIVE) else EXIT_LIVE
