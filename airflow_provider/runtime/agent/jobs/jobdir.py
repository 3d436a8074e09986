"""The directories of one cluster job: the interface between the agent and the job's driver.

The job's own directory holds what the two tell each other, the log directory what people read: laid out as SkyPilot's
(``sky_logs/<id>-<name>/run.log`` and ``tasks/``), and named after the job.

Both sides may die and come back at any moment, so everything that one tells the other is a file, written whole or not
at all: the agent writes the order, the driver writes the status, and the agent watches the directory.

Every driver imports this module before its job's first line: named tuples, as dataclasses take longer to import than
all the rest.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

MAX_OUTPUT_BYTES = 64 * 1024
"""Largest JSON that a job may leave in ``TASK_OUTPUT_FILE``."""

REPORTED = frozenset(
    {"PENDING", "SETTING_UP", "RUNNING", "SUCCEEDED", "FAILED", "FAILED_SETUP", "FAILED_DRIVER", "CANCELLED"}
)
"""Statuses that a driver may report: names of the wire's ``JobStatus``."""

ENDED = frozenset({"SUCCEEDED", "FAILED", "FAILED_SETUP", "FAILED_DRIVER", "CANCELLED"})
"""Those of them that are a driver's last word."""

_REPORT_BYTES = 1 << 20
_TAIL_BYTES = 16 * 1024


class FileOrder(NamedTuple):
    """A received archive and where to unpack it."""

    archive: str
    kind: str
    destination: str


class GitOrder(NamedTuple):
    """A repository to clone to ``~/sky_workdir`` before setup."""

    url: str
    ref: str = ""
    """Branch, tag or commit; empty: the repository's default branch."""


class Order(NamedTuple):
    """What the driver is to run. Holds no secret: variables travel in a file of their own."""

    marker: str
    setup: str
    run: str
    home: str
    files: list[FileOrder]
    grace_seconds: float
    program: str = ""
    """Path of a Python program to run in place of setup and run."""
    devices: str | None = None
    """``CUDA_VISIBLE_DEVICES`` of run; setup then has none. None: the node has no devices to hand out."""
    flush_seconds: float = 600.0
    """How long cached mounts may take to upload what run wrote."""
    logs: str = ""
    """The log directory; empty: the job's directory."""
    git: GitOrder | None = None
    node_ips: tuple[str, ...] = ()
    """Addresses of the nodes by rank; empty: one node that calls itself 127.0.0.1."""
    root: str = ""
    """The cluster's directory where files are to be accounted for beyond the job's end; empty: they go with the job's home."""


class Report(NamedTuple):
    """The driver's word on its job; times in seconds since the epoch, ``ended_at`` is 0 until the last word."""

    status: str
    exit_codes: tuple[int, ...] = ()
    reason: str = ""
    output: str | None = None
    started_at: float = 0.0
    ended_at: float = 0.0


