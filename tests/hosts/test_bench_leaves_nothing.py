"""Nothing of a lab is left, however its test run ends, and two labs are not in each other's way."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.hosts import machine
from tests.hosts.host import MARKER
from tests.hosts.lab import Lab
from tests.hosts.settings import HostSettings

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE = 10.0

OTHER_RUN = """
import json
from tests.hosts.lab import Lab
from tests.hosts.settings import HostSettings

lab = Lab()
first, second = lab.start(2, HostSettings(disk_bytes=8_000_000))
second.freeze()
first.run("setsid sleep 1000 >/dev/null 2>&1 &")
pids = [pid for host in (first, second) for pid in (host._init, *host.processes())]
print(json.dumps([str(lab.directory), lab.network.bridge, pids]), flush=True)
input()
"""


@pytest.fixture(autouse=True)
def _bench(lab: Lab) -> None:
    """Leave these tests out where there can be no lab."""


def left_of(directory: Path, bridge: str) -> list[object]:
    """Return what there still is of a lab."""
    cables = bridge.replace("lab", "") + "h"
    links = [name for name in os.listdir("/sys/class/net") if name == bridge or name.startswith(cables)]
    folders = [directory] if directory.exists() else []
    return [*links, *folders, *machine.mounts_below(directory), *machine.carriers(MARKER, str(directory))]


def test_a_closed_lab_has_left_nothing() -> None:
    with Lab() as lab:
        hosts = lab.start(2, HostSettings(disk_bytes=8_000_000))
        hosts[0].run("setsid sleep 1000 >/dev/null 2>&1 &")
        hosts[1].silent_power_off()
        lab.add()
        running = hosts[0].processes()
        assert len(running) >= 2
        assert left_of(lab.directory, lab.network.bridge)
    assert left_of(lab.directory, lab.network.bridge) == []
    assert not [pid for pid in running if Path(f"/proc/{pid}").exists()]
    lab.close()


def test_a_removed_host_has_left_nothing_and_its_place_is_free(lab: Lab) -> None:
    [host] = lab.start(1, HostSettings(disk_bytes=8_000_000))
    lab.remove(host)
    assert not host.disk.path.exists()
    again = lab.add()
    assert again.address == host.address
    lab.remove(again)


def test_two_labs_do_not_collide(lab: Lab) -> None:
    with Lab() as other:
        assert other.network.prefix != lab.network.prefix
        [one], [two] = lab.start(1), other.start(1)
        assert one.run("hostname").stdout != two.run("hostname").stdout
        lab.remove(one)
        assert two.answers(PATIENCE)


def test_what_a_killed_run_has_left_ends_by_itself_and_is_swept() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_RUN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
    ) as run:
        assert run.stdout is not None
        directory, bridge, pids = json.loads(run.stdout.readline())
        handles = []
        for pid in pids:
            with suppress(ProcessLookupError):  # the end of the ssh session that started the others
                handles.append(os.pidfd_open(pid))
        assert len(handles) >= 5  # two hosts' first process and sshd, and what one was told to run
        with Lab():
            assert left_of(Path(directory), bridge)  # it lives, and so is not swept
        run.send_signal(signal.SIGKILL)
    for handle in handles:
        assert select.select([handle], [], [], PATIENCE)[0], "a host outlives its test run"
        os.close(handle)
    with Lab():
        pass
    assert left_of(Path(directory), bridge) == []
