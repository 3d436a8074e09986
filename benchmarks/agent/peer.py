"""SkyPilot's agent, the skylet, for the time of a benchmark: driven through its own RPCs, without our client's help."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from airflow_provider.runtime.transport.tcp import TcpChannel
from airflow_provider.runtime.wire import jobs_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from tests.interop.peer import Skylet

_CALL_SECONDS = 60.0
_LOOK_SECONDS = 0.02

# What a driver that SkyPilot generates does at least: the line from which on its log is shown, its library, its
# statuses, the next job's turn. No Ray, no virtual cluster: the fastest driver that a skylet can have.
_PROGRAM = """import subprocess, sys, time
print("Waiting for task resources on 1 node.", flush=True)
{early}
from sky.skylet import job_lib
job_lib.set_job_started({job_id})
job_lib.scheduler.schedule_step()
code = subprocess.call(["bash", "-c", {run!r}])
job_lib.set_status({job_id}, job_lib.JobStatus.FAILED if code else job_lib.JobStatus.SUCCEEDED)
job_lib.scheduler.schedule_step()
"""


class Peer:
    """A skylet and a channel to it."""

    def __init__(self, skylet: Skylet, transport: TcpChannel) -> None:
        self._skylet = skylet
        self._channel = transport.channel

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._skylet.port

    @property
    def home(self) -> Path:
        """Its home directory."""
        return self._skylet.home

    @property
    def process(self) -> psutil.Process:
        """The skylet's process."""
        return psutil.Process(self._skylet.pid)

    async def submit(self, run: str, *, early: str = "pass") -> int:
        """Queue a job and return its id.

        Args:
            run: A bash command, the job.
            early: A line of Python that the driver begins with, while its job is pending.
        """
        stamp = f"sky-{uuid.uuid4().hex}"
        added = await rpcs.ADD_JOB.unary(self._channel)(
            pb.AddJobRequest(
                job_name="short",
                username="benchmark",
                run_timestamp=stamp,
                resources_str="1x[CPU:1]",
                metadata="{}",
            ),
            timeout=_CALL_SECONDS,
        )
        await rpcs.QUEUE_JOB.unary(self._channel)(
            pb.QueueJobRequest(
                job_id=added.job_id,
                codegen=_PROGRAM.format(job_id=added.job_id, run=run, early=early),
                script_path=f"~/.sky/sky_app/sky_job_{added.job_id}",
                remote_log_dir=added.log_dir,
            ),
            timeout=_CALL_SECONDS,
        )
        return added.job_id

    async def log(self, job_id: int) -> AsyncIterator[str]:
        """Yield a job's log as it comes once it runs, without the driver's own line.

        Raises:
            RuntimeError: the job did not succeed.
        """
        # A skylet that is asked for the log while it starts the driver may take it for dead, and fails the job.
        await self.running(job_id)
        code = None
        call = rpcs.TAIL_LOGS.download(self._channel)(pb.TailLogsRequest(job_id=job_id, follow=True))
        async for message in call:
            text = message.log_line
            if text.startswith("Waiting for task resources"):
                _, _, text = text.partition("\n")
            if text:
                yield text
            code = message.exit_code
        if code != 0:
            raise RuntimeError(f"the peer's job ended with {code}")

    async def until(self, job_id: int, text: str) -> None:
        """Follow a job until its log holds a text."""
        seen = ""
        async for piece in self.log(job_id):
            seen += piece
            if text in seen:
                return
        raise RuntimeError(f"the peer's job {job_id} ended without {text!r}: {seen[-500:]!r}")

    async def status(self, job_id: int, *, seconds: float = _CALL_SECONDS) -> pb.JobStatus:
        """Return a job's status."""
        answer = await rpcs.GET_JOB_STATUS.unary(self._channel)(
            pb.GetJobStatusRequest(job_ids=[job_id]), timeout=seconds
        )
        return answer.job_statuses[job_id]

    async def running(self, job_id: int) -> None:
        """Wait until a job runs or has ended, looking often."""
        await self._reaches(job_id, pb.JOB_STATUS_RUNNING)

    async def end(self, job_id: int) -> None:
        """Wait for a job's success, looking often."""
        await self._reaches(job_id, pb.JOB_STATUS_SUCCEEDED)

    async def _reaches(self, job_id: int, wanted: pb.JobStatus) -> None:
        while (status := await self.status(job_id)) != wanted:
            if status == pb.JOB_STATUS_SUCCEEDED:
                return
            if status >= pb.JOB_STATUS_FAILED_DRIVER:
                raise RuntimeError(f"the peer's job ended {pb.JobStatus.Name(status)}")
            await asyncio.sleep(_LOOK_SECONDS)

    async def update(self) -> None:
        """Have it look which drivers live, and start what can start."""
        await rpcs.UPDATE_STATUS.unary(self._channel)(pb.UpdateStatusRequest(), timeout=_CALL_SECONDS)

    async def cancel(self, job_id: int) -> None:
        """End a job."""
        await rpcs.CANCEL_JOBS.unary(self._channel)(
            pb.CancelJobsRequest(job_ids=[job_id]), timeout=_CALL_SECONDS
        )

    async def driver(self, job_id: int) -> psutil.Process:
        """Return the shell that runs a job's driver, once it runs."""
        while True:
            answer = await rpcs.GET_JOB_QUEUE.unary(self._channel)(
                pb.GetJobQueueRequest(all_jobs=True), timeout=_CALL_SECONDS
            )
            (found,) = [job for job in answer.jobs if job.job_id == job_id]
            if found.pid > 0:
                return psutil.Process(found.pid)
            await asyncio.sleep(_LOOK_SECONDS)


@asynccontextmanager
async def skylet() -> AsyncIterator[Peer]:
    """A skylet that is there as long as the context."""
    home = Path(tempfile.mkdtemp(prefix="skylet-"))
    peer = Skylet(home)
    try:
        await asyncio.to_thread(peer.start)
        channel = TcpChannel(peer.port)
        try:
            yield Peer(peer, channel)
        finally:
            await channel.close()
    finally:
        await asyncio.to_thread(peer.stop)
        await asyncio.to_thread(shutil.rmtree, home)
