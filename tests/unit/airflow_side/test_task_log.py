"""The end of a task waits for its log."""

from __future__ import annotations

import asyncio
import os
import socket

import structlog

from airflow_provider import tasklog
from airflow_provider.tasklog import drained


async def test_the_end_waits_until_the_reader_has_taken_all_that_was_written() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, os.fdopen(os.dup(ours.fileno()), "wb", buffering=0) as file:
        logger = structlog.wrap_logger(structlog.BytesLogger(file), processors=[lambda *_: b"a line"])
        logger.info("event")

        waiting = asyncio.create_task(drained(logger))
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done

        assert theirs.recv(100) == b"a line\n"
        await asyncio.wait_for(waiting, 10)


async def test_a_log_that_is_no_socket_is_given_time(monkeypatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(tasklog.asyncio, "sleep", sleep)

    await drained(structlog.wrap_logger(structlog.ReturnLogger()))

    assert slept == [tasklog._BLIND_WAIT_SECONDS]
