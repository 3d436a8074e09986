"""Running a Python program on a host, whatever its login shell is and whatever the shell's start-up files print.

The program goes over standard input, so that nothing of it meets the shell: only a fixed line does, which every shell
reads in the same way. The program's answer is a line of its output that begins with a word made for this one call; all
other lines are somebody else's and are skipped.
"""

from __future__ import annotations

import json
import re
import secrets
from functools import cache
from importlib import resources
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider.runtime.infra.base import InfraError
from airflow_provider.runtime.transport.ssh.command import CommandTimedOut
from airflow_provider.runtime.transport.ssh.errors import SshUnreachable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider.runtime.transport.ssh.command import Completed
    from airflow_provider.runtime.transport.ssh.links import Link


# No character in it means anything to a shell inside of double quotes: csh, fish and sh agree about the rest. -I: neither
# PYTHON... variables nor a random.py in the home directory are looked at; -S: nor what site-packages would start.
_COMMAND = "-I -S -u -c " + '"import sys;exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"'

# Comes after the program, which has defined `main`. The first newline ends what a start-up file may have left open.
_FRAME = """
def _answer():
    import json, sys
    order = json.loads(sys.stdin.buffer.readline().decode("ascii"))
    answer = json.dumps(main(order["arguments"]))
    sys.stdout.write("\\n" + order["word"] + answer + "\\n")
    sys.stdout.flush()
_answer()
"""

_PYTHON_NAME = re.compile(r"(~/)?[A-Za-z0-9_./+@][A-Za-z0-9_./+@-]*")
_CONTROL = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_KEPT_LINES = 6
_KEPT_CHARACTERS = 900
_PATH_SECONDS = 5.0

_START_UP_FILES = "the start-up files of its login shell (~/.bashrc, ~/.cshrc, config.fish, ...)"


class Problem(NamedTuple):
    """Something wrong with a host.

    Attributes:
        cause: What is wrong, with the path or the value.
        remedy: What somebody has to do.
        lasting: Whether it stays until somebody does that, so that trying again soon is no use.
    """

    cause: str
    remedy: str
    lasting: bool = True


class HostProblem(InfraError):
    """A host cannot be used; the text says why and what to do.

    Args:
        host: Its name.
        problems: All that is known to be wrong.
    """

    def __init__(self, host: str, problems: Sequence[Problem]) -> None:
        super().__init__(f"{host}: " + "; ".join(f"{cause}: {remedy}" for cause, remedy, _ in problems))
        self.host = host
        self.problems = tuple(problems)

    @property
    def lasting(self) -> bool:
        """Whether trying again soon is no use."""
        return any(problem.lasting for problem in self.problems)


async def call(
    link: Link,
    program: str,
    arguments: Mapping[str, object],
    *,
    host: str = "the host",
    python: str = "python3",
    payload: Sequence[bytes] = (),
    seconds: float,
) -> dict[str, object]:
    """Run a program on the host and return its answer.

    Args:
        link: To the host.
        program: Text of a program that defines ``main(arguments)``; it returns ``{"ok": answer}`` or
            ``{"problem": cause, "remedy": what to do, "lasting": whether to try again is no use}``, and may read the payload from ``sys.stdin.buffer``.
        arguments: What ``main`` gets: what JSON can hold.
        host: Its name, for messages.
        python: The interpreter: a name to be found on the ``PATH`` of the login shell, or a path.
        payload: Bytes that follow on the program's standard input.
        seconds: How long all of it may take.

    Raises:
        HostProblem: there is no such interpreter, no answer, or the answer is a problem.
        SshError: the host cannot be reached any more.
    """
    if not _PYTHON_NAME.fullmatch(python):
        raise HostProblem(
            host,
            [
                Problem(
                    f"python {python!r} is neither the name nor the path of an interpreter",
                    "a name or a path without blanks and without characters that mean something to a shell is wanted",
                )
            ],
        )
    word = f"managed-jobs-{secrets.token_hex(8)} "
    text = (program + _FRAME).encode()
    order = json.dumps({"word": word, "arguments": arguments}).encode("ascii")
    head = b"%d\n%s%s\n" % (len(text), text, order)
    stdin = chain([head], payload) if payload else head
    try:
        completed = await link.run(f"{python} {_COMMAND}", stdin=stdin, seconds=seconds)
    except CommandTimedOut as error:
        raise HostProblem(host, [_silent(error)]) from error
    if completed.exit_code is None and link.is_lost:
        raise SshUnreachable(f"{host}: the connection broke while {python} ran there")
    answer = _find_answer(completed.stdout, word)
    if answer is None:
        raise HostProblem(host, [await _explain(link, completed, python)])
    if "problem" in answer:
        cause, remedy = _shown(answer["problem"]), _shown(answer.get("remedy", ""))
        raise HostProblem(host, [Problem(cause, remedy, lasting=bool(answer.get("lasting", False)))])
    told = answer.get("ok")
    if not isinstance(told, dict):
        raise HostProblem(host, [nonsense(python)])
    return told


