"""What others on the machine can see of an agent and its jobs: nothing; and sizes and paths that systems limit."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.process import processes
from airflow_provider.runtime.client import JobStatus
from airflow_provider.runtime.wire import agent_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from tests.integration.agents import Agent
from tests.integration.clusters import Cluster, eventually

NOBODY = 65534
SECRET = "sesame-0123456789-open"
SUCCEEDED = int(pb.SUCCEEDED)

# Becomes a user, walks a directory, tries to read all and to talk to all, and prints what it could.
TRIES = """
import json, os, socket, stat, sys
user = int(sys.argv.pop(1))
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
done = {"uid": os.getuid(), "read": [], "written": [], "connected": []}
for directory, names, files in os.walk(sys.argv[1]):
    if os.access(directory, os.W_OK):
        done["written"].append(directory)
    for name in files:
        path = os.path.join(directory, name)
        try:
            os.chdir(directory)
            if stat.S_ISSOCK(os.stat(path).st_mode):
                socket.socket(socket.AF_UNIX).connect(name)
                done["connected"].append(path)
            else:
                open(path, "rb").close()
                done["read"].append(path)
        except OSError:
            pass
for path in sys.argv[2:]:  # what others may know to be there
    try:
        os.chdir(os.path.dirname(path))
        socket.socket(socket.AF_UNIX).connect(os.path.basename(path))
        done["connected"].append(path)
    except OSError:
        pass