class JobDirectory:
    """Paths and atomic reads and writes in one job's directories."""

    def __init__(self, path: Path, logs: Path | None = None) -> None:
        self.path = path
        self.logs = logs or path
        self.log = self.logs / "run.log"
        """Everything that the job and its driver printed, in order."""
        self.tasks = self.logs / "tasks"
        """Where each stage has a log of its own."""
        self.program_file = path / "program.py"
        self.program_report_file = path / "program.json"
        self.order_file = path / "order.json"
        self.variables_file = path / "variables.json"
        self.report_file = path / "report.json"
        self.driver_file = path / "driver.json"
        self.driver_log = path / "driver.log"
        self.lock_file = path / "driver.lock"
        self.output_file = path / "output.json"
        self.failures_file = path / "failures"
        self.git_key_file = path / "git.key"
        """The key of a repository, while it is cloned."""

    def create(self, order: Order, variables: dict[str, str]) -> None:
        """Write everything that the driver needs; readable by this user alone.

        The directories that hold the job's must exist: where they are gone, the cluster was removed meanwhile.
        """
        for directory in (self.path, self.logs, self.tasks):
            directory.mkdir(mode=0o700, exist_ok=True)
        written = {
            **order._asdict(),
            "files": [file._asdict() for file in order.files],
            "git": order.git and order.git._asdict(),
            "logs": str(self.logs),
        }
        write_private(self.order_file, json.dumps(written))
        write_private(self.variables_file, json.dumps(variables))
        self.log.touch(mode=0o600)

    def assign(self, devices: str) -> None:
        """Write into the order which devices the job has. Before its driver starts."""
        write_private(
            self.order_file, json.dumps({**json.loads(read_file(self.order_file)), "devices": devices})
        )

    def order(self) -> Order:
        """Return the agent's order."""
        data = json.loads(read_file(self.order_file))
        git = data.get("git")
        return Order(
            **{
                **data,
                "files": [FileOrder(**item) for item in data["files"]],
                "git": git and GitOrder(**git),
                "node_ips": tuple(data.get("node_ips", ())),
            }
        )

    def forget_secrets(self) -> None:
        """Remove what may hold secrets and is not needed any more. Blocking."""
        for file in (self.variables_file, self.program_file, self.git_key_file):
            with suppress(OSError):
                file.unlink()

    def take_variables(self) -> dict[str, str]:
        """Return the job's variables and remove the file: secrets stay on disk no longer than needed."""
        variables: dict[str, str] = json.loads(read_file(self.variables_file))
        self.variables_file.unlink()
        return variables

    def log_size(self) -> int:
        """Return the bytes in the log; a log that its job removed has none."""
        try:
            return self.log.stat().st_size
        except OSError:
            return 0

    def report(self) -> Report | None:
        """Return the driver's last report; None before the first, and when what is there is none."""
        try:
            said: dict[str, Any] = json.loads(read_file(self.report_file, limit=_REPORT_BYTES))
            # Jobs run as the same user and may write here by accident: nothing in it is taken on trust.
            sound = (
                said["status"] in REPORTED
                and all(map(_int32, said["exit_codes"]))
                and isinstance(said["reason"], str)
                and isinstance(said["output"], (str, type(None)))
                and _moment(said["started_at"])
                and _moment(said["ended_at"])
                and bool(said["ended_at"]) == (said["status"] in ENDED)
            )
            # What cannot be written as UTF-8 could not be stored, nor told.
            f"{said['reason']}{said['output']}".encode()
            return Report(**{**said, "exit_codes": tuple(said["exit_codes"])}) if sound else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write_report(self, report: Report) -> None:
        """Replace the report as one step."""
        write_private(self.report_file, json.dumps(report._asdict()))

    def driver_pid(self) -> int | None:
        """Return the pid that the driver wrote at its start; None when it never started, 0 when none may start."""
        try:
            return int(json.loads(read_file(self.driver_file, limit=_REPORT_BYTES))["pid"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError):
            return 0

    def write_driver_pid(self, pid: int) -> None:
        """Say that a driver runs, or with 0 that none may start any more. Needs the lock."""
        write_private(self.driver_file, json.dumps({"pid": pid}))

    def lock(self) -> int | None:
        """Take the driver's lock; None when a live driver holds it. The descriptor holds it until closed."""
        handle = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        return handle


def write_private(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` as one step, with mode 0600."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise


def open_regular(path: Path) -> int:
    """Open a file to read; jobs may put anything in its place, and nothing that blocks is opened.

    Raises:
        OSError: it is not there, or no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return handle


def read_file(path: Path, *, limit: int = 256 << 20, tail: bool = False) -> str:
    """Return the text of a file, or its end.

    Raises:
        OSError: it cannot be read, or is no regular file.
        ValueError: it has more than ``limit`` bytes.
    """
    handle = open_regular(path)
    with open(handle, "rb") as file:
        size = os.fstat(handle).st_size
        if tail:
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode("utf-8", "replace")
        if size > limit:
            raise ValueError(f"{path} has {size} bytes")
        return file.read(limit).decode("utf-8", "surrogateescape")


def _int32(code: object) -> bool:
    return isinstance(code, int) and -(1 << 31) <= code < 1 << 31


def _moment(seconds: object) -> bool:
    return isinstance(seconds, (int, float)) and 0 <= seconds < float("inf")
