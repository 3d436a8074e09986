"""One test host: a real sshd in namespaces of its own, with a power switch and a network cable."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.hosts import machine
from tests.hosts.disk import SSHD_FILES, Disk
from tests.hosts.init import Plan
from tests.hosts.keys import ClientKeys, Key
from tests.hosts.machine import LabError
from tests.hosts.settings import USER, HostSettings, etc_files

MARKER = "MANAGED_JOBS_TEST_LAB"
"""Environment variable of what keeps a host running; its value is the lab's folder."""

_INIT = (sys.executable, "-I", "-S", str(Path(__file__).with_name("init.py")))
_START_SECONDS = 20.0
_BANNER_SECONDS = 0.05
_LISTENING = "0A"


class Network(NamedTuple):
    """The network of a lab."""

    lab: int
    bridge: str
    prefix: str
    """First three bytes of all addresses, as text."""

    @property
    def gateway(self) -> str:
        """The address of this machine in it."""
        return f"{self.prefix}.1"

    def mac(self, number: int) -> str:
        return f"02:6d:6a:{self.lab >> 8:02x}:{self.lab & 255:02x}:{number:02x}"


class Host:
    """A host of a lab; made by ``Lab``. Off until it is started.

    Attributes:
        name: its hostname.
        address: its IPv4 address; sshd listens on port 22.
        user: the account that is not root's.
        disk: what survives a reboot.
        boot_id: what /proc/sys/kernel/random/boot_id says on it; another one after each start.
    """

    port = 22
    user = USER

    def __init__(
        self, *, number: int, network: Network, directory: Path, keys: ClientKeys, settings: HostSettings
    ) -> None:
        self.name = f"h{network.lab}-{number}"
        self.address = f"{network.prefix}.{number}"
        self.settings = settings
        self.boot_id = ""
        self._network = network
        self._mac = network.mac(number)
        self._number = number
        self._directory = directory
        self._keys = keys
        self._boots = 0
        self._cable = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._init = -1
        self._init_handle = -1
        etc = etc_files(settings, name=self.name, address=self.address, machine_id=uuid.uuid4().hex)
        for folder in ("root", "etc"):
            (directory / folder).mkdir(parents=True)
        for name, content in etc.items():
            (directory / "etc" / name).write_text(content)
        (directory / "etc" / "shadow").chmod(0o600)
        self.disk = Disk.make(directory / "disk", settings, keys.welcome)

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.address} {'on' if self.is_on else 'off'}>"

    @property
    def home(self) -> Path:
        """The home of the account that is not root's, as this machine sees it."""
        return self.disk.home

    @property
    def known_hosts(self) -> str:
        """Its lines for a `known_hosts` file."""
        return "".join(f"{self.address} {key}\n" for key in self.disk.host_keys)

    @property
    def sshd_log(self) -> str:
        """What its sshd has logged since the host was made."""
        log = self._directory / "sshd.log"
        return log.read_text(errors="replace") if log.exists() else ""

    # The power switch.

    @property
    def is_on(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Switch it on and wait until it answers.

        Raises:
            LabError: it does not; with what it said.
        """
        start_all([self])

    def _spawn(self) -> None:
        if self.is_on:
            raise LabError(f"{self.name} is on already")
        self._forget()
        self._boots += 1
        self.boot_id = str(uuid.uuid4())
        self._cable = f"mj{self._network.lab}h{self._number}b{self._boots}"
        with open(self._directory / "init.log", "ab") as log:
            self._process = subprocess.Popen(
                [machine.command("unshare"), *machine.IN_NAMESPACES[1:], *_INIT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={"PATH": machine.SEARCH_PATH, MARKER: str(self._directory.parents[1])},
                cwd="/",
                start_new_session=True,
            )

    def _plan(self) -> Plan:
        return {
            "hostname": self.name,
            "boot_id": self.boot_id,
            "root": str(self._directory / "root"),
            "disk": str(self.disk.path),
            "etc": str(self._directory / "etc"),
            "noexec": self.settings.noexec,
            "hidden_commands": list(self.settings.hidden_commands),
            "network": [
                "link set lo up",
                f"addr add {self.address}/24 dev eth0",
                "link set eth0 up",
                f"route add default via {self._network.gateway}",
            ],
            "sshd": [machine.command("sshd"), "-D", "-e", "-f", f"/{SSHD_FILES}/sshd_config"],
            "sshd_log": str(self._directory / "sshd.log"),
        }

    def _plug_in(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._init = int(self._hear("its pid"))
        self._init_handle = os.pidfd_open(self._init)
        link = f"link add {self._cable} master {self._network.bridge} type veth"
        machine.ip_batch(
            f"{link} peer name eth0 address {self._mac} netns {self._init}",
            f"link set {self._cable} up",
            # What is sent to a host that is gone vanishes, as behind a router; no error comes back.
            f"neigh replace {self.address} lladdr {self._mac} dev {self._network.bridge} nud permanent",
        )
        self._process.stdin.write(json.dumps(self._plan()).encode() + b"\n")
        self._process.stdin.flush()

    def _hear(self, what: str) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise LabError(f"{self.name} ended before it said {what}: {self._last_words()}")
        return line

    def _await(self) -> None:
        self._hear("that its network works")
        deadline = time.monotonic() + _START_SECONDS
        while not self._listens():
            if not self.is_on or time.monotonic() > deadline:
                raise LabError(f"{self.name} does not answer: {self._last_words()}")
            time.sleep(0.005)

    def _listens(self) -> bool:
        """Whether its sshd accepts connections; without making one, which would count for `MaxStartups` a while."""
        with suppress(OSError):  # it has ended
            for line in Path(f"/proc/{self._init}/net/tcp").read_text().splitlines():
                if f":{self.port:04X} 00000000:0000 {_LISTENING}" in line:
                    return True
        return False

    def answers(self, seconds: float = _BANNER_SECONDS) -> bool:
        """Whether its sshd greets a new connection within a time."""
        with suppress(OSError), socket.create_connection((self.address, self.port), timeout=seconds) as probe:
            return probe.recv(4) == b"SSH-"
        return False

    def _last_words(self) -> str:
        init = self._directory / "init.log"
        return f"{init.read_text(errors='replace')[-2000:]}\n{self.sshd_log[-2000:]}".strip()

    def power_off(self) -> None:
        """End everything on it at once; clients are told by the kernel (FIN). What is off stays off."""
        if self._process is not None:
            self._kill()
        self._forget()

    def silent_power_off(self) -> None:
        """End everything on it at once, and nobody is told: nothing leaves the host any more."""
        if self.is_on:
            self.link_down()
        self.power_off()

    def reboot(self, *, silent: bool = False) -> None:
        """Switch it off, silently if wished, and on again; what is on the disk survives, ``boot_id`` changes."""
        if silent:
            self.silent_power_off()
        else:
            self.power_off()
        self.start()

    def _kill(self) -> None:
        assert self._process is not None
        if self._init_handle >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init_handle, signal.SIGKILL)
            # Readable once it has ended, and PID 1 ends after all others in its namespace.
            if not select.select([self._init_handle], [], [], _START_SECONDS)[0]:
                raise LabError(f"{self.name} cannot be ended")
        else:
            self._process.kill()
        self._process.wait(_START_SECONDS)

    def _forget(self) -> None:
        if self._process is None:
            return
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        if self._init_handle >= 0:
            os.close(self._init_handle)
        self._process, self._init, self._init_handle = None, -1, -1
        # The kernel removes it together with the namespace of its other end, but when it pleases.
        machine.run("ip", "link", "del", self._cable, check=False)

    # The network cable.

    def link_down(self) -> None:
        """Pull the network cable."""
        machine.run("ip", "link", "set", self._cable, "down")

    def link_up(self) -> None:
        """Plug the network cable in again."""
        machine.run("ip", "link", "set", self._cable, "up")

    def slow_link(self, *, bytes_per_second: int | None = None, delay_seconds: float = 0.0) -> None:
        """Make the cable slow in both directions, until the next start; once more replaces the earlier figures.

        Raises:
            LabError: this machine's kernel cannot do that; names what it lacks.
        """
        if machine.can_delay():
            rate = ["rate", f"{bytes_per_second * 8}bit"] if bytes_per_second else []
            discipline = ["netem", "delay", f"{round(delay_seconds * 1e6)}us", *rate, "limit", "100000"]
        elif delay_seconds:
            raise LabError("this machine's kernel cannot delay packets: it has no sch_netem")
        elif bytes_per_second:
            rate = ["rate", f"{bytes_per_second * 8}bit", "burst", "16kb", "latency", "400ms"]
            discipline = ["tbf", *rate]
        else:
            raise LabError("a slow link needs bytes_per_second or delay_seconds")
        machine.run("tc", "qdisc", "replace", "dev", self._cable, "root", *discipline)
        self._inside("tc", "qdisc", "replace", "dev", "eth0", "root", *discipline)

    def fast_link(self) -> None:
        """Make a slow cable an ordinary one again."""
        machine.run("tc", "qdisc", "del", "dev", self._cable, "root")
        self._inside("tc", "qdisc", "del", "dev", "eth0", "root")

    def _inside(self, *command: str) -> None:
        machine.run("nsenter", f"--net=/proc/{self._init}/ns/net", *command)

    # What runs on it.

    def processes(self) -> list[int]:
        """Return the pids, on this machine, of all that runs on it beside PID 1."""
        if not self.is_on:
            return []
        own = Path(f"/proc/{self._init}/ns/pid").readlink()
        found = []
        for name in os.listdir("/proc"):
            with suppress(OSError):  # it ended between the listing and the look
                if name.isdigit() and Path(f"/proc/{name}/ns/pid").readlink() == own:
                    found.append(int(name))
        return [pid for pid in found if pid != self._init]

    def freeze(self) -> None:
        """Stop everything that runs on it; its kernel goes on, and so accepts connections that nobody serves."""
        deadline = time.monotonic() + _START_SECONDS
        while running := [pid for pid in self.processes() if _state(pid) not in "TZX"]:
            for pid in running:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            if time.monotonic() > deadline:
                raise LabError(f"{self.name} cannot be frozen: {running} go on")

    def thaw(self) -> None:
        """Let everything go on that was stopped."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def remove(self) -> None:
        """Switch it off and remove all that it was."""
        self.power_off()
        machine.run("ip", "neigh", "del", self.address, "dev", self._network.bridge, check=False)
        for point in machine.mounts_below(self._directory):
            machine.run("umount", "--lazy", str(point))
        shutil.rmtree(self._directory)

    # A client.

    def ssh_command(self, *options: str, user: str = "root", key: Key | None = None) -> list[str]:
        """Return the words that start OpenSSH's client, which accepts the host's present keys and nothing else."""
        known = self._directory / "known_hosts"
        known.write_text(self.known_hosts)
        settings = {"BatchMode": "yes", "IdentitiesOnly": "yes", "IdentityAgent": "none"}
        # The quickest key exchange: the client's preferred one costs a slow machine 0.15 s more.
        settings |= {"KexAlgorithms": "curve25519-sha256"}
        settings |= {"StrictHostKeyChecking": "yes", "ConnectTimeout": "10"}
        settings |= {"UserKnownHostsFile": str(known), "GlobalKnownHostsFile": "none", "LogLevel": "ERROR"}
        words = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        identity = str((key or self._keys.ed25519).path)
        return [
            machine.command("ssh"),
            "-F",
            "none",
            *words,
            "-i",
            identity,
            *options,
            f"{user}@{self.address}",
        ]

    def run(
        self, command: str, *, user: str = "root", key: Key | None = None, timeout: float = 20
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on it through OpenSSH's client; the exit code is the command's, or 255."""
        words = [*self.ssh_command(user=user, key=key), command]
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
        )


def start_all(hosts: Iterable[Host]) -> None:
    """Switch several hosts on at the same time and wait until all answer.

    Raises:
        LabError: one does not; it and the others are off then.
    """
    hosts = list(hosts)
    try:
        for step in (Host._spawn, Host._plug_in, Host._await):
            for host in hosts:
                step(host)
    except BaseException:
        for host in hosts:
            host.power_off()
        raise


def _state(pid: int) -> str:
    """Return the state of a process as in its `stat` file, `X` when it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
