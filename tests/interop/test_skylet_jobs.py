"""Our client and a real skylet: jobs as they should be."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from base64 import b64encode
from pathlib import Path

import pytest

from airflow_provider.runtime.client import (
    Autostop,
    FileTree,
    Hook,
    HookEvent,
    JobStatus,
    LinkLost,
    NoSuchJob,
    Owner,
    RequestRefused,
    WaitFor,
)
from airflow_provider.runtime.client.choose import client_for
from airflow_provider.runtime.client.skylet import SkyletClient
from airflow_provider.runtime.errors import Superseded
from airflow_provider.runtime.transport.tcp import TcpChannel
from tests.interop.jobs import OWNER, alive, follow, job, new_key, run, running
from tests.interop.peer import Skylet

ODD = "$HOME `id` 'q' \"\n\\\N{SNOWMAN}"
BASHRC = """
echo noise; echo more >&2
case $- in *i*) ;; *) return ;; esac
export FROM_RC='rc value' CLASH=rc
greet() { echo "greetings $1"; }
"""


async def test_a_job_has_its_shell_variables_and_output_and_its_log_begins_with_it(
    skylet: Skylet, client: SkyletClient
) -> None:
    bashrc = skylet.home / ".bashrc"
    bashrc.write_text(BASHRC)
    try:
        seen = await run(
            client,
            'greet "$FROM_RC"; echo "$CLASH"; printf "%s" "$ODD" | base64 -w0; echo; '
            'test "$SECRET" = sesame && pwd && echo "$SKYPILOT_NODE_RANK $SKYPILOT_NUM_NODES '
            '$SKYPILOT_INTERNAL_JOB_ID $PYTHONUNBUFFERED"; '
            "printf 'a\\377b\\r\\n10%%\\r20%%\\n'; printf '{\"loss\": 0.5}' > \"$TASK_OUTPUT_FILE\"; printf last",
            setup="echo set up; export LOST=1",
            name="a name; with $(oddities)/../x",
            envs={"CLASH": "job", "ODD": ODD},
            secrets={"SECRET": "sesame"},
        )
    finally:
        bashrc.unlink()
    job_id = seen.end.job_id
    assert seen.text == (
        f"set up\ngreetings rc value\njob\n{b64encode(ODD.encode()).decode()}\n"
        f"{skylet.home}/sky_workdir\n0 1 {job_id} 1\n"
        "a\N{REPLACEMENT CHARACTER}b\n10%\r20%\nlast\n"
    )
    assert seen.end.status is JobStatus.SUCCEEDED
    assert seen.end.exit_codes == (0,)
    assert seen.end.log_size == len(seen.log)
    assert json.loads(seen.end.output or "") == {"loss": 0.5}
    assert seen.end.name == "a-name-with-oddities-..-x"
    assert seen.end.submitted_at <= seen.end.started_at <= seen.end.ended_at
    assert await client.status(job_id) == seen.end
    # The program removed itself and its scripts, and took the secret with it.
    left = [path for path in skylet.home.rglob("*") if path.is_file() and b"sesame" in path.read_bytes()]
    assert left == []
    assert list((skylet.home / ".sky" / "sky_app").iterdir()) == []
    # Whoever comes later, and from wherever in the log, sees the same; of an ended job's log without progress bars.
    later = seen.log.replace(b"\r", b"\n")
    assert (await follow(client, job_id)).log == later
    assert (await follow(client, job_id, offset=20)).log == later[20:]
    assert (await follow(client, job_id, offset=len(seen.log))).log == b""


async def test_i1_10_a_cancelled_job_has_ended_only_when_nothing_of_it_is_left_and_others_go_on(
    skylet: Skylet, client: SkyletClient
) -> None:
    neighbour = await client.submit(new_key(), OWNER, job("echo next; until [ -e go ]; do sleep 0.05; done"))
    await follow(client, neighbour, until="next\n")
    stubborn = await client.submit(
        new_key(),
        OWNER,
        job(
            "trap '' TERM; (trap '' TERM; setsid sleep 1000) & env -i setsid -f sh -c \"trap '' TERM; "
            'echo pid \\$\\$; sleep 1000 & wait"; echo ready; sleep 1000',
            grace_seconds=1.0,
        ),
    )
    seen = await follow(client, stubborn, until="ready\n")
    if "pid" not in seen.text:
        seen = await follow(client, stubborn, until="pid ")
    escaped = int((await follow(client, stubborn, until="\n")).text.split("pid ")[-1].split()[0])
    await running(client, stubborn)
    live = await client.jobs()
    assert [(state.job_id, state.status.value) for state in live] == [
        (stubborn, "RUNNING"),
        (neighbour, "RUNNING"),
    ]
    assert alive(escaped)
    with pytest.raises(Superseded):
        await client.cancel(stubborn, Owner("an earlier one", OWNER.generation - 1), limit=30)

    cancelling = asyncio.create_task(client.cancel(stubborn, OWNER, limit=30))
    end = (await follow(client, stubborn)).end
    assert not alive(escaped)
    assert end.status is JobStatus.CANCELLED
    assert await cancelling == end
    assert (await client.cancel(stubborn, OWNER, limit=30)) == end

    assert (await client.status(neighbour)).status is JobStatus.RUNNING
    (skylet.home / "sky_workdir" / "go").touch()
    assert (await follow(client, neighbour)).end.status is JobStatus.SUCCEEDED
    (skylet.home / "sky_workdir" / "go").unlink()


async def test_a_quiet_follower_that_left_holds_no_thread_of_the_skylet(
    skylet: Skylet, client: SkyletClient
) -> None:
    job_id = await client.submit(new_key(), OWNER, job("echo quiet; sleep 1000"))
    for _ in range(8):  # more than the skylet has threads
        assert (await follow(client, job_id, until="quiet\n")).log == b"quiet\n"
    seen = await follow(client, job_id, until="quiet\n")
    assert seen.text == "quiet\n", "an idle mark is shown"
    assert await client.handshake()
    end = await client.cancel(job_id, OWNER, limit=30)
    assert end.log_size == len((await follow(client, job_id)).log)


_SETTINGS = """
import sys
from sky.skylet import autostop_lib
for line in sys.stdin:
    found = autostop_lib.get_autostop_config()
    hooks = [(hook["run"], sorted(hook["events"]), hook["timeout"]) for hook in autostop_lib.get_hooks()]
    print([found.autostop_idle_minutes, found.down, found.wait_for.value, hooks], flush=True)
