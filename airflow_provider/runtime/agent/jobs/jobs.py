"""The agent's jobs: accepting them, letting them wait their turn, ending them.

Every change goes to the table first, and only from the status that it was decided on. In memory are the jobs that have
not ended, and those that somebody looks at.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from airflow_provider.runtime.agent.background import Background
from airflow_provider.runtime.agent.jobs.job import (
    Closing,
    Fenced,
    Job,
    NeverFits,
    UnknownJob,
    WrongStatus,
    failed,
    without_report,
)
from airflow_provider.runtime.agent.jobs.jobdir import JobDirectory, Order
from airflow_provider.runtime.agent.jobs.names import safe_name
from airflow_provider.runtime.agent.jobs.placement import Demand, Node, Share, matches, misfit
from airflow_provider.runtime.agent.jobs.queue import Queue
from airflow_provider.runtime.agent.jobs.store import Store
from airflow_provider.runtime.agent.jobs.supervisor import Supervisor
from airflow_provider.runtime.agent.jobs.table import JobRow, JobTable, NewJob
from airflow_provider.runtime.agent.trees import remove_tree
from airflow_provider.runtime.agent.waiting import happens

Result = TypeVar("Result")

DEFAULT_GRACE_SECONDS = 5.0
ADDED_SECONDS = 60.0
"""How long a job that was added may wait to be queued, as with SkyPilot's skylet."""
_ADOPT_SECONDS = 1.0


