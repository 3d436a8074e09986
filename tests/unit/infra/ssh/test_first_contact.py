"""What a host is asked first, and what its answers mean."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from pathlib import Path

import pytest

from airflow_provider.runtime.infra.ssh.first_contact import HostFacts, hello, judge
from airflow_provider.runtime.infra.ssh.host import HostProblem, program_text
from airflow_provider.runtime.infra.ssh.platforms import Platform
from tests.unit.infra.ssh.this_machine_link import ThisMachineLink

NOW = 1_000_000.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

GOOD = {
    "python": [3, 11, 2],
    "executable": "/usr/bin/python3",
    "implementation": "cpython",
    "abiflags": "",
    "bits": 64,
    "system": "linux",
    "machine": "x86_64",
    "libc": ["glibc", "2.36"],
    "missing_modules": [],
    "hostname": "h1",
    "address": "10.0.0.1",
    "boot_id": "b",
    "clock": NOW,
    "base": "/srv/u/.managed-jobs",
    "problems": [],
    "free_bytes": 10**9,
    "no_files_left": False,
    "noexec": False,
    "runtimes": ["abc"],
}


def told(**changes: object) -> HostFacts:
    return judge({**GOOD, **changes}, python="python3", before=NOW - 1, after=NOW + 1)


def test_a_good_host_has_no_problems() -> None:
    facts = told()
    assert facts.problems == ()
    assert facts.platform == Platform((3, 11), "", "x86_64", "glibc", (2, 36))
    assert facts.runtimes == {"abc"}


@pytest.mark.parametrize(
    ("changes", "cause", "remedy"),
    [
        ({"python": [3, 9, 18]}, "python3 is Python 3.9.18; 3.10 or newer is needed", "`python` in the pool"),
        ({"python": [3, 6, 15]}, "3.6.15", "`python` in the pool"),
        ({"implementation": "pypy"}, "pypy, not CPython", "`python` in the pool"),
        ({"missing_modules": ["sqlite3", "zlib"]}, "lacks modules of the standard library: sqlite3, zlib", "python3-minimal"),
        ({"system": "darwin"}, "the agent runs on Linux only", "out of the pool"),
        ({"machine": "riscv64"}, "no packages for 64-bit Python on riscv64", "x86_64 and aarch64"),
        ({"bits": 32}, "32-bit Python on x86_64", "64 bits"),
        ({"libc": ["", ""]}, "neither glibc nor musl", "out of the pool"),
        ({"clock": NOW + 302}, "its clock is 5 minutes ahead of ours", "timedatectl"),
        ({"clock": NOW - 302}, "its clock is 5 minutes behind ours", "timedatectl"),
        ({"clock": 0.0}, "its clock is 12 days behind ours", "timedatectl"),
        ({"noexec": True}, "/srv/u/.managed-jobs: its file system is mounted noexec", "`base` in the pool"),
        ({"no_files_left": True}, "no inodes left", "remove files"),
        ({"problems": [["the disk hums", "replace it"]]}, "the disk hums", "replace it"),
    ],
)  # fmt: skip
def test_each_fault_of_a_host_has_a_cause_and_a_remedy(
    changes: dict[str, object], cause: str, remedy: str
) -> None:
    [problem] = told(**changes).problems
    assert cause in problem.cause
    assert remedy in problem.remedy


def test_a_clock_is_right_within_the_time_that_asking_took() -> None:
    for clock in (NOW - 299, NOW + 299):
        assert told(clock=clock).problems == ()
    slow = judge({**GOOD, "clock": NOW}, python="python3", before=NOW - 1000, after=NOW + 1)
    assert slow.problems == ()


def test_all_faults_of_a_host_are_told_at_once() -> None:
    facts = told(python=[3, 8, 0], noexec=True, clock=0.0, problems=[["a", "b"]])
    assert len(facts.problems) == 4
    assert facts.platform is None
    text = str(HostProblem("h1", facts.problems))
    assert text.startswith("h1: python3 is Python 3.8.0")
    assert "; a: b; " in text


def test_a_wrong_clock_or_a_full_disk_keeps_nobody_from_what_is_there_already() -> None:
    assert told(clock=0.0, no_files_left=True, noexec=True).serious == ()
    assert len(told(clock=0.0, python=[3, 8, 0], problems=[["a", "b"]]).serious) == 2


@pytest.mark.parametrize(
    ("libc", "platform"),
    [
        (["musl", "1.2.5"], ("musl", (1, 2))),
        (["glibc", "2.28"], ("glibc", (2, 28))),
        (["glibc", "3"], ("glibc", (3, 0))),
    ],
)
def test_the_c_library_is_understood(libc: list[str], platform: tuple[str, tuple[int, int]]) -> None:
    facts = told(libc=libc)
    assert facts.platform is not None
    assert (facts.platform.libc, facts.platform.libc_version) == platform


# The program on the host.


def test_an_old_python_can_read_the_program() -> None:
    text = program_text("contact")
    tree = ast.parse(text, feature_version=(3, 6))
    assert text.isascii()
    assert "from __future__" not in text  # 3.6 does not know annotations
    annotations = [
        node.annotation
        for node in ast.walk(tree)
        if isinstance(node, ast.arg) and node.annotation is not None
    ] + [node.returns for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.returns]
    # What is not quoted is looked up when the function is made.
    assert [part for part in annotations if isinstance(part, ast.Subscript | ast.BinOp)] == []


async def greet(home: Path, base: str = "~/.managed-jobs", **variables: str) -> HostFacts:
    link = ThisMachineLink(home, variables=variables)
    return await hello(link, host="here", base=base, python=sys.executable)


@pytest.mark.parametrize(
    "answer", ["{}", '{"ok": "x"}', '{"ok": {}}', '{"ok": {"python": 3}}', "[" * 100_000]
)
async def test_an_answer_that_makes_no_sense_is_the_fault_of_the_host(tmp_path: Path, answer: str) -> None:
    python = tmp_path / "python"
    text = "import json, re, sys\nword = re.search('managed-jobs-[0-9a-f]+ ', sys.stdin.read())[0]\n"
    python.write_text(f"#!{sys.executable}\n{text}print(word + {answer!r})\n")
    python.chmod(0o755)
    with pytest.raises(HostProblem):
        await hello(ThisMachineLink(tmp_path), host="here", base="~/b", python=str(python))


async def test_this_machine_is_what_we_think_it_is(tmp_path: Path) -> None:
    facts = await greet(tmp_path, SSH_CONNECTION="10.0.0.9 40000 10.0.0.1 22")
    assert facts.problems == ()
    assert facts.platform == Platform.own()
    assert facts.executable == sys.executable
    assert facts.address == "10.0.0.1"
    assert facts.boot_id == BOOT_ID
    assert facts.base == f"{tmp_path}/.managed-jobs"
    assert facts.free_bytes > 0


async def test_the_base_is_made_for_this_account_alone(tmp_path: Path) -> None:
    await greet(tmp_path, "~/deep/er")
    assert (tmp_path / "deep/er").stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir(mode=0o755)
    assert (await greet(tmp_path, f"{tmp_path}/open")).problems == ()
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to("deep")
    assert (await greet(tmp_path, "~/link")).problems == ()


async def test_a_base_that_cannot_be_is_a_problem_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o770)
    faults = {
        "relative/path": "no absolute path",
        "~no-such-user/x": "no absolute path",
        "~/file": "is in the way: it is not a directory",
        "~/file/below": "/file is in the way: it is not a directory",
        "/proc/here": "cannot be made: No such file",
        "~/shared": r"others may write to .*/shared \(mode 770\)",
    }
    for base, cause in faults.items():
        [problem] = (await greet(tmp_path, base)).problems
        assert re.search(cause, problem.cause), (base, problem)
        assert "`base` in the pool" in problem.remedy


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_a_base_of_somebody_else_is_refused(tmp_path: Path) -> None:
    for name in ("theirs", "mine"):
        (tmp_path / name).mkdir()
    os.chown(tmp_path / "theirs", 65_534, 65_534)
    (tmp_path / "planted").symlink_to("mine")
    os.chown(tmp_path / "planted", 65_534, 65_534, follow_symlinks=False)
    for base in ("~/theirs", "~/planted"):
        [problem] = (await greet(tmp_path, base)).problems
        assert "belongs to user nobody" in problem.cause


def runtime(home: Path, name: str, *, boot_id: str, size: int = 4) -> Path:
    """Make a runtime of one file as it would lie on a host; its marker speaks of four bytes."""
    path = home / ".managed-jobs/runtime" / name
    path.mkdir(parents=True)
    (path / "module.py").write_bytes(b"x" * size)
    (path / ".installed").write_text(json.dumps({"boot_id": boot_id, "files": 1, "bytes": 4}))
    return path


async def test_only_complete_runtimes_count(tmp_path: Path) -> None:
    await greet(tmp_path)
    boot_id = BOOT_ID
    runtime(tmp_path, "good", boot_id=boot_id)
    runtime(tmp_path, "before-the-reboot", boot_id="other")
    runtime(tmp_path, "emptied-by-a-power-cut", boot_id="other", size=0)
    runtime(tmp_path, ".half.done", boot_id=boot_id)
    (runtime(tmp_path, "no-marker", boot_id=boot_id) / ".installed").unlink()
    (runtime(tmp_path, "empty-marker", boot_id=boot_id) / ".installed").write_text("")
    (tmp_path / ".managed-jobs/runtime/file").touch()
    compiled = tmp_path / ".managed-jobs/runtime/before-the-reboot/__pycache__"
    compiled.mkdir()
    (compiled / "module.pyc").write_bytes(b"more")
    for _ in range(2):
        assert (await greet(tmp_path)).runtimes == {"good", "before-the-reboot"}
    marker = tmp_path / ".managed-jobs/runtime/before-the-reboot/.installed"
    assert json.loads(marker.read_text())["boot_id"] == boot_id