def nonsense(python: str) -> Problem:
    """Return what is wrong with a host whose answers are none of our programs'."""
    return Problem(
        f"{python} gave an answer that makes no sense", "look what that interpreter is, and who runs the host"
    )


async def ask(
    link: Link,
    operation: str,
    arguments: Mapping[str, object],
    *,
    runtime_dir: str,
    host: str = "the host",
    python: str = "python3",
    seconds: float,
) -> dict[str, object]:
    """Have the installed runtime do one of ``agent.host.operations`` on the host and return its answer.

    Args:
        link: To the host.
        operation: Which one.
        arguments: Of the operation.
        runtime_dir: Where the runtime is on the host; see ``packages.install``.
        host: Its name, for messages.
        python: The interpreter that the runtime was installed for.
        seconds: How long it may take.

    Raises:
        HostProblem: the operation could not be done; with the host's own words.
        SshError: the host cannot be reached any more.
    """
    order = {"runtime": runtime_dir, "operation": operation, "arguments": dict(arguments)}
    return await call(link, program_text("operate"), order, host=host, python=python, seconds=seconds)


@cache
def program_text(*names: str) -> str:
    """Return the text of one of the programs in ``on_host``: that of a file, or of several that are made for that."""
    folder = resources.files("airflow_provider.runtime.infra.ssh.on_host")
    return "".join((folder / f"{name}.py").read_text("utf-8") for name in names)


def _find_answer(output: bytes, word: str) -> dict[str, object] | None:
    """Return the last answer in what the host printed, None when there is none or only a part of it."""
    found = None
    start = word.encode("ascii")
    for line in output.split(b"\n"):
        if line.startswith(start):
            try:
                found = json.loads(line[len(start) :])
            except (ValueError, RecursionError):  # cut short, with the connection; or made to hurt us
                continue
    return found if isinstance(found, dict) else None


async def _explain(link: Link, completed: Completed, python: str) -> Problem:
    """Return why a program did not answer."""
    said = _last_words(completed.stderr) or _last_words(completed.stdout)
    quoted = f" (it said: {said})" if said else ""
    code = completed.exit_code
    if code is None:
        return Problem(
            f"{python} was ended by a signal{quoted}",
            "look for limits on the memory and the processes of the account",
            lasting=False,
        )
    if code == 127 or (code == 1 and re.search(rf"{re.escape(python)}: Command not found", said)):
        return Problem(
            f"{python} is not installed{await _search_path(link)}",
            "install CPython 3.10 or newer, or name its path with `python` in the pool",
        )
    if code == 126 or (code == 1 and re.search(rf"{re.escape(python)}: Permission denied", said)):
        return Problem(f"{python} cannot be started{quoted}", "name an interpreter with `python` in the pool")
    if "Unknown option: -I" in said:
        return Problem(
            f"{python} is Python 2",
            "name CPython 3.10 or newer with `python` in the pool: `python3`, for one",
        )
    if "SyntaxError" in said:
        return Problem(
            f"{python} is too old{quoted}",
            "install CPython 3.10 or newer and name its path with `python` in the pool",
        )
    if "invalid literal for int()" in said:
        return Problem(
            f"something has read the standard input before {python}",
            f"{_START_UP_FILES} must not read it when the shell is not interactive",
        )
    if code == 0:
        return Problem(
            f"the login shell ended before {python} was started{quoted}",
            f"{_START_UP_FILES} must not leave or replace the shell when it is not interactive",
        )
    return Problem(
        f"{python} gave no answer and exit code {code}{quoted}",
        f"log in and look whether {python} works; {_START_UP_FILES} may stand in the way",
    )


async def _search_path(link: Link) -> str:
    """Return where commands are looked for, for a message; nothing when the host does not say."""
    try:
        completed = await link.run("printenv PATH", stdin=b"", seconds=_PATH_SECONDS)
    except CommandTimedOut:
        return ""
    path = _last_words(completed.stdout).rpartition(" | ")[2]
    return f" (PATH {path})" if completed.exit_code == 0 and path else ""


def _silent(error: CommandTimedOut) -> Problem:
    return Problem(
        f"no answer in time ({error})",
        f"look for what makes it slow, or for something in {_START_UP_FILES} that waits",
        lasting=False,
    )


def _shown(said: object) -> str:
    """Return a host's own words such that they can be shown: without control characters, of bounded length."""
    return _CONTROL.sub("", str(said))[: 4 * _KEPT_CHARACTERS]


def _last_words(output: bytes) -> str:
    """Return the last lines of what a command said, in one line without control characters, of bounded length."""
    text = _CONTROL.sub("", output[-20 * _KEPT_CHARACTERS :].decode("utf-8", "replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept = " | ".join(lines[-_KEPT_LINES:])
    return kept if len(kept) <= _KEPT_CHARACTERS else "..." + kept[-_KEPT_CHARACTERS:]
