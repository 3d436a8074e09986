"""What the tests of links and tunnels are made with: targets, servers on hosts, and what a process has open."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import psutil

from airflow_provider.runtime.transport.ssh.target import HostKeys, Identity, SshTarget
from tests.hosts.host import Host
from tests.hosts.keys import ClientKeys, Key

PIECE = 256 * 1024


def target_of(host: Host, key: Key, *, user: str = "root", jump: SshTarget | None = None) -> SshTarget:
    """The target that leads to a host's account."""
    return SshTarget(
        name=host.name,
        host=host.address,
        user=user,
        identities=(Identity("test key", path=str(key.path)),),
        host_keys=HostKeys(pinned=tuple(host.disk.host_keys)),
        jump=jump,
    )


def stranger(host: Host, keys: ClientKeys) -> SshTarget:
    """A target whose key the host does not let in."""
    return target_of(host, keys.stranger)


def hurried(target: SshTarget, silence: float = 2.7) -> SshTarget:
    """The same target, with less patience."""
    return replace(target, silence_limit=silence, connect_timeout=3.0)


def logins(host: Host) -> int:
    """How often somebody has logged in on a host."""
    return host.sshd_log.count("Accepted publickey")


# A server on a host. Its process is this one: a unix socket belongs to whoever sees its folder, and a host's folders are
# folders of this machine.


def on_disk(host: Host, path: str) -> Path:
    """Where a path of the host is on this machine."""
    return host.disk.path / path.lstrip("/")


async def _echo(request: bytes, context: object) -> bytes:
    return request


async def _pour(request: bytes, context: object) -> AsyncIterator[bytes]:
    piece = os.urandom(PIECE)
    for _ in range(int(request)):
        yield piece


async def _drip(request: bytes, context: object) -> AsyncIterator[bytes]:
    while True:
        yield b"drop"
        await asyncio.sleep(0.05)


async def _swallow(requests: AsyncIterator[bytes], context: object) -> bytes:
    return str(sum([len(request) async for request in requests])).encode()


_HANDLERS = {
    "Echo": grpc.unary_unary_rpc_method_handler(_echo),  # type: ignore[arg-type]
    "Pour": grpc.unary_stream_rpc_method_handler(_pour),  # type: ignore[arg-type]
    "Drip": grpc.unary_stream_rpc_method_handler(_drip),  # type: ignore[arg-type]
    "Swallow": grpc.stream_unary_rpc_method_handler(_swallow),  # type: ignore[arg-type]
}


@asynccontextmanager
async def serving(host: Host, path: str) -> AsyncIterator[None]:
    """A gRPC server at a socket of the host."""
    place = on_disk(host, path)
    place.unlink(missing_ok=True)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", _HANDLERS),))
    server.add_insecure_port(f"unix:{place}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(grace=None)


async def echo(channel: grpc.aio.Channel, text: bytes = b"hello", *, seconds: float = 10) -> bytes:
    answer: bytes = await channel.unary_unary("/test/Echo")(text, timeout=seconds)
    return answer


async def poured(channel: grpc.aio.Channel, pieces: int) -> int:
    """How many bytes come of so many pieces."""
    total = 0
    async for piece in channel.unary_stream("/test/Pour")(str(pieces).encode(), timeout=60):
        total += len(piece)
    return total


async def exhaust(stream: grpc.aio.UnaryStreamCall[bytes, bytes]) -> None:
    """Read a stream that never ends until it breaks."""
    while await stream.read() is not grpc.aio.EOF:
        pass


# What a process has open.


def open_things() -> dict[str, int]:
    """How many threads, descriptors and children this process has."""
    this = psutil.Process()
    return {
        "threads": threading.active_count(),
        "descriptors": this.num_fds(),
        "children": len(this.children()),
    }


async def until(condition: Callable[[], bool], what: str, *, seconds: float = 10) -> None:
    """Wait for something that nobody tells of."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


PROXY = r"""
import os, select, socket, sys
s = socket.create_connection((sys.argv[1], 22))
while True:
    for f in select.select([0, s], [], [])[0]:
        data = os.read(0, 65536) if f == 0 else s.recv(65536)
        if not data: sys.exit()
        if f == 0: s.sendall(data)
        else: os.write(1, data)
"""
"""A program that connects its standard input and output to a host's sshd."""


def proxy_command(host: Host, folder: Path) -> str:
    """A proxy command that leads to a host; its program is kept in a folder, by whose name it is known."""
    program = folder / "proxy.py"
    program.write_text(PROXY)
    return f"/usr/bin/python3 -S {program} {host.address}"


RELAY = r"""
import os, select, socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
out = {0: s.fileno(), s.fileno(): 1}
while out:
    for f in select.select(list(out), [], [])[0]:
        data = os.read(f, 65536)
        if not data:
            if f == 0: s.shutdown(socket.SHUT_WR)
            else: sys.exit()
            del out[f]
            continue
        while data: data = data[os.write(out[f], data):]
"""
"""A program that connects its standard input and output to a unix socket."""


def relay_command(host: Host, path: str) -> str:
    """A shell command on the host that relays to a socket there."""
    on_disk(host, "/root/relay.py").write_text(RELAY)
    return f"exec /usr/bin/python3 /root/relay.py {path}"
