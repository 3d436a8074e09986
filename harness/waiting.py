"""Waiting for something that can only be asked for, not awaited."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def poll(
    read: Callable[[], T],
    done: Callable[[T], object] = bool,
    *,
    timeout: float,
    what: str | Callable[[], str],
    interval: float = 0.4,
) -> T:
    """Read a value every `interval` seconds until it is as wished, and return it.

    Args:
        read: asks for the value.
        done: whether the value is as wished.
        timeout: seconds after which to give up.
        what: what is awaited, for the error; a function may look at how far it has come.
        interval: seconds between two readings.

    Raises:
        TimeoutError: after `timeout` seconds, naming `what`.
    """
    deadline = time.monotonic() + timeout
    while not done(value := read()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"Waited {timeout:.0f} s for {what if isinstance(what, str) else what()}.")
        time.sleep(interval)
    return value