"""


async def test_autostop_is_stored_with_its_hooks_kept_or_cleared_and_cancelled(
    skylet: Skylet, client: SkyletClient
) -> None:
    hooks = (Hook("sync", frozenset({HookEvent.STOP, HookEvent.DOWN}), 60), Hook("say bye"))
    reader = await asyncio.create_subprocess_exec(
        str(skylet.python), "-c", _SETTINGS, env=skylet.environment(), stdin=PIPE, stdout=PIPE
    )
    assert reader.stdin is not None
    assert reader.stdout is not None

    async def stored(reader: asyncio.subprocess.Process = reader) -> str:
        reader.stdin.write(b"\n")  # type: ignore[union-attr]
        return (await reader.stdout.readline()).decode().strip()  # type: ignore[union-attr]

    try:
        await client.set_autostop(Autostop(90, down=True, wait_for=WaitFor.JOBS, hooks=hooks))
        await client.set_autostop(Autostop(91, down=True, wait_for=WaitFor.JOBS))
        kept = "[('sync', ['down', 'stop'], 60), ('say bye', ['down', 'preemption', 'stop'], 3600)]"
        assert await stored() == f"[91, True, 'jobs', {kept}]"
        await client.set_autostop(Autostop(-1, hooks=()))
        assert await stored() == "[-1, False, 'jobs_and_ssh', []]"
        assert not await client.autostopping()
    finally:
        reader.kill()
        await reader.communicate()


async def test_what_a_skylet_cannot_do_is_refused_by_name(client: SkyletClient, tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match="a skylet takes no files"):
        await client.send_files("d", 1, (tmp_path / "no").open)
    with pytest.raises(RequestRefused, match="a skylet takes no files"):
        await client.submit("k", OWNER, job("true", files=(FileTree("d", "file", "~/x"),)))
    with pytest.raises(RequestRefused, match="a skylet takes 4128768"):
        await client.submit("k", OWNER, job("#" * (4 << 20)))
    with pytest.raises(RequestRefused, match="'A' cannot be set"):
        await client.submit("k", OWNER, job("true", envs={"A": "\0"}))
    with pytest.raises(NoSuchJob):
        await client.status(1 << 40)
    with pytest.raises(NoSuchJob):
        await client.cancel(1 << 40, OWNER, limit=5)


async def test_nobody_at_the_port_is_a_lost_link(skylet: Skylet) -> None:
    channel = TcpChannel(1)
    with pytest.raises(LinkLost):
        await asyncio.wait_for(client_for(channel), 5)
    await channel.close()
