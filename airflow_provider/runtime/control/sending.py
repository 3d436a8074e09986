"""Sending a task's files to its cluster, with words on how far they are."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from airflow_provider.runtime.blocking import outlast
from airflow_provider.runtime.control.progress import EVERY_SECONDS, Transfer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import BinaryIO

    from airflow_provider.runtime.client.base import ClusterClient

_LOOK_SECONDS = EVERY_SECONDS / 10


async def send_archive(
    client: ClusterClient,
    digest: str,
    size: int,
    read: Callable[[], BinaryIO],
    *,
    say: Callable[[str], Awaitable[None]],
) -> None:
    """Send an archive, as ``ClusterClient.send_files`` does, and say now and then how far it is.

    Args:
        client: The cluster's.
        digest: SHA-256 of the archive, in hexadecimal.
        size: Of the archive, in bytes.
        read: Opens the archive.
        say: Takes lines for the task's log.

    Raises:
        ClientError: it could not be sent.
    """
    transfer = Transfer(time.monotonic())
    sending = asyncio.create_task(client.send_files(digest, size, read, transfer.heard))
    try:
        while not sending.done():
            await asyncio.wait({sending}, timeout=_LOOK_SECONDS)
            await _say(transfer.line(time.monotonic()), say)
        await sending
        await _say(transfer.last_line(time.monotonic()), say)
    finally:
        sending.cancel()
        await outlast(sending)


async def _say(line: str | None, say: Callable[[str], Awaitable[None]]) -> None:
    if line is not None:
        await say(line)
