"""What the tests of single attempts to connect are made with."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from airflow_provider.runtime.transport.ssh.connect import Connected, connect
from airflow_provider.runtime.transport.ssh.errors import (
    BadKey,
    SshError,
)
from airflow_provider.runtime.transport.ssh.target import HostKeys, Identity, SshTarget
from tests.hosts.host import Host
from tests.hosts.keys import Key
from tests.hosts.settings import HostSettings

Hosts = Callable[[int], list[Host]]
MakeHost = Callable[[HostSettings], Host]

PATIENCE = 5.0


def identity(key: Key) -> Identity:
    return Identity(
        "connection gpu, private_key", text=key.path.read_text(), passphrase=key.passphrase or None
    )


def target(host: Host, /, *keys: Key, **more: object) -> SshTarget:
    plain = SshTarget(
        name=host.name,
        host=host.address,
        user="root",
        identities=tuple(identity(key) for key in keys),
        host_keys=HostKeys(pinned=tuple(host.disk.host_keys)),
    )
    return replace(plain, **more)


@asynccontextmanager
async def connected(to: SshTarget, **more: asyncssh.SSHClientConnection) -> AsyncIterator[Connected]:
    opened = await connect(to, **more)
    try:
        yield opened
    finally:
        opened.connection.abort()
        await opened.connection.wait_closed()


async def refusal(to: SshTarget, error: type[SshError], **more: asyncssh.SSHClientConnection) -> str:
    """Return why there is no connection, having made sure that the attempt has left nothing."""
    before = left_of_attempts()
    with pytest.raises(error) as caught:
        await connect(to, **more)
    assert type(caught.value) is error
    said = str(caught.value)
    assert said.startswith(f"{to}: ") or error is BadKey
    await poll(lambda: left_of_attempts() == before)
    return said


def left_of_attempts() -> tuple[int, int, list[str]]:
    """Return open files, tasks and children of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), children


async def poll(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it does not become true"
        await asyncio.sleep(0.01)


async def echo(connection: asyncssh.SSHClientConnection) -> str:
    return str((await connection.run("echo done", check=True)).stdout)


class Server(asyncssh.SSHServer):
    """Lets in whoever knows the password; ``patience`` never ends for those who try to log in as ``slow``."""

    def begin_auth(self, username: str) -> object:
        return self._never() if username == "slow" else True

    async def _never(self) -> bool:
        await asyncio.Event().wait()
        return True

    def public_key_auth_supported(self) -> bool:
        return False

    def password_auth_supported(self) -> bool:
        return True

    def kbdint_auth_supported(self) -> bool:
        return False

    def validate_password(self, username: str, password: str) -> bool:
        return password == "open sesame"


class AskingServer(Server):
    """Asks for the password as for one of several answers that it might want."""

    def password_auth_supported(self) -> bool:
        return False

    def kbdint_auth_supported(self) -> bool:
        return True

    def get_kbdint_challenge(self, username: str, lang: str, submethods: str) -> object:
        return "", "", "", [("Your secret: ", False)]

    def validate_kbdint_response(self, username: str, responses: list[str]) -> bool:
        return responses == ["open sesame"]


HOST_KEY = asyncssh.generate_private_key("ssh-ed25519")
AUTHORITY = asyncssh.generate_private_key("ssh-ed25519")


@asynccontextmanager
async def serving(server: type[Server] = Server, **options: object) -> AsyncIterator[SshTarget]:
    """Run a server in this process; yields the target for it."""
    options = {"server_host_keys": [HOST_KEY], **options}
    acceptor = await asyncssh.create_server(server, "127.0.0.1", 0, **options)
    try:
        pinned = HOST_KEY.export_public_key().decode()
        yield SshTarget(
            name="misbehaving",
            host="127.0.0.1",
            port=acceptor.get_port(),
            user="me",
            password="open sesame",
            host_keys=HostKeys(pinned=(pinned,)),
        )
    finally:
        acceptor.close()
        await acceptor.wait_closed()
