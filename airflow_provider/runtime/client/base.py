"""What a controller can ask of a cluster, and what it gets back. No wire type leaks through here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import BinaryIO, NamedTuple, Protocol


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
class GitSource:
    """A repository that the node clones to ``~/sky_workdir`` before setup.

    ``ref``: branch, tag or commit; empty: the repository's default branch.
    """

    url: str
    ref: str = ""


@dataclass(frozen=True)
class Demand:
    """What a job takes of its node while it is set up and runs.

    ``cpus`` None: what the agent counts for a job that asks for none; ``memory`` in GiB; ``accelerators``: count by
    model, fractions share a device.
    """

    cpus: float | None = None
    memory: float = 0.0
    accelerators: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ManagedTask:
    """The managed task that a job is an attempt of: what the agent tells others about it.

    ``job_id`` is the same for all tasks of a chain, ``task_id`` the index in the chain; ``attempt`` counts from 1;
    ``resources`` as a person would write them, e.g. ``1x[CPU:4]``.
    """

    job_id: int
    job_name: str
    task_id: int
    task_name: str
    user: str
    workspace: str = ""
    attempt: int = 1
    infra: str = ""
    resources: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobRequest:
    """One attempt of a task, ready to run. ``secrets`` never shows in a repr.

    ``node_ips``: addresses of the nodes by rank, as their peers reach them; empty: one node that calls itself
    127.0.0.1.
    """

    name: str
    setup: str
    run: str
    envs: dict[str, str]
    secrets: dict[str, str] = field(repr=False)
    files: tuple[FileTree, ...] = ()
    grace_seconds: float = 5.0
    demand: Demand = Demand()
    managed: ManagedTask | None = None
    git: GitSource | None = None
    node_ips: tuple[str, ...] = ()


class FileProgress(NamedTuple):
    """How far an archive is, in bytes.

    ``read``: of the archive dealt with, sent or found to be there; ``sent``: what travelled for it, more than once where
    it had to; ``size``: of the archive.
    """

    read: int
    sent: int
    size: int


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
    name: str = ""


class WaitFor(str, Enum):
    """What keeps a cluster from being idle."""

    JOBS_AND_SSH = "jobs_and_ssh"
    """A live job, or somebody who is logged in."""
    JOBS = "jobs"
    """A live job."""
    NONE = "none"
    """Nothing: the time runs on while jobs do."""


class HookEvent(str, Enum):
    """What a hook runs before."""

    STOP = "stop"
    PREEMPTION = "preemption"
    DOWN = "down"


@dataclass(frozen=True)
class Hook:
    """A bash command that the cluster runs before it ends, for at most ``timeout`` seconds (0: the agent's limit)."""

    run: str
    events: frozenset[HookEvent] = frozenset(HookEvent)
    timeout: int = 0


@dataclass(frozen=True)
class Autostop:
    """When a cluster stops, or with ``down`` vanishes, by itself.

    ``idle_minutes``: how long it must have been idle; negative: never. ``hooks`` None keeps those that the cluster
    has, ``()`` clears them.
    """

    idle_minutes: int
    down: bool = False
    wait_for: WaitFor = WaitFor.JOBS_AND_SSH
    hooks: tuple[Hook, ...] | None = None


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
        progress: Callable[[FileProgress], None] = lambda done: None,
    ) -> None:
        """Send an archive as far as the cluster does not have it yet: after a broken transfer, only the rest.

        Args:
            digest: SHA-256 of the archive, in hexadecimal.
            size: Of the archive, in bytes.
            read: Opens the archive. It is called in a thread, only when something may be missing on the cluster, and
                again where chunks vanished there meanwhile.
            progress: Called now and then, the last time with the whole archive dealt with.

        Raises:
            RequestRefused: what is read is not the archive of that digest and size.
            ClientError: it failed.
        """
        ...

    async def submit(self, key: str, owner: Owner, job: JobRequest) -> int:
        """Start a job, once per ``key``, and return its id."""
        ...

    async def status(self, job_id: int) -> JobState:
        """Return a job's state."""
        ...

    async def jobs(self, *, all: bool = False) -> list[JobState]:
        """Return the jobs that have not ended, or all of them, the newest first and without outputs."""
        ...

    async def follow(self, job_id: int, owner: Owner, *, offset: int | None) -> FollowStream:
        """Follow a job from byte ``offset`` of its log; None: from the last acknowledged one."""
        ...

    async def cancel(self, job_id: int, owner: Owner, *, limit: float) -> JobState:
        """End a job and return its state once nothing of it is left, at most ``limit`` seconds later."""
        ...

    async def set_autostop(self, autostop: Autostop) -> None:
        """Say when the cluster is to end by itself."""
        ...

    async def autostopping(self) -> bool:
        """Return whether the cluster is about to end by itself: nothing new should be started on it."""
        ...

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        ...
