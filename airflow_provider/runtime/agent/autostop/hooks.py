"""Hooks: the user's own commands before the cluster stops or goes down."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider.runtime.agent.process import processes
from airflow_provider.runtime.agent.waiting import happens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

log = logging.getLogger(__name__)

EVENTS = ("stop", "preemption", "down")
"""When a hook may run. Hooks of preemption are stored and shown; nothing here tells an agent that one is coming."""

DEFAULT_TIMEOUT = 3600.0
"""Seconds that a hook may take which sets no limit, as with SkyPilot."""

EVENT_VARIABLE = "SKYPILOT_HOOK_EVENT"
"""Environment variable that tells a hook what it runs before."""

_GRACE_SECONDS = 5.0
_KILL_LIMIT_SECONDS = 30.0


class Hook(NamedTuple):
    """A bash script, the events before which it runs, and the seconds that it may take. The script may hold secrets."""

    run: str
    events: tuple[str, ...] = EVENTS
    timeout: float = DEFAULT_TIMEOUT


class Outcome(NamedTuple):
    """What became of a hook: its exit code and no problem, or the problem."""

    code: int | None
    problem: str
    seconds: float

    def __str__(self) -> str:
        what = self.problem or f"exited with {self.code}"
        return f"{what} after {self.seconds:.1f} s"


async def run_hooks(
    hooks: Iterable[Hook], event: str, *, directory: Path, grace_seconds: float = _GRACE_SECONDS
) -> list[Outcome]:
    """Run the hooks of an event one after the other; whatever becomes of them, this returns.

    Each runs in a session of its own, and when it ends, or has had its time, all that it started is ended with it, as
    with a job. When the caller is cancelled, the running hook is ended and the others are not begun.

    Args:
        hooks: All hooks; those of other events are left out.
        event: One of ``EVENTS``.
        directory: Where ``<event>.log`` takes the hooks' output, that of an earlier run cut off; made when needed.
        grace_seconds: Seconds between SIGTERM and SIGKILL.

    Returns:
        What became of each, in their order.
    """
    due = [hook for hook in hooks if event in hook.events]
    if not due:
        return []
    # A thread of its own: ending a stubborn tree takes seconds, and the agent's other threads are for its calls.
    with ThreadPoolExecutor(1, thread_name_prefix="hooks") as sweeper:
        output = _open_log(directory, event)
        try:
            outcomes = []
            for number, hook in enumerate(due, 1):
                name = f"hook {number} of {len(due)} before {event}"
                log.info("%s begins", name)
                outcome = await _run(hook, event, output, sweeper, grace_seconds)
                log.log(logging.INFO if outcome.code == 0 else logging.ERROR, "%s %s", name, outcome)
                _note(output, f"[{name} {outcome}]\n")
                outcomes.append(outcome)
            return outcomes
        finally:
            os.close(output)


async def _run(
    hook: Hook, event: str, output: int, sweeper: ThreadPoolExecutor, grace_seconds: float
) -> Outcome:
    begin = time.monotonic()
    marker = f"hook:{secrets.token_hex(16)}"
    try:
        child = _start(hook.run, {EVENT_VARIABLE: event, processes.JOB_MARKER: marker}, output)
    except (OSError, ValueError) as error:
        return Outcome(None, f"cannot be started ({error})", time.monotonic() - begin)
    problem = ""
    grace = 0.0
    try:
        if not await _ended(child, hook.timeout):
            problem = f"did not end in its {hook.timeout:g} s and was ended"
            grace = grace_seconds
    except asyncio.CancelledError:
        grace = grace_seconds
        raise
    finally:
        left = await _uncancelled(sweeper, lambda: _sweep(child, marker, grace))
    if left:
        log.error("processes %s of a hook cannot be killed", sorted(process.pid for process in left))
    return Outcome(None if problem else child.returncode, problem, time.monotonic() - begin)


def _start(script: str, variables: dict[str, str], output: int) -> subprocess.Popen[bytes]:
    # From memory, not as an argument, which may have 128 KiB at most, nor from a file, for which a full disk has no room.
    source = os.memfd_create("hook")
    try:
        with open(source, "wb", closefd=False) as file:
            file.write(script.encode("utf-8", "surrogateescape"))
        return subprocess.Popen(
            ["bash", f"/dev/fd/{source}"],
            pass_fds=(source,),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=_home(),
            env={**os.environ, **variables},
        )
    finally:
        os.close(source)


def _home() -> str:
    home = Path.home()
    return str(home) if home.is_dir() else "/"


async def _ended(child: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the end of a child, ``seconds`` at most; return whether it came."""
    handle = os.pidfd_open(child.pid)
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(handle, over.set)
    try:
        return await happens(over, seconds)
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def _sweep(child: subprocess.Popen[bytes], marker: str, grace: float) -> set[processes.Process]:
    """End the child and all that it started; return what cannot be killed."""

    def find() -> set[processes.Process]:
        # Once collected, its pid may be another process's.
        roots = [child.pid] if child.poll() is None else []
        return processes.members(roots, processes.JOB_MARKER, marker)

    left = processes.end(find, grace=grace, limit=grace + _KILL_LIMIT_SECONDS)
    child.poll()
    return left


async def _uncancelled(
    executor: ThreadPoolExecutor, work: Callable[[], set[processes.Process]]
) -> set[processes.Process]:
    """Do ``work`` in a thread and wait for its end, also when the caller is cancelled meanwhile."""
    future = asyncio.get_running_loop().run_in_executor(executor, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait({future})
        raise


def _open_log(directory: Path, event: str) -> int:
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        return os.open(directory / f"{event}.log", flags, 0o600)
    except OSError as error:
        log.error("the output of the hooks is lost: %s", error)
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def _note(output: int, line: str) -> None:
    with suppress(OSError):  # a full disk; the agent's own log was told as well
        os.write(output, line.encode())
