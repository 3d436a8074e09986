"""Managed tasks on real SSH hosts that are rebooted, cut off and taken by others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from airflow_provider.runtime.control.events import Outcome
from airflow_provider.runtime.control.status import Status
from airflow_provider.runtime.state import TaskRecord
from airflow_provider.runtime.task.spec import Candidate, Quantity
from tests.hosts.host import Host
from tests.hosts.settings import HostSettings
from tests.integration.control.lab import Lab
from tests.integration.ssh.bench import Bench, agent_pid, assert_nothing_left, in_thread
from tests.unit.control.scripted import until

COUNT = "for n in $(seq 1 40); do echo line-$n; sleep 0.2; done"


class SshLab(Lab):
    """A state store and a blob store; clusters are hosts of the bench."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        super().__init__(folder)
        self.bench = bench

    def on(self, *hosts: Host) -> None:
        """Use these hosts from now on, as another process that knows nothing of them yet."""
        self.infra = self.bench.infra(*hosts)

    def stored(self, record: TaskRecord) -> TaskRecord:
        found: TaskRecord = self.store.get(record.id)
        return found


@pytest.fixture
async def work(tmp_path: Path, bench: Bench) -> AsyncIterator[SshLab]:
    made = SshLab(tmp_path, bench)
    yield made
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


async def begun(work: SshLab, record: TaskRecord, sign: str, **values: object) -> asyncio.Task[TaskRecord]:
    """Start the controller of a task and wait for a line of its log."""
    running = asyncio.create_task(work.controller(record, **values).run())
    await work.log.seen(sign)
    return running


async def ended(running: asyncio.Task[TaskRecord], seconds: float = 60.0) -> TaskRecord:
    return await asyncio.wait_for(running, seconds)


async def test_a_task_runs_on_a_host_and_gives_it_back(
    work: SshLab, clean_hosts: Callable[[int], list[Host]]
) -> None:
    (host,) = clean_hosts(1)
    work.on(host)

    record = await work.run("echo hello from $(hostname) at $SKYPILOT_NODE_IPS rank $SKYPILOT_NODE_RANK")

    assert record.status is Status.SUCCEEDED
    assert work.log.lines == [f"hello from {host.name} at {host.address} rank 0"]
    assert_nothing_left(host)


async def test_k04_a_network_that_is_away_for_a_while_costs_neither_the_job_nor_a_line(
    work: SshLab, host: Host
) -> None:
    work.on(host)
    record = work.intend(COUNT)
    running = await begun(work, record, "line-3")
    job_id = work.stored(record).state.job_id

    await in_thread(host.link_down)
    await work.log.seen("unreachable")
    await in_thread(host.link_up)
    record = await ended(running)

    assert (record.status, record.recoveries, record.attempt) == (Status.SUCCEEDED, 0, 1)
    assert job_id == 1
    assert work.log.lines == [f"line-{number}" for number in range(1, 41)]
    assert_nothing_left(host)


async def test_k04_a_tunnel_that_dies_alone_is_made_anew(work: SshLab, host: Host) -> None:
    work.on(host)
    running = await begun(work, work.intend(COUNT), "line-3")

    await in_thread(host.run, "pkill -KILL -f 'sshd: worker'")
    record = await ended(running)

    assert (record.status, record.recoveries) == (Status.SUCCEEDED, 0)
    assert work.log.lines == [f"line-{number}" for number in range(1, 41)]


async def test_k05_a_reboot_within_one_look_is_noticed_and_the_job_runs_again(
    work: SshLab, host: Host
) -> None:
    work.on(host)
    running = await begun(
        work, work.intend("echo attempt-$TASK_ATTEMPT; [ $TASK_ATTEMPT = 2 ] || sleep 600"), "attempt-1"
    )

    await in_thread(host.reboot)
    record = await ended(running)

    assert (record.status, record.recoveries, record.attempt) == (Status.SUCCEEDED, 1, 2)
    assert any("booted" in line for line in work.log.said)
    assert_nothing_left(host)


async def test_a_silent_power_off_is_recovered_from_on_another_host_after_the_limit(
    work: SshLab, make_host: Callable[[HostSettings], Host]
) -> None:
    first, second = make_host(HostSettings()), make_host(HostSettings())
    work.on(first, second)
    running = await begun(
        work,
        work.intend("echo attempt-$TASK_ATTEMPT on $(hostname); [ $TASK_ATTEMPT = 2 ] || sleep 600"),
        f"attempt-1 on {first.name}",
        unreachable_timeout=3.0,
    )

    await in_thread(first.silent_power_off)
    record = await ended(running)

    assert (record.status, record.recoveries) == (Status.SUCCEEDED, 1)
    assert work.log.lines[-1] == f"attempt-2 on {second.name}"
    assert any("unreachable" in line for line in work.log.said)
    assert_nothing_left(second)


