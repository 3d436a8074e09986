"""A lab: a network of test hosts, with nothing left when it is closed, nor for long when it is not."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hosts import machine
from tests.hosts.host import MARKER, Host, Network, start_all
from tests.hosts.keys import ClientKeys
from tests.hosts.machine import LabError
from tests.hosts.settings import HostSettings

LABS = Path("/var/tmp/managed-jobs-labs")
"""One folder for each lab of this machine; always the same place, so that a run finds what a killed one left."""

_ALL_NETWORKS = ipaddress.IPv4Network("198.18.0.0/15")
"""Set aside for test networks (RFC 2544): no site has real hosts there."""

_FIRST_HOST, _LAST_HOST = 2, 254


class Lab:
    """A bridge with its own subnet, and hosts on it. Close it, or use it as a context.

    Labs of several processes share nothing. A lab whose process was killed ends by itself, all but its bridge and its
    folder, which the next lab sweeps away.
    """

    def __init__(self) -> None:
        self._hosts: dict[int, Host] = {}
        with _labs_locked():
            sweep()
            self.network, self.directory, self._alive = _claim()
        try:
            self.keys = ClientKeys.make(self.directory / "keys")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def gateway(self) -> str:
        """The address of this machine as its hosts see it; they reach nothing else."""
        return self.network.gateway

    def add(self, settings: HostSettings | None = None) -> Host:
        """Return a new host that is off.

        Raises:
            LabError: the lab is full.
        """
        free = (n for n in range(_FIRST_HOST, _LAST_HOST + 1) if n not in self._hosts)
        number = next(free, None)
        if number is None:
            raise LabError(f"a lab has at most {_LAST_HOST - _FIRST_HOST + 1} hosts")
        directory = self.directory / "hosts" / str(number)
        host = Host(
            number=number,
            network=self.network,
            directory=directory,
            keys=self.keys,
            settings=settings or HostSettings(),
        )
        self._hosts[number] = host
        return host

    def start(self, count: int = 1, settings: HostSettings | None = None) -> list[Host]:
        """Return new hosts that answer."""
        hosts = [self.add(settings) for _ in range(count)]
        start_all(hosts)
        return hosts

    def remove(self, host: Host) -> None:
        """Remove a host and all that it was."""
        number = next(number for number, known in self._hosts.items() if known is host)
        host.remove()
        del self._hosts[number]

    def close(self) -> None:
        """Remove everything. Once more does nothing."""
        if self._alive < 0:
            return
        for host in list(self._hosts.values()):
            self.remove(host)
        _remove(self.directory)
        os.close(self._alive)
        self._alive = -1


def sweep() -> None:
    """Remove what labs have left whose process has ended."""
    for directory in LABS.iterdir():
        alive = _lock(directory)
        if alive >= 0:
            try:
                _remove(directory)
            finally:
                os.close(alive)


def _remove(directory: Path) -> None:
    machine.end(machine.carriers(MARKER, str(directory)))
    bridge = _bridge(directory)
    if machine.has_link(bridge):
        machine.run("ip", "link", "del", bridge)
    for point in machine.mounts_below(directory):
        machine.run("umount", "--lazy", str(point))
    shutil.rmtree(directory)


def _claim() -> tuple[Network, Path, int]:
    """Return a network that nobody has, its folder, and the lock on that which is held while this process lives."""
    taken = [ipaddress.IPv4Network(destination, strict=False) for destination in machine.routes()]
    for number, subnet in enumerate(_ALL_NETWORKS.subnets(new_prefix=24)):
        directory = LABS / str(number)
        bridge = _bridge(directory)
        if directory.exists() or machine.has_link(bridge) or any(subnet.overlaps(other) for other in taken):
            continue
        network = Network(number, bridge, str(subnet.network_address).rpartition(".")[0])
        directory.mkdir(mode=0o700)
        alive = _lock(directory)
        try:
            machine.ip_batch(
                # Without an address of its own a bridge takes that of a port, and loses frames when the port goes.
                f"link add {bridge} address {network.mac(1)} type bridge",
                f"addr add {network.gateway}/24 dev {bridge}",
                f"link set {bridge} up",
            )
        except BaseException:
            _remove(directory)
            os.close(alive)
            raise
        return network, directory, alive
    raise LabError(f"no network is free in {_ALL_NETWORKS}")


def _bridge(directory: Path) -> str:
    return f"mjlab{directory.name}"


@contextmanager
def _labs_locked() -> Iterator[None]:
    """Be the only one who looks through the labs of this machine."""
    LABS.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(LABS, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _lock(directory: Path) -> int:
    """Return a handle that holds the lock on a folder, -1 when another has it."""
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return -1
    return handle
