"""What a controller can ask of a cluster, and what it gets back. No wire type leaks through here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import BinaryIO, Protocol


class JobStatus(str, Enum):
    """Status of a cluster job (one attempt of a task). INIT to CANCELLED as in SkyPilot's ``jobs.v1``."""

    INIT = "INIT"
    PENDING = "PENDING"
    SETTING_UP = "SETTING_UP"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    FAILED_DRIVER = "FAILED_DRIVER"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    FAILED_SETUP = "FAILED_SETUP"
    CANCELLED = "CANCELLED"

    @property
    def terminal(self) -> bool:
        """Whether the job has ended for good."""
        return self in _TERMINAL


_TERMINAL = frozenset(
    {
        JobStatus.FAILED_DRIVER,
        JobStatus.SUCCEEDED,
        JobStatus.FAILED,
        JobStatus.FAILED_SETUP,
        JobStatus.CANCELLED,
    }
)


@dataclass(frozen=True)
class Owner:
    """Who may control a job: an Airflow task instance id and the fencing token that grows with each claim."""

    id: str
    generation: int


@dataclass(frozen=True)
class FileTree:
    """An archive that the cluster has and the place to unpack it. ``kind``: ``"directory"`` or ``"file"``."""

    digest: str
    kind: str
    destination: str


@dataclass(frozen=True)
class JobRequest:
    """One attempt of a task, ready to run. ``secrets`` never shows in a repr."""

    name: str
    setup: str
    run: str
    envs: dict[str, str]
    secrets: dict[str, str] = field(repr=False)
    files: tuple[FileTree, ...] = ()
    grace_seconds: float = 5.0


@dataclass(frozen=True)
class JobState:
    """A cluster job as its agent sees it. Times in seconds since the epoch, 0: not yet; sizes in bytes."""

    job_id: int
    status: JobStatus
    exit_codes: tuple[int, ...] = ()
    reason: str = ""
    output: str | None = None
    submitted_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0
    log_size: int = 0


@dataclass(frozen=True)
class LogBytes:
    """A piece of the job's log, ``offset`` bytes from its begin."""

    offset: int
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Heartbeat:
    """Nothing happened, and the agent is alive."""


class ClientError(Exception):
    """A call did not do what it was for."""


class LinkLost(ClientError):
    """The agent cannot be reached or does not answer. Says nothing about the cluster or its job."""


class NoSuchJob(ClientError):
    """The cluster does not know the job."""


class RequestRefused(ClientError):
    """The agent understood and will never accept this request; asking again is no use."""


class AgentFailed(ClientError):
    """The agent answered, but could not do it now (disk full, internal error)."""


class FollowStream(Protocol):
    """A job's log and state changes as they happen; ends after the last byte and the terminal state."""

    def __aiter__(self) -> AsyncIterator[LogBytes | JobState | Heartbeat]:
        """Iterate over the stream.

        Raises:
            ClientError: it broke; LinkLost for everything that says nothing about the job.
        """
        ...

    async def acknowledge(self, offset: int) -> None:
        """Tell the agent that every byte before ``offset`` is written for good."""
        ...

    async def close(self) -> None:
        """End the stream. Idempotent."""
        ...


class ClusterClient(Protocol):
    """The one interface to a cluster. Every call has a deadline and raises ClientError."""

    async def handshake(self, *, lease_seconds: float = 0.0) -> str:
        """Return the identity of the cluster that answers; set its lease when positive."""
        ...

    async def send_files(
        self,
        digest: str,
        size: int,
        read: Callable[[], BinaryIO],
        progress: Callable[[int], None] = lambda sent: None,
    ) -> None:
        """Send an archive unless the cluster has it; a broken transfer goes on where it broke."""
        ...

    async def submit(self, key: str, owner: Owner, job: JobRequest) -> int:
        """Start a job, once per ``key``, and return its id."""
        ...

    async def status(self, job_id: int) -> JobState:
        """Return a job's state."""
        ...

    async def follow(self, job_id: int, owner: Owner, *, offset: int | None) -> FollowStream:
        """Follow a job from byte ``offset`` of its log; None: from the last acknowledged one."""
        ...

    async def cancel(self, job_id: int, owner: Owner, *, limit: float) -> JobState:
        """End a job and return its state once nothing of it is left, at most ``limit`` seconds later."""
        ...

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        ...
