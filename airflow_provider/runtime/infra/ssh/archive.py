"""What is installed on a host, packed: our own agent and the packages that it needs."""

from __future__ import annotations

import hashlib
import os
import tarfile
import threading
import zlib
from functools import cache, lru_cache
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.infra.ssh.wheels import (
    REQUIREMENTS,
    OwnPackages,
    PackagesMissing,
    Wheelhouse,
    own_versions,
    resolve,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

    from airflow_provider.runtime.infra.ssh.platforms import Platform
    from airflow_provider.runtime.infra.ssh.wheels import Package

CHECKED_MODULES = (
    "airflow_provider.runtime.agent.host.operations",
    "airflow_provider.runtime.agent.server",
    "airflow_provider.runtime.agent.driver.driver",
)
"""A runtime that can import these works."""

_FORMAT = b"1"
"""To be changed when what is installed changes in a way that its content does not show."""

_OWN_FILES = ("__init__.py", "version.py", "runtime/__init__.py")
_OWN_FOLDERS = ("runtime/agent", "runtime/wire")

# 2000-01-01: equal content gives equal bytes, and nothing is dated before what zip files can hold.
_MTIME = 946_684_800
_BLOCK = 256 * 1024
_LEVEL = 1
"""Of compression: a tenth more bytes than the best, for a third of the time."""

_HASH_CHARACTERS = 20


class RuntimeArchive:
    """A runtime for one kind of host.

    Args:
        packages: What comes with the agent.
        requirements: What the host has to install itself, as lists of requirements to be tried in turn.
        platform: What it is for.

    Attributes:
        hash: Name of the runtime: equal for equal content.
        requirements: As given.
        unpacked: Bytes that it takes on the host, about, without what the host installs itself.
        files: How many files it has.
        bytes: How many bytes they hold; known after ``blocks``.
    """

    def __init__(self, *, packages: list[Package], requirements: list[list[str]], platform: Platform) -> None:
        self._packages = packages
        self.requirements = requirements
        self.unpacked = sum(package.size for package in packages) + sum(map(len, own_code().values()))
        self.hash = self._hash(platform)
        self._lock = threading.Lock()
        self._blocks: list[bytes] | None = None
        self.files = 0
        self.bytes = 0

    def _hash(self, platform: Platform) -> str:
        digest = hashlib.sha256(_FORMAT)
        for name, content in own_code().items():
            digest.update(f"\0{name}\0{len(content)}\0".encode())
            digest.update(content)
        for package in self._packages:
            digest.update(f"\0{package.name}=={package.version} {package.build}".encode())
        if self.requirements:
            digest.update(f"\0{self.requirements} {platform}".encode())
        return digest.hexdigest()[:_HASH_CHARACTERS]

    def blocks(self) -> list[bytes]:
        """Return the packed tar in pieces. Blocking: made at the first call, which takes about half a second.

        Raises:
            PackagesMissing: a package cannot be read any more.
        """
        with self._lock:
            if self._blocks is None:
                packing = _Packing()
                for name, content in self._members():
                    packing.add(name, content)
                self._blocks = packing.finish()
                self.files, self.bytes = packing.files, packing.bytes
            return self._blocks

    def _members(self) -> Iterator[tuple[str, bytes]]:
        seen = set()
        yield from own_code().items()
        for package in self._packages:
            for name, content in package.members():
                if name not in seen:  # two packages may both have the __init__.py of a namespace
                    seen.add(name)
                    yield name, content


class _Packing:
    """A packed tar in the making."""

    def __init__(self) -> None:
        self.files = 0
        self.bytes = 0
        self._compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
        self._pieces: list[bytes] = []

    def add(self, name: str, content: bytes) -> None:
        header = tarfile.TarInfo(name)
        header.size, header.mtime, header.mode = len(content), _MTIME, 0o644
        self._write(header.tobuf(tarfile.PAX_FORMAT))
        self._write(content)
        self._write(bytes(-len(content) % tarfile.BLOCKSIZE))
        self.files += 1
        self.bytes += len(content)

    def finish(self) -> list[bytes]:
        self._write(bytes(2 * tarfile.BLOCKSIZE))
        self._pieces.append(self._compressor.flush())
        packed = BytesIO(b"".join(self._pieces))
        return list(iter(lambda: packed.read(_BLOCK), b""))

    def _write(self, data: bytes) -> None:
        piece = self._compressor.compress(data)
        if piece:
            self._pieces.append(piece)


def choose_runtime(platform: Platform, wheelhouse: str | None) -> RuntimeArchive:
    """Return what is to be installed on a host, the same object for the same content. Blocking, mostly quick.

    Args:
        platform: The host's Python.
        wheelhouse: Folder of wheels; None: our own packages are sent if they suit the host, else the host installs
            them from the package index.

    Raises:
        PackagesMissing: the wheelhouse lacks something; with the command that brings it.
    """
    state = () if wheelhouse is None else _state(wheelhouse)
    with _choosing.lock:
        return _chosen(platform, wheelhouse, state)


@lru_cache(maxsize=4)
def _chosen(
    platform: Platform, wheelhouse: str | None, _state: tuple[tuple[str, int, int], ...]
) -> RuntimeArchive:
    if wheelhouse is not None:
        packages = _from_wheelhouse(platform, wheelhouse)
        return RuntimeArchive(packages=packages, requirements=[], platform=platform)
    try:
        packages = resolve(OwnPackages(platform), REQUIREMENTS, platform)
    except LookupError:
        requirements = [own_versions(REQUIREMENTS), list(REQUIREMENTS)]
        return RuntimeArchive(packages=[], requirements=requirements, platform=platform)
    return RuntimeArchive(packages=packages, requirements=[], platform=platform)


def _from_wheelhouse(platform: Platform, wheelhouse: str) -> list[Package]:
    try:
        return resolve(Wheelhouse(wheelhouse, platform), REQUIREMENTS, platform)
    except LookupError as error:
        command = platform.download_command(wheelhouse, own_versions(REQUIREMENTS))
        raise PackagesMissing(
            f"wheelhouse {wheelhouse} has no wheel of {error.args[0]} for {platform}", f"run `{command}`"
        ) from None


def _state(folder: str) -> tuple[tuple[str, int, int], ...]:
    """Return what changes when something in a folder of wheels does."""
    state = []
    try:
        for path in sorted(Path(folder).expanduser().glob("*.whl")):
            found = path.stat()
            state.append((path.name, found.st_mtime_ns, found.st_size))
    except (OSError, RuntimeError):
        return ()  # whoever reads the folder says what is wrong
    return tuple(state)


@cache
def own_code() -> dict[str, bytes]:
    """Return the files of this distribution that make up the agent, by their path below the runtime."""
    package = resources.files("airflow_provider")
    found = {name: (package / name).read_bytes() for name in _OWN_FILES}
    for name in _OWN_FOLDERS:
        found.update(_python_files(package / name, name))
    return {f"airflow_provider/{name}": found[name] for name in sorted(found)}


def _python_files(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        here = f"{path}/{entry.name}"
        if entry.is_dir():
            yield from _python_files(entry, here)
        elif entry.name.endswith(".py"):
            yield here, entry.read_bytes()


class _Choosing:
    """One choice at a time, so that the same archive is not made for several hosts at once."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin anew: in a forked child a lock may be held by a thread that the child does not have."""
        self.lock = threading.Lock()
        _chosen.cache_clear()


_choosing = _Choosing()
os.register_at_fork(after_in_child=_choosing.renew)
