"""An agent keeps its host, and says once when it has lost it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.host.clusters import Record
from airflow_provider.runtime.agent.host.hostlease import Claim, Held, HostLease
from airflow_provider.runtime.agent.host.keeper import HostKeeper
from airflow_provider.runtime.agent.host.problem import HostProblem
from tests.unit.agent.made_up_cluster import until

OTHER = Held(Claim("serve", "i9", "airflow two", "/elsewhere"), "bob", 60.0)


class MadeUpLease(HostLease):
    """Answers each renewal as the test says."""

    def __init__(self, answer: Callable[[], Held | None]) -> None:
        super().__init__(Path("/nowhere"))
        self.claims: list[tuple[Claim, float]] = []
        self._answer = answer

    def take(self, claim: Claim, seconds: float) -> Held | None:
        self.claims.append((claim, seconds))
        return self._answer()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "i1")
    return tmp_path


def write(root: Path, instance: str) -> None:
    record = Record("train", instance, "boot", "here", "/nowhere", "r1", "airflow one", 0.0)
    (root / "cluster.json").write_text(json.dumps(record._asdict()))


def keeper(lease: HostLease | None, root: Path, lost: list[str], seconds: float = 0.03) -> HostKeeper:
    return HostKeeper(lease, root=root, instance="i1", seconds=lambda: seconds, on_lost=lost.append)


async def test_the_lease_is_renewed_again_and_again_until_the_end(root: Path) -> None:
    lease, lost = MadeUpLease(lambda: None), list[str]()
    keeping = keeper(lease, root, lost)
    await until(lambda: len(lease.claims) > 3, "the keeper")
    await keeping.close()
    count = len(lease.claims)
    assert set(lease.claims) == {(Claim("train", "i1", "airflow one", str(root)), 0.03)}
    await asyncio.sleep(0.05)  # several times as long as between two renewals
    assert len(lease.claims) == count
    assert (lost, keeping.lost) == ([], "")


async def test_nothing_is_renewed_after_the_end_even_if_it_was_begun_before(root: Path) -> None:
    begun, go, done = threading.Event(), threading.Event(), list[bool]()

    def slowly() -> None:
        begun.set()
        assert go.wait(10)
        done.append(True)

    keeping = keeper(MadeUpLease(slowly), root, [])
    await until(begun.is_set, "the keeper")
    closing = asyncio.create_task(keeping.close())
    await asyncio.sleep(0.02)
    assert not closing.done()
    go.set()
    await asyncio.wait_for(closing, 10)
    assert done == [True]


async def test_the_loss_is_told_once_with_who_has_the_host(root: Path) -> None:
    lease, lost = MadeUpLease(lambda: OTHER), list[str]()
    keeping = keeper(lease, root, lost)
    await until(lambda: lost, "the keeper")
    await keeping.close()
    assert lost == [keeping.lost]
    for word in ("airflow two", "serve", "bob"):
        assert word in keeping.lost
    assert len(lease.claims) == 1


@pytest.mark.parametrize("error", [HostProblem("cause", "remedy"), OSError(28, "No space left on device")])
async def test_what_goes_wrong_is_tried_again(root: Path, error: Exception) -> None:
    def fail() -> None:
        if len(lease.claims) < 3:
            raise error

    lease, lost = MadeUpLease(fail), list[str]()
    keeping = keeper(lease, root, lost)
    await until(lambda: len(lease.claims) > 3, "the keeper")
    await keeping.close()
    assert lost == []


async def test_a_host_is_not_kept_for_a_cluster_that_was_removed(root: Path) -> None:
    lease = MadeUpLease(lambda: None)
    keeping = keeper(lease, root, [])
    await until(lambda: lease.claims, "the keeper")
    write(root, "i2")
    await asyncio.sleep(0.02)  # what was begun before
    count = len(lease.claims)
    await asyncio.sleep(0.05)
    assert len(lease.claims) == count
    (root / "cluster.json").unlink()
    await asyncio.sleep(0.05)
    assert len(lease.claims) == count
    await keeping.close()


async def test_where_nobody_leases_the_host_nothing_is_kept_or_lost(root: Path) -> None:
    keeping = keeper(None, root, [])
    await keeping.close()
    assert keeping.lost == ""
