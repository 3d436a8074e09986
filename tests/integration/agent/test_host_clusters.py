"""Clusters on a host: taken up once, found again, probed, and taken down for good."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from airflow_provider.runtime.agent import node
from airflow_provider.runtime.agent.host import clusters
from airflow_provider.runtime.wire import agent_pb2 as agent
from tests.integration.agent.this_host import ThisHost, this_host
from tests.integration.clusters import eventually, exited

RUNNING, SUCCEEDED = agent.RUNNING, agent.SUCCEEDED


@pytest.fixture
async def here(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ThisHost]:
    async with this_host() as host:
        monkeypatch.setenv("HOME", str(host.home))
        yield host


def _let_the_lease_end(here: ThisHost) -> None:
    for record in here.lease.iterdir():
        record.write_text(json.dumps({**json.loads(record.read_text()), "expires": 1.0}))


def test_a_cluster_comes_up_and_goes_down_for_good(here: ThisHost) -> None:
    up = here.up()
    facts = here.ask("facts")
    assert up == {
        "status": "up",
        "name": "train",
        "instance": "i1",
        "root": up["root"],
        "socket": f"{up['root']}/agent/agent.sock",
        "boot_id": node.boot_id(),
        "adopted": False,
        "cpus": facts["cpus"],
        "memory": facts["memory"],
        "devices": facts["devices"],
    }
    assert stat.S_ISSOCK(Path(up["socket"]).stat().st_mode)
    assert facts["holder"]["cluster"] == "train"
    assert facts["disk_free"] > 0
    assert here.down("i1") == {"found": True, "kept": []}
    assert here.left() == []
    assert here.processes(up["root"]) == set()
    assert here.down("i1") == {"found": False, "kept": []}
    assert here.ask("facts")["holder"] is None


def test_going_down_where_nothing_ever_was_leaves_nothing(here: ThisHost) -> None:
    shutil.rmtree(here.base)
    assert here.down() == {"found": False, "kept": []}
    assert not here.probe()["present"]
    assert not here.ask("find", name="train")["present"]
    assert not here.base.exists()
    assert not here.lease.exists()


def test_a_cluster_of_the_same_name_and_another_site_is_left_alone(here: ThisHost) -> None:
    here.up()
    answer = here.up(instance="i2", site="airflow two")
    assert (answer["status"], answer["holder"]["site"]) == ("taken", "airflow one")
    assert here.probe("i1")["present"]


def test_up_again_adopts_the_cluster_and_keeps_the_agent(here: ThisHost) -> None:
    first = here.up()
    pid = here.probe()["pid"]
    again = here.up(site="airflow one, another try")
    assert again == {**first, "adopted": True}
    assert here.probe()["pid"] == pid
    assert here.probe()["holder"]["site"] == "airflow one, another try"
    assert here.ask("find", name="train") == {
        "present": True,
        "instance": "i1",
        "root": first["root"],
        "socket": first["socket"],
        "boot_id": node.boot_id(),
    }


def test_a_host_that_is_taken_says_by_whom_and_is_left_alone(here: ThisHost) -> None:
    here.up()
    before = here.left()
    taken = here.up(name="other", instance="i2", site="airflow two")
    assert taken["status"] == "taken"
    seconds = taken["holder"].pop("seconds_left")
    assert 590 < seconds <= 600
    assert taken["holder"] == {
        "cluster": "train",
        "instance": "i1",
        "site": "airflow one",
        "account": "root" if os.geteuid() == 0 else taken["holder"]["account"],
    }
    assert here.left() == before
    assert here.probe("i2", name="other")["lease"] == "other"
    here.down()
    assert here.up(name="other", instance="i2")["status"] == "up"


def test_a_host_that_is_too_small_is_not_taken(here: ThisHost) -> None:
    for demand, word in (({"cpus": 10_000}, "cpus"), ({"accelerators": {"H100": 8}}, "H100")):
        misfit = here.up(demand=demand)
        assert misfit["status"] == "misfit"
        assert word in misfit["reason"]
    assert here.left() == []
    assert here.up(demand={"cpus": 1, "memory": 0.5, "accelerators": {}})["status"] == "up"


def test_another_instance_is_left_alone(here: ThisHost) -> None:
    here.up()
    assert here.down("i0") == {"found": False, "kept": []}
    probe = here.probe("i0")
    assert not probe["present"]
    assert "another cluster" in probe["reason"]
    assert probe["instance"] == "i1"
    assert probe["lease"] == "other"
    assert here.ask("restart", **here.wish(instance="i0"))["status"] == "gone"
    assert here.probe("i1")["present"]


def test_a_cluster_that_is_gone_is_not_made_by_a_restart(here: ThisHost) -> None:
    answer = here.ask("restart", **here.wish())
    assert answer["status"] == "gone"
    assert "gone" in answer["reason"]
    assert here.left() == []


async def test_k48_a_killed_agent_is_started_again_with_its_jobs(here: ThisHost) -> None:
    up = here.up()
    agent = here.agent(up)
    job = await agent.submit(f"until [ -e {here.home}/go ]; do sleep 0.05; done")
    await agent.until_status(job, RUNNING)
    await agent.kill()
    probe = here.probe("i1")
    assert (probe["present"], probe["agent"], probe["pid"]) == (True, False, None)
    assert probe["lease"] == "ours"
    await agent.close()
    assert here.ask("restart", **here.wish()) == {**up, "adopted": True}
    agent = here.agent(up)
    assert await agent.status(job) == RUNNING
    (here.home / "go").touch()
    await agent.until_status(job, SUCCEEDED)


async def test_an_agent_of_another_runtime_is_replaced_while_its_jobs_go_on(here: ThisHost) -> None:
    up = here.up()
    old = here.agent(up)
    job = await old.submit(f"echo $$ > {here.home}/pid; until [ -e {here.home}/go ]; do sleep 0.05; done")
    await old.until_status(job, RUNNING)
    await eventually(lambda: (here.home / "pid").exists(), "the job to begin")
    shell, pid = int((here.home / "pid").read_text()), old.pid
    assert here.up(runtime="r2") == {**up, "adopted": True}
    await exited(pid)
    new = here.agent(up)
    assert new.pid != pid
    assert here.probe()["runtime"] == "r2"
    assert new.pid in here.users_of("r2")
    os.kill(shell, 0)
    assert await new.status(job) == RUNNING
    (here.home / "go").touch()
    await new.until_status(job, SUCCEEDED)
    job = await new.submit("exit 0")
    await new.until_status(job, SUCCEEDED)


async def test_a_frozen_agent_of_another_runtime_is_replaced(
    here: ThisHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider.runtime.agent.host.agents._STOP_SECONDS", 0.2)
    agent = here.agent(here.up())
    pid = agent.pid
    os.kill(pid, signal.SIGSTOP)
    await asyncio.to_thread(here.up, runtime="r2")
    await exited(pid)
    assert here.agent(here.up(runtime="r2")).pid != pid


def test_a_cluster_of_an_earlier_boot_is_gone_and_makes_room(here: ThisHost) -> None:
    up = here.up()
    record = Path(up["root"], "cluster.json")
    said = json.loads(record.read_text())
    record.write_text(json.dumps({**said, "boot_id": "another"}))
    (Path(up["root"]) / "left").touch()
    probe = here.probe("i1")
    assert not probe["present"]
    assert "booted" in probe["reason"]
    assert not here.ask("find", name="train")["present"]
    assert here.ask("restart", **here.wish())["status"] == "gone"
    again = here.up(instance="i2")
    assert (again["instance"], again["adopted"]) == ("i2", False)
    assert not (Path(up["root"]) / "left").exists()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"name": "train"}', "\ud800".encode("utf-8", "surrogatepass")]
)
def test_a_cluster_with_a_damaged_record_makes_room(here: ThisHost, content: str | bytes) -> None:
    root = Path(here.up()["root"])
    (root / "cluster.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert "record is gone" in here.probe()["reason"]
    assert here.up(instance="i2")["instance"] == "i2"


async def test_a_cluster_whose_directory_was_removed_by_hand_makes_room(here: ThisHost) -> None:
    up = here.up()
    pid = here.probe()["pid"]
    shutil.rmtree(up["root"])
    assert here.down("i1") == {"found": True, "kept": []}, "it still had the host"
    await exited(pid)
    up = here.up()
    pid = here.probe()["pid"]
    shutil.rmtree(up["root"])
    assert here.up(instance="i2")["instance"] == "i2"
    await exited(pid)


async def test_what_lost_the_host_by_time_is_cleared_by_who_takes_it(here: ThisHost) -> None:
    agent = here.agent(here.up(lease_seconds=600))
    job = await agent.submit("echo $$ > ~/pid; sleep 1000")
    await agent.until_status(job, RUNNING)
    await agent.kill()
    _let_the_lease_end(here)
    up = here.up(name="other", instance="i2")
    assert up["status"] == "up"
    assert here.processes(str(agent.root)) == set()
    assert not agent.root.exists()
    assert here.probe("i2", name="other")["lease"] == "ours"


async def test_what_another_site_of_the_account_lost_is_cleared_too(here: ThisHost) -> None:
    async with this_host() as other:
        other.place["lease_directory"] = str(here.lease)
        agent = other.agent(other.up())
        job = await agent.submit("sleep 1000")
        await agent.until_status(job, RUNNING)
        await agent.kill()
        assert here.up(instance="i2")["status"] == "taken"
        _let_the_lease_end(here)
        assert here.up(instance="i2")["status"] == "up"
        assert other.processes(str(agent.root)) == set()
        assert not agent.root.exists()


async def test_a_lease_in_another_place_is_let_go_when_the_agent_moves(
    here: ThisHost, tmp_path: Path
) -> None:
    up = here.up()
    assert here.up(lease_directory=str(tmp_path / "elsewhere")) == {**up, "adopted": True}
    assert list(here.lease.iterdir()) == []
    here.place["lease_directory"] = str(tmp_path / "elsewhere")
    assert here.probe("i1")["lease"] == "ours"
    here.down()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_host_on_which_no_cluster_can_be_made_is_let_go(
    here: ThisHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(clusters, "write_private", full)
    cause, remedy = here.problem("up", **here.wish())
    assert "No space left" in cause
    assert "cluster.json" in cause
    assert remedy
    assert here.ask("facts")["holder"] is None
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(here.home))
    assert here.up()["status"] == "up"


async def test_clusters_of_another_host_with_the_same_home_are_left_alone(here: ThisHost) -> None:
    record = clusters.Record("far", "i0", "boot", "another-host", str(here.lease), "r2", "site", 0.0)
    far = here.base / "clusters" / "0123456789ab"
    near = far.with_name("ba9876543210")
    for root, hostname in ((far, "another-host"), (near, socket.gethostname())):
        root.mkdir(parents=True)
        (root / "cluster.json").write_text(json.dumps(record._replace(hostname=hostname)._asdict()))
    here.up()
    assert far.exists()
    assert not near.exists(), "it is of an earlier boot of this one"


def test_an_agent_that_does_not_start_leaves_the_host_free(here: ThisHost) -> None:
    (here.base / "runtime" / "r3").mkdir()
    cause, remedy = here.problem("up", **here.wish(runtime="r3"))
    assert "did not start" in cause
    assert "ModuleNotFoundError" in cause
    assert remedy
    assert here.left() == []
    cause, remedy = here.problem("up", **here.wish(runtime="r4"))
    assert "runtime/r4" in cause
    assert "installed" in remedy
    cause, _ = here.problem("up", **here.wish(python="/no/such/python"))
    assert "/no/such/python" in cause
    assert here.left() == []


def test_a_base_that_is_too_deep_for_a_socket_is_told(here: ThisHost) -> None:
    cause, remedy = here.problem("up", **{**here.wish(), "base": f"/tmp/{'x' * 80}"})
    assert "too long" in cause
    assert "`base`" in remedy


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "a\nb"),
        ("name", "x" * 201),
        ("instance", ""),
        ("runtime", "../x"),
        ("lease_seconds", 0),
        ("lease_seconds", float("nan")),
        ("start_seconds", -1),
        ("base", "relative"),
        ("lease_directory", "relative"),
    ],
)
def test_arguments_that_make_no_sense_are_told_by_name(here: ThisHost, field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} is"):
        here.up(**{field: value})
    assert here.left() == []


async def test_a_question_that_makes_no_sense_ends_with_2(here: ThisHost) -> None:
    for operation, arguments in (("no", {}), ("down", {}), ("up", here.wish(name=""))):
        process = await here.begin(operation, **arguments)
        output, errors = await process.communicate()
        assert (process.returncode, output) == (2, b"")
        assert errors


async def test_a_problem_ends_with_1_and_says_cause_and_remedy(here: ThisHost) -> None:
    process = await here.begin("up", **here.wish(runtime="r9"))
    output, _ = await process.communicate()
    assert process.returncode == 1
    assert set(json.loads(output)) == {"problem", "remedy"}


async def test_jobs_live_in_the_accounts_home_without_our_packages(here: ThisHost) -> None:
    agent = here.agent(await here.ask_elsewhere("up", **here.wish()))
    job = await agent.submit(
        "env > ~/env; python3 -c 'import airflow_provider.runtime' 2> ~/import; pwd > ~/where"
    )
    await agent.until_status(job, SUCCEEDED)
    environment = dict(
        line.split("=", 1) for line in (here.home / "env").read_text().splitlines() if "=" in line
    )
    assert environment["HOME"] == str(here.home)
    assert "PYTHONPATH" not in environment
    assert "ModuleNotFoundError" in (here.home / "import").read_text()


async def test_nothing_of_a_cluster_can_be_read_by_others(here: ThisHost) -> None:
    os.umask(0)
    try:
        up = await here.ask_elsewhere("up", **here.wish())
        agent = here.agent(up)
        job = await agent.submit("true")
        await agent.until_status(job, SUCCEEDED)
    finally:
        os.umask(0o022)
    for path in (agent.root.parent, agent.root, agent.root / "agent"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    for name in ("cluster.json", "agent/agent.sock", "agent/agent.lock", "agent/agent.log"):
        assert stat.S_IMODE((agent.root / name).stat().st_mode) == 0o600, name


async def test_the_agent_outlives_the_session_that_started_it(here: ThisHost) -> None:
    """As at a logout: the session's leader ends, and its terminal hangs up."""
    program = "import os, sys; os.setsid(); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", program, "/bin/sh", "-c", 'cat | "$@"; kill -HUP 0', "sh"]
    command += [sys.executable, "-m", "airflow_provider.runtime.agent.host", "up"]
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        input=json.dumps(here.wish()).encode(),
        capture_output=True,
    )
    up = json.loads(done.stdout)["ok"]
    assert done.returncode != 0, "the session did not hang up"
    agent = here.agent(up)
    job = await agent.submit("true")
    await agent.until_status(job, SUCCEEDED)
