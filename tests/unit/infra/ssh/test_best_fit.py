"""Which host of a pool suits a task best."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.infra.ssh.pool import PoolHost, SshPool, best_fit
from airflow_provider.runtime.task import Candidate
from airflow_provider.runtime.task.spec import Quantity
from airflow_provider.runtime.transport.ssh.target import SshTarget


def host(name: str, **said: object) -> PoolHost:
    return PoolHost(target=SshTarget(name=name, host=name, user="u"), **said)  # type: ignore[arg-type]


def pool(*hosts: PoolHost) -> SshPool:
    return SshPool(name="p", hosts=hosts)


def names(pool: SshPool, candidate: Candidate) -> list[str]:
    return [host.name for host in best_fit(pool, candidate).hosts]


SIZES = pool(
    host("big", cpus=64, memory=256, accelerators={}),
    host("gpu", cpus=8, memory=32, accelerators={"V100": 4}),
    host("small", cpus=4, memory=16, accelerators={}),
    host("middle", cpus=16, memory=64, accelerators={}),
)


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (Candidate(), ["small", "middle", "big", "gpu"]),
        (Candidate(cpus=Quantity(5, True)), ["middle", "big", "gpu"]),
        (Candidate(memory_gb=Quantity(100, False)), ["big"]),
        (Candidate(accelerators={"V100": 2}), ["gpu"]),
        (Candidate(accelerators={"V100": 8}), []),
    ],
)
def test_the_smallest_host_that_will_do_comes_first(candidate: Candidate, expected: list[str]) -> None:
    assert names(SIZES, candidate) == expected


def test_a_host_that_is_not_described_is_asked_last() -> None:
    hosts = pool(host("unknown"), host("known", cpus=8, memory=32, accelerators={}))

    assert names(hosts, Candidate(cpus=Quantity(4, True))) == ["known", "unknown"]


def test_a_host_that_is_not_described_may_have_any_device() -> None:
    hosts = pool(host("unknown"), host("known", cpus=8, memory=32, accelerators={}))

    assert names(hosts, Candidate(accelerators={"A100": 8})) == ["unknown"]


def test_equals_stay_in_the_order_of_the_pool() -> None:
    assert names(pool(host("c"), host("a"), host("b")), Candidate()) == ["c", "a", "b"]


def test_a_task_that_names_a_zone_gets_hosts_of_that_zone() -> None:
    hosts = pool(host("here", zone="z1"), host("there", zone="z2"), host("nowhere"))

    assert names(hosts, Candidate(infra="ssh/p/z2")) == ["there"]
    assert names(hosts, Candidate(infra="ssh/p")) == ["here", "there", "nowhere"]


def test_a_task_that_names_labels_gets_hosts_that_carry_them_all() -> None:
    hosts = pool(
        host("both", labels={"disk": "ssd", "rack": "7"}), host("one", labels={"disk": "ssd"}), host("none")
    )

    assert names(hosts, Candidate(carried={"labels": {"disk": "ssd", "rack": 7}})) == ["both"]


def test_each_host_that_does_not_suit_is_named_with_what_it_lacks() -> None:
    fit = best_fit(SIZES, Candidate(cpus=Quantity(32, True), accelerators={"V100": 1}))

    assert fit.hosts == ()
    assert fit.reasons == (
        "big: accelerators: V100:1 wanted, it has no NVIDIA GPU",
        "gpu: cpus: 32 wanted, it has 8",
        "small: cpus: 32 wanted, it has 4",
        "middle: cpus: 32 wanted, it has 16",
    )
