"""What a DAG author and the connection form see of a pool: the button, named clusters, and how faults are told (K17)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.hooks import named_cluster
from airflow_provider.hooks.cluster import ClusterHook
from airflow_provider.hooks.cluster_job import JobFailed
from airflow_provider.hooks.cluster_link import ClusterUnreachable
from airflow_provider.runtime.client.base import JobStatus
from airflow_provider.runtime.infra.base import NotFeasible, OutOfReach
from tests.hosts.host import Host
from tests.hosts.keys import ClientKeys
from tests.hosts.settings import HostSettings
from tests.integration.ssh.bench import assert_nothing_left, lease_of


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, client_keys: ClientKeys) -> Callable[..., ClusterHook]:
    """Write a connection with a pool of hosts and return its hook."""

    def connect(*hosts: Host, **extra: Any) -> ClusterHook:
        entries = [
            {"name": host.name, "address": host.address, "host_key": "\n".join(host.disk.host_keys)}
            for host in hosts
        ]
        key = client_keys.ed25519.path.read_text()
        said = {"user": "worker", "private_key": key, "hosts": entries, "connect_timeout": 4, **extra}
        monkeypatch.setenv("AIRFLOW_CONN_GPUS", json.dumps({"conn_type": "managed_cluster", "extra": said}))
        return ClusterHook("gpus")

    return connect


def test_a_command_runs_on_a_host_of_the_pool_and_gives_it_back(
    connect: Callable[..., ClusterHook], clean_hosts: Callable[[int], list[Host]]
) -> None:
    (host,) = clean_hosts(1)
    with connect(host, site="here").cluster("digits") as cluster:
        lines: list[str] = []
        assert cluster.run("whoami; hostname", log=lines.append).succeeded
        assert lines == ["worker", host.name]
        lease = lease_of(host)
        assert "here" in json.dumps(lease)
        again = connect(host).cluster("digits")
        assert [job.status for job in again.jobs(all=True)] == [JobStatus.SUCCEEDED]
        assert lease_of(host)["cluster"] == lease["cluster"], "the second hook found the first one's cluster"
        again.close()


def test_the_button_tells_of_each_host(
    connect: Callable[..., ClusterHook], clean_hosts: Callable[[int], list[Host]]
) -> None:
    good, bad = clean_hosts(2)
    hook = connect(good, bad)
    works, told = hook.test_connection()
    assert works, told
    assert told.splitlines()[0] == "2 of 2 hosts can be used"

    other = [
        {"name": "good", "address": good.address, "host_key": "\n".join(good.disk.host_keys)},
        {"name": "bad", "address": bad.address, "host_key": "\n".join(good.disk.host_keys)},
        {"name": "closed", "address": good.address, "port": 2, "host_key_policy": "none"},
    ]
    works, told = connect(hosts=other).test_connection()
    first, *hosts = told.splitlines()
    assert (works, first) == (True, "1 of 3 hosts can be used")
    assert [line.partition(", ")[0] for line in hosts] == ["good: ok", "bad: FAILED", "closed: FAILED"]

    works, told = connect(hosts=other[1:]).test_connection()
    assert not works


async def test_k17_a_key_that_no_host_takes_ends_with_that_reason(
    connect: Callable[..., ClusterHook], clean_hosts: Callable[[int], list[Host]]
) -> None:
    (host,) = clean_hosts(1)
    hook = connect(host, private_key="not a key")
    with pytest.raises(NotFeasible, match="connection gpus, private_key"):
        await asyncio.wait_for(hook.cluster("digits").arun("true"), 60)


def test_k04_a_cluster_whose_host_does_not_answer_is_neither_gone_nor_removed(
    connect: Callable[..., ClusterHook],
    host: Host,
    clean_hosts: Callable[[int], list[Host]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    limits = {"connect_timeout": 1.5, "silence_limit": 1.5}
    connect(host, **limits).cluster("digits").up()
    host.link_down()
    other = connect(host, **limits).cluster("digits")
    with pytest.raises(ClusterUnreachable, match=f"may be where none does: {host.name}"):
        other.status(1)
    with pytest.raises(OutOfReach):
        other.down()

    (second,) = clean_hosts(1)
    with connect(host, second, **limits).cluster("digits") as anew:
        assert anew.run("hostname").last_lines == (second.name,)
        assert f"may be where none does: {host.name}" in capsys.readouterr().out
    host.link_up()
    connect(host).cluster("digits").down()
    assert_nothing_left(host)


async def test_k16_jobs_that_come_all_at_once_share_one_connection(
    connect: Callable[..., ClusterHook], make_host: Callable[[HostSettings], Host]
) -> None:
    options = {"MaxStartups": "10:30:100", "MaxSessions": "10"}
    host = await asyncio.to_thread(make_host, HostSettings(sshd_options=options))
    cluster = connect(host).cluster("digits")
    await cluster.aup()
    jobs = [
        cluster.arun({"run": f"echo {number}", "resources": {"cpus": "0.1+"}}, log=str)
        for number in range(30)
    ]
    results = await asyncio.gather(*jobs)
    assert [result.last_lines for result in results] == [(str(number),) for number in range(30)]
    assert host.sshd_log.count("Accepted publickey") == 1
    await cluster.adown()
    assert_nothing_left(host)


def test_k50_a_pasted_key_is_in_no_file_on_either_side(
    connect: Callable[..., ClusterHook],
    host: Host,
    client_keys: ClientKeys,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = {path: path.read_text() for path in host.home.glob(".ssh/*")}
    secret = client_keys.ed25519.path.read_text().splitlines()[2]
    umask = os.umask(0)
    try:
        cluster = connect(host).cluster("digits")
        job_id = cluster.submit("echo ready; sleep 60")
        next(iter(cluster.logs(job_id)))
        for folder in (tmp_path, host.disk.path):
            searched = subprocess.run(
                ["grep", "-rlF", "--", secret, str(folder)], capture_output=True, text=True
            )
            assert searched.stdout == ""
        assert not (tmp_path / ".ssh").exists()
        cluster.down()
    finally:
        os.umask(umask)
    assert {path: path.read_text() for path in host.home.glob(".ssh/*")} == before


def test_k65_proxies_of_either_side_s_environment_are_left_to_the_jobs(
    connect: Callable[..., ClusterHook],
    make_host: Callable[[HostSettings], Host],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
    for name in names:
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    theirs = "".join(f"export {name}=http://127.0.0.1:8\n" for name in names)
    host = make_host(HostSettings(home_files={".bashrc": theirs, ".profile": theirs}))
    with connect(host).cluster("digits") as cluster:
        assert cluster.run("echo $http_proxy $grpc_proxy").last_lines == (
            "http://127.0.0.1:8 http://127.0.0.1:8",
        )


def test_k87_the_files_of_a_cluster_that_is_used_again_are_those_of_the_last_job(
    connect: Callable[..., ClusterHook], clean_hosts: Callable[[int], list[Host]], tmp_path: Path
) -> None:
    (host,) = clean_hosts(1)
    project, show = (
        tmp_path / "proj dir",
        "find . -type f -o -type l | LC_ALL=C sort; ./run.py; cat ~/cfg/app.toml",
    )
    (project / "src" / "data").mkdir(parents=True)
    (project / "data").mkdir()
    (project / ".gitignore").write_text("/data/*\n!/data/keep\n")
    for name in ("data/drop", "data/keep", "src/data/model.py", "old.py"):
        (project / name).write_text("")
    (project / "run.py").write_text("#!/bin/sh\necho ran\n")
    (project / "run.py").chmod(0o755)
    (project / "loop").symlink_to("loop")
    (project / "outside").symlink_to("/etc/hostname")
    os.utime(project / "old.py", (4e9, 4e9))
    (tmp_path / "app.toml").write_text("first = 1\n")
    task = {
        "workdir": str(project),
        "file_mounts": {"~/cfg/app.toml": str(tmp_path / "app.toml")},
        "run": show,
    }
    files = [
        "./.gitignore",
        "./data/keep",
        "./loop",
        "./old.py",
        "./outside",
        "./run.py",
        "./src/data/model.py",
    ]
    with connect(host).cluster("digits") as cluster:
        assert cluster.run(task).last_lines == (*files, "ran", "first = 1")
        (project / "old.py").unlink()
        (tmp_path / "app.toml").write_text("second = 2\n")
        files.remove("./old.py")
        assert cluster.run(task).last_lines == (*files, "ran", "second = 2")
        with pytest.raises(JobFailed, match=r"/abs/in.*choose a destination below ~/"):
            cluster.run({"file_mounts": {"/abs/in": str(project)}, "run": "true"})
    assert not (host.home / "cfg" / "app.toml").exists()


def test_k28_an_interrupt_does_not_wait_for_a_cluster_that_does_not_answer(
    connect: Callable[..., ClusterHook], host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(line: str) -> None:
        host.link_down()
        begun.append(time.monotonic())
        raise Interrupted

    begun: list[float] = []
    monkeypatch.setattr(named_cluster, "_END_SECONDS", 1.0)
    hook = connect(host, connect_timeout=1.5, silence_limit=1.5, unreachable_timeout=600)
    with pytest.raises(Interrupted), hook.cluster("digits") as cluster:
        cluster.run("echo ready; sleep 600", log=interrupt)
    assert time.monotonic() - begun[0] < 20
    host.link_up()
    connect(host).cluster("digits").down()
    assert_nothing_left(host)
