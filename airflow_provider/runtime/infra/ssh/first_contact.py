"""The first question to a host: whether our agent can live there, and if not, everything that is in the way."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, cast

from airflow_provider.runtime.infra.ssh.host import HostProblem, Problem, call, nonsense, program_text
from airflow_provider.runtime.infra.ssh.platforms import Platform

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.runtime.transport.ssh.links import Link

HELLO_SECONDS = 30.0
"""A login shell may take its time."""

OLDEST_PYTHON = (3, 10)
MACHINES = ("x86_64", "aarch64")
"""Those that grpcio has wheels for."""

CLOCK_LIMIT_SECONDS = 300.0
"""How far a clock may be off: certificates, times in logs and ages of files are nonsense beyond."""

_MACHINE_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}


class _Answer(TypedDict):
    """What ``on_host/contact.py`` answers to ``hello``."""

    python: list[int]
    executable: str
    implementation: str
    abiflags: str
    bits: int
    system: str
    machine: str
    libc: list[str]
    missing_modules: list[str]
    hostname: str
    address: str
    boot_id: str
    clock: float
    base: str
    problems: list[list[str]]
    free_bytes: int
    no_files_left: bool
    noexec: bool
    runtimes: list[str]


@dataclass(frozen=True)
class HostFacts:
    """What a host says of itself.

    Attributes:
        platform: Its Python; None when no runtime can be made for it, and ``problems`` says why.
        executable: Path of the interpreter.
        hostname: Its own name for itself.
        address: The address at which it was reached, as it sees it.
        boot_id: Identity of its present boot.
        base: Absolute path of the directory for all that is ours.
        free_bytes: What may still be written there.
        runtimes: Names of the runtimes that are complete there.
        problems: Everything that is in the way.
        serious: Those of them that keep us even from what is there already.
    """

    platform: Platform | None
    executable: str
    hostname: str
    address: str
    boot_id: str
    base: str
    free_bytes: int
    runtimes: frozenset[str]
    problems: tuple[Problem, ...]
    serious: tuple[Problem, ...] = ()


async def hello(
    link: Link, *, host: str, base: str, python: str, clock: Callable[[], float] = time.time
) -> HostFacts:
    """Ask a host what it is; makes ``base`` there.

    Args:
        link: To the host.
        host: Its name, for messages.
        base: Directory for all that is ours; ``~`` is the account's home.
        python: The interpreter.
        clock: Seconds since 1970 on our side.

    Raises:
        HostProblem: the interpreter gives no answer, or one that makes no sense.
        SshError: the host cannot be reached any more.
    """
    before = clock()
    order = {"base": base}
    answer = await call(link, program_text("contact"), order, host=host, python=python, seconds=HELLO_SECONDS)
    try:
        return judge(cast("_Answer", answer), python=python, before=before, after=clock())
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise HostProblem(host, [nonsense(python)]) from error


def judge(answer: _Answer, *, python: str, before: float, after: float) -> HostFacts:
    """Return what a host's answer means. Pure.

    Args:
        answer: Of the host.
        python: What was called.
        before: Our clock when the host was asked.
        after: Our clock when the answer was there.
    """
    problems = [*_python_problems(answer, python), *_machine_problems(answer)]
    platform = None if problems else _platform(answer)
    problems += [Problem(cause, remedy) for cause, remedy in answer["problems"]]
    serious = tuple(problems)
    if not before - CLOCK_LIMIT_SECONDS <= answer["clock"] <= after + CLOCK_LIMIT_SECONDS:
        problems.append(_clock_problem(answer["clock"] - (before + after) / 2))
    if answer["noexec"]:
        problems.append(
            Problem(
                f"no program can be run from {answer['base']}: its file system is mounted noexec",
                "name a place on another file system with `base` in the pool",
            )
        )
    if answer["no_files_left"]:
        problems.append(
            Problem(
                f"no file can be made in {answer['base']}: its file system has no inodes left",
                "remove files there",
                lasting=False,
            )
        )
    return HostFacts(
        platform=platform,
        executable=answer["executable"] or python,
        hostname=answer["hostname"],
        address=answer["address"],
        boot_id=answer["boot_id"],
        base=answer["base"],
        free_bytes=answer["free_bytes"],
        runtimes=frozenset(answer["runtimes"]),
        problems=tuple(problems),
        serious=serious,
    )


def _python_problems(answer: _Answer, python: str) -> list[Problem]:
    version = ".".join(map(str, answer["python"]))
    oldest = ".".join(map(str, OLDEST_PYTHON))
    remedy = f"install CPython {oldest} or newer and name its path with `python` in the pool"
    if answer["implementation"] != "cpython":
        return [Problem(f"{python} is {answer['implementation']}, not CPython", remedy)]
    if tuple(answer["python"][:2]) < OLDEST_PYTHON:
        return [Problem(f"{python} is Python {version}; {oldest} or newer is needed", remedy)]
    if answer["missing_modules"]:
        missing = ", ".join(answer["missing_modules"])
        return [
            Problem(
                f"{python} ({answer['executable']}) lacks modules of the standard library: {missing}",
                "install all of Python (on Debian and Ubuntu: python3 rather than python3-minimal), or name another "
                "interpreter with `python` in the pool",
            )
        ]
    return []


def _machine_problems(answer: _Answer) -> list[Problem]:
    if not answer["system"].startswith("linux"):
        return [
            Problem(
                f"it runs {answer['system']}, and the agent runs on Linux only", "take it out of the pool"
            )
        ]
    machine = _machine(answer)
    if machine not in MACHINES or answer["bits"] != 64:
        text = f"{answer['bits']}-bit Python on {machine}"
        return [
            Problem(f"there are no packages for {text}", f"{' and '.join(MACHINES)} with 64 bits will do")
        ]
    if not answer["libc"][0]:
        return [Problem("its C library is neither glibc nor musl", "take it out of the pool")]
    return []


def _clock_problem(seconds: float) -> Problem:
    way = "ahead of" if seconds > 0 else "behind"
    return Problem(
        f"its clock is {_duration(abs(seconds))} {way} ours",
        "set it (`timedatectl set-ntp true`, or run chrony); if it is right, set the clock of Airflow's machine",
    )


def _duration(seconds: float) -> str:
    if seconds >= 2 * 86_400:
        return f"{seconds / 86_400:.0f} days"
    return f"{seconds / 60:.0f} minutes"


def _platform(answer: _Answer) -> Platform:
    name, version = answer["libc"]
    major, minor, *_ = [*version.split("."), "0"]
    return Platform(
        python=(answer["python"][0], answer["python"][1]),
        abiflags=answer["abiflags"],
        machine=_machine(answer),
        libc=name,
        libc_version=(int(major), int(minor)),
    )


def _machine(answer: _Answer) -> str:
    return _MACHINE_NAMES.get(answer["machine"].lower(), answer["machine"])