async def test_a_task_waits_for_a_host_and_says_for_which(
    work: SshLab, clean_hosts: Callable[[int], list[Host]], tmp_path: Path
) -> None:
    (host,) = clean_hosts(1)
    work.on(host)
    first = await begun(work, work.intend("echo first runs; sleep 3"), "first runs")
    waiting = work.intend("echo second runs")
    second = await begun(work, waiting, "waiting")

    stored = work.stored(waiting)
    assert stored.status is Status.STARTING
    assert f"{host.name}: taken by test site" in stored.state.waiting_for
    assert (await ended(first)).status is Status.SUCCEEDED
    record = await ended(second)

    assert record.status is Status.SUCCEEDED
    assert record.state.launch_failures == 0
    assert work.log.lines == ["first runs", "second runs"]


async def test_a_task_that_waits_for_a_host_can_be_stopped(
    work: SshLab, clean_hosts: Callable[[int], list[Host]]
) -> None:
    (host,) = clean_hosts(1)
    work.on(host)
    first = await begun(work, work.intend("echo first runs; sleep 4"), "first runs")
    controller = work.controller(work.intend("echo never"))
    second = asyncio.create_task(controller.run())
    await work.log.seen("waiting")

    controller.stop(Outcome(Status.CANCELLED, "the user asked"))

    assert (await ended(second, 3.0)).status is Status.CANCELLED
    assert (await ended(first)).status is Status.SUCCEEDED
    assert work.log.lines == ["first runs"]


async def test_a_task_that_fits_no_host_of_the_pool_fails_at_once_with_the_reason(
    work: SshLab, clean_hosts: Callable[[int], list[Host]]
) -> None:
    (host,) = clean_hosts(1)
    work.on(host)

    record = await work.run("echo never", candidate=Candidate(cpus=Quantity(512, True)))

    assert record.status is Status.FAILED_PRECHECKS
    assert record.state.outcome is not None
    assert "cpus: 512 wanted" in record.state.outcome.reason


async def test_a_cancelled_task_leaves_nothing_on_its_host(
    work: SshLab, clean_hosts: Callable[[int], list[Host]]
) -> None:
    (host,) = clean_hosts(1)
    work.on(host)
    controller = work.controller(work.intend("sleep 600 & setsid sleep 600 & echo working; wait"))
    running = asyncio.create_task(controller.run())
    await work.log.seen("working")

    controller.stop(Outcome(Status.CANCELLED, "the user asked"))
    record = await ended(running)

    assert record.status is Status.CANCELLED
    assert_nothing_left(host)
    assert "sleep 600" not in host.run("ps -eo args").stdout


async def test_a_failed_job_is_told_from_a_lost_host_where_sshd_allows_one_session(
    work: SshLab, make_host: Callable[[HostSettings], Host]
) -> None:
    options = {"MaxSessions": "1", "AllowStreamLocalForwarding": "no"}
    host = make_host(HostSettings(sshd_options=options))
    work.on(host)

    record = await ended(asyncio.create_task(work.controller(work.intend("echo up; exit 3")).run()), 25.0)

    assert (record.status, record.recoveries) == (Status.FAILED, 0)
    assert_nothing_left(host)


async def test_a_controller_that_dies_is_replaced_by_one_elsewhere(work: SshLab, host: Host) -> None:
    work.on(host)
    record = work.intend(COUNT)
    first = await begun(work, record, "line-5")
    first.cancel()
    await asyncio.wait({first})

    work.on(host)
    record = await ended(asyncio.create_task(work.controller(work.claim(record)).run()))

    assert (record.status, record.attempt) == (Status.SUCCEEDED, 1)
    seen = work.log.lines
    assert list(dict.fromkeys(seen)) == [f"line-{number}" for number in range(1, 41)]


async def test_k28_an_agent_that_is_stopped_while_its_host_lives_is_unreachable_not_lost(
    work: SshLab, host: Host
) -> None:
    import os
    import signal

    work.on(host)
    running = await begun(work, work.intend(COUNT), "line-3")
    pid = agent_pid(host)

    os.kill(pid, signal.SIGSTOP)
    await work.log.seen("unreachable")
    os.kill(pid, signal.SIGCONT)
    record = await ended(running)

    assert (record.status, record.recoveries) == (Status.SUCCEEDED, 0)
    assert work.log.lines == [f"line-{number}" for number in range(1, 41)]


async def test_files_arrive_in_the_home_of_the_account_and_go_with_the_cluster(
    work: SshLab, clean_hosts: Callable[[int], list[Host]], tmp_path: Path
) -> None:
    (host,) = clean_hosts(1)
    work.on(host)
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_text("content\n")

    record = await work.run("cat a.txt; cat ~/sky_workdir/a.txt", files=source)

    assert record.status is Status.SUCCEEDED
    assert work.log.lines == ["content", "content"]
    assert_nothing_left(host)
