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
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from airflow_provider.runtime.agent import processes
from airflow_provider.runtime.agent.jobdir import JobDirectory, Order
from airflow_provider.runtime.agent.table import JobRow, JobTable
from airflow_provider.runtime.agent.watch import DirectoryWatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

log = logging.getLogger(__name__)

Result = TypeVar("Result")

DEFAULT_GRACE_SECONDS = 5.0
_KILL_LIMIT_SECONDS = 60.0
# The directory that holds the package, for a driver started without site-packages (-S saves half its start time).
_IMPORT_ROOT = str(Path(__file__).parents[3])
_DRIVER = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from airflow_provider.runtime.agent.driver import main; main(sys.argv[2])"
)


class Fenced(Exception):
    """The caller's generation is older than the one that owns the job."""


class UnknownJob(Exception):
    """No job has that id."""


class Changed:
    """Wakes every waiter at a change; a waiter that comes later waits for the next one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake all who wait now."""
        self._event.set()
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Return the event of the next change: take it before looking, wait on it after."""
        return self._event


@dataclass
class Job:
    """One job in memory: its stored row, its directory, and who waits for its changes."""

    row: JobRow
    directory: JobDirectory
    changed: Changed
    moving: asyncio.Lock
    """Held while a transition is decided and stored, so that each sees the one before."""
    driver: int | None = None
    """pidfd of the live driver."""


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
        self._tasks: set[asyncio.Task[None]] = set()

    async def load(self) -> None:
        """Take over what an earlier agent left: live drivers are watched, dead ones accounted for."""
        for row in await self._in_database(self._table.all):
            if row.status == "INIT":
                # Never accepted, so nobody was told its id; the client asks again with the same key.
                await self._in_database(self._table.forget, row.job_id)
                continue
            job = self._add(row)
            if not row.terminal:
                await self._adopt(job)

    async def close(self) -> None:
        """Stop watching. Drivers and their jobs go on."""
        for task in list(self._tasks):
            task.cancel()
        self._watcher.close()
        for job in self._jobs.values():
            self._drop_driver(job)
        self._database.shutdown()
        self._sweepers.shutdown()
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
        async with self._submitting:
            known = self._keys.get(key)
            if known is not None:
                await self.own(known, owner_id, generation)
                return known, False
            row = await self._in_database(self._table.add, key, name, owner_id, generation, grace_seconds)
            job = self._add(row)
            try:
                home = job.directory.path / "home" if self._private_home else Path.home()
                marker = f"{self._cluster}:{row.job_id}:{secrets.token_hex(8)}"
                await asyncio.to_thread(job.directory.create, order(marker, str(home)), variables)
                await self._move(job, lambda row: replace(row, status="PENDING"))
                self._start_driver(job)
            except OSError:
                del self._jobs[row.job_id], self._keys[key]
                await self._in_database(self._table.forget, row.job_id)
                raise
            return job, True

    async def cancel(self, job: Job, grace_seconds: float | None = None) -> None:
        """Begin to end a job; its status is CANCELLING until nothing of it is left. Idempotent.

        Args:
            job: The job.
            grace_seconds: 0 kills at once; any other value leaves the grace period given at submit.
        """
        await self._move(job, lambda row: replace(row, status="CANCELLING"))
        if job.driver is not None and job.row.status == "CANCELLING":
            # The driver ends the job in peace; without that time its job is killed under it and swept.
            at_once = grace_seconds is not None and grace_seconds <= 0
            signal.pidfd_send_signal(job.driver, signal.SIGKILL if at_once else signal.SIGTERM)

    async def cancel_all(self) -> None:
        """Cancel every live job and wait until all are gone."""
        for job in list(self._jobs.values()):
            await self.cancel(job)
        for job in list(self._jobs.values()):
            await self.ended(job)

    async def ended(self, job: Job) -> None:
        """Wait until the job's status is terminal."""
        while True:
            change = job.changed.next()
            if job.row.terminal:
                return
            await change.wait()

    async def acknowledge(self, job: Job, offset: int) -> None:
        """Remember how far the owner has read the log."""
        if offset > job.row.acknowledged:
            job.row = replace(job.row, acknowledged=offset)
            await self._in_database(self._table.acknowledge, job.row.job_id, offset)

    def _add(self, row: JobRow) -> Job:
        job = Job(row, JobDirectory(self._root / "jobs" / str(row.job_id)), Changed(), asyncio.Lock())
        self._jobs[row.job_id] = job
        self._keys[row.key] = job
        return job

    async def _adopt(self, job: Job) -> None:
        """Find out what became of a job that the last agent left unfinished."""
        lock = await asyncio.to_thread(job.directory.lock)
        if lock is not None:
            os.close(lock)
            if job.directory.driver_pid() is None and job.row.status == "PENDING":
                self._start_driver(job)
            else:
                await self._driver_gone(job)
            return
        pid = job.directory.driver_pid()
        if pid is None:
            # It holds the lock but has not written its pid yet: it will within milliseconds.
            change = job.changed.next()
            self._watcher.watch(job.directory.path, lambda names: job.changed.notify())
            await change.wait()
            await self._adopt(job)
            return
        try:
            self._watch_driver(job, os.pidfd_open(pid))
        except ProcessLookupError:
            await self._driver_gone(job)
            return
        await self._read_report(job)
        if job.row.status == "CANCELLING" and job.driver is not None:
            signal.pidfd_send_signal(job.driver, signal.SIGTERM)

    def _start_driver(self, job: Job) -> None:
        with open(job.directory.driver_log, "ab") as errors:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _DRIVER, _IMPORT_ROOT, str(job.directory.path)],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
                cwd="/",
                env={**os.environ, processes.CLUSTER_MARKER: self._cluster},
            )
        self._watch_driver(job, os.pidfd_open(child.pid))
        # The pidfd tells of its end and the exit code is in its report: Popen has nothing left to do.
        child.returncode = 0

    def _watch_driver(self, job: Job, handle: int) -> None:
        job.driver = handle
        asyncio.get_running_loop().add_reader(handle, self._driver_ended, job)
        self._watcher.watch(job.directory.path, lambda names: self._directory_changed(job, names))

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
        self._spawn(self._driver_gone(job))

    async def _driver_gone(self, job: Job) -> None:
        """Settle a job whose driver is no more."""
        await self._read_report(job)
        if job.row.terminal:
            return
        # It died without a last word (killed, out of memory): its job must not go on unwatched.
        marker = job.directory.order().marker
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
        job.directory.variables_file.unlink(missing_ok=True)
        died = "the job's driver died" + _last_line(job.directory.driver_log)

        def decide(row: JobRow) -> JobRow:
            if row.status == "CANCELLING":
                return replace(row, status="CANCELLED", reason="cancelled", ended_at=time.time())
            return replace(row, status="FAILED_DRIVER", reason=died, ended_at=time.time())

        await self._move(job, decide)

    async def _read_report(self, job: Job) -> None:
        """Take over what the driver last said."""
        report = await asyncio.to_thread(job.directory.report)
        if report is None:
            return

        def decide(row: JobRow) -> JobRow | None:
            if row.status == "CANCELLING":
                if not report.ended_at:
                    return None
                # Who asked for the end gets it confirmed, also when the job was faster.
                return replace(row, status="CANCELLED", reason="cancelled", ended_at=report.ended_at)
            return replace(
                row,
                status=report.status,
                exit_codes=report.exit_codes,
                reason=report.reason,
                output=report.output,
                started_at=report.started_at,
                ended_at=report.ended_at,
            )

        await self._move(job, decide)

    async def _move(self, job: Job, decide: Callable[[JobRow], JobRow | None]) -> bool:
        """Store the transition that ``decide`` makes of the present row; False when there is none to make."""
        async with job.moving:
            before = job.row
            after = None if before.terminal else decide(before)
            if after is None or after.status == before.status:
                return False
            if not await self._in_database(self._table.move, before, after):
                raise RuntimeError(f"job {before.job_id} was changed by another agent")
            # Owner and acknowledged offset may have changed while the database was at work.
            job.row = replace(
                after,
                owner_id=job.row.owner_id,
                generation=job.row.generation,
                acknowledged=job.row.acknowledged,
            )
        log.info("job %s: %s -> %s %s", after.job_id, before.status, after.status, after.reason)
        job.changed.notify()
        return True

    async def _in_database(self, function: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._database, function, *arguments)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task failed", exc_info=task.exception())


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except FileNotFoundError:
        return ""
    return f": {lines[-1]}" if lines else ""
