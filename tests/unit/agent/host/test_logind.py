"""Whether what a login starts survives the logout, as systemd's files say."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.host import logind
from airflow_provider.runtime.agent.host.logind import command_that_stays, ends_with_the_session
from airflow_provider.runtime.agent.host.problem import HostProblem

ME = pwd.getpwuid(os.geteuid()).pw_name
MAIN = "etc/systemd/logind.conf"
YES = "[Login]\nKillUserProcesses=yes\nKillExcludeUsers=\n"


class System:
    """The root of a file system, and the programs of systemd."""

    def __init__(self, root: Path, programs: Path) -> None:
        self.root = root
        self._programs = programs
        programs.mkdir()
        (root / "run/systemd/system").mkdir(parents=True)

    def say(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def program(self, name: str, text: str) -> None:
        file = self._programs / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    def linger(self) -> None:
        self.say(f"var/lib/systemd/linger/{ME}", "")


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    return System(tmp_path / "root", tmp_path / "bin")


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({}, False),
        ({MAIN: "[Login]\n#KillUserProcesses=no\n"}, False),
        ({MAIN: "[Login]\n#KillUserProcesses=yes\n"}, True),
        ({"usr/lib/systemd/logind.conf": "[Login]\n#KillUserProcesses=yes\n"}, True),
        ({MAIN: "", "usr/lib/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n"}, False),
        ({MAIN: "[Login]\n#KillUserProcesses=no\nKillUserProcesses = Yes\n"}, True),
        (
            {
                MAIN: "[Login]\nKillUserProcesses=no\n",
                "etc/systemd/logind.conf.d/a.conf": "KillUserProcesses=1",
            },
            True,
        ),
        (
            {
                "usr/lib/systemd/logind.conf.d/b.conf": "KillUserProcesses=yes",
                "etc/systemd/logind.conf.d/a.conf": "KillUserProcesses=no",
            },
            True,
        ),
        (
            {
                "usr/lib/systemd/logind.conf.d/a.conf": "KillUserProcesses=yes",
                "etc/systemd/logind.conf.d/a.conf": "KillUserProcesses=no",
            },
            False,
        ),
        ({MAIN: "KillUserProcesses=yes\nKillExcludeUsers=root ann"}, False),
        ({MAIN: "KillUserProcesses=yes\nKillOnlyUsers=bob"}, False),
        ({MAIN: "KillUserProcesses=yes\nKillOnlyUsers=bob ann"}, True),
        ({MAIN: "KillUserProcesses=yes\nKillUserProcesses=\n"}, False),
    ],
)
def test_the_files_of_logind_are_read_as_logind_does(
    system: System, files: dict[str, str], ends: bool
) -> None:
    for name, text in files.items():
        system.say(name, text)
    assert ends_with_the_session("ann", system.root) is ends


def test_root_is_spared_unless_said_otherwise(system: System) -> None:
    system.say(MAIN, "KillUserProcesses=yes")
    assert not ends_with_the_session("root", system.root)
    system.say(MAIN, YES)
    assert ends_with_the_session("root", system.root)


def test_most_hosts_need_nothing(system: System) -> None:
    assert command_that_stays(system.root) == []
    system.say(MAIN, YES)
    (system.root / "run/systemd/system").rmdir()
    assert command_that_stays(system.root) == [], "systemd does not run"


def test_who_lingers_gets_a_scope_of_the_users_own_manager(system: System) -> None:
    system.say(MAIN, YES)
    system.linger()
    system.program("systemd-run", "")
    words = command_that_stays(system.root)
    assert words[:3] == ["systemd-run", "--user", "--scope"]


def test_lingering_is_asked_for_when_needed(system: System, tmp_path: Path) -> None:
    system.say(MAIN, YES)
    system.program("systemd-run", "")
    system.program("loginctl", f'echo "$*" > {tmp_path}/asked')
    assert command_that_stays(system.root)
    assert (tmp_path / "asked").read_text() == f"enable-linger {ME}\n"


@pytest.mark.parametrize(
    ("loginctl", "why"),
    [(None, "No such file"), ("echo 'Access denied' >&2; exit 1", "Access denied"), ("exit 5", "5")],
)
def test_a_host_that_lets_nothing_survive_is_told_with_the_remedy(
    system: System, loginctl: str | None, why: str
) -> None:
    system.say(MAIN, YES)
    system.program("systemd-run", "")
    if loginctl is not None:
        system.program("loginctl", loginctl)
    with pytest.raises(HostProblem) as told:
        command_that_stays(system.root)
    assert why in told.value.cause
    assert f"loginctl enable-linger {ME}" in told.value.remedy


def test_a_host_without_systemd_run_is_told(system: System) -> None:
    system.say(MAIN, YES)
    system.linger()
    with pytest.raises(HostProblem, match="KillUserProcesses=yes"):
        command_that_stays(system.root)


def test_a_loginctl_that_hangs_is_told(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logind, "_COMMAND_SECONDS", 0.1)
    system.say(MAIN, YES)
    system.program("loginctl", "exec /bin/sleep 100")
    with pytest.raises(HostProblem, match="timed out"):
        command_that_stays(system.root)
