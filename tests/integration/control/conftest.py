"""Managed tasks on real local clusters with real agents."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from airflow_provider.runtime.control import machine
from tests.integration.control.lab import Lab
from tests.unit.control.scripted import until


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    """A lab that must be empty at the end: no cluster, archive, process or asyncio task is left."""
    monkeypatch.setattr(machine, "_BACKOFF_LIMIT_SECONDS", 0.05)
    made = Lab(tmp_path)
    yield made
    # grpc needs a moment to end the calls that were cancelled.
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
    left = made.leftovers()
    for name in made.infra.clusters():
        made.infra.preempt(name)
    assert left == []


@pytest.fixture
def descriptors() -> Callable[[], int]:
    """Count the open files of this process."""
    return lambda: len(os.listdir("/proc/self/fd"))
