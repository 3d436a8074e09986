"""What can be asked of a host, and what it answers: plain JSON both ways.

``operate(operation, arguments)`` runs one of ``OPERATIONS`` on the machine that it is called on and returns
``{"ok": answer}``, or ``{"problem": cause, "remedy": what to do}`` where the host, not the question, is the trouble.

Every operation may be asked again after a broken connection: what was done already is found and kept.

===========  ==================  ===============================================
operation    arguments           answer
===========  ==================  ===============================================
``facts``    ``FactsArguments``  ``Facts``
``up``       ``UpArguments``     ``UpAnswer``: ``Up``, ``Taken`` or ``Misfit``
``restart``  ``UpArguments``     ``RestartAnswer``: ``Up``, ``Taken`` or ``Gone``
``find``     ``NameArguments``   ``Found``
``probe``    ``ProbeArguments``  ``ProbeAnswer``
``down``     ``ProbeArguments``  ``DownAnswer``
===========  ==================  ===============================================
"""

from __future__ import annotations

from typing import Literal, TypedDict

from airflow_provider.runtime.agent.host.problem import HostProblem

OPERATIONS = ("facts", "up", "restart", "find", "probe", "down")


class Place(TypedDict, total=False):
    """Where a host keeps things; each has a default.

    Attributes:
        base: Directory of everything of ours in the account; ``~`` is the home. By default ``~/.managed-jobs``.
        lease_directory: Directory of the host's lease, the same for all accounts. By default
            ``/var/tmp/managed-jobs-lease``.
    """

    base: str
    lease_directory: str


class FactsArguments(Place):
    """Arguments of ``facts``: only the place."""


class NameArguments(Place):
    """Arguments of ``find``."""

    name: str


class ProbeArguments(NameArguments):
    """Arguments of ``probe`` and ``down``.

    Attributes:
        instance: The cluster that is meant; None: whichever lies under the name.
    """

    instance: str | None


class DemandArguments(TypedDict, total=False):
    """What a job takes of a node: CPUs, memory in GiB, accelerators as count by model."""

    cpus: float
    memory: float
    accelerators: dict[str, float]


class _UpRequired(NameArguments):
    instance: str
    site: str
    lease_seconds: float
    runtime: str


class UpArguments(_UpRequired, total=False):
    """Arguments of ``up`` and ``restart``.

    Attributes:
        name: The cluster's name.
        instance: Identity of the cluster (any text without blanks; ``uuid4().hex``): the one that is there is taken
            over only if it has the same, since other sites may use the same names. For ``restart``: the cluster that is
            meant.
        site: Who takes the host, in words for people: ``airflow-prod, dag.task``. No secret: every account of the host
            can read it.
        lease_seconds: How long the cluster lives, and has the host, without hearing from a controller.
        runtime: Name of the directory below ``<base>/runtime`` whose agent is to run.
        python: The interpreter for the agent; by default the one that runs the operation.
        start_seconds: Within what time the agent has to serve. By default 40.
        demand: What the job needs: a host that is too small says so and is not taken.
    """

    python: str
    start_seconds: float
    demand: DemandArguments


class Holder(TypedDict):
    """Who has the host.

    Attributes:
        cluster: The cluster's name.
        instance: Its identity.
        site: Who took the host, in words for people.
        account: The user whose record it is.
        seconds_left: After how many seconds the host is free if nothing more is heard.
    """

    cluster: str
    instance: str
    site: str
    account: str
    seconds_left: float


class Device(TypedDict):
    """An accelerator: its name for ``CUDA_VISIBLE_DEVICES``, and the driver's name of its model."""

    name: str
    model: str


