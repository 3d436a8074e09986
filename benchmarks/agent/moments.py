"""Waiting for what happens in other processes."""

from __future__ import annotations

import asyncio
import os


async def ended(pid: int, seconds: float = 60.0) -> None:
    """Wait for the end of a process that is not our child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(handle, gone.set)
    try:
        await asyncio.wait_for(gone.wait(), seconds)
    finally:
        loop.remove_reader(handle)
        os.close(handle)
