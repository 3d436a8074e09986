"""A real cluster for each test: a directory on this machine with a real agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from airflow_provider.runtime.infra.local import LocalInfra
from tests.integration.clusters import Cluster, quiet


@pytest.fixture
def lease_seconds() -> float:
    """How long the cluster of the test lives without hearing from a controller."""
    return 600.0


@pytest.fixture
async def cluster(tmp_path: Path, lease_seconds: float) -> AsyncIterator[Cluster]:
    """A fresh cluster; nothing of it may be left after the test."""
    root = tmp_path / "clusters"
    infra = LocalInfra(root, lease_seconds=lease_seconds)
    handle = await infra.provision("c1", quiet)
    client = await infra.connect(handle)
    cluster = Cluster(infra, root, handle, client)
    yield cluster
    await cluster.close()
