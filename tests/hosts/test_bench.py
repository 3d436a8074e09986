"""The test hosts behave as real ones do when they are used, are switched off, or misbehave."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.waiting import poll
from tests.hosts import machine
from tests.hosts.host import Host
from tests.hosts.keys import ClientKeys
from tests.hosts.lab import Lab
from tests.hosts.machine import LabError
from tests.hosts.settings import NOISY_BASHRC, HostSettings

Hosts = Callable[[int], list[Host]]
MakeHost = Callable[[HostSettings], Host]

MEGABYTE = 1_000_000
PATIENCE = 10.0
"""Seconds that a test waits for what should take milliseconds."""


def connect(host: Host, seconds: float = PATIENCE) -> socket.socket:
    return socket.create_connection((host.address, host.port), timeout=seconds)


def greeted(host: Host) -> socket.socket:
    """Return a connection on which sshd has sent its first line."""
    connection = connect(host)
    assert connection.recv(200).startswith(b"SSH-2.0-")
    return connection


def is_silent(connection: socket.socket, seconds: float) -> bool:
    """Whether nothing comes, neither bytes nor the end, for a time."""
    connection.settimeout(seconds)
    try:
        connection.recv(200)
    except TimeoutError:
        return True
    return False


# A plain host.


def test_three_hosts_answer_within_a_second(lab: Lab) -> None:
    # The best of three: the machine may be busy.
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        hosts = lab.start(3)
        seconds.append(time.monotonic() - began)
        for host in hosts:
            lab.remove(host)
        if seconds[-1] < 1.0:
            return
    pytest.fail(f"three hosts took {seconds} seconds")


def test_a_host_has_a_name_processes_and_folders_of_its_own(hosts: Hosts) -> None:
    one, other = hosts(2)
    mine = [f"{folder}/mine" for folder in ("/root", "/tmp", "/run", "/dev/shm", "/var/tmp")]
    assert one.run(f"hostname | tee {' '.join(mine)}").stdout == f"{one.name}\n"
    assert one.run(f"cat {' '.join(mine)}").stdout == f"{one.name}\n" * len(mine)
    assert other.run(f"ls {' '.join(mine)}").stdout == ""
    assert not [path for path in mine if Path(path).exists()]
    one.run(f"rm {' '.join(mine)}")
    assert one.run("ps -e -o pid= | head -1").stdout.strip() == "1"
    assert len(one.run("ps -e -o pid=").stdout.split()) < 10


def test_a_host_sees_nothing_of_this_machine_but_its_system(hosts: Hosts, tmp_path: Path) -> None:
    [host] = hosts(1)
    (tmp_path / "secret").touch()
    for path in (tmp_path / "secret", Path(__file__)):
        assert path.exists()
        assert host.run(f"test -e {path}").returncode == 1
    assert "Read-only file system" in host.run("touch /usr/x").stderr
    assert "Read-only file system" in host.run("touch /etc/x").stderr
    assert host.run("python3 -c 'print(6 * 7)'").stdout == "42\n"


def test_hosts_reach_each_other_and_this_machine_by_network(hosts: Hosts, lab: Lab) -> None:
    one, other = hosts(2)
    say = f"exec 3<>/dev/tcp/{other.address}/{other.port} && head -c 4 <&3"
    assert one.run(f"bash -c '{say}'").stdout == "SSH-"
    with socket.create_server((lab.gateway, 0)) as server:
        port = server.getsockname()[1]
        assert one.run(f"bash -c 'exec 3<>/dev/tcp/{lab.gateway}/{port}'").returncode == 0


def test_a_user_who_is_not_root_has_an_account(hosts: Hosts) -> None:
    [host] = hosts(1)
    told = host.run("id -un; pwd; touch here; cat /root/.ssh/authorized_keys", user=host.user)
    assert told.stdout == f"{host.user}\n/home/{host.user}\n"
    assert "Permission denied" in told.stderr
    assert (host.home / "here").stat().st_uid != 0
    (host.home / "here").unlink()


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_host_lets_in_each_kind_of_key(hosts: Hosts, client_keys: ClientKeys, kind: str) -> None:
    key = getattr(client_keys, kind)
    assert hosts(1)[0].run("echo in", key=key).stdout == "in\n"


def test_a_strangers_key_is_refused(hosts: Hosts, client_keys: ClientKeys) -> None:
    refused = hosts(1)[0].run("echo in", key=client_keys.stranger)
    assert (refused.returncode, refused.stdout) == (255, "")
    assert "Permission denied (publickey)" in refused.stderr


def test_the_encrypted_key_opens_with_its_passphrase_and_only_with_it(client_keys: ClientKeys) -> None:
    key = client_keys.encrypted
    wrong = machine.run("ssh-keygen", "-y", "-P", "wrong", "-f", str(key.path), check=False)
    right = machine.run("ssh-keygen", "-y", "-P", key.passphrase, "-f", str(key.path))
    assert wrong.returncode != 0
    assert right.stdout.startswith(key.public)


def test_a_reinstalled_host_shows_another_key(host: Host) -> None:
    def shown() -> str:
        return machine.run("ssh-keyscan", "-t", "ed25519", host.address).stdout

    before = host.known_hosts
    assert shown() == before
    host.disk.replace_host_keys()
    host.reboot()
    assert host.known_hosts != before
    assert shown() == host.known_hosts
    assert host.run("true").returncode == 0


def test_orphans_are_collected(host: Host) -> None:
    host.run("setsid sh -c 'exit 0 &' & setsid true & wait")
    assert "Z" not in host.run("ps -e -o stat=").stdout


# Off and on.


def test_power_off_ends_connections_at_once(host: Host) -> None:
    with greeted(host) as connection:
        host.power_off()
        assert connection.recv(1) == b""
    assert not host.is_on
    assert not host.answers()


def test_after_a_silent_power_off_clients_are_told_nothing(host: Host) -> None:
    with greeted(host) as connection:
        host.silent_power_off()
        assert is_silent(connection, 0.5)
        connection.send(b"SSH-2.0-test\r\n")
        assert is_silent(connection, 0.5)
    assert not host.is_on
    assert not host.answers()
    with pytest.raises(TimeoutError):
        connect(host, 0.5)


@pytest.mark.parametrize("silent", [False, True], ids=["orderly", "silent"])
def test_a_reboot_changes_the_boot_id_and_keeps_the_disk(host: Host, silent: bool) -> None:
    read = "cat /proc/sys/kernel/random/boot_id"
    before = host.boot_id
    assert host.run(read).stdout == f"{before}\n"
    leave = "touch ~/kept /tmp/kept /run/lost /dev/shm/lost; setsid sleep 1000 >/dev/null 2>&1 &"
    assert host.run(leave).returncode == 0
    host.reboot(silent=silent)
    assert host.boot_id != before
    assert host.run(read).stdout == f"{host.boot_id}\n"
    assert host.run("ls ~/kept /tmp/kept /run/lost /dev/shm/lost").stdout == "/root/kept\n/tmp/kept\n"
    assert "sleep" not in host.run("ps -e -o comm=").stdout


def test_a_connection_from_before_a_silent_reboot_is_reset(host: Host) -> None:
    with greeted(host) as connection:
        host.reboot(silent=True)
        connection.send(b"SSH-2.0-test\r\n")
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_another_host_is_not_disturbed_by_a_power_off(hosts: Hosts, host: Host) -> None:
    [other] = hosts(1)
    count = [*other.ssh_command(), "for i in $(seq 200); do echo $i; sleep 0.01; done"]
    with subprocess.Popen(count, stdout=subprocess.PIPE, text=True) as counting:
        assert counting.stdout is not None
        assert counting.stdout.readline() == "1\n"
        host.reboot(silent=True)
        gaps, before = [], time.monotonic()
        for _ in counting.stdout:
            gaps.append(time.monotonic() - before)
            before = time.monotonic()
    assert len(gaps) == 199
    assert max(gaps) < PATIENCE


# The network cable.


def test_a_connection_outlives_a_pulled_cable(host: Host) -> None:
    with greeted(host) as connection:
        host.link_down()
        assert not host.answers()
        connection.send(b"SSH-2.0-test\r\n")
        assert is_silent(connection, 0.3)
        host.link_up()
        connection.settimeout(PATIENCE)
        assert connection.recv(200)  # key exchange goes on
    assert host.answers(PATIENCE)


def test_a_slow_link_lets_through_what_it_should(host: Host) -> None:
    send = [*host.ssh_command(), f"head -c {MEGABYTE} /dev/zero"]
    host.slow_link(bytes_per_second=MEGABYTE)
    began = time.monotonic()
    assert len(subprocess.run(send, capture_output=True, timeout=60).stdout) == MEGABYTE
    assert 0.7 < time.monotonic() - began < PATIENCE
    host.fast_link()
    began = time.monotonic()
    subprocess.run(send, capture_output=True, timeout=60, check=True)
    assert time.monotonic() - began < 0.7 + PATIENCE / 2


def test_a_link_is_delayed_or_the_missing_part_of_the_kernel_is_named(host: Host) -> None:
    if not machine.can_delay():
        with pytest.raises(LabError, match="sch_netem"):
            host.slow_link(delay_seconds=0.1)
        return
    host.slow_link(delay_seconds=0.1)
    began = time.monotonic()
    connect(host).close()
    assert time.monotonic() - began >= 0.2


# Hosts that misbehave.


def test_a_frozen_host_accepts_connections_and_serves_none(host: Host) -> None:
    with greeted(host) as old:
        host.freeze()
        old.send(b"SSH-2.0-test\r\n")
        with connect(host) as new:
            assert is_silent(new, 0.3)
            assert is_silent(old, 0.3)
            host.thaw()
            new.settimeout(PATIENCE)
            assert new.recv(200).startswith(b"SSH-")


def test_a_frozen_host_can_be_switched_off(host: Host) -> None:
    host.freeze()
    host.power_off()
    host.start()
    assert host.run("true").returncode == 0


def refused_of(host: Host, count: int, clients: ExitStack) -> int:
    """Open connections that do not log in, and return how many of them were turned away."""
    lines = [clients.enter_context(connect(host)).recv(200) for _ in range(count)]
    return sum(not line.startswith(b"SSH-") for line in lines)


def test_too_many_starting_connections_are_turned_away(make_host: MakeHost) -> None:
    host = make_host(HostSettings(sshd_options={"MaxStartups": "3:100:3"}))
    with ExitStack() as clients:
        assert refused_of(host, 5, clients) == 2
    # sshd learns a moment later that they have gone.
    poll(lambda: host.run("true").returncode == 0, timeout=PATIENCE, what="a free place", interval=0.05)


def test_a_plain_host_drops_some_of_many_connections_at_random(host: Host) -> None:
    with ExitStack() as clients:
        assert 0 < refused_of(host, 60, clients) <= 50  # OpenSSH's default: 10:30:100


def test_forwarding_works_unless_it_is_forbidden(hosts: Hosts, make_host: MakeHost) -> None:
    options = {"AllowTcpForwarding": "no", "AllowStreamLocalForwarding": "no"}
    [plain], strict = hosts(1), make_host(HostSettings(sshd_options=options))
    for host, allowed in ((plain, True), (strict, False)):
        back = ["-o", "ExitOnForwardFailure=yes", "-R", f"/tmp/back.sock:{__file__}"]
        unix = subprocess.run([*host.ssh_command(*back), "rm /tmp/back.sock"], capture_output=True)
        assert (unix.returncode == 0) is allowed, unix.stderr
        tcp = subprocess.run(
            host.ssh_command("-W", f"{host.address}:22"), capture_output=True, stdin=subprocess.DEVNULL
        )
        assert tcp.stdout.startswith(b"SSH-") is allowed, tcp.stderr


def test_a_full_disk_is_full_until_it_is_emptied(make_host: MakeHost) -> None:
    host = make_host(HostSettings(disk_bytes=8 * MEGABYTE))
    host.disk.fill()
    for user in ("root", host.user):
        assert "No space left on device" in host.run("echo text > ~/file", user=user).stderr
    host.reboot()
    assert "No space left on device" in host.run("echo text > /tmp/file").stderr
    host.disk.empty()
    assert host.run("echo text > ~/file && cat ~/file").stdout == "text\n"


def test_the_disk_of_this_machine_is_not_filled(host: Host) -> None:
    with pytest.raises(LabError, match="disk_bytes"):
        host.disk.fill()


def test_programs_do_not_start_where_that_is_forbidden(make_host: MakeHost) -> None:
    host = make_host(HostSettings(noexec=True))
    folders = "/root /tmp /run /dev/shm /var/tmp"
    tried = host.run(f"for at in {folders}; do cp /bin/true $at/program && $at/program; done")
    assert tried.stderr.count("Permission denied") == 5
    assert host.run("sh -c 'exit 7'").returncode == 7


def test_a_host_may_lack_commands(make_host: MakeHost) -> None:
    host = make_host(HostSettings(hidden_commands=("python*",)))
    assert host.run("python3 -V || /usr/bin/python3 -V").returncode == 127
    assert host.run("cp --version && ls /").returncode == 0


@pytest.mark.parametrize(
    ("shell", "own_words"),
    [
        ("/bin/csh", "set text = own; echo $text:q"),
        ("/usr/bin/fish", "set text own; echo (string upper $text)"),
    ],
)
def test_a_login_shell_of_choice(make_host: MakeHost, shell: str, own_words: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed (packages tcsh, fish)")
    host = make_host(HostSettings(shell=shell))
    for user in ("root", host.user):
        assert host.run(own_words, user=user).stdout.lower() == "own\n"
        assert host.run("text=own; echo $text", user=user).stdout != "own\n"  # what bash says


def test_a_noisy_start_file_speaks_before_the_command(make_host: MakeHost) -> None:
    host = make_host(HostSettings(home_files={".bashrc": NOISY_BASHRC}))
    told = host.run("echo done", user=host.user)
    assert re.fullmatch(r"Welcome!.*\ndone\n", told.stdout)
    assert "not a terminal" in told.stderr


def test_the_users_environment_file_counts_where_it_is_permitted(make_host: MakeHost) -> None:
    files = {".ssh/environment": "FLAVOUR=vanilla\n"}
    for answer, flavour in (("yes", "vanilla\n"), ("no", "\n")):
        host = make_host(HostSettings(home_files=files, sshd_options={"PermitUserEnvironment": answer}))
        assert host.run("echo $FLAVOUR").stdout == flavour


def test_a_host_that_cannot_start_says_why(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    host = lab.add(HostSettings(sshd_options={"NoSuchOption": "yes"}))
    monkeypatch.setattr("tests.hosts.host._START_SECONDS", 1.0)
    with pytest.raises(LabError, match="NoSuchOption"):
        host.start()
    assert not host.is_on
    lab.remove(host)


def test_the_reason_is_named_where_there_can_be_no_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        assert "need root" in machine.unavailable()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(machine, "SEARCH_PATH", "/nowhere")
    assert "apt-get install iproute2 openssh-client openssh-server" in machine.unavailable()
