"""Local clusters: made once, found again, probed, lost and removed for good."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.process import processes
from airflow_provider.runtime.client import JobStatus, LinkLost
from airflow_provider.runtime.client.calls import ask_once
from airflow_provider.runtime.infra.base import ClusterHandle, Health, InfraError
from airflow_provider.runtime.infra.local import LocalInfra
from tests.integration.clusters import ANY_CHOICE, Cluster, assert_gone, eventually, exited, quiet

pytestmark = pytest.mark.own_cluster

STUBBORN = "trap '' TERM; setsid sleep 100 & (env -i setsid /bin/sleep 100 &); echo ready; while :; do sleep 100; done"


@pytest.mark.parametrize(
    "name", ["", "..", ".", "a/b", "/tmp/x", "../x", ".hidden", "-x", "a\n", "ü", "a" * 101, "a b", "a\0"]
)
async def test_names_that_could_be_paths_are_refused(tmp_path: Path, name: str) -> None:
    infra = LocalInfra(tmp_path / "clusters")
    for call in (infra.provision(name, ANY_CHOICE, quiet), infra.tear_down(name)):
        with pytest.raises(InfraError, match="name"):
            await call
    with pytest.raises(InfraError, match="name"):
        infra.preempt(name)
    assert os.listdir(tmp_path) == []


async def test_a_cluster_works_below_a_directory_of_any_length_and_spelling(tmp_path: Path) -> None:
    root = tmp_path / ("x" * 100) / 'it\'s a "place" with $HOME `id` ünï'
    infra = LocalInfra(root)
    handle = await infra.provision("c" * 100, ANY_CHOICE, quiet)
    cluster = Cluster(infra, root, handle, await infra.connect(handle))
    seen = await cluster.run('no-such-command; cd ~; [ "$PWD" = "$HOME" ] && echo same')
    assert "same\n" in seen.text
    assert "warning: 1 command(s) failed" in seen.text
    assert seen.end.status is JobStatus.SUCCEEDED
    await cluster.remove()


async def test_provisioning_again_takes_over_the_same_cluster(cluster: Cluster) -> None:
    agent = cluster.agent_pid
    job_id = await cluster.start("echo ready; sleep 100")
    again = await LocalInfra(cluster.root).provision("c1", ANY_CHOICE, quiet)
    assert again == cluster.handle
    assert cluster.agent_pid == agent
    assert (await cluster.client.status(job_id)).status is JobStatus.RUNNING


async def test_several_may_provision_the_same_cluster_at_once(tmp_path: Path) -> None:
    root = tmp_path / "clusters"
    infra = LocalInfra(root)
    handles = await asyncio.gather(*(infra.provision("c1", ANY_CHOICE, quiet) for _ in range(4)))
    assert len({handle.instance for handle in handles}) == 1
    client = await infra.connect(handles[0])
    assert await client.handshake() == handles[0].instance
    await client.close()
    await infra.tear_down("c1")
    assert_gone(root, "c1")


async def test_a_handle_outlives_its_process(cluster: Cluster) -> None:
    handle = ClusterHandle.from_json(json.loads(json.dumps(cluster.handle.to_json())))
    assert handle == cluster.handle
    client = await LocalInfra(cluster.root).connect(handle)
    assert await client.handshake() == handle.instance
    await client.close()
    with pytest.raises(ValueError, match="upgrade"):
        ClusterHandle.from_json({**handle.to_json(), "v": 99})


async def test_after_a_reboot_the_cluster_is_gone_and_made_anew(cluster: Cluster) -> None:
    record = cluster.directory / "cluster.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "boot_id": str(uuid.uuid4())}))
    probe = await cluster.infra.probe(cluster.handle)
    assert probe.health is Health.GONE
    assert "booted" in probe.evidence
    again = await cluster.infra.provision("c1", ANY_CHOICE, quiet)
    assert again.instance != cluster.handle.instance
    assert (await cluster.infra.probe(again)).health is Health.ALIVE
    assert (await cluster.infra.probe(cluster.handle)).health is Health.GONE


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null"])
async def test_a_cluster_whose_record_makes_no_sense_is_made_anew(cluster: Cluster, text: str) -> None:
    (cluster.directory / "cluster.json").write_text(text)
    agent = cluster.agent_pid
    assert (await cluster.infra.probe(cluster.handle)).health is Health.GONE
    again = await cluster.infra.provision("c1", ANY_CHOICE, quiet)
    await exited(agent)
    assert (await cluster.infra.probe(again)).health is Health.ALIVE


async def test_only_this_user_reaches_the_agent(cluster: Cluster) -> None:
    modes = {
        path: stat.S_IMODE(path.stat().st_mode)
        for path in (cluster.root, cluster.directory, cluster.directory / "agent")
    }
    assert set(modes.values()) == {0o700}
    assert stat.S_IMODE((cluster.directory / "agent" / "agent.sock").stat().st_mode) == 0o600


async def test_nothing_of_airflows_environment_reaches_agent_or_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "s3cret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    monkeypatch.setenv("LC_TIME", "C")
    root = tmp_path / "clusters"
    infra = LocalInfra(root)
    handle = await infra.provision("c1", ANY_CHOICE, quiet)
    cluster = Cluster(infra, root, handle, await infra.connect(handle))
    seen = await cluster.run("env")
    assert "s3cret" not in seen.text
    assert "LC_TIME=C" in seen.text
    for pid in cluster.processes():
        assert b"s3cret" not in Path(f"/proc/{pid}/environ").read_bytes()  # noqa: ASYNC240
    await cluster.remove()


# ---- probing


async def test_a_cluster_that_answers_is_alive(cluster: Cluster) -> None:
    assert (await cluster.infra.probe(cluster.handle)).health is Health.ALIVE


async def test_a_killed_agent_is_down_and_can_be_started_again(cluster: Cluster) -> None:
    await cluster.kill_agent()
    assert (await cluster.infra.probe(cluster.handle)).health is Health.AGENT_DOWN
    await cluster.infra.restart_agent(cluster.handle)
    assert (await cluster.infra.probe(cluster.handle)).health is Health.ALIVE


async def test_an_agent_that_does_not_answer_is_unreachable(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ask_once.__kwdefaults__, "seconds", 0.5)
    os.kill(cluster.agent_pid, signal.SIGSTOP)
    probe = await cluster.infra.probe(cluster.handle)
    assert probe.health is Health.UNREACHABLE
    assert "does not answer" in probe.evidence
    os.kill(cluster.agent_pid, signal.SIGCONT)
    assert (await cluster.infra.probe(cluster.handle)).health is Health.ALIVE


async def test_a_removed_cluster_is_gone(cluster: Cluster) -> None:
    await cluster.infra.tear_down("c1")
    probe = await cluster.infra.probe(cluster.handle)
    assert probe.health is Health.GONE
    with pytest.raises(LinkLost):
        await cluster.infra.connect(cluster.handle)


async def test_the_agent_of_a_removed_cluster_cannot_be_started(cluster: Cluster) -> None:
    await cluster.infra.tear_down("c1")
    with pytest.raises(InfraError, match="did not start"):
        await cluster.infra.restart_agent(cluster.handle)
    assert list(cluster.root.iterdir()) == []


# ---- the end


async def test_a_preempted_cluster_is_gone_at_once_and_its_job_reports_no_end(cluster: Cluster) -> None:
    job_id = await cluster.start(STUBBORN, grace_seconds=60.0)
    following = asyncio.create_task(cluster.follow_to_end(job_id))
    await eventually(lambda: len(cluster.processes()) >= 5, "the job's processes")
    cluster.infra.preempt("c1")
    assert_gone(cluster.root, "c1")
    with pytest.raises(LinkLost):
        await following
    assert (await cluster.infra.probe(cluster.handle)).health is Health.GONE


async def test_a_preempted_job_never_looks_like_one_that_failed(tmp_path: Path) -> None:
    infra = LocalInfra(tmp_path / "clusters")
    for _ in range(3):
        handle = await infra.provision("c1", ANY_CHOICE, quiet)
        cluster = Cluster(infra, tmp_path / "clusters", handle, await infra.connect(handle))
        job_id = await cluster.start("for i in 1 2 3 4 5 6 7 8; do sleep 100 & done; echo ready; wait")
        await cluster.kill_agent()
        await cluster.restart_agent()  # younger than the job's processes now
        following = asyncio.create_task(cluster.follow_to_end(job_id))
        await cluster.until_log(job_id, "ready")
        await asyncio.to_thread(infra.preempt, "c1")
        with pytest.raises(LinkLost):
            await following
        await cluster.client.close()


async def test_a_cluster_preempted_while_it_is_made_leaves_nothing(tmp_path: Path) -> None:
    root = tmp_path / "clusters"
    infra = LocalInfra(root)
    for delay in (0.0, 0.005, 0.05, 0.1, 0.2, 0.4):
        making = asyncio.create_task(infra.provision("c1", ANY_CHOICE, quiet))
        await asyncio.sleep(delay)
        await asyncio.to_thread(infra.preempt, "c1")
        await asyncio.gather(making, return_exceptions=True)
        if making.exception() is None:  # it was quicker, or began after the loss
            await asyncio.to_thread(infra.preempt, "c1")
        else:
            assert isinstance(making.exception(), InfraError)
        assert_gone(root, "c1")


async def test_a_cluster_made_anew_while_the_old_one_is_being_removed_is_left_alone(cluster: Cluster) -> None:
    await cluster.start(STUBBORN, grace_seconds=60.0)
    removing = asyncio.create_task(cluster.infra.tear_down("c1"))
    await eventually(lambda: not cluster.directory.exists(), "the removal to begin")
    again = await cluster.infra.provision("c1", ANY_CHOICE, quiet)
    assert removing.done(), "the new one has to wait: its processes would look the same"
    await removing
    assert again.instance != cluster.handle.instance
    assert (await cluster.infra.probe(again)).health is Health.ALIVE


async def test_processes_of_a_cluster_whose_directory_was_deleted_are_ended_too(cluster: Cluster) -> None:
    await cluster.start("echo ready; sleep 100")
    shutil.rmtree(cluster.directory)
    await cluster.infra.tear_down("c1")
    assert_gone(cluster.root, "c1")


async def test_k22_tearing_down_ends_all_and_may_be_repeated(cluster: Cluster) -> None:
    await cluster.start(STUBBORN, grace_seconds=60.0)
    await asyncio.gather(*(cluster.infra.tear_down("c1") for _ in range(3)))
    assert_gone(cluster.root, "c1")
    await cluster.infra.tear_down("c1")
    await cluster.infra.tear_down("never-was")


async def test_a_job_may_save_its_work_while_the_cluster_is_torn_down(
    cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.start(
        f"trap 'echo saved > {tmp_path}/saved; exit' TERM; echo ready; while :; do sleep 0.01; done"
    )
    await cluster.infra.tear_down("c1")
    assert (tmp_path / "saved").read_text() == "saved\n"


async def test_neighbours_survive_also_those_with_a_longer_name(tmp_path: Path) -> None:
    root = tmp_path / "clusters"
    infra = LocalInfra(root)
    handles = [await infra.provision(name, ANY_CHOICE, quiet) for name in ("c1", "c1-b", "c1.x")]
    remains = root / f".removed-c1-b-{uuid.uuid4().hex}"
    remains.mkdir()
    infra.preempt("c1")
    assert remains.exists()
    remains.rmdir()
    assert infra.clusters() == ["c1-b", "c1.x"]
    for handle in handles[1:]:
        assert (await infra.probe(handle)).health is Health.ALIVE
        await infra.tear_down(handle.name)
    assert_gone(root, "c1-b")


async def test_what_a_killed_tear_down_left_is_removed_by_the_next(cluster: Cluster) -> None:
    remains = cluster.root / f".removed-c1-{uuid.uuid4().hex}"
    cluster.directory.rename(remains)
    assert cluster.infra.clusters() == []
    await cluster.infra.tear_down("c1")
    assert_gone(cluster.root, "c1")


async def test_the_process_that_provisions_belongs_to_no_cluster(cluster: Cluster) -> None:
    marker = f"{processes.CLUSTER_MARKER}={cluster.directory}"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import time; time.sleep(100)", env={**os.environ, "OTHER": marker}
    )
    await cluster.infra.tear_down("c1")
    assert child.returncode is None
    child.kill()
    await child.wait()


async def test_a_root_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfraError, match="cannot be made"):
        await LocalInfra(tmp_path / "file" / "clusters").provision("c1", ANY_CHOICE, quiet)


def test_checking_a_task_needs_no_grpc() -> None:
    code = "import sys; import airflow_provider.runtime.infra.local; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