print(json.dumps(done))
"""


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that everybody can look into; those of pytest are closed themselves."""
    path = Path(tempfile.mkdtemp(prefix="agent-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def agent(open_directory: Path) -> AsyncIterator[Agent]:
    root = open_directory / "cluster"
    root.mkdir(mode=0o755)
    made = await Agent(root).start(disposable=True)
    try:
        yield made
    finally:
        await made.close()
        made.end()


def tries(user: int, root: Path) -> dict[str, object]:
    """Let a user try all there is below a directory."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", TRIES, str(user), str(root), str(root / "agent" / "agent.sock")],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    assert found["uid"] == user
    return found


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def start(agent: Agent, run: str, **fields: object) -> int:
    """Start a job of which another user must see nothing; return its id once it runs."""
    spec = pb.JobSpec(name="private", run=run, secrets={"SECRET": SECRET}, grace_seconds=0.5, **fields)  # type: ignore[arg-type]
    request = pb.SubmitRequest(key="key", owner=pb.Owner(id="test", generation=1), job=spec)
    job_id = (await rpcs.SUBMIT.unary(agent.channel)(request, timeout=10)).job_id
    await agent.until_status(job_id, pb.RUNNING)
    return job_id


async def test_the_socket_and_its_directory_are_for_one_user(agent: Agent) -> None:
    assert mode(agent.root / "agent") == 0o700
    assert mode(agent.root / "agent" / "agent.sock") == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_i3_18_another_user_can_neither_connect_nor_read_anything(agent: Agent) -> None:
    await start(agent, "echo hello; touch a_file; echo x > ~/other; sleep 600", setup="echo set up")
    assert await asyncio.to_thread(tries, NOBODY, agent.root) == {
        "uid": NOBODY,
        "read": [],
        "written": [],
        "connected": [],
    }
    # That is not because there is nothing to be found.
    found = await asyncio.to_thread(tries, 0, agent.root)
    assert f"{agent.root}/agent/agent.sock" in found["connected"]  # type: ignore[operator]
    names = {Path(path).name for path in found["read"]}  # type: ignore[attr-defined]
    assert {"run.log", "setup.log", "order.json", "jobs.db", "agent.log", "other", "a_file"} <= names


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_a_directory_that_was_open_to_all_is_closed(open_directory: Path) -> None:
    root = open_directory / "cluster"
    (root / "agent").mkdir(parents=True)
    (root / "agent").chmod(0o777)
    made = await Agent(root).start()
    try:
        assert mode(root / "agent") == 0o700
        assert (await asyncio.to_thread(tries, NOBODY, root))["connected"] == []
    finally:
        await made.close()
        made.end()


def sockets(pid: int) -> set[str]:
    """Return the inodes of a process's sockets."""
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = str(Path(f"/proc/{pid}/fd/{name}").readlink())
        except FileNotFoundError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            found.add(target[len("socket:[") : -1])
    return found


def table(name: str, column: int) -> dict[str, list[str]]:
    """Return the lines of a table of /proc/net by inode; none where the kernel has no such protocol."""
    path = Path(f"/proc/net/{name}")
    lines = path.read_text().splitlines()[1:] if path.exists() else []
    return {words[column]: words for words in map(str.split, lines)}


async def test_no_port_is_open_and_no_socket_but_one_has_a_name(agent: Agent) -> None:
    await start(agent, "sleep 600")
    await eventually(lambda: len(members(agent)) >= 4, "agent, zygote, driver and job")
    inodes = set().union(*(sockets(pid) for pid in members(agent)))
    for name in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        assert not inodes & set(table(name, 9)), f"a socket of {name}"
    # Column 7, the name, is there only for sockets that have one; abstract ones begin with @.
    names = [tuple(words[7:]) for inode, words in table("unix", 6).items() if inode in inodes]
    assert set(names) == {(), ("agent.sock",)}


async def test_secrets_are_in_no_file_and_in_no_command_line(agent: Agent, open_directory: Path) -> None:
    job_id = await start(agent, 'test "$SECRET" && echo "$SECRET" | sha256sum && sleep 600')
    await eventually(lambda: knowing(agent, "environ"), "the job itself to have it")
    assert knowing(agent, "cmdline") == set()
    assert holding(open_directory) == []
    driver = int(json.loads((agent.root / "jobs" / str(job_id) / "driver.json").read_text())["pid"])
    assert not {agent.pid, driver} & knowing(agent, "environ")


def members(agent: Agent) -> set[int]:
    return processes.marked(processes.CLUSTER_MARKER, str(agent.root))


def knowing(agent: Agent, what: str) -> set[int]:
    """Return the processes whose command line or environment has the secret."""
    found = set()
    for pid in members(agent):
        try:
            if SECRET.encode() in Path(f"/proc/{pid}/{what}").read_bytes():
                found.add(pid)
        except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
            continue
    return found


def holding(directory: Path) -> list[Path]:
    """Return the files that have the secret."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return [path for path in files if SECRET.encode() in path.read_bytes()]


# ---- sizes and paths


async def test_k83_a_root_whose_socket_has_too_long_a_path_works(open_directory: Path) -> None:
    root = open_directory.joinpath(*["a-directory-with-a-long-name"] * 8, "cluster")
    root.mkdir(parents=True)
    assert len(str(root / "agent" / "agent.sock")) > 107
    made = await Agent(root).start()
    try:
        job_id = await made.submit("true")
        await made.until_status(job_id, SUCCEEDED)
        await made.kill()
        await made.start()
        assert await made.status(job_id) == SUCCEEDED
    finally:
        await made.close()
        made.end()


async def test_scripts_over_128_kilobytes_run(cluster: Cluster) -> None:
    """More than one argument of a program may have."""
    filler = "\n".join(f": {'x' * 1000} {number}" for number in range(300))
    seen = await cluster.run(f"{filler}\necho run", setup=f"{filler}\necho setup")
    assert (seen.end.status, seen.text) == (JobStatus.SUCCEEDED, "setup\nrun\n")


async def test_k84_a_submit_over_4_megabytes_is_taken(cluster: Cluster) -> None:
    envs = {f"VALUE_{number}": "x" * 20_000 for number in range(50)}
    seen = await cluster.run(f": {'y' * (6 << 20)}\necho ${{#VALUE_49}}", envs=envs)
    assert (seen.end.status, seen.text) == (JobStatus.SUCCEEDED, "20000\n")