class Up(TypedDict):
    """The cluster is there and its agent serves.

    Attributes:
        name: The cluster's name.
        instance: Its identity, to be asked of the agent too.
        root: The cluster's directory on the host.
        socket: Path of the agent's unix socket.
        boot_id: Identity of this boot of the host; the cluster does not survive its change.
        adopted: Whether the cluster was there before.
        cpus: CPUs that jobs may use.
        memory: GiB of memory.
        devices: Accelerators.
    """

    status: Literal["up"]
    name: str
    instance: str
    root: str
    socket: str
    boot_id: str
    adopted: bool
    cpus: float
    memory: float
    devices: list[Device]


class Taken(TypedDict):
    """Somebody else has the host; nothing was changed on it."""

    status: Literal["taken"]
    holder: Holder


class Misfit(TypedDict):
    """The host is too small for what was asked; nothing was changed on it. ``reason`` says what is missing."""

    status: Literal["misfit"]
    reason: str


class Gone(TypedDict):
    """The cluster that was meant is not there any more; ``reason`` says how that shows."""

    status: Literal["gone"]
    reason: str


UpAnswer = Up | Taken | Misfit
RestartAnswer = Up | Taken | Gone


class Found(TypedDict):
    """The cluster of a name.

    Attributes:
        present: Whether its directory and record are there, from this boot of the host.
        instance: Its identity; None when it is not there.
        root: Its directory, whether there or not.
        socket: Path of its agent's unix socket.
        boot_id: Identity of the host's present boot.
    """

    present: bool
    instance: str | None
    root: str
    socket: str
    boot_id: str


class ProbeAnswer(TypedDict):
    """What is left of a cluster.

    Attributes:
        boot_id: Identity of the host's present boot.
        present: Whether the cluster that was meant is there: its directory, its record, the same instance, of this boot.
        reason: Why not; empty when it is.
        instance: What lies under the name, if anything.
        lease: Whose the host is: this cluster's, another's, nobody's.
        holder: Who has the host, if anybody.
        agent: Whether a process holds the agent's lock.
        pid: That process.
        runtime: Name of the runtime that its agent was last started from.
    """

    boot_id: str
    present: bool
    reason: str
    instance: str | None
    lease: Literal["ours", "other", "none"]
    holder: Holder | None
    agent: bool
    pid: int | None
    runtime: str | None


class DownAnswer(TypedDict):
    """The cluster is gone.

    Attributes:
        found: Whether anything of it was there.
        kept: Files that were brought to the home directory and could not be removed, each with the reason.
    """

    found: bool
    kept: list[str]


class Facts(TypedDict):
    """What a host is.

    Attributes:
        hostname: Its own name for itself.
        boot_id: Identity of its present boot.
        python: Version of the interpreter that ran the operation.
        cpus: CPUs that jobs may use.
        memory: GiB of memory.
        devices: Accelerators.
        disk_free: Bytes that this account may still write below the base.
        holder: Who has the host, if anybody.
    """

    hostname: str
    boot_id: str
    python: str
    cpus: float
    memory: float
    devices: list[Device]
    disk_free: int
    holder: Holder | None


def operate(operation: str, arguments: object) -> dict[str, object]:
    """Run an operation on this machine, as this account.

    Args:
        operation: One of ``OPERATIONS``.
        arguments: Its arguments, as the class named at the top of this module says.

    Returns:
        ``{"ok": answer}``, or ``{"problem": cause, "remedy": what to do}``.

    Raises:
        ValueError: there is no such operation, or an argument cannot be.
        KeyError: an argument is missing.
    """
    if operation not in OPERATIONS:
        raise ValueError(f"operation is {operation!r}: one of {', '.join(OPERATIONS)} is needed")
    if not isinstance(arguments, dict):
        raise ValueError(f"arguments is {type(arguments).__name__}: a dict is needed")
    # Not with the types, which the other side imports as well.
    from airflow_provider.runtime.agent.host.perform import PERFORM

    try:
        return {"ok": PERFORM[operation](arguments)}
    except HostProblem as problem:
        return {"problem": problem.cause, "remedy": problem.remedy}
    except OSError as error:
        return {"problem": str(error), "remedy": "see what that file or its file system lacks, and try again"}
