"""The directory of one cluster job: the interface between the agent and the job's driver.

Both sides may die and come back at any moment, so everything that one tells the other is a file, written whole or not
at all: the agent writes the order, the driver writes the status, and the agent watches the directory.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MAX_OUTPUT_BYTES = 64 * 1024
"""Largest JSON that a job may leave in ``TASK_OUTPUT_FILE``."""


@dataclass(frozen=True)
class FileOrder:
    """A received archive and where to unpack it."""

    archive: str
    kind: str
    destination: str


@dataclass(frozen=True)
class Order:
    """What the driver is to run. Holds no secret: variables travel in a file of their own."""

    marker: str
    setup: str
    run: str
    home: str
    files: list[FileOrder]
    grace_seconds: float

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Order:
        """Build from the dictionary that ``asdict`` made."""
        return cls(**{**data, "files": [FileOrder(**item) for item in data["files"]]})


@dataclass(frozen=True)
class Report:
    """The driver's word on its job. ``status`` is a name of the wire's ``JobStatus``; times in seconds since epoch."""

    status: str
    exit_codes: list[int] = field(default_factory=list)
    reason: str = ""
    output: str | None = None
    started_at: float = 0.0
    ended_at: float = 0.0


class JobDirectory:
    """Paths and atomic reads and writes in one job's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "run.log"
        self.order_file = path / "order.json"
        self.variables_file = path / "variables.json"
        self.report_file = path / "report.json"
        self.driver_file = path / "driver.json"
        self.driver_log = path / "driver.log"
        self.lock_file = path / "driver.lock"
        self.output_file = path / "output.json"
        self.failures_file = path / "failures"

    def create(self, order: Order, variables: dict[str, str]) -> None:
        """Write everything that the driver needs; readable by this user alone."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self.order_file, json.dumps(asdict(order)))
        write_private(self.variables_file, json.dumps(variables))
        self.log.touch(mode=0o600)

    def order(self) -> Order:
        """Return the agent's order."""
        return Order.from_json(json.loads(self.order_file.read_text()))

    def take_variables(self) -> dict[str, str]:
        """Return the job's variables and remove the file: secrets stay on disk no longer than needed."""
        variables: dict[str, str] = json.loads(self.variables_file.read_text())
        self.variables_file.unlink()
        return variables

    def report(self) -> Report | None:
        """Return the driver's last report, None before the first."""
        try:
            return Report(**json.loads(self.report_file.read_text()))
        except FileNotFoundError:
            return None

    def write_report(self, report: Report) -> None:
        """Replace the report as one step."""
        write_private(self.report_file, json.dumps(asdict(report)))

    def driver_pid(self) -> int | None:
        """Return the pid that the driver wrote at its start, None when it never started."""
        try:
            pid = json.loads(self.driver_file.read_text())["pid"]
        except FileNotFoundError:
            return None
        return int(pid)

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
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    part.replace(path)
