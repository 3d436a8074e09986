"""A lease of a made-up host, in a directory like /var/tmp."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.host.hostlease import HostLease
from tests.unit.agent.host.leases import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory() -> Iterator[Path]:
    """Where the lease is to be, in a directory like /var/tmp."""
    above = Path(tempfile.mkdtemp(prefix="lease-"))
    above.chmod(0o1777)
    yield above / "lease"
    shutil.rmtree(above)


@pytest.fixture
def lease(clock: Clock, directory: Path) -> HostLease:
    return clock.lease(directory)
