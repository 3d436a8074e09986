"""How a test host differs from a plain one, and the files that say so on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.hosts.machine import ssh_version

USER = "worker"
"""The account of every host that is not root's."""

USER_ID = 59_001

NOISY_BASHRC = "echo 'Welcome! You have new mail.'\necho 'stty: not a terminal' >&2\n"
"""A start-up file that speaks where nobody listens; for ``home_files={".bashrc": NOISY_BASHRC}``."""


@dataclass(frozen=True, kw_only=True)
class HostSettings:
    """What a test host is like; without arguments a plain one with the defaults of OpenSSH.

    Attributes:
        shell: the login shell of all accounts.
        home_files: contents of files in the home of every account, by path in it (``.bashrc``, ``.ssh/environment``).
        sshd_options: options of sshd beside or instead of its defaults (``{"MaxStartups": "10:30:100"}``).
        host_key_types: what the host proves itself with.
        disk_bytes: size of the disk (``/root``, ``/home``, ``/tmp`` and ``/var`` together); None for plenty.
        noexec: no program may be started from the disk, ``/run`` or ``/dev/shm``.
        hidden_commands: patterns of commands that are not installed (``("python*",)``).
    """

    shell: str = "/bin/bash"
    home_files: Mapping[str, str] = field(default_factory=dict)
    sshd_options: Mapping[str, str] = field(default_factory=dict)
    host_key_types: tuple[str, ...] = ("ed25519",)
    disk_bytes: int | None = None
    noexec: bool = False
    hidden_commands: tuple[str, ...] = ()

    def homes(self, disk: Path) -> dict[Path, int]:
        """Return the home of each account on a disk, with its owner's id."""
        return {disk / "root": 0, disk / "home" / USER: USER_ID}


def sshd_config(settings: HostSettings, host_keys: list[str]) -> str:
    """Return the configuration of a host's sshd; paths are the host's.

    It differs from OpenSSH's defaults only in what a namespace needs, and in accounts being opened by keys alone.
    """
    options = {"PasswordAuthentication": "no", "KbdInteractiveAuthentication": "no", "UsePAM": "no"}
    options |= {"PermitRootLogin": "prohibit-password", "PrintLastLog": "no", "LogLevel": "VERBOSE"}
    options |= {"Subsystem": "sftp internal-sftp", "PidFile": "/run/sshd.pid"}
    if ssh_version() >= (9, 8):
        # All clients of a test come from one address: one that misbehaves must not lock the others out.
        options["PerSourcePenalties"] = "no"
    options |= settings.sshd_options
    lines = [f"HostKey {path}" for path in host_keys]
    return "\n".join([*lines, *(f"{name} {value}" for name, value in options.items()), ""])


def etc_files(settings: HostSettings, *, name: str, address: str, machine_id: str) -> dict[str, str]:
    """Return the files of /etc that are a host's own."""
    accounts = [("root", 0, "/root", settings.shell), (USER, USER_ID, f"/home/{USER}", settings.shell)]
    accounts += [("sshd", 59_998, "/run/sshd", "/usr/sbin/nologin")]
    accounts += [("nobody", 65_534, "/nonexistent", "/usr/sbin/nologin")]
    return {
        "passwd": "".join(
            f"{who}:x:{uid}:{uid}:{who}:{home}:{shell}\n" for who, uid, home, shell in accounts
        ),
        "group": "".join(f"{who}:x:{uid}:\n" for who, uid, _, _ in accounts) + "tty:x:5:\n",
        # No password fits `*`, and unlike `!` it does not lock the account.
        "shadow": "".join(f"{who}:*:19000:0:99999:7:::\n" for who, _, _, _ in accounts),
        "hosts": f"127.0.0.1 localhost\n{address} {name}\n",
        "hostname": f"{name}\n",
        "machine-id": f"{machine_id}\n",
    }
