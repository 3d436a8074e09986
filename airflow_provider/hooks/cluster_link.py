"""One named cluster and the connection to it, kept up over faults. Lives on one event loop."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from airflow_provider.runtime.blocking import run_blocking
from airflow_provider.runtime.client.base import AgentFailed, JobState, LinkLost, Owner
from airflow_provider.runtime.control.follower import Follower
from airflow_provider.runtime.control.machine import backoff
from airflow_provider.runtime.infra.base import Health, InfraError, NothingFree, OutOfReach

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from airflow_provider.hooks.connection import ClusterSettings
    from airflow_provider.runtime.client.base import ClusterClient
    from airflow_provider.runtime.infra.base import ClusterHandle
    from airflow_provider.runtime.task import Candidate, TaskSpec

Result = TypeVar("Result")

_MAX_FAILURES = 20


class ClusterGone(Exception):
    """There is no such cluster, or not any more; the text says how that is known."""


class ClusterUnreachable(Exception):
    """There was no contact with the cluster for too long; it may be well."""


class ClusterLink:
    """A cluster of a given name, found or made, and calls to its agent that survive broken links.

    Args:
        settings: Where clusters come from.
        name: The cluster's name within its infra.
        owner: Who controls the jobs.
        say: Takes lines on what happens to the cluster.
    """

    def __init__(
        self, settings: ClusterSettings, name: str, owner: Owner, say: Callable[[str], Awaitable[None]]
    ) -> None:
        self._settings = settings
        self._infra = settings.make_infra()
        self._name = name
        self._owner = owner
        self._say = say
        self._handle: ClusterHandle | None = None
        self._client: ClusterClient | None = None
        self._doubted = False
        self._lock = asyncio.Lock()

    async def provision(self, task: TaskSpec, *, only_one: bool = False) -> tuple[ClusterHandle, Candidate]:
        """Return the cluster, made first where there is none, and the resources that serve ``task``.

        Waits for as long as everything that suits is taken.

        Args:
            task: What is to run on it.
            only_one: Make none while it may be on a host that does not answer.

        Raises:
            ClusterUnreachable: with ``only_one``, it may be on a host that does not answer.
            NotFeasible: nothing there can ever serve the task.
            InfraError: it could not be made.
        """
        choice = await run_blocking(self._infra.choose, task)
        async with self._lock:
            waits, waiting_for = 0, ""
            while self._handle is None:
                try:
                    found = await self._found(only_one=only_one)
                    self._handle = await self._infra.provision(self._name, choice, self._say, previous=found)
                    if found is None:
                        self._handle = await self._agreed(self._handle)
                except NothingFree as error:
                    waits = min(waits + 1, 4)
                    if str(error) != waiting_for:
                        waiting_for = str(error)
                        await self._say(f"waiting: {waiting_for}")
                    await self._infra.wait_for_room(backoff(waits + 2))
        return self._handle, choice.candidate

    async def _found(self, *, only_one: bool) -> ClusterHandle | None:
        """Return the cluster if a host that answers has it; one that never answers again must not stop all work."""
        try:
            return await self._infra.find(self._name)
        except OutOfReach as error:
            if only_one:
                raise ClusterUnreachable(str(error)) from error
            if not self._doubted:
                await self._say(f"{error}. Another one is made")
            self._doubted = True
            return None

    async def _agreed(self, made: ClusterHandle) -> ClusterHandle:
        """Return the one cluster of the name where another process made one at the same time: both find the same."""
        found = await self._infra.find(self._name)
        if found is None or found.instance == made.instance:
            return made
        await self._infra.tear_down(self._name, made)
        return found

    async def call(self, work: Callable[[ClusterClient], Awaitable[Result]]) -> Result:
        """Do ``work``, which may be done more than once, with a client of the cluster's agent.

        Raises:
            ClusterGone: there is no such cluster.
            ClusterUnreachable: there was no contact with it for too long.
            ClientError: the agent refuses.
        """
        trouble = _Trouble(self._settings.unreachable_timeout)
        while True:
            try:
                return await work(await self._connected())
            except (LinkLost, AgentFailed) as error:
                await self._look_after(error, trouble)

    async def log(self, job_id: int, *, follow: bool) -> AsyncGenerator[str, None]:
        """Yield the text of a job's log from its begin, some lines at a time, without the last newline.

        Args:
            job_id: The job.
            follow: Go on until the job ends; otherwise up to what there is now.

        Raises:
            ClusterGone: there is no such cluster.
            ClusterUnreachable: there was no contact with it for too long.
            ClientError: the agent refuses.
        """
        size = None if follow else (await self.call(partial(_status, job_id))).log_size
        sink = _Collected(self._say)
        follower = Follower(job_id, sink)
        follower.log.position = follower.log.written = 0  # from the begin, whatever was read before
        trouble = _Trouble(self._settings.unreachable_timeout)
        while size is None or (follower.log.position or 0) < size:
            try:
                client = await self._connected()
                async with aclosing(follower.events(client, self._owner)) as events:
                    async for message in events:
                        trouble.over()
                        for text in sink.take():
                            yield text
                        if isinstance(message, JobState) and message.status.terminal:
                            return
                        if size is not None and (follower.log.position or 0) >= size:
                            break
            except (LinkLost, AgentFailed) as error:
                await self._look_after(error, trouble)
        for text in follower.log.finish():
            yield text

    async def remove(self) -> None:
        """Remove the cluster and everything on it; one that is not there is no error.

        Raises:
            InfraError: something is left, or the place where it is does not answer.
        """
        await self.close()
        async with self._lock:
            handle = self._handle or await self._infra.find(self._name)
            await self._infra.tear_down(self._name, handle)
            self._handle = None

    async def close(self) -> None:
        """Close the connection; the cluster lives on. Idempotent."""
        async with self._lock:
            if self._client is not None:
                client, self._client = self._client, None
                await client.close()

    async def _connected(self) -> ClusterClient:
        async with self._lock:
            if self._client is None:
                if self._handle is None:
                    try:
                        self._handle = await self._infra.find(self._name)
                    except OutOfReach as error:
                        raise ClusterUnreachable(str(error)) from error
                if self._handle is None:
                    raise ClusterGone(f"there is no cluster {self._name}")
                client = await self._infra.connect(self._handle)
                try:
                    # It lives for the length of its lease from here on, as from every call.
                    instance = await client.handshake(lease_seconds=self._settings.lease_seconds)
                except BaseException:
                    await client.close()
                    raise
                if instance != self._handle.instance:
                    await client.close()
                    self._handle = None
                    raise ClusterGone(f"another cluster answers under the name {self._name}")
                self._client = client
        return self._client

    async def _look_after(self, error: Exception, trouble: _Trouble) -> None:
        """Find out what became of the cluster after a call failed, do what can be done, and wait a moment.

        Raises:
            ClusterGone, ClusterUnreachable: nothing can be done.
        """
        await self.close()
        handle = self._handle
        if handle is None:
            raise ClusterGone(f"there is no cluster {self._name}") from error
        trouble.grew()
        try:
            probe = await self._infra.probe(handle)
            health, evidence = probe.health, probe.evidence
            if health is Health.AGENT_DOWN:
                await self._infra.restart_agent(handle)
        except (InfraError, LinkLost, AgentFailed) as problem:
            health, evidence = Health.UNREACHABLE, str(problem)
        if health is Health.GONE:
            self._handle = None
            raise ClusterGone(f"cluster {self._name} is gone: {evidence}") from error
        if trouble.enough(reachable=health is not Health.UNREACHABLE):
            raise ClusterUnreachable(f"no contact with cluster {self._name}: {evidence} ({error})") from error
        await self._say(f"{error}; trying again ({evidence})")
        await asyncio.sleep(trouble.pause())


class _Trouble:
    """How long a link has been broken.

    Args:
        limit: Seconds without contact after which it is no use to go on.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._failures = 0
        self._since: float | None = None

    def grew(self) -> None:
        self._failures += 1
        self._since = time.monotonic() if self._since is None else self._since

    def over(self) -> None:
        self._failures, self._since = 0, None

    def enough(self, *, reachable: bool) -> bool:
        if reachable:
            return self._failures >= _MAX_FAILURES
        return self._since is not None and time.monotonic() - self._since >= self._limit

    def pause(self) -> float:
        return 0.0 if self._failures == 1 else backoff(min(self._failures - 1, 3))


class _Collected:
    """A sink that keeps what is written until it is taken."""

    def __init__(self, say: Callable[[str], Awaitable[None]]) -> None:
        self._texts: list[str] = []
        self._say = say

    async def output(self, text: str) -> None:
        self._texts.append(text)

    async def say(self, message: str) -> None:
        await self._say(message)

    def take(self) -> list[str]:
        texts, self._texts = self._texts, []
        return texts


async def _status(job_id: int, client: ClusterClient) -> JobState:
    return await client.status(job_id)
