"""Clusters that DAG authors work with by name, from TaskFlow functions and scripts."""

from __future__ import annotations

import asyncio
import re
import tempfile
import uuid
from collections import deque
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from airflow_provider.hooks.cluster_job import LAST_LINES, JobFailed, request_of, result_of, task_of
from airflow_provider.hooks.running import arun_on_own_loop, run_on_own_loop
from airflow_provider.runtime.agent.waiting import within
from airflow_provider.runtime.client.base import Owner
from airflow_provider.runtime.infra.base import InfraError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping
    from pathlib import Path

    from typing_extensions import Self

    from airflow_provider.hooks.cluster import ClusterHook
    from airflow_provider.hooks.cluster_job import JobResult
    from airflow_provider.hooks.cluster_link import ClusterLink
    from airflow_provider.runtime.client.base import ClusterClient, JobState
    from airflow_provider.runtime.task import TaskSpec

    Task = str | Mapping[str, object] | TaskSpec

Result = TypeVar("Result")

GRACE_SECONDS = 5.0
_CANCEL_MARGIN_SECONDS = 70.0
_END_SECONDS = 30.0
"""How long an interrupted ``run`` tries to cancel its job on a cluster that does not answer."""
_ATTEMPTS = 3
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


class NamedCluster:
    """A cluster of a connection, got or made by its name at the first job.

    It lives until ``down``, or until nobody has spoken to it for the length of its lease. As a context manager it is
    taken down at the end. Every method has a twin for coroutines, whose name begins with an ``a``; both may be called
    from wherever an event loop runs or none does.

    .. code-block:: python

        @task
        def train() -> float:
            cluster = ClusterHook("gpus").cluster("digits")
            cluster.run({"workdir": "src", "run": "python prepare.py"})
            return cluster.run("python train.py > log.txt && tail -1 log.txt > $TASK_OUTPUT_FILE").output


        async def evaluate() -> None:
            async with ClusterHook("gpus").cluster("digits") as cluster:
                job_id = await cluster.asubmit("python evaluate.py")
                async for line in cluster.alogs(job_id):
                    print(line)

    Args:
        hook: The connection.
        name: The cluster's name; whoever gives the same one gets the same cluster.
    """

    def __init__(self, hook: ClusterHook, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be a cluster's name: it must match {_NAME.pattern}")
        self.name = name
        self._hook = hook
        self._owner = Owner(f"hook:{name}", 1)
        self._link: ClusterLink | None = None
        self._linking = asyncio.Lock()

    def run(
        self,
        task: Task,
        *,
        key: str | None = None,
        check: bool = True,
        log: Callable[[str], object] | None = None,
    ) -> JobResult:
        """Run a job to its end and return how it ended.

        Interrupted (by a time-out, say, or as its Airflow task is stopped), it cancels the job.

        Args:
            task: A shell command, a mapping with the keys of a task YAML (``run``, ``setup``, ``envs``, ``secrets``,
                ``workdir``, ``file_mounts``, ``resources``), or a task.
            key: A second call with the same key goes on with the first one's job, even from another process.
            check: Raise when the job does not succeed.
            log: Takes the lines of the job's log; by default they go to the log of the Airflow task.

        Raises:
            JobFailed: the job did not succeed.
            TaskValidationError: the task is not valid.
            ClusterGone: the cluster vanished while the job ran.
        """
        write = log or self._hook.log.info
        last: deque[str] = deque(maxlen=LAST_LINES)
        job_id = self.submit(task, key=key)
        try:
            for line in self.logs(job_id):
                last.append(line)
                write(line)
            state = self.status(job_id)
        except BaseException:
            with suppress(Exception):  # why we end says more than that; the cluster's lease ends the job then
                run_on_own_loop(self._end(job_id))
            raise
        return _settled(state, last, check=check)

    async def arun(
        self,
        task: Task,
        *,
        key: str | None = None,
        check: bool = True,
        log: Callable[[str], object] | None = None,
    ) -> JobResult:
        """Do as ``run``."""
        write = log or self._hook.log.info
        last: deque[str] = deque(maxlen=LAST_LINES)
        job_id = await self.asubmit(task, key=key)
        try:
            async for line in self.alogs(job_id):
                last.append(line)
                write(line)
            state = await self.astatus(job_id)
        except BaseException:
            with suppress(Exception):
                await arun_on_own_loop(self._end(job_id))
            raise
        return _settled(state, last, check=check)

    def submit(self, task: Task, *, key: str | None = None) -> int:
        """Start a job and return its number; ``run`` has the arguments.

        .. code-block:: python

            job_id = ClusterHook("gpus").cluster("digits").submit("python train.py", key="{{ run_id }}")
        """
        return run_on_own_loop(self._submit(task, key))

    async def asubmit(self, task: Task, *, key: str | None = None) -> int:
        """Do as ``submit``."""
        return await arun_on_own_loop(self._submit(task, key))

    def status(self, job_id: int) -> JobState:
        """Return how a job is.

        Raises:
            NoSuchJob: the cluster does not know it.
            ClusterGone: there is no such cluster.
        """
        return run_on_own_loop(self._call(partial(_status, job_id)))

    async def astatus(self, job_id: int) -> JobState:
        """Do as ``status``."""
        return await arun_on_own_loop(self._call(partial(_status, job_id)))

    def logs(self, job_id: int, *, follow: bool = True) -> Iterator[str]:
        """Yield the lines of a job's log from its begin.

        Args:
            job_id: The job.
            follow: Go on as it grows, until the job ends; otherwise up to what there is now.
        """
        records = self._log(job_id, follow)
        try:
            while (text := run_on_own_loop(_next(records))) is not None:
                yield from text.split("\n")
        finally:
            run_on_own_loop(records.aclose())

    async def alogs(self, job_id: int, *, follow: bool = True) -> AsyncIterator[str]:
        """Do as ``logs``."""
        records = self._log(job_id, follow)
        try:
            while (text := await arun_on_own_loop(_next(records))) is not None:
                for line in text.split("\n"):
                    yield line
        finally:
            await arun_on_own_loop(records.aclose())

    def cancel(self, job_id: int) -> JobState:
        """End a job, whoever submitted it, and return how it ended; a job that has ended stays as it is."""
        return run_on_own_loop(self._call(partial(self._cancel, job_id)))

    async def acancel(self, job_id: int) -> JobState:
        """Do as ``cancel``."""
        return await arun_on_own_loop(self._call(partial(self._cancel, job_id)))

    def jobs(self, *, all: bool = False) -> list[JobState]:
        """Return the jobs that have not ended, or all of them, the newest first and without outputs."""
        return run_on_own_loop(self._call(partial(_jobs, all)))

    async def ajobs(self, *, all: bool = False) -> list[JobState]:
        """Do as ``jobs``."""
        return await arun_on_own_loop(self._call(partial(_jobs, all)))

    def up(self, resources: Mapping[str, object] | None = None) -> None:
        """Get or make the cluster now, and not with the first job.

        Args:
            resources: As in a task YAML; they count when it must be made.
        """
        run_on_own_loop(self._up(resources))

    async def aup(self, resources: Mapping[str, object] | None = None) -> None:
        """Do as ``up``."""
        await arun_on_own_loop(self._up(resources))

    def down(self) -> None:
        """Remove the cluster and everything on it; one that is not there is no error."""
        run_on_own_loop(self._down())

    async def adown(self) -> None:
        """Do as ``down``."""
        await arun_on_own_loop(self._down())

    def close(self) -> None:
        """Close the connection to the cluster, which lives on. The next call opens it again."""
        run_on_own_loop(self._close())

    async def aclose(self) -> None:
        """Do as ``close``."""
        await arun_on_own_loop(self._close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.down()
        except InfraError as left:
            if error is None:
                raise
            self._hook.log.warning("cluster %s: %s", self.name, left)  # what was raised before says more

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self.adown()
        except InfraError as left:
            if error is None:
                raise
            self._hook.log.warning("cluster %s: %s", self.name, left)

    # Below, everything runs on the background loop of this process: what belongs to a loop belongs to that one.

    async def _submit(self, task: Task, key: str | None) -> int:
        # Here and not above: DAG files make these objects each time that they are parsed.
        from airflow_provider.hooks.cluster_link import ClusterGone
        from airflow_provider.hooks.files import pack_files
        from airflow_provider.hooks.secrets import resolve_secrets
        from airflow_provider.runtime.blocking import run_slowly
        from airflow_provider.runtime.control.sending import send_archive

        spec = task_of(task)
        secrets = await resolve_secrets(spec.secrets)
        # A key says that the job may run already, wherever the cluster is.
        only_one = key is not None
        key = f"hook:{self.name}:{key or uuid.uuid4().hex}"
        with tempfile.TemporaryDirectory(prefix="managed-jobs-") as scratch:
            packed = await run_slowly(pack_files, spec, scratch)
            for archive, reference in packed:
                if archive.skipped:
                    left_out = ", ".join(archive.skipped)
                    await self._say(f"not packed for {reference.destination} (no files): {left_out}")
            link = await self._linked()

            async def start(client: ClusterClient) -> int:
                for archive, _ in packed:
                    read = partial(_open, archive.path)
                    await send_archive(client, archive.digest, archive.size, read, say=self._say)
                return await client.submit(key, self._owner, request)

            for attempt in range(1, _ATTEMPTS + 1):
                handle, candidate = await link.provision(spec, only_one=only_one)
                request = request_of(
                    spec,
                    candidate,
                    handle,
                    name=self.name,
                    secrets=secrets,
                    files=[reference for _, reference in packed],
                    grace_seconds=GRACE_SECONDS,
                )
                try:
                    return await link.call(start)
                except ClusterGone as gone:
                    if attempt == _ATTEMPTS:
                        raise
                    await self._say(f"{gone}; making it anew")
        raise AssertionError("the loop ends by returning or raising")

    async def _log(self, job_id: int, follow: bool) -> AsyncGenerator[str, None]:
        link = await self._linked()
        async with aclosing(link.log(job_id, follow=follow)) as records:
            async for text in records:
                yield text

    async def _cancel(self, job_id: int, client: ClusterClient) -> JobState:
        return await client.cancel(job_id, self._owner, limit=GRACE_SECONDS + _CANCEL_MARGIN_SECONDS)

    async def _end(self, job_id: int) -> None:
        """Cancel the job of somebody who does not wait until a cluster is back that does not answer."""
        await within(_END_SECONDS, self._call(partial(self._cancel, job_id)))

    async def _up(self, resources: Mapping[str, object] | None) -> None:
        task = task_of({"run": "true", **({} if resources is None else {"resources": resources})})
        await (await self._linked()).provision(task)

    async def _down(self) -> None:
        await (await self._linked()).remove()

    async def _close(self) -> None:
        if self._link is not None:
            await self._link.close()

    async def _call(self, work: Callable[[ClusterClient], Coroutine[Any, Any, Result]]) -> Result:
        return await (await self._linked()).call(work)

    async def _linked(self) -> ClusterLink:
        from airflow_provider.hooks.cluster_link import ClusterLink

        async with self._linking:
            if self._link is None:
                settings = await self._hook.asettings()
                self._link = ClusterLink(settings, f"hook.{self.name}", self._owner, self._say)
            return self._link

    async def _say(self, line: str) -> None:
        self._hook.log.info("cluster %s: %s", self.name, line)


def _settled(state: JobState, last_lines: deque[str], *, check: bool) -> JobResult:
    result = result_of(state, last_lines)
    if check and not result.succeeded:
        raise JobFailed(result)
    return result


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


async def _status(job_id: int, client: ClusterClient) -> JobState:
    return await client.status(job_id)


async def _jobs(all: bool, client: ClusterClient) -> list[JobState]:
    return await client.jobs(all=all)


async def _next(records: AsyncGenerator[str, None]) -> str | None:
    return await anext(records, None)
