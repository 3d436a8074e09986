"""One real skylet for all tests of this folder: it takes seconds to start, and jobs know nothing of each other."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from airflow_provider.runtime.client.skylet import SkyletClient
from airflow_provider.runtime.transport.tcp import TcpChannel
from tests.interop.between import Between
from tests.interop.peer import Skylet


@pytest.fixture(scope="session")
def skylet() -> Iterator[Skylet]:
    """A skylet that runs; nothing of it is left afterwards."""
    home = Path(tempfile.mkdtemp(prefix="skylet-"))
    peer = Skylet(home)
    try:
        peer.start()
        yield peer
    finally:
        peer.stop()
        shutil.rmtree(home)


@pytest.fixture
async def client(skylet: Skylet) -> AsyncIterator[SkyletClient]:
    client = SkyletClient(TcpChannel(skylet.port), idle_seconds=0.3)
    yield client
    await client.close()


@pytest.fixture
async def between(skylet: Skylet) -> AsyncIterator[Between]:
    """What is between the client ``disturbed`` and the skylet."""
    async with Between(skylet.port) as between:
        yield between


@pytest.fixture
async def disturbed(between: Between) -> AsyncIterator[SkyletClient]:
    client = SkyletClient(TcpChannel(between.port), idle_seconds=0.3)
    yield client
    await client.close()
