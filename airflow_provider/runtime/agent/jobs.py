"""The agent's jobs: accepting them, starting and watching their drivers, ending them.

One object per job holds the last known row; every change goes to the table first. A job's driver is watched through a
pidfd, its directory through inotify, so nothing here polls.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider.runtime.agent import processes
from airflow_provider.runtime.agent.drivers import find_driver, last_line, shut_out, start_driver
from airflow_provider.runtime.agent.job import Closing, Fenced, Job, UnknownJob, reported, without_report
from airflow_provider.runtime.agent.jobdir import JobDirectory, Order
from airflow_provider.runtime.agent.table import JobRow, JobTable
from airflow_provider.runtime.agent.trees import remove_tree
from airflow_provider.runtime.agent.watch import DirectoryWatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

log = logging.getLogger(__name__)

Result = TypeVar("Result")

DEFAULT_GRACE_SECONDS = 5.0
_KILL_LIMIT_SECONDS = 60.0
_ADOPT_SECONDS = 1.0
_RETRY_SECONDS = 1.0


class Jobs:
    """All jobs of this agent. Belongs to one event loop."""

    def __init__(self, *, root: Path, cluster: str, private_home: bool) -> None:
        self._root = root
        self._cluster = cluster
        self._private_home = private_home
        self._table = JobTable(root / "agent" / "jobs.db")
        # One thread: SQLite calls in order, and none of them on the event loop.
        self._database = ThreadPoolExecutor(1, thread_name_prefix="database")
        self._sweepers = ThreadPoolExecutor(4, thread_name_prefix="sweep")
        self._watcher = DirectoryWatcher()
        self._jobs: dict[int, Job] = {}
        self._keys: dict[str, Job] = {}
        self._submitting = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False

    async def load(self) -> None:
        """Take over what an earlier agent left: live drivers are watched, dead ones accounted for."""
        adopting = []
        for row in await self._in_database(self._table.all):
            if row.status == "INIT":
                # Never accepted, so nobody was told its id; the client asks again with the same key.
                await self._in_database(self._table.forget, row.job_id)
                await asyncio.to_thread(remove_tree, self._directory(row.job_id).path)
                continue
            job = self._add(row)
            if not row.terminal:
                adopting.append(self._spawn(self._adopt(job)))
        if adopting:
            # Most are known at once; the end of an orphaned job may take its grace period.
            await asyncio.wait(adopting, timeout=_ADOPT_SECONDS)

    async def close(self) -> None:
        """Stop watching. Drivers and their jobs go on."""
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        self._watcher.close()
        for job in self._jobs.values():
            self._drop_driver(job)
        self._sweepers.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._database.shutdown)
        self._table.close()

    def get(self, job_id: int) -> Job:
        """Return a job.

        Raises:
            UnknownJob: there is none of that id.
        """
        try:
            return self._jobs[job_id]
        except KeyError:
            raise UnknownJob(f"no job {job_id} on this cluster") from None

    async def own(self, job: Job, owner_id: str, generation: int) -> None:
        """Check the caller's fencing token and remember it when it is newer.

        Raises:
            Fenced: a later generation owns the job.
        """
        if generation < job.row.generation:
            raise Fenced(
                f"job {job.row.job_id} is owned by {job.row.owner_id} (generation {job.row.generation}); "
                f"{owner_id} (generation {generation}) may not control it any more"
            )
        if generation > job.row.generation or owner_id != job.row.owner_id:
            job.row = replace(job.row, owner_id=owner_id, generation=generation)
            await self._in_database(self._table.own, job.row, owner_id, generation)

    async def submit(
        self,
        *,
        key: str,
        name: str,
        owner_id: str,
        generation: int,
        grace_seconds: float,
        order: Callable[[str, str], Order],
        variables: dict[str, str],
    ) -> tuple[Job, bool]:
        """Accept a job and start its driver; with a known ``key`` return the job of the first call instead.

        Args:
            key: Idempotency key.
            name: The job's name, for people.
            owner_id: Who may control it.
            generation: The owner's fencing token.
            grace_seconds: Seconds between SIGTERM and SIGKILL on cancel.
            order: Builds the driver's order from the job's marker and home directory.
            variables: Environment of setup and run, secrets among it.
        """
        if self._closing:
            raise Closing("the agent is ending")
        # In a task of its own: a caller that gives up in the middle leaves no half a job.
        return await self._unbroken(
            self._submit(key, name, owner_id, generation, grace_seconds, order, variables)
        )

    async def _submit(
        self,
        key: str,
        name: str,
        owner_id: str,
        generation: int,
        grace_seconds: float,
        order: Callable[[str, str], Order],
        variables: dict[str, str],
    ) -> tuple[Job, bool]:
        async with self._submitting:
            known = self._keys.get(key)
            if known is not None:
                await self.own(known, owner_id, generation)
                return known, False
            marker = f"{self._cluster}:{secrets.token_hex(8)}"
            row = await self._in_database(
                self._table.add, key, name, marker, owner_id, generation, grace_seconds
            )
            directory = self._directory(row.job_id)
            home = directory.path / "home" if self._private_home else Path.home()
            try:
                await asyncio.to_thread(directory.create, order(marker, str(home)), variables)
                row = replace(row, status="PENDING")
                await self._in_database(self._table.move, row)
                job = self._add(row)
                self._start_driver(job)
            except Exception:
                self._jobs.pop(row.job_id, None)
                self._keys.pop(key, None)
                self._watcher.unwatch(directory.path)
                await asyncio.to_thread(remove_tree, directory.path)
                await self._in_database(self._table.forget, row.job_id)
                raise
            return job, True

    async def cancel(self, job: Job, grace_seconds: float | None = None) -> None:
        """Begin to end a job; its status is CANCELLING until nothing of it is left. Idempotent.

        Args:
            job: The job.
            grace_seconds: 0 kills at once; any other value leaves the grace period given at submit.
        """
        await self._unbroken(self._move(job, lambda row: replace(row, status="CANCELLING")))
        if job.row.status == "CANCELLING":
            # The driver ends the job in peace; without that time its job is killed under it and swept.
            at_once = grace_seconds is not None and grace_seconds <= 0
            job.signal_driver(signal.SIGKILL if at_once else signal.SIGTERM)

    async def cancel_all(self) -> None:
        """Take no more jobs, cancel every live one and wait until all are gone."""
        self._closing = True
        async with self._submitting:
            pass  # one that is being accepted belongs to those that are cancelled
        for job in list(self._jobs.values()):
            await self.cancel(job)
        for job in list(self._jobs.values()):
            await self.ended(job)

    async def ended(self, job: Job) -> None:
        """Wait until the job's status is terminal."""
        await job.over.wait()

    async def acknowledge(self, job: Job, offset: int) -> None:
        """Remember how far the owner has read the log."""
        if offset > job.row.acknowledged:
            job.row = replace(job.row, acknowledged=offset)
            await self._in_database(self._table.acknowledge, job.row.job_id, offset)

    def _directory(self, job_id: int) -> JobDirectory:
        return JobDirectory(self._root / "jobs" / str(job_id))

    def _add(self, row: JobRow) -> Job:
        job = Job(row, self._directory(row.job_id))
        if row.terminal:
            job.over.set()
        self._jobs[row.job_id] = job
        self._keys[row.key] = job
        return job

    async def _adopt(self, job: Job) -> None:
        """Find out what became of a job that the last agent left unfinished."""
        handle = await find_driver(job.directory)
        if handle is not None:
            self._watcher.watch(job.directory.path, lambda names: self._directory_changed(job, names))
            self._watch_driver(job, handle)
            await self._read_report(job)
        elif job.row.status == "PENDING" and job.directory.driver_pid() is None:
            try:
                self._start_driver(job)
            except OSError as error:
                log.error("job %s: its driver cannot be started: %s", job.row.job_id, error)
                await self._settle(job)
        else:
            await self._settle(job)

    def _start_driver(self, job: Job) -> None:
        # Watched before it starts, so that not even its first word is missed.
        self._watcher.watch(job.directory.path, lambda names: self._directory_changed(job, names))
        self._watch_driver(job, start_driver(job.directory, self._cluster))

    def _watch_driver(self, job: Job, handle: int) -> None:
        job.driver = handle
        asyncio.get_running_loop().add_reader(handle, self._driver_ended, job)
        if job.row.status == "CANCELLING":
            job.signal_driver(signal.SIGTERM)

    def _drop_driver(self, job: Job) -> None:
        if job.driver is not None:
            asyncio.get_running_loop().remove_reader(job.driver)
            os.close(job.driver)
            job.driver = None
            self._watcher.unwatch(job.directory.path)

    def _directory_changed(self, job: Job, names: set[str] | None) -> None:
        if names is None or job.directory.log.name in names:
            job.changed.notify()
        if names is None or job.directory.report_file.name in names:
            self._spawn(self._read_report(job))

    def _driver_ended(self, job: Job) -> None:
        if job.driver is None:
            return
        with suppress(ChildProcessError):  # one that an earlier agent started is not ours to collect
            os.waitid(os.P_PIDFD, job.driver, os.WEXITED)
        self._drop_driver(job)
        self._spawn(self._settle(job))

    async def _settle(self, job: Job) -> None:
        """Account for a job whose driver is no more, however long that takes: somebody waits for its end."""
        while not job.row.terminal:
            try:
                lock = await asyncio.to_thread(shut_out, job.directory)
                if lock is None:
                    # Another driver has the job: one that a dead agent started a moment before its end.
                    await self._adopt(job)
                    return
                try:
                    await self._driver_gone(job)
                finally:
                    os.close(lock)
            except Exception:
                log.exception("job %s: cannot be settled yet", job.row.job_id)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _driver_gone(self, job: Job) -> None:
        await self._read_report(job)
        if job.row.terminal:
            return
        # It died without a last word (killed, out of memory): its job must not go on unwatched.
        marker = job.row.marker
        left = await asyncio.get_running_loop().run_in_executor(
            self._sweepers,
            lambda: processes.end(
                lambda: processes.members([], processes.JOB_MARKER, marker),
                grace=0.0 if job.row.status == "CANCELLING" else job.row.grace_seconds,
                limit=_KILL_LIMIT_SECONDS,
            ),
        )
        if left:
            log.error("job %s: processes %s cannot be killed", job.row.job_id, sorted(p.pid for p in left))
        with suppress(OSError):
            job.directory.variables_file.unlink()
        reason = "the job's driver died" + last_line(job.directory.driver_log)
        await self._move(job, lambda row: without_report(row, reason))

    async def _read_report(self, job: Job) -> None:
        """Take over what the driver last said."""
        async with job.reading:  # or an older report could be taken over after a newer one
            report = await asyncio.to_thread(job.directory.report)
            if report is not None:
                await self._move(job, lambda row: reported(row, report))

    async def _move(self, job: Job, decide: Callable[[JobRow], JobRow | None]) -> None:
        """Store the transition that ``decide`` makes of the present row, if any."""
        async with job.moving:
            before = job.row
            after = None if before.terminal else decide(before)
            if after is None or after.status == before.status:
                return
            try:
                await self._in_database(self._table.move, after)
            except sqlite3.Error as error:
                # Most likely a full disk. Whoever waits must hear of it all the same, and the driver's own files
                # tell a restarted agent what this table does not.
                log.error("job %s: cannot store %s: %s", after.job_id, after.status, error)
            # Owner and acknowledged offset may have changed while the database was at work.
            job.row = replace(
                after,
                owner_id=job.row.owner_id,
                generation=job.row.generation,
                acknowledged=job.row.acknowledged,
            )
        log.info("job %s: %s -> %s %s", after.job_id, before.status, after.status, after.reason)
        if after.terminal:
            job.over.set()
        job.changed.notify()

    async def _in_database(self, function: Callable[..., Result], *arguments: object) -> Result:
        # Shielded: what memory says must reach the table, whether or not the caller waits for it.
        return await asyncio.shield(
            asyncio.get_running_loop().run_in_executor(self._database, function, *arguments)
        )

    async def _unbroken(self, work: Coroutine[None, None, Result]) -> Result:
        """Wait for ``work``, which goes on to its end when the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task failed", exc_info=task.exception())
