"""What is asked of a host before anything of ours is there: whether it will do, and what is on it.

Works with Python 3.6 as well, so that an old Python is an answer and not a syntax error. Imports little, as it runs each
time that a host is used.
"""
# pathlib alone would cost a quarter of the time:
# ruff: noqa: PTH101, PTH102, PTH103, PTH105, PTH108, PTH110, PTH111, PTH112, PTH116, PTH117, PTH118, PTH120, PTH207

import json
import os
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:  # quoted wherever they are used: Python 3.6 would look them up
    from typing import Any

    Order = dict[str, Any]
    Answer = dict[str, object]

_MARKER = ".installed"
"""File in a complete runtime: in which boot of the host, how many files and how many bytes."""

_NEEDED = ("_ctypes", "_sqlite3", "asyncio", "fcntl", "sqlite3", "tarfile", "zlib")
"""Modules of the standard library that small or home-made Pythons lack."""


def main(arguments: "Order") -> "Answer":
    """Return what this host is, after making sure of the directory for all that is ours."""
    base = os.path.expanduser(arguments["base"])
    problems = _prepare(base)
    disk = None if problems else os.statvfs(base)
    system = os.uname()
    home = os.path.join(base, "runtime")
    return {
        "ok": {
            "python": list(sys.version_info[:3]),
            "executable": sys.executable or "",
            "implementation": sys.implementation.name,
            "abiflags": getattr(sys, "abiflags", ""),
            "bits": 64 if sys.maxsize > 1 << 32 else 32,
            "system": sys.platform,
            "machine": system.machine,
            "libc": _libc(),
            "missing_modules": _missing_modules(),
            "hostname": system.nodename,
            "address": [*os.environ.get("SSH_CONNECTION", "").split(), "", "", ""][2],
            "boot_id": _boot_id(),
            "clock": time.time(),
            "base": base,
            "problems": problems,
            "free_bytes": disk.f_bavail * disk.f_frsize if disk else 0,
            "no_files_left": bool(disk and disk.f_files and not disk.f_favail),
            "noexec": bool(disk and disk.f_flag & getattr(os, "ST_NOEXEC", 8)),
            "runtimes": [
                name for name in _names(home) if name[0] != "." and _is_complete(os.path.join(home, name))
            ],
        }
    }


def _prepare(base: str) -> "list[list[str]]":
    """Make ``base`` a directory of this account alone; return what stands in the way: causes and remedies."""
    elsewhere = "name another place with `base` in the pool"
    if not os.path.isabs(base):
        return [[f"base {base} is no absolute path on the host", elsewhere]]
    try:
        os.makedirs(os.path.dirname(base), exist_ok=True)
        if not os.path.isdir(base):
            os.mkdir(base, 0o700)
    except FileExistsError as error:
        if not os.path.isdir(base):  # another process may just have made it
            return [[f"{error.filename} is in the way: it is not a directory", elsewhere]]
    except OSError as error:
        return [[f"{base} cannot be made: {error.strerror}", f"make that possible, or {elsewhere}"]]
    link, found = os.lstat(base), os.stat(base)
    if found.st_uid != os.geteuid() or link.st_uid not in (os.geteuid(), 0):
        owner = found.st_uid if found.st_uid != os.geteuid() else link.st_uid
        return [[f"{base} belongs to user {_account(owner)}", elsewhere]]
    mode = found.st_mode & 0o7777
    if mode & 0o022:
        return [
            [
                f"others may write to {base} (mode {mode:o})",
                f"make sure that nobody has put anything there and run `chmod 700 {base}`, or {elsewhere}",
            ]
        ]
    if mode & 0o777 != 0o700:
        try:
            os.chmod(base, 0o700)
        except OSError as error:
            return [[f"{base} cannot be closed to others: {error.strerror}", elsewhere]]
    return []


def _names(folder: str) -> "list[str]":
    """Return the names in a folder; none when there is no such folder."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _account(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _libc() -> "list[str]":
    """Return the name and version of the C library; empty where it is neither of the two that wheels are made for."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        if name == "glibc":
            return [name, version]
    except (ValueError, OSError):  # not GNU's
        pass
    import glob
    import subprocess

    for loader in sorted(glob.glob("/lib/ld-musl-*.so.1")):
        # Without arguments it says what it is on standard error.
        told = subprocess.Popen([loader], stderr=subprocess.PIPE).communicate()[1].decode("utf-8", "replace")
        for line in told.splitlines():
            if line.startswith("Version "):
                return ["musl", line.split()[1]]
    return ["", ""]


def _missing_modules() -> "list[str]":
    from importlib.util import find_spec

    return [name for name in _NEEDED if find_spec(name) is None]


def _is_complete(runtime: str) -> bool:
    """Return whether everything of a runtime is there.

    A host that lost its power may have kept the directory and lost what was in the files, so that the first look in
    each boot is at all of them.
    """
    try:
        with open(os.path.join(runtime, _MARKER)) as file:
            marker = json.load(file)
        if marker["boot_id"] == _boot_id():
            return True
        measured = _measure(runtime)
        if [marker["files"], marker["bytes"]] != measured:
            return False
    except (OSError, ValueError, KeyError, TypeError):
        return False
    with suppress(OSError):  # the disk is full: the next one looks at all files again
        _mark(runtime, measured)
    return True


def _measure(runtime: str) -> "list[int]":
    """Return how many files a runtime has and how many bytes they hold, without what Python adds to them."""
    files = size = 0
    for folder, folders, names in os.walk(runtime):
        if "__pycache__" in folders:
            folders.remove("__pycache__")
        for name in names:
            if not name.startswith(_MARKER):
                files += 1
                size += os.lstat(os.path.join(folder, name)).st_size
    return [files, size]


def _mark(runtime: str, measured: "list[int]") -> None:
    """Say in a runtime that it is complete."""
    marker = os.path.join(runtime, _MARKER)
    part = f"{marker}{os.getpid()}"
    try:
        with open(part, "w") as file:
            json.dump({"boot_id": _boot_id(), "files": measured[0], "bytes": measured[1]}, file)
        os.replace(part, marker)
    except OSError:
        if os.path.exists(part):
            os.unlink(part)
        raise
