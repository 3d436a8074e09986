"""Programs run on a host through any login shell, and what is said when they cannot."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from airflow_provider.runtime.infra.base import InfraError
from airflow_provider.runtime.infra.ssh.host import HostProblem, ask, call
from tests.unit.infra.ssh.this_machine_link import ThisMachineLink

ECHO = 'import sys\ndef main(arguments):\n    return {"ok": {"got": arguments, "payload": sys.stdin.buffer.read().decode()}}\n'
SHELLS = [s for s in ("sh", "bash", "dash", "csh", "tcsh", "fish", "zsh", "ksh", "mksh") if shutil.which(s)]
"""Those of them that are installed here; on test hosts csh and fish are tried in any case."""


def script(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("shell", SHELLS)
async def test_arguments_and_payload_reach_a_program_unchanged_through_each_shell(
    tmp_path: Path, shell: str
) -> None:
    link = ThisMachineLink(tmp_path, shell=shell)
    arguments = {"text": "it's $HOME `id` \\n !! \" ünï \u2028 \ud800", "list": [1, None, {"deep": 0.5}]}
    pieces = [b"one ", b"", b"'two' $three\n!\n"]
    answer = await call(link, ECHO, arguments, python=sys.executable, payload=pieces, seconds=20)
    assert answer == {"got": arguments, "payload": "one 'two' $three\n!\n"}


async def test_what_else_is_printed_is_skipped_wherever_it_stands(tmp_path: Path) -> None:
    noise = script(
        tmp_path,
        "noisy",
        f'#!/bin/sh\nprintf "ack\\nmanaged-jobs-\\n{{}}\\nno newline"\n{sys.executable} "$@"\ncode=$?\necho bye\nexit $code\n',
    )
    assert await call(ThisMachineLink(tmp_path), ECHO, {"a": 1}, python=noise, seconds=20) == {
        "got": {"a": 1},
        "payload": "",
    }


async def test_a_file_in_the_home_that_is_named_like_a_module_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(3)")
    link = ThisMachineLink(tmp_path, variables={"PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": "/nonexistent"})
    assert (await call(link, ECHO, {}, python=sys.executable, seconds=20))["got"] == {}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("python", ["python3-is-not-here", "/nonexistent/bin/python3"])
async def test_a_missing_interpreter_is_named_with_the_search_path(
    tmp_path: Path, shell: str, python: str
) -> None:
    link = ThisMachineLink(tmp_path, shell=shell)
    with pytest.raises(HostProblem) as caught:
        await call(link, ECHO, {}, host="h1", python=python, seconds=20)
    assert str(caught.value).startswith(f"h1: {python} is not installed (PATH /")
    assert "`python` in the pool" in str(caught.value)
    assert caught.value.lasting
    assert isinstance(caught.value, InfraError)


@pytest.mark.parametrize("shell", SHELLS)
async def test_an_interpreter_that_may_not_be_started_is_named(tmp_path: Path, shell: str) -> None:
    (tmp_path / "python").write_text("")
    with pytest.raises(HostProblem, match="python cannot be started"):
        await call(ThisMachineLink(tmp_path, shell=shell), ECHO, {}, python=f"{tmp_path}/python", seconds=20)


@pytest.mark.parametrize(
    "python",
    [
        "",
        "python3; id",
        "py thon",
        "$(id)",
        "`id`",
        "python3\n",
        "-c",
        "p'",
        "a|b",
        "a>b",
        "~root/python",
        "*",
        "!!",
    ],
)
async def test_a_name_that_means_something_to_a_shell_is_not_sent(tmp_path: Path, python: str) -> None:
    link = ThisMachineLink(tmp_path)
    with pytest.raises(HostProblem, match="neither the name nor the path"):
        await call(link, ECHO, {}, python=python, seconds=20)
    assert link.commands == 0


async def test_an_interpreter_below_the_home_may_be_named_with_a_tilde(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    assert await call(ThisMachineLink(tmp_path), ECHO, {}, python="~/python", seconds=20)


@pytest.mark.parametrize(
    ("start_up", "cause"),
    [
        ("exit 0", "login shell ended before"),
        ("exit 3", "exit code 3"),
        ("read line", "something has read the standard input"),
        ("cat >/dev/null", "something has read the standard input"),
        ("echo 'This account is currently not available.'; exit 1", "currently not available"),
        ("kill -9 $$", "ended by a signal"),
        ("exec sleep 100", "no answer in time"),
    ],
)
async def test_start_up_files_that_get_in_the_way_are_blamed(
    tmp_path: Path, start_up: str, cause: str
) -> None:
    shell = script(tmp_path, "shell", f'#!/bin/sh\n{start_up}\nexec sh "$@"\n')
    with pytest.raises(HostProblem, match=cause):
        await call(ThisMachineLink(tmp_path, shell=shell), ECHO, {}, python=sys.executable, seconds=1.5)


async def test_the_last_words_of_a_program_that_fails_are_shown_without_what_controls_a_terminal(
    tmp_path: Path,
) -> None:
    program = (
        "import sys\ndef main(arguments):\n    sys.stderr.write('x' * 100000 + '\\n')\n"
        "    raise RuntimeError('\\x1b[31mred\\x1b[0m\\x07 \\x1b]0;title\\x07alert')\n"
    )
    with pytest.raises(HostProblem) as caught:
        await call(ThisMachineLink(tmp_path), program, {}, python=sys.executable, seconds=20)
    assert "RuntimeError: red alert" in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1500


async def test_a_python_that_cannot_read_the_program_is_too_old(tmp_path: Path) -> None:
    with pytest.raises(HostProblem, match="is too old"):
        await call(ThisMachineLink(tmp_path), "match = =\n", {}, python=sys.executable, seconds=20)


async def test_python_2_is_called_by_its_name(tmp_path: Path) -> None:
    python = script(tmp_path, "python", "#!/bin/sh\necho 'Unknown option: -I' >&2\nexit 2\n")
    with pytest.raises(HostProblem, match="is Python 2"):
        await call(ThisMachineLink(tmp_path), ECHO, {}, python=python, seconds=20)


async def test_a_problem_that_the_host_reports_comes_with_its_remedy(tmp_path: Path) -> None:
    program = 'def main(arguments):\n    return {"problem": "the disk hums", "remedy": "replace it", "lasting": True}\n'
    with pytest.raises(HostProblem) as caught:
        await call(ThisMachineLink(tmp_path), program, {}, host="h1", python=sys.executable, seconds=20)
    assert str(caught.value) == "h1: the disk hums: replace it"
    assert caught.value.lasting


async def test_an_operation_without_its_runtime_says_so(tmp_path: Path) -> None:
    with pytest.raises(HostProblem, match="is not there any more") as caught:
        await ask(
            ThisMachineLink(tmp_path),
            "facts",
            {},
            runtime_dir=f"{tmp_path}/no",
            python=sys.executable,
            seconds=20,
        )
    assert not caught.value.lasting
