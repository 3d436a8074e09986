"""An agent of its own, started with any options and spoken to over the wire."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import grpc.aio
import pytest

from airflow_provider.runtime.agent.process import processes
from airflow_provider.runtime.transport.channel import UnixChannel
from airflow_provider.runtime.wire import agent_pb2 as agent
from airflow_provider.runtime.wire import autostop_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from tests.integration.clusters import exited


class Agent:
    """A root, the agent that serves it, and a channel to that."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._unix: UnixChannel | None = None

    async def start(self, *options: object, disposable: bool = False) -> Agent:
        """Start an agent; the options of an earlier one are not remembered."""
        command = [sys.executable, "-m", "airflow_provider.runtime.agent", "--root", str(self.root)]
        command += [
            "--instance",
            "test",
            "--lease",
            "600",
            *(["--disposable", "--private-homes"] if disposable else []),
        ]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root.parent),
            processes.CLUSTER_MARKER: str(self.root),
        }
        done = await asyncio.to_thread(
            subprocess.run,
            [*command, *map(str, options)],
            env=environment,
            cwd="/",
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        await self.close()
        self._unix = UnixChannel(self.root / "agent", "agent.sock")
        return self

    @property
    def channel(self) -> grpc.aio.Channel:
        assert self._unix is not None
        return self._unix.channel

    @property
    def pid(self) -> int:
        return int((self.root / "agent" / "agent.lock").read_text())

    @property
    def log(self) -> str:
        return (self.root / "agent" / "agent.log").read_text()

    async def set(self, **fields: object) -> None:
        request = pb.SetAutostopRequest(**fields)  # type: ignore[arg-type]
        await rpcs.SET_AUTOSTOP.unary(self.channel)(request, timeout=10)

    async def autostopping(self) -> bool:
        answer = await rpcs.IS_AUTOSTOPPING.unary(self.channel)(pb.IsAutostoppingRequest(), timeout=10)
        return answer.is_autostopping

    async def until_autostopping(self) -> None:
        """Wait until the end is decided."""
        deadline = time.monotonic() + 10
        while not await self.autostopping():
            assert time.monotonic() < deadline, "the end is not decided"
            await asyncio.sleep(0.01)

    async def health(self) -> agent.NodeHealthResponse:
        return await rpcs.NODE_HEALTH.unary(self.channel)(agent.NodeHealthRequest(), timeout=10)

    async def hold(self, seconds: float) -> float:
        request = agent.LeaseRequest(holder="test", seconds=seconds)
        return (await rpcs.LEASE.unary(self.channel)(request, timeout=10)).left

    async def submit(self, run: str) -> int:
        request = agent.SubmitRequest(
            key=os.urandom(8).hex(),
            owner=agent.Owner(id="test", generation=1),
            job=agent.JobSpec(name="test", run=run, grace_seconds=0.5),
        )
        return (await rpcs.SUBMIT.unary(self.channel)(request, timeout=10)).job_id

    async def status(self, job_id: int) -> int:
        request = agent.StatusRequest(job_id=job_id)
        return (await rpcs.STATUS.unary(self.channel)(request, timeout=10)).status

    async def kill(self) -> None:
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        await exited(pid)

    async def close(self) -> None:
        if self._unix is not None:
            await self._unix.close()
            self._unix = None

    def end(self) -> None:
        """End all that still runs below the root."""
        left = processes.end(
            lambda: processes.members([], processes.CLUSTER_MARKER, str(self.root)), grace=0, limit=10
        )
        assert not left

    async def until_status(self, job_id: int, *statuses: int) -> None:
        """Wait for one of the statuses."""
        deadline = time.monotonic() + 10
        while (status := await self.status(job_id)) not in statuses:
            assert time.monotonic() < deadline, f"waited for {statuses}, the job is {status}"
            await asyncio.sleep(0.01)


async def refused(call: object) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call  # type: ignore[misc]
    return failure.value
