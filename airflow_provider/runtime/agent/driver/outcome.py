"""How a job ended: exit codes in words, the result that it left, and what a program says of itself."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider.runtime.agent.jobs.jobdir import MAX_OUTPUT_BYTES

if TYPE_CHECKING:
    from pathlib import Path

INTERIM = frozenset({"SETTING_UP", "RUNNING"})
"""Statuses that a program may report while it runs."""

FINAL = frozenset({"SUCCEEDED", "FAILED", "FAILED_SETUP"})
"""Statuses that a program may report of its end."""

_LONGEST_REASON = 4096


class JobFailed(Exception):
    """The job cannot go on: ``status`` and the words for the user."""

    def __init__(self, status: str, reason: str, exit_codes: tuple[int, ...] = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.exit_codes = exit_codes


class Unreadable(Exception):
    """A file that the job left is not what it should be; the text says why, without the file's name."""


class Said(NamedTuple):
    """What a program reported."""

    status: str
    exit_codes: tuple[int, ...]
    reason: str


def read_output(path: Path) -> str | None:
    """Return the JSON that the job wrote, checked; None when there is none.

    Raises:
        JobFailed: it is no JSON or too much: a job whose result would be lost has not succeeded.
    """
    try:
        data = _read_left(path)
        if data is None:
            return None
        text = data.decode("utf-8")
        value = json.loads(text)
        # What other readers of JSON choke on: NaN, infinite numbers, halves of characters.
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8")
    except Unreadable as error:
        raise JobFailed("FAILED", f"TASK_OUTPUT_FILE {error}", (0,)) from error
    except RecursionError:
        raise JobFailed(
            "FAILED", "TASK_OUTPUT_FILE does not hold valid JSON: nested too deeply", (0,)
        ) from None
    except ValueError as error:
        raise JobFailed("FAILED", f"TASK_OUTPUT_FILE does not hold valid JSON: {error}", (0,)) from error
    return text


def read_said(path: Path) -> Said | None:
    """Return what the program reported; None when it reported nothing.

    Raises:
        Unreadable: what is there is no report.
    """
    data = _read_left(path)
    if data is None:
        return None
    try:
        said = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Unreadable("does not hold valid JSON") from error
    if not isinstance(said, dict):
        raise Unreadable("does not hold an object")
    status, codes, reason = said.get("status"), said.get("exit_codes", []), said.get("reason", "")
    if not isinstance(status, str) or status not in INTERIM | FINAL:
        raise Unreadable(
            f"has a status of {str(status)[:100]!r}: {', '.join(sorted(INTERIM | FINAL))} are known"
        )
    if not isinstance(codes, list) or not all(type(code) is int and abs(code) < 1 << 31 for code in codes):
        raise Unreadable("has exit_codes that are no list of whole numbers")
    if not isinstance(reason, str):
        raise Unreadable("has a reason that is no text")
    # What cannot be encoded could not be stored or sent either.
    reason = reason[:_LONGEST_REASON].encode("utf-8", "replace").decode("utf-8")
    return Said(status, tuple(codes), reason)


def _read_left(path: Path) -> bytes | None:
    try:
        # Not blocking: the job may have left a FIFO there.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from error
    try:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):
            raise Unreadable("is not a regular file")
        data = os.read(handle, MAX_OUTPUT_BYTES + 1)
    finally:
        os.close(handle)
    if len(data) > MAX_OUTPUT_BYTES:
        raise Unreadable(
            f"holds {state.st_size} bytes, {MAX_OUTPUT_BYTES} at most. "
            "Write large results to storage and their address to the file."
        )
    return data


def cannot_start(program: str, error: OSError, environment: dict[str, str]) -> str:
    """Return why a program did not start, for people."""
    if error.errno == errno.E2BIG:
        sizes = {name: len(value.encode("utf-8", "surrogateescape")) for name, value in environment.items()}
        name = max(sizes, key=lambda name: sizes[name])
        return (
            f"cannot start {program}: its environment is too large ({sum(sizes.values())} bytes). The largest "
            f"variable is {name} with {sizes[name]} bytes; the system takes less than 131072. Put large values into "
            "a file"
        )
    return f"cannot start {program}: {error}"


def shell_code(code: int) -> int:
    """Return a wait code as a shell would: 128 and the number of the signal."""
    return code if code >= 0 else 128 - code


def describe(stage: str, code: int) -> str:
    """Return an exit code other than 0 in words."""
    if code < 0:
        return f"{stage} was killed by {_signal_name(-code) or f'signal {-code}'} (exit code {128 - code})"
    name = _signal_name(code - 128)
    if name is not None:
        return f"{stage} failed with exit code {code} ({name} in the last command)"
    return f"{stage} failed with exit code {code}"


def _signal_name(number: int) -> str | None:
    try:
        return signal.Signals(number).name
    except ValueError:
        return None
