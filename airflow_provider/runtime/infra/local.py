"""Infra ``local``: a cluster is a directory on this machine with an agent of its own.

Jobs on it run as they would on a far node: in a home directory of their own, under an agent that outlives Airflow's
processes. Losing the "machine" (``preempt``) kills everything in it at once.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import subprocess
import sys
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.jobs.jobdir import write_private
from airflow_provider.runtime.agent.process import processes
from airflow_provider.runtime.agent.process.sweep import end_cluster
from airflow_provider.runtime.agent.trees import remove_tree
from airflow_provider.runtime.blocking import run_blocking, run_slowly
from airflow_provider.runtime.client.base import ClientError, LinkLost
from airflow_provider.runtime.infra.base import Choice, ClusterHandle, Health, InfraError, Probe
from airflow_provider.runtime.infra.this_machine import choose_candidate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from airflow_provider.runtime.client.agent import AgentClient
    from airflow_provider.runtime.task import TaskSpec

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RECORD = "cluster.json"
_START_SECONDS = 40.0
_GRACE_SECONDS = 2.0
_KILL_LIMIT_SECONDS = 30.0

# The agent and its jobs get these and nothing else: Airflow's own environment holds database and Fernet secrets.
_PASSED = frozenset(
    [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "LD_LIBRARY_PATH",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "CUDA_HOME",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "MANAGED_JOBS_CGROUPS",
        "MANAGED_JOBS_BASHRC_SECONDS",
    ]
)


class LocalInfra:
    """Clusters as directories below ``root``.

    Args:
        root: Directory of all local clusters; made when needed, for this user alone.
        lease_seconds: How long a cluster lives without hearing from a controller.
    """

    name = "local"

    def __init__(self, root: Path, *, lease_seconds: float = 3600.0) -> None:
        self._root = root.absolute()
        self._lease_seconds = lease_seconds

    def choose(self, task: TaskSpec) -> Choice:
        """See Infra."""
        return choose_candidate(task)

    async def provision(
        self,
        name: str,
        choice: Choice,
        say: Callable[[str], Awaitable[None]],
        *,
        previous: ClusterHandle | None = None,
        intend: Callable[[ClusterHandle], Awaitable[None]] | None = None,
    ) -> ClusterHandle:
        """See Infra."""
        try:
            record = await run_slowly(self._create, name)
        except OSError as error:
            raise InfraError(f"cluster {name} cannot be made: {error}") from error
        handle = self._handle(name, record)
        await say(f"starting the agent of cluster {name} on this machine")
        await self.restart_agent(handle)
        return handle

    async def wait_for_room(self, seconds: float) -> None:
        """See Infra; there is always room."""
        await asyncio.sleep(seconds)

    async def connect(self, handle: ClusterHandle) -> AgentClient:
        """See Infra."""
        # grpc is imported with the client: checking a task must not need it.
        from airflow_provider.runtime.client.agent import AgentClient
        from airflow_provider.runtime.transport.channel import UnixChannel

        try:
            return AgentClient(UnixChannel(self._directory(handle.name) / "agent", "agent.sock"))
        except OSError as error:
            raise LinkLost(f"cluster {handle.name}: {error}") from error

    async def probe(self, handle: ClusterHandle) -> Probe:
        """See Infra."""
        lost = await run_blocking(self._why_gone, handle)
        if lost is not None:
            return Probe(Health.GONE, lost)
        try:
            client = await self.connect(handle)
            try:
                instance = await client.handshake()
            finally:
                await client.close()
        except ClientError as error:
            if await run_blocking(self._agent_lives, handle.name):
                return Probe(Health.UNREACHABLE, f"the agent process is there and does not answer ({error})")
            return Probe(Health.AGENT_DOWN, "the cluster's directory is there, its agent is not")
        if instance != handle.instance:
            return Probe(Health.GONE, "another cluster answers under this name")
        return Probe(Health.ALIVE, "the agent answers")

    async def restart_agent(self, handle: ClusterHandle) -> None:
        """See Infra."""
        await run_slowly(self._start_agent, handle)

    async def tear_down(self, name: str, handle: ClusterHandle | None = None) -> None:
        """See Infra."""
        await run_slowly(self._remove, name, _GRACE_SECONDS)

    async def find(self, name: str) -> ClusterHandle | None:
        """Return the cluster of that name, None when there is none."""
        record = await run_blocking(self._read, name)
        return None if record is None or record["boot_id"] != _boot_id() else self._handle(name, record)

    def preempt(self, name: str) -> None:
        """Lose the machine: everything on the cluster dies at once, as with a spot node. Blocking.

        Raises:
            InfraError: something is left.
        """
        self._remove(name, 0.0)

    def clusters(self) -> list[str]:
        """Return the names of all clusters. Blocking."""
        if not self._root.is_dir():
            return []
        return sorted(
            path.name
            for path in self._root.iterdir()
            if _NAME.fullmatch(path.name) and (path / _RECORD).exists()
        )

    def _directory(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise InfraError(f"{name!r} cannot be a cluster's name: it must match {_NAME.pattern}")
        return self._root / name

    def _handle(self, name: str, record: dict[str, str]) -> ClusterHandle:
        return ClusterHandle(
            infra=self.name,
            name=name,
            instance=record["instance"],
            address={"directory": str(self._directory(name)), "boot_id": record["boot_id"]},
        )

    def _create(self, name: str) -> dict[str, str]:
        """Return the record of the cluster, made first when there is none of this boot."""
        directory = self._directory(name)
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            self._finish_removals(name)
            with _locked(self._root):
                record = self._read(name)
                if record is not None and record["boot_id"] == _boot_id():
                    return record
                if not directory.exists() and not self._remains(name):
                    record = {"instance": uuid.uuid4().hex, "boot_id": _boot_id()}
                    directory.mkdir(mode=0o700)
                    write_private(directory / _RECORD, json.dumps(record))
                    return record
            # Nothing of it survived the reboot, or its agent is removing it, or its record cannot be read.
            self._remove(name, 0.0)

    def _read(self, name: str) -> dict[str, str] | None:
        """Return the cluster's record, None when there is none that makes sense."""
        try:
            record = json.loads((self._directory(name) / _RECORD).read_text())
            return {"instance": str(record["instance"]), "boot_id": str(record["boot_id"])}
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None

    def _why_gone(self, handle: ClusterHandle) -> str | None:
        record = self._read(handle.name)
        if record is None:
            return "the cluster's directory or its record is gone"
        if record["instance"] != handle.instance:
            return "another cluster lies under this name"
        if record["boot_id"] != _boot_id():
            return "this machine was booted since the cluster was made"
        return None

    def _start_agent(self, handle: ClusterHandle) -> None:
        directory = self._directory(handle.name)
        environment = {
            name: value for name, value in os.environ.items() if name in _PASSED or name.startswith("LC_")
        }
        command = [sys.executable, "-X", "utf8", "-m", "airflow_provider.runtime.agent"]
        command += ["--disposable", "--private-homes"]
        command += ["--root", str(directory), "--instance", handle.instance]
        command += ["--lease", str(self._lease_seconds)]
        try:
            done = subprocess.run(
                command,
                env={**environment, processes.CLUSTER_MARKER: str(directory)},
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_START_SECONDS,
                check=False,
            )
        except OSError as error:
            raise InfraError(f"the agent of cluster {handle.name} cannot be started: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise InfraError(
                f"the agent of cluster {handle.name} did not start in {_START_SECONDS} s"
            ) from error
        if done.returncode != 0:
            why = done.stderr.strip() or f"it ended with code {done.returncode}"
            raise InfraError(f"the agent of cluster {handle.name} did not start: {why}")

    def _agent_lives(self, name: str) -> bool:
        try:
            handle = os.open(self._directory(name) / "agent" / "agent.lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def _remove(self, name: str, grace: float) -> None:
        directory = self._directory(name)
        try:
            with suppress(FileNotFoundError), _locked(directory):
                # Away from its name first: from here on nobody takes what is left for a cluster. Who removes it holds
                # its lock, and nobody makes a new one of the same name, whose processes would look the same.
                remains = directory.rename(self._root / f".removed-{name}-{uuid.uuid4().hex}")
                self._end_processes(name, grace)
                remove_tree(remains)
            self._finish_removals(name)
            with suppress(FileNotFoundError), _locked(self._root):
                if not (directory / _RECORD).exists():  # somebody removed it by hand
                    self._end_processes(name, grace)
                    if directory.exists():  # one of them was about to write
                        remove_tree(directory)
        except OSError as error:
            raise InfraError(f"cluster {name} cannot be removed: {error}") from error

    def _finish_removals(self, name: str) -> None:
        """Wait for others' removals of the cluster, and finish those whose process died."""
        for remains in self._remains(name):
            with suppress(FileNotFoundError), _locked(remains):
                if remains.exists():
                    self._end_processes(name, 0.0)
                    remove_tree(remains)

    def _remains(self, name: str) -> list[Path]:
        # Others' names may begin with this one's: the last part is 32 hexadecimal digits.
        return list(self._root.glob(f".removed-{name}-{'[0-9a-f]' * 32}"))

    def _end_processes(self, name: str, grace: float) -> None:
        marker = str(self._directory(name))
        left = end_cluster(marker, grace=grace, limit=grace + _KILL_LIMIT_SECONDS)
        if left:
            raise InfraError(
                f"cluster {name}: processes {sorted(process.pid for process in left)} cannot be killed"
            )


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory: one maker of clusters at a time."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
