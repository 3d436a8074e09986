"""Drivers from start to end: each is watched through a pidfd, its directory through inotify, so nothing here polls."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.jobs.drivers import Drivers, find_driver, last_line, shut_out
from airflow_provider.runtime.agent.jobs.job import Job, reported, without_report
from airflow_provider.runtime.agent.node import boot_id
from airflow_provider.runtime.agent.process.children import HURRY
from airflow_provider.runtime.agent.process.sweep import end_job
from airflow_provider.runtime.agent.waiting import happens
from airflow_provider.runtime.agent.watch import DirectoryWatcher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.agent.background import Background
    from airflow_provider.runtime.agent.jobs.store import Store

log = logging.getLogger(__name__)

_KILL_LIMIT_SECONDS = 60.0
_RETRY_SECONDS = 1.0
_HURRY_SECONDS = 3.0
"""How long a driver may take to kill its job."""
_SHORTAGES = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})


class Supervisor:
    """Starts drivers, hears what they report, and accounts for those that die. Belongs to one event loop.

    Args:
        cluster: What the environment of every process of the cluster carries.
        store: Takes the transitions.
        background: Takes the work.
    """

    def __init__(self, *, cluster: str, store: Store, background: Background) -> None:
        self._store = store
        self._background = background
        self._boot_id = boot_id()
        self._drivers = Drivers(cluster)
        # As many as there may be dead drivers at a time: each waits for a grace period.
        self._sweepers = ThreadPoolExecutor(64, thread_name_prefix="sweep")
        self._watcher = DirectoryWatcher()
        self._watched: set[Job] = set()

    async def warm_up(self) -> None:
        """Be ready to start a driver at once."""
        await self._drivers.warm_up()

    async def close(self) -> None:
        """Stop watching. Drivers and their jobs go on."""
        for job in list(self._watched):
            self._drop_driver(job)
        self._watcher.close()
        self._sweepers.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._drivers.close)

    async def launch(self, job: Job, devices: str | None) -> None:
        """Start the job's driver; one that cannot be started ends the job as FAILED_DRIVER.

        Args:
            job: A job in PENDING whose turn it is.
            devices: ``CUDA_VISIBLE_DEVICES`` of its run commands; None: the node has none to hand out.
        """
        job.row = replace(job.row, boot_id=self._boot_id)  # stored with the next transition
        try:
            if devices is not None:
                await asyncio.to_thread(job.directory.assign, devices)
            # Watched before it starts, so that not even its first word is missed.
            self._watch_directory(job)
            self._watch_driver(job, await self._start(job))
        except OSError as error:
            log.error("job %s: its driver cannot be started: %s", job.row.job_id, error)
            self._watcher.unwatch(job.directory.path)
            await self._settle(job, f"the job's driver cannot be started: {error}")

    async def _start(self, job: Job) -> int:
        while True:
            try:
                return await self._drivers.start(job.directory)
            except OSError as error:
                # The machine is short of something for the moment. Failing the job would only let the next one fail.
                if error.errno not in _SHORTAGES or job.row.status != "PENDING" or job.verdict:
                    raise
                log.warning("job %s: its driver cannot be started yet: %s", job.row.job_id, error)
            await asyncio.sleep(_RETRY_SECONDS)

    def end(self, job: Job) -> None:
        """Have the driver, if there is one, end its job: at once if ``job.kill``, else in its grace period.

        A driver that does not (its job may have stopped it) is killed, and the job swept.
        """
        # Asked, not killed, also when there is no time: only the driver sees all that its job started.
        job.signal_driver(HURRY if job.kill else signal.SIGTERM, signal.SIGCONT)
        patience = _HURRY_SECONDS if job.kill else job.row.grace_seconds + _KILL_LIMIT_SECONDS
        self._background.spawn(self._escalate(job, patience))

    async def _escalate(self, job: Job, patience: float) -> None:
        if not await happens(job.over, patience):
            job.signal_driver(signal.SIGKILL)

    async def adopt(self, job: Job) -> bool:
        """Find out what became of a job that the last agent left unfinished; False when it was never started."""
        handle = await find_driver(job.directory)
        if handle is not None:
            job.launched = True
            self._watch_directory(job)
            self._watch_driver(job, handle)
            await self._read_report(job)
        elif job.row.status == "PENDING" and job.directory.driver_pid() is None:
            return False
        else:
            job.launched = True
            rebooted = job.row.boot_id not in ("", self._boot_id)
            await self._settle(
                job,
                "the machine was booted again while the job ran" if rebooted else "the job's driver died",
            )
        return True

    @contextmanager
    def following(self, job: Job) -> Iterator[None]:
        """Have ``job.changed`` tell of new bytes in the log too, as long as the context."""
        logs = job.directory.logs
        apart = logs != job.directory.path  # otherwise the driver's directory is watched anyway
        job.followers += 1
        if apart and job.followers == 1 and not job.row.terminal:
            self._watcher.watch(logs, lambda names: job.changed.notify())
        try:
            yield
        finally:
            job.followers -= 1
            if apart and not job.followers:
                self._watcher.unwatch(logs)

    def _watch_directory(self, job: Job) -> None:
        self._watcher.watch(job.directory.path, lambda names: self._directory_changed(job, names))

    def _watch_driver(self, job: Job, handle: int) -> None:
        job.driver = handle
        self._watched.add(job)
        asyncio.get_running_loop().add_reader(handle, self._driver_ended, job)
        if job.row.terminal or job.row.status == "CANCELLING" or job.verdict:
            self.end(job)

    def _drop_driver(self, job: Job) -> None:
        if job.driver is not None:
            asyncio.get_running_loop().remove_reader(job.driver)
            os.close(job.driver)
            job.driver = None
            self._watched.discard(job)
            self._watcher.unwatch(job.directory.path)

    def _directory_changed(self, job: Job, names: set[str] | None) -> None:
        if names is None or job.directory.log.name in names:
            job.changed.notify()
        if names is None or job.directory.report_file.name in names:
            self._background.spawn(self._read_report(job))

    def _driver_ended(self, job: Job) -> None:
        if job.driver is not None:
            self._drop_driver(job)
            self._background.spawn(self._settle(job, "the job's driver died"))

    async def _settle(self, job: Job, reason: str) -> None:
        """Account for a job whose driver is no more, however long that takes: somebody waits for its end."""
        while not job.row.terminal:
            try:
                lock = await asyncio.to_thread(shut_out, job.directory)
                if lock is None:
                    # Another driver has the job: one that a dead agent started a moment before its end.
                    await self.adopt(job)
                    return
                try:
                    await self._driver_gone(job, reason)
                finally:
                    os.close(lock)
            except Exception:
                log.exception("job %s: cannot be settled yet", job.row.job_id)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _driver_gone(self, job: Job, reason: str) -> None:
        await self._read_report(job)
        if job.row.terminal:
            return
        # It died without a last word (killed, out of memory): its job must not go on unwatched.
        await asyncio.get_running_loop().run_in_executor(self._sweepers, _sweep, job)
        last = await asyncio.to_thread(last_line, job.directory.driver_log)
        told = job.verdict or reason + last
        await self._store.move(job, lambda row: without_report(row, told))

    async def _read_report(self, job: Job) -> None:
        """Take over what the driver last said."""
        async with job.reading:  # or an older report could be taken over after a newer one
            report = await asyncio.to_thread(job.directory.report)
            # The last word is the driver's last act: as long as it lives, such a report is somebody else's.
            if report is not None and (job.driver is None or not report.ended_at):
                await self._store.move(job, lambda row: reported(row, report))


def _sweep(job: Job) -> None:
    """End what a dead driver left of its job. Blocking."""
    grace = job.row.grace_seconds
    left = end_job(
        job.row.marker,
        grace=grace,
        limit=grace + _KILL_LIMIT_SECONDS,
        # Asked for meanwhile: who cancels a job without a driver has waited long enough.
        hurry=lambda: job.kill or job.row.status == "CANCELLING",
    )
    if left:
        log.error("job %s: processes %s cannot be killed", job.row.job_id, sorted(p.pid for p in left))
