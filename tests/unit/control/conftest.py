"""What holds for every test of the controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from airflow_provider.runtime.control import machine


@pytest.fixture
async def no_waiting(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Shorten all waits, and fail when an asyncio task is left at the end."""
    monkeypatch.setattr(machine, "_BACKOFF_LIMIT_SECONDS", 0.001)
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}
