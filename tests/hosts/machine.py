"""What this machine can do, and its `ip` and `tc` commands."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
"""Where commands are looked for: an account's PATH may leave out what only root needs."""

PACKAGES = {"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}
PACKAGES |= {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "python3": "python3"}
"""The package (Debian, Ubuntu) of each command that test hosts need."""

_NAMESPACES = ("unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child")
IN_NAMESPACES = (*_NAMESPACES, "--propagation", "private")
"""Runs what follows as PID 1 of a new host."""


class LabError(RuntimeError):
    """A test host cannot do what was asked; says what is missing."""


def command(name: str) -> str:
    """Return the path of a command.

    Raises:
        LabError: it is not installed; names the package.
    """
    path = shutil.which(name, path=SEARCH_PATH)
    if path is None:
        raise LabError(f"{name} is not installed (package {PACKAGES.get(name, name)})")
    return path


def missing_packages() -> list[str]:
    """Return the packages that test hosts need and this machine has not."""
    return sorted({p for name, p in PACKAGES.items() if shutil.which(name, path=SEARCH_PATH) is None})


def unavailable() -> str:
    """Return why this machine cannot have test hosts, or nothing when it can."""
    if os.uname().sysname != "Linux":
        return f"SSH test hosts are Linux namespaces, and this is {os.uname().sysname}"
    if os.geteuid() != 0:
        return "SSH test hosts need root (they are network namespaces)"
    if packages := missing_packages():
        return f"SSH test hosts need packages that are not installed: apt-get install {' '.join(packages)}"
    tried = run(*IN_NAMESPACES, "true", check=False)
    if tried.returncode != 0:
        return f"SSH test hosts need namespaces, which this machine refuses: {tried.stderr.strip()}"
    return ""


def run(
    *arguments: str, check: bool = True, stdin: str = "", timeout: float = 30
) -> subprocess.CompletedProcess[str]:
    """Run a command of the machine.

    Raises:
        LabError: it is not installed, or it failed (unless not to be checked); with what it said.
    """
    words = [command(arguments[0]), *arguments[1:]]
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=timeout)
    if check and done.returncode != 0:
        raise LabError(f"{' '.join(arguments)} {stdin}: {done.stderr.strip()}")
    return done


def ip_batch(*commands: str) -> None:
    """Run several commands of `ip` at the price of one."""
    run("ip", "-batch", "-", stdin="".join(f"{line}\n" for line in commands))


def routes() -> list[str]:
    """Return the destinations of all IPv4 routes of this machine, local addresses included."""
    found = json.loads(run("ip", "-json", "-4", "route", "show", "table", "all").stdout or "[]")
    return [route["dst"] for route in found if route["dst"] != "default"]


def has_link(name: str) -> bool:
    return Path("/sys/class/net", name).exists()


def carriers(marker: str, value: str) -> list[int]:
    """Return the processes in whose environment a marker has a value."""
    wanted = f"{marker}={value}".encode()
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and wanted in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                found.append(int(name))
        except OSError:
            continue  # it ended between the listing and the look
    return found


def end(pids: Iterable[int], seconds: float = 10.0) -> None:
    """Kill processes and wait until they have ended.

    Raises:
        LabError: one goes on after a time.
    """
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            if not select.select([handle], [], [], seconds)[0]:
                raise LabError(f"process {pid} cannot be ended")
        finally:
            os.close(handle)


def mounts_below(directory: Path) -> list[Path]:
    """Return the mount points in a folder, the innermost first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    points = [Path(line.split()[1].encode().decode("unicode_escape")) for line in lines]
    return sorted((p for p in points if p.is_relative_to(directory)), reverse=True)


@cache
def ssh_version() -> tuple[int, int]:
    """Return the version of OpenSSH."""
    said = run("ssh", "-V").stderr
    match = re.search(r"OpenSSH_(\d+)\.(\d+)", said)
    if match is None:
        raise LabError(f"ssh does not say its version: {said.strip()}")
    return int(match[1]), int(match[2])


@cache
def can_delay() -> bool:
    """Whether the kernel can delay packets (`sch_netem`)."""
    return (
        run(*IN_NAMESPACES, "tc", "qdisc", "add", "dev", "lo", "root", "netem", check=False).returncode == 0
    )
