"""Claims to a host, and a boot of it whose time a test sets."""

from __future__ import annotations

import os
from pathlib import Path

from airflow_provider.runtime.agent.host.hostlease import Claim, HostLease

OURS = Claim("train", "i1", "airflow one, dag.task", "/base/clusters/0123456789ab")
THEIRS = Claim("serve", "i2", "airflow two, dag.other", "/base/clusters/ba9876543210")


class Clock:
    """A boot of a host whose time a test sets."""

    def __init__(self) -> None:
        self.boot = "boot 1"
        self.time = 1000.0

    def lease(self, directory: Path) -> HostLease:
        return HostLease(directory, boot_id=lambda: self.boot, now=lambda: self.time)


def record_of(directory: Path, uid: int = os.geteuid()) -> Path:
    return directory / f"{uid}.json"


def entries(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())
