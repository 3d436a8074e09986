"""PID 1 of a test host: makes the host's own root file system, configures its network, runs sshd, collects orphans.

Runs as a program of its own, started by ``Host`` in new mount, UTS, IPC, network and PID namespaces, and so imports only
what is loaded before the old root is left. Speaks with ``Host`` over its standard streams: writes its pid as the machine
sees it, reads a line once the network cable is plugged in, writes ``up`` once the network works. From then on its
standard input is a lifeline: at its end (the test run is over, in whatever way) the host ends.
"""

from __future__ import annotations

import ctypes
import fnmatch
import json
import os
import select
import signal
import socket
import sys
from typing import TypedDict

RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND = 1, 2, 4, 8, 32, 4096
DETACH = 2

MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Folders beside /usr that belong to the system; links into /usr on most distributions."""

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


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    done = _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} as {target}: {os.strerror(number)}")


def bind(source: str, target: str, flags: int = 0) -> None:
    """Show a file or folder in a second place, with flags of its own there (the kernel takes them in a second step)."""
    mount(source, target, flags=BIND)
    if flags:
        mount("none", target, flags=BIND | REMOUNT | flags)


def make_root(plan: Plan) -> None:
    """Build the host's root: the machine's system read-only, all else its own; nothing else of the machine is seen."""
    root, disk, etc = plan["root"], plan["disk"], plan["etc"]
    own = NOSUID | NODEV | (NOEXEC if plan["noexec"] else 0)
    mount("tmpfs", root, "tmpfs", NODEV, "mode=755,size=16m")
    for name in ("usr", "etc", "dev", "proc", "sys", "run", "root", "home", "tmp", "var"):
        os.mkdir(f"{root}/{name}")
    bind("/usr", f"{root}/usr", RDONLY | NODEV)
    for name in MERGED:
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{root}/{name}")
        elif os.path.isdir(f"/{name}"):
            os.mkdir(f"{root}/{name}")
            bind(f"/{name}", f"{root}/{name}", RDONLY | NODEV)
    bind("/etc", f"{root}/etc", RDONLY | NODEV)
    for name in os.listdir(etc):
        if os.path.isfile(f"{root}/etc/{name}") and not os.path.islink(f"{root}/etc/{name}"):
            bind(f"{etc}/{name}", f"{root}/etc/{name}")
    for name in ("root", "home", "tmp", "var"):
        bind(f"{disk}/{name}", f"{root}/{name}", own)
    mount("tmpfs", f"{root}/run", "tmpfs", own, "mode=755,size=64m")
    os.mkdir(f"{root}/run/sshd", 0o755)
    _make_devices(root, own)
    mount("proc", f"{root}/proc", "proc", NOSUID | NODEV | NOEXEC)
    mount("sysfs", f"{root}/sys", "sysfs", RDONLY | NOSUID | NODEV | NOEXEC)
    with open(f"{root}/run/boot_id", "w") as file:
        file.write(plan["boot_id"] + "\n")
    bind(f"{root}/run/boot_id", f"{root}/proc/sys/kernel/random/boot_id", RDONLY)
    _hide_commands(root, plan["hidden_commands"])


def _make_devices(root: str, own: int) -> None:
    mount("tmpfs", f"{root}/dev", "tmpfs", NOSUID, "mode=755,size=1m")
    for name in DEVICES:
        with open(f"{root}/dev/{name}", "w"):
            pass
        bind(f"/dev/{name}", f"{root}/dev/{name}")
    os.mkdir(f"{root}/dev/pts")
    mount("devpts", f"{root}/dev/pts", "devpts", NOSUID | NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    os.mkdir(f"{root}/dev/shm")
    mount("tmpfs", f"{root}/dev/shm", "tmpfs", own, "mode=1777")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd"}
    links.update(stdin="/proc/self/fd/0", stdout="/proc/self/fd/1", stderr="/proc/self/fd/2")
    for name, target in links.items():
        os.symlink(target, f"{root}/dev/{name}")


def _hide_commands(root: str, patterns: list[str]) -> None:
    """Show folders of commands without some: links to all others, in the place of the folder."""
    if not patterns:
        return
    for number, folder in enumerate(("usr/bin", "usr/local/bin")):
        real, shown = f".commands/{number}", f"{root}/.shown/{number}"
        os.makedirs(f"{root}/{real}")
        os.makedirs(shown)
        bind(f"/{folder}", f"{root}/{real}", RDONLY | NODEV)
        for name in os.listdir(f"/{folder}"):
            if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
                os.symlink(f"/{real}/{name}", f"{shown}/{name}")
        bind(shown, f"{root}/{folder}", RDONLY | NODEV)


def enter(root: str) -> None:
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
            os.execve(command[0], command, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"})
        finally:
            os._exit(127)
    return pid


def configure_network(commands: list[str], log: int) -> None:
    reader, writer = os.pipe()
    os.write(writer, "".join(f"{command}\n" for command in commands).encode())
    os.close(writer)
    ip = next(path for path in ("/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip") if os.path.exists(path))
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
    try:
        os.read(wake_reader, 65536)
    except BlockingIOError:
        pass
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass  # sshd has ended, and nothing else runs: a host may be up without it


def main() -> None:
    plan: Plan = json.loads(sys.argv[1])
    # /proc is still the machine's: this is the pid there.
    os.write(1, os.readlink("/proc/self").encode() + b"\n")
    if os.read(0, 1) != b"\n":
        return
    os.umask(0o022)
    log = os.open(plan["sshd_log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    socket.sethostname(plan["hostname"])
    configure_network(plan["network"], 2)
    make_root(plan)
    enter(plan["root"])
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    start(plan["sshd"], nothing, log)
    os.write(1, b"up\n")
    os.dup2(nothing, 1)
    serve()


if __name__ == "__main__":
    main()
