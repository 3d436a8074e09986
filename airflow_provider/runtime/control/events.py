"""What can happen to a managed task: the inputs of its state machine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider.runtime.control.status import Status


@dataclass(frozen=True)
class Outcome:
    """How the task ends once its cluster is gone. ``last_lines`` are those of the job's log."""

    status: Status
    reason: str = ""
    exit_codes: tuple[int, ...] = ()
    output: str | None = None
    last_lines: tuple[str, ...] = ()


class LaunchProblem(str, Enum):
    """Why a cluster did not come up."""

    NOT_FEASIBLE = "not feasible"
    NOTHING_FREE = "nothing free"
    FAILED = "failed"


@dataclass(frozen=True)
class LaunchBegun:
    """The controller begins to provision."""


@dataclass(frozen=True)
class Provisioned:
    """The cluster is up and its agent answers."""


@dataclass(frozen=True)
class LaunchFailed:
    """The cluster did not come up."""

    problem: LaunchProblem
    reason: str


@dataclass(frozen=True)
class Submitted:
    """The agent accepted the job."""

    job_id: int


@dataclass(frozen=True)
class JobRefused:
    """The agent will never accept the job."""

    reason: str


class JobEnd(str, Enum):
    """How a cluster job ended."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    FAILED_SETUP = "FAILED_SETUP"
    FAILED_DRIVER = "FAILED_DRIVER"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True)
class JobStarted:
    """The job's setup or run commands are running."""


@dataclass(frozen=True)
class Heard:
    """The stream from the agent carries something again after it broke."""


@dataclass(frozen=True)
class JobEnded:
    """The job has ended and all of its log has been read."""

    end: JobEnd
    reason: str = ""
    exit_codes: tuple[int, ...] = ()
    output: str | None = None
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class LinkBroke:
    """A call or stream to the agent failed; nothing is known of the cluster."""

    reason: str


@dataclass(frozen=True)
class Alive:
    """The cluster answers."""


@dataclass(frozen=True)
class AgentDown:
    """The node is there, its agent is not."""


@dataclass(frozen=True)
class AgentRestarted:
    """The agent was started again."""


@dataclass(frozen=True)
class AgentRestartFailed:
    """The agent did not start again."""

    reason: str


@dataclass(frozen=True)
class Unreachable:
    """The cluster does not answer; it may be well."""

    evidence: str
    now: float


@dataclass(frozen=True)
class Lost:
    """There is positive evidence that the cluster, or its job, does not exist any more."""

    evidence: str


@dataclass(frozen=True)
class WaitOver:
    """The wait is over."""


@dataclass(frozen=True)
class StopRequested:
    """End the task now, with this outcome (cancelled, or out of time).

    ``at_once``: there is no time to let the job end in peace; it goes with its cluster.
    """

    outcome: Outcome
    at_once: bool = False


@dataclass(frozen=True)
class TornDown:
    """Nothing of the cluster is left."""


@dataclass(frozen=True)
class TearDownFailed:
    """Something of the cluster is left."""

    reason: str


@dataclass(frozen=True)
class ControllerFailed:
    """The controller met an error that it did not expect."""

    reason: str


Event = (
    LaunchBegun
    | Provisioned
    | LaunchFailed
    | Submitted
    | JobRefused
    | JobStarted
    | Heard
    | JobEnded
    | LinkBroke
    | Alive
    | AgentDown
    | AgentRestarted
    | AgentRestartFailed
    | Unreachable
    | Lost
    | WaitOver
    | StopRequested
    | TornDown
    | TearDownFailed
    | ControllerFailed
)
