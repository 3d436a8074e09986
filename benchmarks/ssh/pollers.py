"""``python -m benchmarks.ssh.pollers``: triggers of Airflow's SSHRemoteJobOperator in one process, as in a triggerer.

Says ``imported``, reads a line with a list of ``Jobs`` as JSON, says ``ready`` when each trigger has its connection,
and ends with its input. The connections come from the environment.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, TypedDict

from airflow.providers.ssh.triggers.ssh_remote_job import SSHRemoteJobTrigger

if TYPE_CHECKING:
    from asyncssh import SSHClientConnection


class Jobs(TypedDict):
    """Jobs on one host: the id of its Airflow connection, and the folder of each job there."""

    connection_id: str
    folders: list[str]


class _Trigger(SSHRemoteJobTrigger):
    """One that tells when it is connected."""

    def __init__(self, connection_id: str, folder: str) -> None:
        super().__init__(
            ssh_conn_id=connection_id,
            remote_host=None,
            job_id=folder,
            job_dir=folder,
            log_file=f"{folder}/stdout.log",
            exit_code_file=f"{folder}/exit_code",
            remote_os="posix",
        )
        self.connected = asyncio.Event()

    async def _connect(self) -> SSHClientConnection:
        connection = await super()._connect()
        self.connected.set()
        return connection


async def main() -> None:
    """Poll until the end of the input."""
    print("imported", flush=True)
    order: list[Jobs] = json.loads(await asyncio.to_thread(sys.stdin.readline))
    triggers = [_Trigger(jobs["connection_id"], folder) for jobs in order for folder in jobs["folders"]]
    running = [asyncio.create_task(_run(trigger)) for trigger in triggers]
    connected = asyncio.create_task(_all(triggers))
    await asyncio.wait([*running, connected], return_when=asyncio.FIRST_COMPLETED)
    for task in running:
        if task.done():
            task.result()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def _run(trigger: _Trigger) -> None:
    async for event in trigger.run():
        raise RuntimeError(f"a trigger ended: {event.payload}")


async def _all(triggers: list[_Trigger]) -> None:
    for trigger in triggers:
        await trigger.connected.wait()


if __name__ == "__main__":
    asyncio.run(main())
