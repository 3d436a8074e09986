"""Clusters on SSH hosts: taken, used, given back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider.runtime.client import LogBytes, Owner
from airflow_provider.runtime.client.base import JobState, JobStatus
from airflow_provider.runtime.infra.base import (
    Choice,
    ClusterHandle,
    Health,
    InfraError,
    NotFeasible,
    NothingFree,
    OutOfReach,
)
from airflow_provider.runtime.infra.ssh import first_contact
from airflow_provider.runtime.infra.ssh.infra import SshInfra
from airflow_provider.runtime.infra.ssh.pool import PoolHost, SshPool
from airflow_provider.runtime.infra.ssh.sightings import Sightings
from airflow_provider.runtime.task import Candidate
from airflow_provider.runtime.task.spec import Quantity
from airflow_provider.runtime.transport.ssh.target import HostKeys
from tests.hosts.host import Host
from tests.hosts.settings import USER, HostSettings
from tests.integration.clusters import ANY_CHOICE, job, quiet
from tests.integration.ssh.bench import Bench, assert_nothing_left, in_thread, lease_of

OWNER = Owner("task", 1)
HOME = Path("/home", USER)


async def run(infra: SshInfra, handle: ClusterHandle, script: str) -> tuple[JobState, str]:
    """Run a job on the cluster; return its end and its log."""
    client = await infra.connect(handle)
    try:
        job_id = await client.submit(f"key-{script}", OWNER, job(script))
        log = b""
        async for message in await client.follow(job_id, OWNER, offset=0):
            if isinstance(message, LogBytes):
                log += message.data
            elif isinstance(message, JobState) and message.status.terminal:
                return message, log.decode()
        raise AssertionError("the stream ended before the job")
    finally:
        await client.close()


async def test_a_job_runs_in_the_home_of_the_account_and_nothing_is_left(
    bench: Bench, clean_hosts: Callable[[int], list[Host]]
) -> None:
    (host,) = clean_hosts(1)
    infra = bench.infra(host)

    handle = await infra.provision("c1", ANY_CHOICE, quiet)
    end, log = await run(infra, handle, "whoami; hostname; echo ~; pwd")
    await infra.tear_down("c1", handle)

    assert end.status is JobStatus.SUCCEEDED
    assert log.split() == ["worker", host.name, str(HOME), str(HOME / "sky_workdir")]
    assert_nothing_left(host)


async def test_the_handle_is_enough_for_another_process_and_holds_no_secret(
    bench: Bench, clean_hosts: Callable[[int], list[Host]]
) -> None:
    (host,) = clean_hosts(1)
    handle = await bench.infra(host).provision("c1", ANY_CHOICE, quiet)
    stored = json.dumps(handle.to_json())

    elsewhere = bench.infra(host)
    again = ClusterHandle.from_json(json.loads(stored))

    assert "PRIVATE" not in stored
    assert again.address["host_key"] in host.disk.host_keys
    assert (await elsewhere.probe(again)).health is Health.ALIVE
    await elsewhere.tear_down("c1", again)
    assert (await elsewhere.probe(again)).health is Health.GONE


async def test_a_launch_that_is_repeated_finds_its_cluster(
    bench: Bench, clean_hosts: Callable[[int], list[Host]]
) -> None:
    hosts = clean_hosts(2)
    intended: list[ClusterHandle] = []

    async def intend(handle: ClusterHandle) -> None:
        intended.append(handle)

    first = await bench.infra(*hosts).provision("c1", ANY_CHOICE, quiet, intend=intend)
    # Another process, which knows no more than what was stored, and would begin with another host.
    other = bench.infra(*reversed(hosts))
    second = await other.provision("c1", ANY_CHOICE, quiet, previous=intended[-1])

    assert first == second
    await other.tear_down("c1", second)


async def test_where_a_cluster_is_about_to_be_is_known_before_anything_is_done_there(
    bench: Bench, clean_hosts: Callable[[int], list[Host]]
) -> None:
    (host,) = clean_hosts(1)
    infra = bench.infra(host)

    class Crash(Exception):
        pass

    async def crash(handle: ClusterHandle) -> None:
        assert handle.address["host"] == host.name
        raise Crash

    with pytest.raises(Crash):
        await infra.provision("c1", ANY_CHOICE, quiet, intend=crash)

    assert_nothing_left(host)


async def test_a_host_that_is_taken_is_waited_for_with_the_name_of_its_holder(
    bench: Bench, clean_hosts: Callable[[int], list[Host]]
) -> None:
    (host,) = clean_hosts(1)
    ours = bench.infra(host, site="airflow one")
    theirs = bench.infra(host, site="airflow two")
    handle = await ours.provision("c1", ANY_CHOICE, quiet)

    with pytest.raises(NothingFree, match=rf"{host.name}: taken by airflow one \(c1\)"):
        await theirs.provision("c2", ANY_CHOICE, quiet)

    assert lease_of(host)["cluster"] == "c1"
    await ours.tear_down("c1", handle)
    # What was seen is forgotten after a while; this Airflow has been told nothing of the release.
    theirs = bench.infra(host, site="airflow two")
    handle = await theirs.provision("c2", ANY_CHOICE, quiet)
    await theirs.tear_down("c2", handle)


async def test_sites_that_use_the_same_names_do_not_get_each_others_clusters(
    bench: Bench, clean_hosts: Callable[[int], list[Host]]
) -> None:
    (host,) = clean_hosts(1)
    ours = bench.infra(host, site="airflow one")
    handle = await ours.provision("train-5", ANY_CHOICE, quiet)

    with pytest.raises(NothingFree, match="airflow one"):
        await bench.infra(host, site="airflow two").provision("train-5", ANY_CHOICE, quiet)

    assert (await ours.probe(handle)).health is Health.ALIVE
    await ours.tear_down("train-5", handle)


async def test_a_host_that_another_account_has_is_taken_too(
    bench: Bench, clean_hosts: Callable[[int], list[Host]]
) -> None:
    (host,) = clean_hosts(1)
    ours = bench.infra(host)
    handle = await ours.provision("c1", ANY_CHOICE, quiet)

    with pytest.raises(NothingFree):
        await bench.infra(host, user="root").provision("c2", ANY_CHOICE, quiet)

    await ours.tear_down("c1", handle)


async def test_two_clusters_get_two_hosts(bench: Bench, clean_hosts: Callable[[int], list[Host]]) -> None:
    infra = bench.infra(*clean_hosts(2))

    one = await infra.provision("c1", ANY_CHOICE, quiet)
    two = await infra.provision("c2", ANY_CHOICE, quiet)

    assert one.address["host"] != two.address["host"]
    await infra.tear_down("c1", one)
    await infra.tear_down("c2", two)


async def test_a_host_that_is_down_is_passed_over(bench: Bench, host: Host) -> None:
    # One that is off: nobody answers.
    good = host
    infra = bench.infra(good)
    gone = replace(infra._pool.hosts[0].target, name="gone", host="127.0.0.1", port=1)
    pool = infra._pool
    both = SshPool(name="pool", hosts=(replace(pool.hosts[0], target=gone), *pool.hosts), site="here")

    infra = SshInfra(both, sightings=Sightings())
    handle = await infra.provision("c1", ANY_CHOICE, quiet)

    assert handle.address["host"] == good.name
    await infra.tear_down("c1", handle)
    assert_nothing_left(good)


async def test_k99_hosts_that_do_not_answer_are_waited_for_all_at_once(
    bench: Bench, clean_hosts: Callable[[int], list[Host]]
) -> None:
    (good,) = clean_hosts(1)
    waiting: list[int] = [0]

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting.append(waiting[-1] + 1)
        while await reader.read(1000):
            pass
        waiting.append(waiting[-1] - 1)
        writer.close()

    async with AsyncExitStack() as servers:
        silent = []
        for number in range(6):
            server = await servers.enter_async_context(await asyncio.start_server(say_nothing, "127.0.0.1"))
            way = {"name": f"silent-{number}", "host": "127.0.0.1", "connect_timeout": 1.5}
            target = replace(bench.target(good), **way, port=server.sockets[0].getsockname()[1])
            silent.append(PoolHost(target=target))
        pool = replace(bench.pool(good), hosts=(*silent, PoolHost(target=bench.target(good))))
        infra = SshInfra(pool, sightings=Sightings())
        handle = await infra.provision("c1", ANY_CHOICE, quiet)
    assert max(waiting) == 5, "after the first, all others at the same time"
    assert handle.address["host"] == good.name
    await infra.tear_down("c1", handle)


async def test_a_pool_that_failed_a_moment_ago_is_asked_again(bench: Bench, host: Host) -> None:
    infra = bench.infra(host)
    await in_thread(host.link_down)
    with pytest.raises(InfraError, match="cannot connect"):
        await infra.provision("c1", ANY_CHOICE, quiet)

    await in_thread(host.link_up)
    handle = await infra.provision("c1", ANY_CHOICE, quiet)

    await infra.tear_down("c1", handle)


async def test_a_host_that_is_too_small_says_so_itself(
    bench: Bench, clean_hosts: Callable[[int], list[Host]]
) -> None:
    (host,) = clean_hosts(1)

    with pytest.raises(NotFeasible, match=f"{host.name}: cpus: 512 wanted"):
        await bench.infra(host).provision("c1", Choice(Candidate(cpus=Quantity(512, True))), quiet)


async def test_a_cluster_whose_host_is_off_is_out_of_reach(bench: Bench, host: Host) -> None:
    infra = bench.infra(host)
    handle = await infra.provision("c1", ANY_CHOICE, quiet)
    await in_thread(host.silent_power_off)

    with pytest.raises(OutOfReach):
        await infra.tear_down("c1", handle)
    assert (await infra.probe(handle)).health is Health.UNREACHABLE


async def test_what_a_reboot_left_of_a_cluster_is_removed_with_it(bench: Bench, host: Host) -> None:
    infra = bench.infra(host)
    handle = await infra.provision("c1", ANY_CHOICE, quiet)
    await in_thread(host.reboot)

    probe = await infra.probe(handle)
    await infra.tear_down("c1", handle)

    assert probe.health is Health.GONE
    assert "booted" in probe.evidence
    assert_nothing_left(host)


async def test_a_cluster_that_nobody_speaks_to_gives_its_host_back_by_itself(
    bench: Bench, host: Host
) -> None:
    infra = bench.infra(host, lease_seconds=1.0)
    handle = await infra.provision("c1", ANY_CHOICE, quiet)

    client = await infra.connect(handle)  # tells the agent how long its lease is
    await client.close()
    deadline = 200
    while (host.home / ".managed-jobs/clusters").exists() and any(
        (host.home / ".managed-jobs/clusters").iterdir()
    ):
        deadline -= 1
        assert deadline, "the cluster is still there"
        await in_thread(lambda: __import__("time").sleep(0.1))

    assert_nothing_left(host)
    assert (await infra.probe(handle)).health is Health.GONE


async def test_an_agent_that_died_is_started_again(
    bench: Bench, clean_hosts: Callable[[int], list[Host]]
) -> None:
    (host,) = clean_hosts(1)
    infra = bench.infra(host)
    handle = await infra.provision("c1", ANY_CHOICE, quiet)
    host.run("pkill -KILL -f runtime.agent", user="worker")

    assert (await infra.probe(handle)).health is Health.AGENT_DOWN
    await infra.restart_agent(handle)

    assert (await infra.probe(handle)).health is Health.ALIVE
    end, _ = await run(infra, handle, "true")
    assert end.status is JobStatus.SUCCEEDED
    await infra.tear_down("c1", handle)


async def test_a_cluster_is_looked_after_although_the_clock_of_its_host_is_wrong_by_now(
    bench: Bench, clean_hosts: Callable[[int], list[Host]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (host,) = clean_hosts(1)
    infra = bench.infra(host)
    handle = await infra.provision("c1", ANY_CHOICE, quiet)

    monkeypatch.setattr(first_contact, "CLOCK_LIMIT_SECONDS", -100.0)
    assert (await infra.probe(handle)).health is Health.ALIVE
    await infra.restart_agent(handle)
    await infra.tear_down("c1", handle)

    with pytest.raises(NotFeasible, match="its clock is"):
        await infra.provision("c2", ANY_CHOICE, quiet)


async def test_a_cluster_stays_where_it_is_when_the_pool_names_another_base_or_account(
    bench: Bench, clean_hosts: Callable[[int], list[Host]]
) -> None:
    (host,) = clean_hosts(1)
    handle = await bench.infra(host).provision("c1", ANY_CHOICE, quiet)

    pool = bench.pool(host, user="root")
    moved = replace(pool, hosts=tuple(replace(member, base="~/elsewhere") for member in pool.hosts))
    infra = SshInfra(moved, sightings=Sightings())

    assert (await infra.probe(handle)).health is Health.ALIVE
    await infra.tear_down("c1", handle)


async def test_a_host_that_left_the_pool_is_gone(
    bench: Bench, clean_hosts: Callable[[int], list[Host]]
) -> None:
    hosts = clean_hosts(2)
    infra = bench.infra(*hosts)
    handle = await infra.provision("c1", ANY_CHOICE, quiet)
    kept = [host for host in hosts if host.name != handle.address["host"]]

    probe = await bench.infra(*kept).probe(handle)

    assert probe.health is Health.GONE
    assert "not in pool" in probe.evidence
    await infra.tear_down("c1", handle)


async def test_a_named_cluster_is_found_on_whichever_host_has_it(
    bench: Bench, clean_hosts: Callable[[int], list[Host]]
) -> None:
    hosts = clean_hosts(2)
    infra = bench.infra(*hosts)
    handle = await infra.provision("c1", ANY_CHOICE, quiet)

    found = await bench.infra(*reversed(hosts)).find("c1")

    assert found is not None
    assert (found.instance, found.address["host"]) == (handle.instance, handle.address["host"])
    assert await infra.find("another") is None
    await infra.tear_down("c1", handle)


@pytest.mark.parametrize("forwarding", ["yes", "no"])
async def test_an_agent_is_reached_whether_sockets_are_forwarded_or_not(
    bench: Bench, make_host: Callable[[HostSettings], Host], forwarding: str
) -> None:
    host = make_host(HostSettings(sshd_options={"AllowStreamLocalForwarding": forwarding}))
    infra = bench.infra(host)
    handle = await infra.provision("c1", ANY_CHOICE, quiet)

    end, log = await run(infra, handle, "seq 100000")

    assert end.status is JobStatus.SUCCEEDED
    assert log.split() == [str(number) for number in range(1, 100_001)]
    await infra.tear_down("c1", handle)
    assert_nothing_left(host)


async def test_each_host_of_a_pool_is_checked_with_what_is_wrong(
    bench: Bench, clean_hosts: Callable[[int], list[Host]]
) -> None:
    hosts = clean_hosts(2)
    pool = bench.pool(*hosts)
    broken = replace(pool.hosts[0], target=replace(pool.hosts[0].target, port=1))
    infra = SshInfra(replace(pool, hosts=(broken, pool.hosts[1])), sightings=Sightings())

    first, second = await infra.check()

    assert (first.ok, second.ok) == (False, True)
    assert "refused" in first.text
    assert "free" in second.text


async def test_k64_the_key_that_a_host_showed_at_first_is_pinned_for_the_life_of_its_cluster(
    bench: Bench, host: Host
) -> None:
    pool = bench.pool(host)
    trusting = replace(pool.hosts[0].target, host_keys=HostKeys(known_hosts=(), trust_first=True))
    pool = replace(pool, hosts=(PoolHost(target=trusting),))
    first = await SshInfra(pool, sightings=Sightings()).provision("c1", ANY_CHOICE, quiet)
    await in_thread(host.disk.replace_host_keys)
    await in_thread(host.reboot)

    infra = SshInfra(pool, sightings=Sightings())
    probe = await infra.probe(first)
    assert probe.health is Health.UNREACHABLE, "a stranger on the address says nothing about the cluster"
    assert probe.evidence.count("SHA256:") == 2
    second = await infra.provision("c2", ANY_CHOICE, quiet)
    assert second.address["host_key"] == host.disk.host_keys[0] != first.address["host_key"]
    await infra.tear_down("c2", second)
