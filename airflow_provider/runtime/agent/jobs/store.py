"""The job table in a thread of its own, and the one way in which a job's status changes."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from airflow_provider.runtime.agent.jobs.table import JobRow, JobTable

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider.runtime.agent.background import Background
    from airflow_provider.runtime.agent.jobs.job import Job

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_RETRY_SECONDS = 1.0


class Store:
    """Access to the table from one event loop.

    Args:
        path: The database.
        background: Takes what has to be stored later.
        ended: Called with each job that ends.

    Raises:
        DamagedTable: the file is no sound database any more.
    """

    def __init__(self, path: Path, background: Background, ended: Callable[[Job], None]) -> None:
        self._table = JobTable(path)
        self._background = background
        self._ended = ended
        # One thread: calls in order, and none of them on the event loop.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="database")

    async def call(self, look: Callable[[JobTable], Result]) -> Result:
        """Return what ``look`` finds or does in the table."""
        # Shielded: what memory says must reach the table, whether or not the caller waits for it.
        return await asyncio.shield(
            asyncio.get_running_loop().run_in_executor(self._thread, look, self._table)
        )

    async def move(self, job: Job, decide: Callable[[JobRow], JobRow | None]) -> None:
        """Store the transition that ``decide`` makes of the present row, if any; what has ended stays as it is."""
        async with job.moving:
            before = job.row
            after = None if before.terminal else decide(before)
            if after is None or after.status == before.status:
                return
            stored = True
            try:
                if job.unsaved:
                    await self.call(lambda table: table.store(after))
                else:
                    stored = await self.call(lambda table: table.move(before.status, after))
                job.unsaved = False
            except sqlite3.Error as error:
                if before.status == "INIT":
                    raise  # nobody counts on it yet
                # Most likely a full disk. Whoever waits must hear of it all the same.
                log.error("job %s: cannot store %s yet: %s", after.job_id, after.status, error)
                if not job.unsaved:
                    job.unsaved = True
                    self._background.spawn(self._later(job))
            if not stored:
                raise RuntimeError(f"job {after.job_id}: the table does not have it as {before.status}")
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
            self._ended(job)
        job.changed.notify()

    async def close(self) -> None:
        """Finish what is being stored, and close the table."""
        await asyncio.to_thread(self._thread.shutdown)
        self._table.close()

    async def _later(self, job: Job) -> None:
        """Store what could not be stored when it happened, unless a later transition could."""
        while True:
            await asyncio.sleep(_RETRY_SECONDS)
            async with job.moving:
                if not job.unsaved:
                    return
                with suppress(sqlite3.Error):
                    await self.call(lambda table: table.store(job.row))
                    job.unsaved = False
