"""Bringing the runtime to a host: our agent and what it imports, in a directory named after its content."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider.runtime.blocking import run_slowly
from airflow_provider.runtime.infra.ssh.archive import CHECKED_MODULES, RuntimeArchive, choose_runtime
from airflow_provider.runtime.infra.ssh.first_contact import HostFacts, hello
from airflow_provider.runtime.infra.ssh.host import HostProblem, Problem, call, program_text
from airflow_provider.runtime.infra.ssh.wheels import PackagesMissing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider.runtime.transport.ssh.links import Link

INSTALL_SECONDS = 900.0
"""For sending and unpacking, over a slow line too."""

INDEX_SECONDS = 600.0
"""For pip on the host."""

SPARE_BYTES = 50_000_000
"""What must be free beside the runtime: for logs, and for compiling."""

INDEX_BYTES = 40_000_000
"""What the packages take that the host installs itself, about."""

_MEGABYTE = 1_000_000


class Installed(NamedTuple):
    """A runtime on a host.

    Attributes:
        base: Absolute path of the directory for all that is ours.
        runtime_dir: Where the runtime is, below it.
        runtime_hash: Its name.
        python: Path of the interpreter that it is for.
        boot_id: Identity of the host's present boot.
        hostname: The host's own name for itself.
        address: The address at which the host was reached, as it sees it.
    """

    base: str
    runtime_dir: str
    runtime_hash: str
    python: str
    boot_id: str
    hostname: str
    address: str


async def install(
    link: Link,
    *,
    host: str,
    base: str,
    python: str,
    wheelhouse: str | None,
    say: Callable[[str], Awaitable[None]],
    clock: Callable[[], float] = time.time,
    again: bool = False,
) -> Installed:
    """Make sure that the runtime is on a host, in one short command when it is there already.

    Everything that is tried again after a failure finds either all of the runtime or none of it; several processes may
    install on one host at the same time.

    Args:
        link: To the host.
        host: Its name, for messages.
        base: Directory on it for all that is ours; ``~`` is the account's home.
        python: The interpreter there.
        wheelhouse: Folder on this machine with wheels of what the agent imports. None: our own packages are sent where
            they suit the host, elsewhere it installs them from the package index.
        say: Takes lines on progress.
        clock: Seconds since 1970 on our side.
        again: What is there already is visited: a clock that was set wrong since, or a disk that a job filled, must not
            keep anybody from looking after it or removing it.

    Raises:
        HostProblem: the host cannot be used; all reasons at once, each with its remedy.
        SshError: the host cannot be reached any more.
    """
    facts = await hello(link, host=host, base=base, python=python, clock=clock)
    problems = list(facts.serious if again else facts.problems)
    runtime = None
    if facts.platform is not None:
        try:
            runtime = await run_slowly(choose_runtime, facts.platform, wheelhouse)
        except PackagesMissing as missing:
            problems.append(Problem(missing.cause, missing.remedy))
    if runtime is not None and not facts.problems and not (again and runtime.hash in facts.runtimes):
        problems += _space_problems(facts, runtime)
    if problems or runtime is None:
        raise HostProblem(host, problems)
    runtime_dir = f"{facts.base}/runtime/{runtime.hash}"
    if runtime.hash not in facts.runtimes:
        await _send(link, runtime, facts, host=host, say=say)
    return Installed(
        base=facts.base,
        runtime_dir=runtime_dir,
        runtime_hash=runtime.hash,
        python=facts.executable,
        boot_id=facts.boot_id,
        hostname=facts.hostname,
        address=facts.address,
    )


async def _send(
    link: Link,
    runtime: RuntimeArchive,
    facts: HostFacts,
    *,
    host: str,
    say: Callable[[str], Awaitable[None]],
) -> None:
    try:
        blocks = await run_slowly(runtime.blocks)
    except PackagesMissing as missing:
        raise HostProblem(host, [Problem(missing.cause, missing.remedy)]) from missing
    size = sum(map(len, blocks)) / _MEGABYTE
    await say(f"installing the agent on {host} ({size:.1f} MB)")
    if runtime.requirements:
        await say(f"{host} installs {', '.join(runtime.requirements[0])} from its package index")
    began = time.monotonic()
    order = {
        "base": facts.base,
        "runtime": runtime.hash,
        "files": runtime.files,
        "bytes": runtime.bytes,
        "requirements": runtime.requirements,
        "seconds": INDEX_SECONDS,
        "modules": CHECKED_MODULES,
    }
    try:
        await call(
            link,
            program_text("contact", "installing"),
            order,
            host=host,
            python=facts.executable,
            payload=blocks,
            seconds=INSTALL_SECONDS,
        )
    except HostProblem as error:
        raise _with_wheelhouse(error, runtime, facts) from error
    await say(f"the agent is installed on {host} ({time.monotonic() - began:.1f} s)")


def _space_problems(facts: HostFacts, runtime: RuntimeArchive) -> list[Problem]:
    needed = SPARE_BYTES
    if runtime.hash not in facts.runtimes:
        needed += runtime.unpacked + (INDEX_BYTES if runtime.requirements else 0)
    if facts.free_bytes >= needed:
        return []
    return [
        Problem(
            f"{facts.base} has {facts.free_bytes / _MEGABYTE:.0f} MB left, {needed / _MEGABYTE:.0f} MB are needed",
            "free some space there, or name a place on another file system with `base` in the pool",
            lasting=False,
        )
    ]


def _with_wheelhouse(error: HostProblem, runtime: RuntimeArchive, facts: HostFacts) -> HostProblem:
    """Return the error with the other way to get the packages, where the package index failed."""
    if not runtime.requirements or facts.platform is None or "pip" not in error.problems[0].cause:
        return error
    command = facts.platform.download_command("wheelhouse", runtime.requirements[0])
    return HostProblem(
        error.host,
        [
            problem._replace(
                remedy=f"{problem.remedy}, or name a folder with the packages with `wheelhouse` in the pool, made by "
                f"`{command}`"
            )
            for problem in error.problems
        ],
    )
