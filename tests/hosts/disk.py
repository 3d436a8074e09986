"""The disk of a test host: what survives a reboot."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.hosts import machine
from tests.hosts.keys import Key, generate
from tests.hosts.machine import LabError
from tests.hosts.settings import USER, HostSettings, sshd_config

SSHD_FILES = "var/lib/sshd"
"""Folder on the disk with the configuration and the host keys."""

_FILLER = "var/tmp/filler"


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A folder of this machine with the host's ``root``, ``home``, ``tmp`` and ``var``."""

    path: Path
    settings: HostSettings

    @classmethod
    def make(cls, path: Path, settings: HostSettings, welcome: list[Key]) -> Disk:
        """Make the disk of a new host, whose accounts let the owners of some keys in."""
        disk = cls(path=path, settings=settings)
        path.mkdir(parents=True)
        if settings.disk_bytes is not None:
            size = f"size={settings.disk_bytes},mode=755"
            machine.run("mount", "-t", "tmpfs", "-o", size, "test-host", str(path))
        for folder in ("tmp", "var/tmp"):
            (path / folder).mkdir(parents=True)
            (path / folder).chmod(0o1777)
        (path / "var/run").symlink_to("../run")
        (path / SSHD_FILES).mkdir(parents=True, mode=0o700)
        host_keys = [f"/{SSHD_FILES}/{kind}_key" for kind in settings.host_key_types]
        (path / SSHD_FILES / "sshd_config").write_text(sshd_config(settings, host_keys))
        disk.replace_host_keys()
        disk._make_homes(welcome)
        return disk

    def _make_homes(self, welcome: list[Key]) -> None:
        authorized = "".join(f"{key.public}\n" for key in welcome)
        files = {".ssh/authorized_keys": authorized, **self.settings.home_files}
        for home, owner in self.settings.homes(self.path).items():
            home.mkdir(parents=True)
            home.chmod(0o700)
            for name, content in files.items():
                (home / name).parent.mkdir(parents=True, exist_ok=True)
                (home / name).write_text(content)
            (home / ".ssh").chmod(0o700)
            for place in (home, *home.rglob("*")):
                os.chown(place, owner, owner)

    @property
    def home(self) -> Path:
        """The home of the account that is not root's."""
        return self.path / "home" / USER

    @property
    def host_keys(self) -> list[str]:
        """The public keys by which clients know the host: type and key."""
        return [Key(path=path).public for path in sorted((self.path / SSHD_FILES).glob("*_key"))]

    def replace_host_keys(self) -> None:
        """Give the host other host keys, as a reinstalled one has; sure to be shown from the next start on."""
        folder = self.path / SSHD_FILES
        for path in folder.glob("*_key*"):
            path.unlink()
        generate({folder / f"{kind}_key": kind for kind in self.settings.host_key_types})

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Use the disk up, but for some bytes.

        Raises:
            LabError: it is this machine's, which is not for filling: give the host ``disk_bytes``.
        """
        if self.settings.disk_bytes is None:
            raise LabError("the host has no disk of its own: give it disk_bytes")
        free = os.statvfs(self.path)
        size = free.f_bavail * free.f_frsize - leave_bytes
        if size > 0:
            with open(self.path / _FILLER, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)

    def empty(self) -> None:
        """Undo ``fill``."""
        (self.path / _FILLER).unlink(missing_ok=True)
