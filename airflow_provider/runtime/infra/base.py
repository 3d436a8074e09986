"""The interface that every infra implements."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider.runtime.client.base import ClusterClient
    from airflow_provider.runtime.task import Candidate, TaskSpec

HANDLE_VERSION = 1


@dataclass(frozen=True)
class ClusterHandle:
    """Enough to reach a cluster again from another process. Holds no secret.

    Attributes:
        infra: Name of the infra that made it.
        name: The cluster's name, unique within its infra.
        instance: Identity of this very cluster; one made anew under the same name has another.
        address: Where its head is, in the infra's own terms: JSON scalars.
    """

    infra: str
    name: str
    instance: str
    address: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable record."""
        return {
            "v": HANDLE_VERSION,
            "infra": self.infra,
            "name": self.name,
            "instance": self.instance,
            "address": dict(self.address),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ClusterHandle:
        """Build from what ``to_json`` returned.

        Raises:
            ValueError: the record was written by a newer version.
        """
        if data["v"] > HANDLE_VERSION:
            raise ValueError(
                f"cluster handle of version {data['v']}; this version of the provider reads up to "
                f"{HANDLE_VERSION}: upgrade it on this host"
            )
        return cls(data["infra"], data["name"], data["instance"], dict(data["address"]))


class Health(str, Enum):
    """What is known of a cluster."""

    ALIVE = "alive"
    """It answers."""
    AGENT_DOWN = "agent down"
    """The node is there, its agent is not: it can be started again."""
    UNREACHABLE = "unreachable"
    """We cannot talk to it; it may be well."""
    GONE = "gone"
    """Positive evidence that the cluster does not exist any more."""


@dataclass(frozen=True)
class Probe:
    """A cluster's health and the evidence for it, in words."""

    health: Health
    evidence: str


class InfraError(Exception):
    """Provisioning or tearing down failed; trying again may help."""


class NotFeasible(InfraError):
    """This infra can never run the task; the text lists why, candidate by candidate."""


class NothingFree(InfraError):
    """All that fits is taken at the moment: to be waited for. The text says by whom, place by place."""


class OutOfReach(InfraError):
    """The place where the cluster is does not answer, so nothing can be done there now.

    A cluster that hears from no controller for the length of its lease ends by itself.
    """


@dataclass(frozen=True)
class Choice:
    """Which of a task's candidate resources is provisioned, and why those before it are not."""

    candidate: Candidate
    passed_over: tuple[str, ...] = ()


class Infra(Protocol):
    """Provisions, probes and removes clusters of one kind."""

    name: str

    def choose(self, task: TaskSpec) -> Choice:
        """Return the one of the task's candidate resources to provision. Blocking, quick.

        Raises:
            NotFeasible: this infra can serve none of them, or not this task.
        """
        ...

    async def provision(
        self,
        name: str,
        choice: Choice,
        say: Callable[[str], Awaitable[None]],
        *,
        previous: ClusterHandle | None = None,
        intend: Callable[[ClusterHandle], Awaitable[None]] | None = None,
    ) -> ClusterHandle:
        """Return a cluster of that name with a running agent, the existing one when there is one.

        Args:
            name: The cluster's name.
            choice: What ``choose`` returned for the task.
            say: Takes lines on progress for the task's log.
            previous: What was intended last for this name: an earlier launch may have got that far.
            intend: Stores where the cluster is about to be made, before anything is done there. Infras whose clusters
                are found by name alone do not call it.

        Raises:
            NothingFree: everything that fits is taken; to be tried again.
            NotFeasible: nothing here can ever serve the choice.
            InfraError: it failed.
        """
        ...

    async def wait_for_room(self, seconds: float) -> None:
        """Wait before the next try to provision, no longer than so many seconds, sooner where something became free."""
        ...

    async def connect(self, handle: ClusterHandle) -> ClusterClient:
        """Return a client of the cluster's agent.

        Raises:
            LinkLost: it cannot be reached.
        """
        ...

    async def probe(self, handle: ClusterHandle) -> Probe:
        """Find out how the cluster is."""
        ...

    async def restart_agent(self, handle: ClusterHandle) -> None:
        """Start the agent of a live node again.

        Raises:
            InfraError: it did not start.
        """
        ...

    async def tear_down(self, name: str, handle: ClusterHandle | None) -> None:
        """Remove the cluster and everything on it, verified; one that is not there is no error.

        Args:
            name: The cluster's name.
            handle: Where it is; None when that was not recorded: then it is looked for.

        Raises:
            OutOfReach: the place where it is does not answer.
            InfraError: something is left.
        """
        ...
