"""Bounded threads for calls that block: SQL, file systems, subprocesses. The event loop itself never blocks."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import ParamSpec

if TYPE_CHECKING:
    from collections.abc import Callable

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_THREADS = 8
"""Of each pool: enough to keep a disk and a database busy, few enough to cost nothing with hundreds of tasks."""


@lru_cache(maxsize=2)
def _pool(name: str, _process: int) -> ThreadPoolExecutor:
    # By process: a forked worker has its parent's pool object but none of the threads.
    return ThreadPoolExecutor(_THREADS, thread_name_prefix=f"managed-jobs-{name}")


async def run_blocking(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Run ``function``, which takes milliseconds, in a bounded pool of this process; return what it returns.

    A caller that is cancelled meanwhile waits for the thread to end before it goes on: what must be undone next is
    then known to be over, such as the start of a cluster before its removal.
    """
    return await _run("quick", partial(function, *args, **kwargs))


async def run_slowly(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Do as ``run_blocking`` for what may take seconds, in a pool of its own: slow launches must not hold up SQL."""
    return await _run("slow", partial(function, *args, **kwargs))


async def _run(pool: str, work: Callable[[], Result]) -> Result:
    call = asyncio.get_running_loop().run_in_executor(_pool(pool, os.getpid()), work)
    await outlast(call)
    return call.result()


async def outlast(future: asyncio.Future[Any]) -> None:
    """Wait until ``future`` is done; a cancellation of the caller, and any more of them, is raised only then."""
    cancelled = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = error
    if not future.cancelled():
        future.exception()  # looked at, so that asyncio does not report it when the caller goes another way
    if cancelled is not None:
        raise cancelled
