"""A real cluster for each test: a directory on this machine with a real agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from airflow_provider.runtime.infra.base import ClusterHandle
from airflow_provider.runtime.infra.local import LocalInfra
from tests.integration.clusters import ANY_CHOICE, Cluster, assert_gone, quiet


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "own_cluster: the test does something to the agent or the cluster itself"
    )


@pytest.fixture
def lease_seconds() -> float:
    """How long the cluster of the test lives without hearing from a controller; for tests with one of their own."""
    return 600.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalInfra, Path, ClusterHandle]]:
    """A cluster for all tests of a module that only run jobs on it: jobs know nothing of each other."""
    root = tmp_path_factory.mktemp("shared") / "clusters"
    infra = LocalInfra(root)
    handle = asyncio.run(infra.provision("c1", ANY_CHOICE, quiet))
    yield infra, root, handle
    asyncio.run(infra.tear_down(handle.name))
    assert_gone(root, handle.name)


@asynccontextmanager
async def _own(root: Path, lease_seconds: float) -> AsyncIterator[Cluster]:
    infra = LocalInfra(root, lease_seconds=lease_seconds)
    handle = await infra.provision("c1", ANY_CHOICE, quiet)
    cluster = Cluster(infra, root, handle, await infra.connect(handle))
    yield cluster
    await cluster.remove()


@pytest.fixture
def shared_if_wanted(request: pytest.FixtureRequest) -> tuple[LocalInfra, Path, ClusterHandle] | None:
    """The shared cluster unless the test has one of its own."""
    if request.node.get_closest_marker("own_cluster"):
        return None
    found: tuple[LocalInfra, Path, ClusterHandle] = request.getfixturevalue("shared")
    return found


@pytest.fixture
async def cluster(
    shared_if_wanted: tuple[LocalInfra, Path, ClusterHandle] | None, tmp_path: Path, lease_seconds: float
) -> AsyncIterator[Cluster]:
    """A cluster on which nothing runs; nothing that the test did there may be left after it."""
    if shared_if_wanted is None:
        async with _own(tmp_path / "clusters", lease_seconds) as cluster:
            yield cluster
    else:
        infra, root, handle = shared_if_wanted
        cluster = Cluster(infra, root, handle, await infra.connect(handle))
        yield cluster
        await cluster.end_jobs()


@pytest.fixture
async def node_with_gpus(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster whose node has 2 CPUs, 8 GiB and four devices, whatever this machine has."""
    async with _own(tmp_path / "clusters", 600.0) as cluster:
        node = {"cpus": 2, "memory": 8, "accelerators": {"V100": 4}}
        (cluster.directory / "agent" / "node.json").write_text(json.dumps(node))
        await cluster.kill_agent()
        await cluster.restart_agent()
        yield cluster
