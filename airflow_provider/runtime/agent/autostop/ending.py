"""How a cluster ends by its own decision: hooks, jobs, and the command that takes the machine away."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.autostop.autostop import Decision
from airflow_provider.runtime.agent.autostop.hooks import run_hooks
from airflow_provider.runtime.agent.autostop.idle import Action
from airflow_provider.runtime.agent.trees import remove_tree

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from pathlib import Path
    from typing import TypeVar

    from airflow_provider.runtime.agent.autostop.autostop import Autostop
    from airflow_provider.runtime.agent.gate import Gate
    from airflow_provider.runtime.agent.lease import Lease

    Result = TypeVar("Result")

log = logging.getLogger(__name__)

_COMMAND_SECONDS = 600.0
_TRIES = 3
_PAUSE_SECONDS = 2.0


async def until_due(stop: asyncio.Event, lease: Lease, autostop: Autostop, gate: Gate) -> Decision | None:
    """Wait for the reason to end: None when it is the stop signal."""

    async def lease_over() -> Decision:
        while True:
            await lease.expired()
            why = f"no controller was heard for {lease.seconds} s"
            gate.close(why)
            if lease.left() <= 0:
                return Decision(Action.DOWN, why)
            gate.open(why)  # one was heard in this very moment

    autostopped = asyncio.create_task(autostop.due())
    expired = asyncio.create_task(lease_over())
    try:
        return await unless(stop, _first(autostopped, expired))
    finally:
        autostopped.cancel()
        expired.cancel()


async def before_end(
    decision: Decision,
    *,
    stop: asyncio.Event,
    autostop: Autostop,
    directory: Path,
    cancel_jobs: Callable[[], Awaitable[None]],
) -> bool:
    """Run the hooks and end the jobs, which go on as long as the hooks run.

    Args:
        decision: How and why the cluster ends.
        stop: The stop signal: when it comes while hooks run, they are ended and nothing else is done.
        autostop: Has the hooks.
        directory: Where the hooks' output goes.
        cancel_jobs: Ends all jobs.

    Returns:
        Whether it was done: False after a stop signal.
    """
    hooks = await autostop.claim_hooks()
    if await unless(stop, run_hooks(hooks, decision.action.value, directory=directory)) is None:
        log.warning("the hooks were ended by a stop signal")
        return False
    log.warning("%s: ending all jobs", decision.why)
    await cancel_jobs()
    return True


async def run_command(command: str, *, pause_seconds: float = _PAUSE_SECONDS) -> bool:
    """Run a bash command that takes the machine away, a few times if need be; return whether it ended with 0."""
    for number in range(1, _TRIES + 1):
        problem = await asyncio.to_thread(_run, command)
        if not problem:
            return True
        log.error("`%s` %s (%s of %s)", command, problem, number, _TRIES)
        if number < _TRIES:
            await asyncio.sleep(pause_seconds)
    return False


def vanish(root: Path) -> None:
    """Remove the cluster's directory."""
    # Away from its name first: nobody shall take what is left for a cluster.
    remains = root.with_name(f".removed-{root.name}-{secrets.token_hex(16)}")
    with suppress(FileNotFoundError):  # somebody removes it already
        root.rename(remains)
        remove_tree(remains)


async def unless(stop: asyncio.Event, work: Coroutine[None, None, Result]) -> Result | None:
    """Wait for ``work``, or for the stop signal: then cancel it, wait for its end and return None."""
    stopped = asyncio.create_task(stop.wait())
    working = asyncio.create_task(work)
    try:
        await asyncio.wait({stopped, working}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        working.cancel()
        await asyncio.wait({working})
        return None
    finally:
        stopped.cancel()
        working.cancel()


async def _first(*tasks: asyncio.Task[Result]) -> Result:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return done.pop().result()


def _run(command: str) -> str:
    """Run a command and return what went wrong. Its output goes to the agent's log."""
    try:
        # A session of its own: the agent's end, which it may bring about itself, must not end it.
        child = subprocess.Popen(
            ["bash", "-c", command], stdin=subprocess.DEVNULL, start_new_session=True, cwd="/"
        )
    except OSError as error:
        return f"cannot be started: {error}"
    try:
        code = child.wait(_COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return f"did not end in {_COMMAND_SECONDS:g} s"
    return f"exited with {code}" if code else ""
