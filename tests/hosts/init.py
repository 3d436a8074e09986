"""PID 1 of a test host: makes the host's own root file system, configures its network, runs sshd, collects orphans.

Runs as a program of its own, started by ``Host`` in new mount, UTS, IPC, network and PID namespaces, and so imports only
what is loaded before the old root is left. Speaks with ``Host`` over its standard streams: writes its pid as the machine
sees it, reads its plan (one line) once the network cable is plugged in, writes ``up`` once the network works. From then on its
standard input is a lifeline: at its end (the test run is over, in whatever way) the host ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import json
import os
import select
import signal
import socket
from pathlib import Path
from typing import TypedDict

RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND = 1, 2, 4, 8, 32, 4096
DETACH = 2

MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Folders beside /usr that belong to the system; links into /usr on most distributions."""

IP_PLACES = ("/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip")
"""Where `ip` may be."""

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

_libc = ctypes.CDLL(None, use_errno=True)


class Plan(TypedDict):
    """What a host is made of. Paths are the machine's, unless they say otherwise."""

    hostname: str
    boot_id: str
    root: str
    """Where to mount the new root."""
    disk: str
    """What survives a reboot: ``root``, ``home``, ``tmp`` and ``var`` of the host."""
    etc: str
    """Files that stand in the host in the place of the machine's of the same name."""
    noexec: bool
    hidden_commands: list[str]
    network: list[str]
    """Commands for ``ip -batch``."""
    sshd: list[str]
    """Command, with the paths of the host."""
    sshd_log: str


def mount(source: str | Path, target: Path, kind: str = "", flags: int = 0, options: str = "") -> None:
    names = os.fsencode(source), os.fsencode(target), kind.encode()
    done = _libc.mount(*names, ctypes.c_ulong(flags), options.encode())
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} as {target}: {os.strerror(number)}")


def bind(source: str | Path, target: Path, flags: int = 0) -> None:
    """Show a file or folder in a second place, with flags of its own there (the kernel takes them in a second step)."""
    mount(source, target, flags=BIND)
    if flags:
        mount("none", target, flags=BIND | REMOUNT | flags)


def make_root(plan: Plan) -> None:
    """Build the host's root: the machine's system read-only, all else its own; nothing else of the machine is seen."""
    root, disk = Path(plan["root"]), Path(plan["disk"])
    own = NOSUID | NODEV | (NOEXEC if plan["noexec"] else 0)
    mount("tmpfs", root, "tmpfs", NODEV, "mode=755,size=16m")
    for name in ("usr", "etc", "dev", "proc", "sys", "run", "root", "home", "tmp", "var"):
        (root / name).mkdir()
    bind("/usr", root / "usr", RDONLY | NODEV)
    for name in MERGED:
        beside = Path("/", name)
        if beside.is_symlink():
            (root / name).symlink_to(beside.readlink())
        elif beside.is_dir():
            (root / name).mkdir()
            bind(beside, root / name, RDONLY | NODEV)
    bind("/etc", root / "etc", RDONLY | NODEV)
    for file in Path(plan["etc"]).iterdir():
        place = root / "etc" / file.name
        if place.is_file() and not place.is_symlink():
            bind(file, place)
    for name in ("root", "home", "tmp", "var"):
        bind(disk / name, root / name, own)
    mount("tmpfs", root / "run", "tmpfs", own, "mode=755,size=64m")
    (root / "run/sshd").mkdir(mode=0o755)
    _make_devices(root / "dev", own)
    mount("proc", root / "proc", "proc", NOSUID | NODEV | NOEXEC)
    mount("sysfs", root / "sys", "sysfs", RDONLY | NOSUID | NODEV | NOEXEC)
    (root / "run/boot_id").write_text(plan["boot_id"] + "\n")
    bind(root / "run/boot_id", root / "proc/sys/kernel/random/boot_id", RDONLY)
    if plan["hidden_commands"]:
        _hide_commands(root, plan["hidden_commands"])


def _make_devices(dev: Path, own: int) -> None:
    mount("tmpfs", dev, "tmpfs", NOSUID, "mode=755,size=1m")
    for name in DEVICES:
        (dev / name).touch()
        bind(f"/dev/{name}", dev / name)
    (dev / "pts").mkdir()
    mount("devpts", dev / "pts", "devpts", NOSUID | NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    (dev / "shm").mkdir()
    mount("tmpfs", dev / "shm", "tmpfs", own, "mode=1777")
    (dev / "ptmx").symlink_to("pts/ptmx")
    (dev / "fd").symlink_to("/proc/self/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        (dev / name).symlink_to(f"/proc/self/fd/{number}")


def _hide_commands(root: Path, patterns: list[str]) -> None:
    """Show folders of commands without some: links to all others, in the place of the folder."""
    for folder in ("usr/bin", "usr/local/bin"):
        real, shown = Path("/.commands", folder), root / ".shown" / folder
        within = root / real.relative_to("/")
        within.mkdir(parents=True)
        shown.mkdir(parents=True)
        bind(Path("/", folder), within, RDONLY | NODEV)
        for command in within.iterdir():
            if not any(fnmatch.fnmatch(command.name, pattern) for pattern in patterns):
                (shown / command.name).symlink_to(real / command.name)
        bind(shown, root / folder, RDONLY | NODEV)


def enter(root: Path) -> None:
    """Make a folder the root and let go of the old one."""
    os.chdir(root)
    if _libc.pivot_root(b".", b".") != 0 or _libc.umount2(b".", DETACH) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"make {root} the root: {os.strerror(number)}")
    os.chdir("/")


def start(command: list[str], stdin: int, output: int) -> int:
    """Start a program in a session of its own and return its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.dup2(stdin, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.execve(command[0], command, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"})  # noqa: S606 - no shell is wanted
        finally:
            os._exit(127)
    return pid


def configure_network(commands: list[str], log: int) -> None:
    reader, writer = os.pipe()
    os.write(writer, "".join(f"{command}\n" for command in commands).encode())
    os.close(writer)
    ip = next(path for path in IP_PLACES if Path(path).exists())
    _, status = os.waitpid(start([ip, "-batch", "-"], reader, log), 0)
    os.close(reader)
    if status != 0:
        raise OSError(f"ip failed with status {status}")


def serve() -> None:
    """Collect what ends, until the lifeline ends; the kernel then ends all that is left in the host."""
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_reader, False)
    os.set_blocking(wake_writer, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    ready: list[int] = [wake_reader]  # something may have ended before the handler was there
    while 0 not in ready:
        if wake_reader in ready:
            collect(wake_reader)
        ready = select.select([0, wake_reader], [], [])[0]


def collect(wake_reader: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(wake_reader, 65536)
    # Without any child left: sshd has ended; a host may be up without it.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def read_line() -> bytes:
    """Return a line of the standard input, what there is of it when that ends; reads nothing beyond it."""
    line = b""
    while not line.endswith(b"\n") and (more := os.read(0, 1)):
        line += more
    return line


def main() -> None:
    # /proc is still the machine's: this is the pid there.
    os.write(1, os.fsencode(Path("/proc/self").readlink()) + b"\n")
    line = read_line()
    if not line.endswith(b"\n"):
        return  # the test run is over
    plan: Plan = json.loads(line)
    os.umask(0o022)
    log = os.open(plan["sshd_log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    socket.sethostname(plan["hostname"])
    configure_network(plan["network"], 2)
    make_root(plan)
    enter(Path(plan["root"]))
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    start(plan["sshd"], nothing, log)
    os.write(1, b"up\n")
    os.dup2(nothing, 1)
    serve()


if __name__ == "__main__":
    main()