class Jobs:
    """All jobs of this agent. Belongs to one event loop.

    Args:
        root: The agent's directory.
        cluster: What the environment of every process of the cluster carries.
        private_home: Whether each job has a home directory of its own.
        capacity: What the node has for jobs.
        on_change: Called whenever a job was accepted or has ended.
        refusing: Whether the cluster's end is decided, so that no job may come any more.

    Raises:
        DamagedTable: the job table cannot be used any more.
    """

    def __init__(
        self,
        *,
        root: Path,
        cluster: str,
        private_home: bool,
        capacity: Node,
        on_change: Callable[[], None] = lambda: None,
        refusing: Callable[[], bool] = lambda: False,
    ) -> None:
        self._root = root
        self._cluster = cluster
        self._private_home = private_home
        self._on_change = on_change
        self._refusing = refusing
        self.arriving = 0
        """How many jobs are being accepted: not live yet, and not to be overlooked."""
        self._background = Background()
        self._store = Store(root / "agent" / "jobs.db", self._background, self._ended)
        self._supervisor = Supervisor(cluster=cluster, store=self._store, background=self._background)
        self._live: dict[int, Job] = {}
        self._known: WeakValueDictionary[int, Job] = WeakValueDictionary()
        self._adding = asyncio.Lock()
        self._loaded = False
        self._closing = False
        self.queue = Queue(capacity)

    async def load(self) -> None:
        """Take over what an earlier agent left: live drivers are watched, dead ones accounted for, the rest queued."""
        for directory in ("jobs", "sky_logs"):
            (self._root / directory).mkdir(mode=0o700, exist_ok=True)
        warm = self._background.spawn(self._supervisor.warm_up())
        adopting = []
        for row in await self._store.call(JobTable.live):
            if row.status != "INIT":
                adopting.append(self._background.spawn(self._adopt(self._hold(row))))
            elif row.program:
                self._background.spawn(self._expire(self._hold(row)))
            else:
                # Never accepted, so nobody was told its id; the client asks again with the same key.
                await self._discard(self._job(row))
        if adopting:
            # Most are known at once; the end of an orphaned job may take its grace period.
            await asyncio.wait(adopting, timeout=_ADOPT_SECONDS)
        await warm
        # Not before all is known that runs already: it has its part of the node.
        self._loaded = True
        self._schedule()

    async def close(self) -> None:
        """Stop watching. Drivers and their jobs go on."""
        self._closing = True
        await self._background.close()
        await self._supervisor.close()
        await self._store.close()

    async def cancel_all(self) -> None:
        """Take no more jobs, cancel every live one and wait until all are gone."""
        self._closing = True
        async with self._adding:
            pass  # one that is being accepted belongs to those that are cancelled
        live = self.live()
        for job in reversed(live):  # those that wait before those that make room for them
            await self.cancel(job)
        for job in live:
            await self.ended(job)

    def live(self) -> list[Job]:
        """Return the jobs that have not ended, by id."""
        return [self._live[job_id] for job_id in sorted(self._live)]

    async def get(self, job_id: int) -> Job:
        """Return a job.

        Raises:
            UnknownJob: there is none of that id.
        """
        known = self._known.get(job_id)
        if known is not None:
            return known
        row = await self._store.call(lambda table: table.get(job_id)) if 0 < job_id < 1 << 63 else None
        if row is None:
            raise UnknownJob(f"no job {job_id} on this cluster")
        return self._known.get(job_id) or self._job(row)

    async def read(self, look: Callable[[JobTable], Result]) -> Result:
        """Return what ``look`` finds in the table, in the table's thread."""
        return await self._store.call(look)

    def following(self, job: Job) -> AbstractContextManager[None]:
        """Have ``job.changed`` tell of new bytes in the log too, as long as the context."""
        return self._supervisor.following(job)

    async def submit(
        self,
        new: NewJob,
        *,
        demand: Demand,
        order: Callable[[str, str], Order],
        variables: dict[str, str],
        accepted: Callable[[JobTable, JobRow], None] = lambda table, row: None,
    ) -> tuple[Job, bool]:
        """Accept a job and queue it; with a known key return the job of the first call instead.

        Args:
            new: What is to be stored of it; its marker is ours to choose.
            demand: What it takes of the node.
            order: Builds the driver's order from the job's marker and home directory.
            variables: Environment of setup and run, secrets among it.
            accepted: Called in the table's thread with the new row, to store what belongs to it.

        Raises:
            NeverFits: the node does not have what it demands.
            Closing: the agent is ending.
            Fenced: the key's job has a later owner.
        """
        return await self._accept(self._submit(new, demand, order, variables, accepted))

    async def _accept(self, work: Coroutine[None, None, Result]) -> Result:
        """Do what brings a job."""
        if self._closing or self._refusing():
            work.close()
            raise Closing("the cluster is ending")

        self.arriving += 1  # in the same moment as the look at whether it may come

        async def counted() -> Result:
            try:
                return await work
            finally:
                self.arriving -= 1
                self._on_change()

        # In a task of its own: a caller that gives up in the middle leaves no half a job.
        return await self._background.unbroken(counted())

    async def _submit(
        self,
        new: NewJob,
        demand: Demand,
        order: Callable[[str, str], Order],
        variables: dict[str, str],
        accepted: Callable[[JobTable, JobRow], None],
    ) -> tuple[Job, bool]:
        async with self._adding:
            known = await self._store.call(lambda table: table.by_key(new.key))
            if known is not None and known.status != "INIT":
                job = self._known.get(known.job_id) or self._job(known)
                await self.own(job, new.owner_id, new.generation)
                return job, False
            row = await self._add(new, demand)
            job = self._job(row)
            try:
                await self._prepare(job, order, variables)
                await self._store.call(lambda table: accepted(table, row))
                await self._enter(job, demand)
            except BaseException:
                self._forget(job)
                await self._discard(job)
                raise
            return job, True

    async def add(self, new: NewJob, *, demand: Demand) -> Job:
        """Give a job an id, to be queued later; the same words again give the same job as long as it is not queued.

        Raises:
            NeverFits: the node does not have what it demands.
            Closing: the agent is ending.
        """

        async def work() -> Job:
            async with self._adding:
                if new.run_timestamp:  # without it, nothing tells a repeated call from another job
                    known = await self._store.call(
                        lambda table: table.added(new.name, new.username, new.run_timestamp)
                    )
                    if known is not None:
                        return self._live[known.job_id]
                job = self._hold(await self._add(new, demand))
                self._background.spawn(self._expire(job))
                return job

        return await self._accept(work())

    async def enqueue(self, job: Job, order: Callable[[str, str], Order]) -> None:
        """Queue a job that was added; one that is queued already stays as it is.

        Raises:
            WrongStatus: it ended without ever being queued.
            Closing: the agent is ending.
        """

        async def work() -> None:
            async with self._adding:
                if job.row.status != "INIT":
                    if job.row.terminal and not job.row.boot_id:
                        raise WrongStatus(
                            f"job {job.row.job_id} is {job.row.status} ({job.row.reason}) and was never queued"
                        )
                    return
                await self._prepare(job, order, {})
                await self._enter(job, demand_of(job.row))

        await self._accept(work())

    async def _add(self, new: NewJob, demand: Demand) -> JobRow:
        reason = misfit(self.queue.node, demand)
        if reason is not None:
            raise NeverFits(f"the job can never run on this node: {reason}")
        stored = replace(new, marker=f"{self._cluster}:{secrets.token_hex(8)}", demand=demand_text(demand))
        return await self._store.call(lambda table: table.add(stored))

    async def _prepare(self, job: Job, order: Callable[[str, str], Order], variables: dict[str, str]) -> None:
        home = job.directory.path / "home" if self._private_home else Path.home()
        # What is brought into a home that stays is written down, to be removed with the cluster.
        root = "" if self._private_home else str(self._root)
        ready = order(job.row.marker, str(home))._replace(logs=str(job.directory.logs), root=root)
        await asyncio.to_thread(job.directory.create, ready, variables)

    async def _enter(self, job: Job, demand: Demand) -> None:
        """Let an accepted job wait for its turn."""
        await self._store.move(
            job, lambda row: replace(row, status="PENDING") if row.status == "INIT" else None
        )
        if job.row.status == "PENDING":
            self._live[job.row.job_id] = job
            self.queue.add(job.row.job_id, demand)
            self._schedule()

    async def _expire(self, job: Job) -> None:
        """Fail a job that was added and is never queued: it must not look busy for ever."""
        if await happens(job.over, ADDED_SECONDS):
            return
        await self._store.move(
            job,
            lambda row: (
                failed(row, f"not queued within {ADDED_SECONDS:.0f} s") if row.status == "INIT" else None
            ),
        )

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
            await self._store.call(lambda table: table.own(job.row.job_id, owner_id, generation))

    async def cancel(self, job: Job, grace_seconds: float | None = None) -> None:
        """Begin to end a job; its status is CANCELLING until nothing of it is left. Idempotent.

        Args:
            job: The job.
            grace_seconds: 0 kills at once; any other value leaves the grace period given at submit.
        """
        await self._background.unbroken(self._store.move(job, lambda row: replace(row, status="CANCELLING")))
        if job.row.status == "CANCELLING":
            # The driver ends the job in peace; without that time its job is killed under it and swept.
            job.kill = job.kill or (grace_seconds is not None and grace_seconds <= 0)
            await self._end(job)

    async def fail(self, job: Job, reason: str) -> None:
        """Begin to end a job as FAILED_DRIVER. Idempotent."""
        job.verdict, job.kill = reason, True
        await self._end(job)

    async def _end(self, job: Job) -> None:
        if job.launched:
            self._supervisor.end(job)
        else:
            self.queue.remove(job.row.job_id)  # first of all: nothing may start it meanwhile
            reason = job.verdict or "it never started"
            await self._background.unbroken(self._store.move(job, lambda row: without_report(row, reason)))

    async def ended(self, job: Job) -> None:
        """Wait until the job's status is terminal."""
        await job.over.wait()

    async def acknowledge(self, job: Job, offset: int) -> None:
        """Remember how far the owner has read the log."""
        if offset > job.row.acknowledged:
            job.row = replace(job.row, acknowledged=offset)
            await self._store.call(lambda table: table.acknowledge(job.row.job_id, offset))

    def _schedule(self) -> None:
        """Start what fits now."""
        if self._closing or not self._loaded:
            return
        for job_id, share in self.queue.start():
            job = self._live[job_id]
            job.launched = True
            devices = ",".join(share.devices) if self.queue.node.devices else None
            self._background.spawn(self._supervisor.launch(job, devices))

    async def _adopt(self, job: Job) -> None:
        # Whatever becomes of it: what it has, nobody else gets until it has ended.
        if job.row.status != "PENDING" or await asyncio.to_thread(job.directory.driver_pid) is not None:
            self.queue.adopt(job.row.job_id, await asyncio.to_thread(self._share, job))
        if await self._supervisor.adopt(job):
            return
        self.queue.remove(job.row.job_id)
        demand = demand_of(job.row)
        reason = misfit(self.queue.node, demand)
        if reason is not None:  # the node has become smaller
            await self._store.move(
                job, lambda row: failed(row, f"the job can never run on this node: {reason}")
            )
        elif job.row.status == "PENDING":
            self.queue.add(job.row.job_id, demand)
            self._schedule()

    def _share(self, job: Job) -> Share:
        """Return what a running job has, from its order."""
        demand = demand_of(job.row)
        try:
            names_given = (job.directory.order().devices or "").split(",")
        except (OSError, ValueError, TypeError, KeyError):
            names_given = []
        devices = {
            device.name: min(1.0, count)
            for device in self.queue.node.devices
            for model, count in demand.accelerators.items()
            if device.name in names_given and matches(model, device.model)
        }
        return Share(demand.cpus, demand.memory, devices)

    def _job(self, row: JobRow) -> Job:
        logs = self.logs(row)
        if row.status == "INIT":
            row = replace(row, logs=logs.name)  # stored with the first transition
        job = Job(row, JobDirectory(self._path(row.job_id), logs))
        if row.terminal:
            job.over.set()
        self._known[row.job_id] = job
        return job

    def _hold(self, row: JobRow) -> Job:
        job = self._job(row)
        self._live[row.job_id] = job
        return job

    def _ended(self, job: Job) -> None:
        self._background.spawn(asyncio.to_thread(job.directory.forget_secrets))
        self._forget(job)
        self._on_change()
        self._schedule()

    def _forget(self, job: Job) -> None:
        self.queue.remove(job.row.job_id)
        self._live.pop(job.row.job_id, None)

    async def _discard(self, job: Job) -> None:
        """Remove a job that was never accepted."""
        await asyncio.to_thread(remove_tree, job.directory.path)
        await asyncio.to_thread(remove_tree, job.directory.logs)
        await self._store.call(lambda table: table.forget(job.row.job_id))

    def logs(self, row: JobRow) -> Path:
        """Return the log directory of a job."""
        if row.status == "INIT":
            return self._root / "sky_logs" / f"{row.job_id}-{safe_name(row.name)}"
        return self._root / "sky_logs" / row.logs if row.logs else self._path(row.job_id)

    def _path(self, job_id: int) -> Path:
        return self._root / "jobs" / str(job_id)


def demand_text(demand: Demand) -> str:
    """Return a demand as it is stored."""
    return json.dumps(
        {"cpus": demand.cpus, "memory": demand.memory, "accelerators": dict(demand.accelerators)}
    )


def demand_of(row: JobRow) -> Demand:
    """Return what a stored job takes of the node."""
    return Demand(**json.loads(row.demand))
