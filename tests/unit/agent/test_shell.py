"""Scripts behave exactly as under plain bash, and commands that failed unseen are told."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.driver.shell import unseen_failures, write_script

SCRIPTS = {
    "nothing": "",
    "no final newline": "echo one; printf two",
    "quotes": "echo 'single' \"double\" \"it's\" 'say \"hi\"' $'tab\\there'",
    "heredoc": "cat <<'EOF'\n'single' \"double\" `tick` $HOME \\n %s {{braces}} !bang\nEOF\ncat <<EOF\n$((1+1))\nEOF",
    "here string and awk": "awk '{print $1}' <<< 'x y'; awk -v a='{b}' 'BEGIN {print a}'",
    "backticks and dollars": "x=`echo a`; echo $x ${x} $(echo b) \\$x $$x | sed 's/[0-9]//g'",
    "braces of other languages": "echo {{braces}} {a,b} ${HOME:+set} '${{ matrix }}' %s %%",
    "backslashes": "echo a\\\nb; printf '%s\\n' 'c\\d'",
    "carriage returns": "echo one\r\nfalse\r\necho two\r\n",
    "unicode": "echo 'ünï €'; printf '\\x80\\xff\\n'",
    "exit in the middle": "echo one; exit 7; echo two",
    "exit 255": "exit 255",
    "exit 100": "exit 100",
    "last command decides": "false; true",
    "last command fails": "true; false",
    "set -e stops": "set -e; echo one; false; echo two",
    "set -e spares conditions": "set -e; false || true; if false; then :; fi; ! true; echo end",
    "set -e in a function": "set -e; f() { false; echo in; }; f; echo out",
    "set -u stops": "set -u; echo one; echo $nothing_of_that_name; echo two",
    "pipefail": "set -o pipefail; false | true; echo $?; exit 3 | true",
    "no pipefail": "exit 3 | true; echo $? ${PIPESTATUS[0]}",
    "pipestatus after a failure": "true | false | exit 4; echo ${PIPESTATUS[@]}",
    "code after a failure": "(exit 9); echo $?",
    "last argument after a failure": "false foo; echo $_",
    "own exit trap": "trap 'echo bye $?' EXIT; false; exit 5",
    "own err trap": "trap 'echo err $? $LINENO' ERR; false\nfalse; true",
    "own err trap with set -e": "set -e; trap 'echo err $?' ERR; trap 'echo bye $?' EXIT; (exit 6); echo no",
    "own debug trap without failures": "trap 'echo debug' DEBUG; true; echo x",
    "err trap reset": "trap - ERR; false; trap -p ERR; echo end",
    "errtrace": "set -E; f() { false; true; }; f; (false; true); echo $(false; echo sub); echo end",
    "exec": "echo before; exec sh -c 'echo in; exit 4'",
    "exec of a redirection": "exec 2>&1; echo out; echo err >&2; exec 3>/dev/null; echo gone >&3",
    "killed": "echo one; kill -9 $$",
    "terminated": "kill $$",
    "killed in the last command": "sh -c 'kill -9 $$'",
    "tracing": "set -x; false; f() { false; }; f; true",
    "tracing with own prompt": "PS4='+$LINENO ' ; set -x; false\ntrue",
    "syntax error at the end": "echo one\nif true; then",
    "unknown command": "no-such-command-anywhere 2>/dev/null; echo $?",
    "not executable": "/etc/passwd 2>/dev/null; echo $?",
    "functions and locals": "f() { local x=1; return $x; }; f; echo $?; unset -f f",
    "arithmetics": "(( 0 )); echo $?; let x=0; echo $?",
    "changed separators": "IFS=0123456789; false; set -- a1b; echo $1",
    "noglob and noclobber": "set -f; set -C; false; echo *",
    "nounset and failures": "set -u; false; echo ok",
    "posix mode": "set -o posix; false; echo ok",
    "source": "echo 'false; echo sourced; return 3' > s.sh; . ./s.sh; echo $?",
    "child script": "echo 'echo child $- ${BASH_ENV-unset}; false' > c.sh; bash c.sh; echo $?",
    "background and wait": "(sleep 0.01; exit 3) & wait $!; echo $?",
    "process substitution": "cat <(echo in; false); echo $?",
    "subshell code": "(exit 3) && echo no; x=$(exit 4); echo $?",
    "loops": "for i in 1 2 3; do [ $i = 2 ]; done; echo $?; while false; do :; done; until true; do :; done; echo $?",
    "coproc": "coproc cat; echo hi >&${COPROC[1]}; read -r x <&${COPROC[0]}; echo $x",
    "name and arguments": "echo ${0##*/} $# ${BASH_SOURCE##*/}",
    "standard input is empty": "cat; read x; echo $?",
    "a function of the environment": "type -t envfn; echo $BASH_ENV",
}


def run(command: list[str], cwd: Path, **environment: str) -> tuple[int, bytes]:
    cwd.mkdir(exist_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": "/", **environment}
    done = subprocess.run(
        command,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=30,
        check=False,
    )
    return done.returncode, re.sub(rb"line \d+: +\d+ ", b"line N: PID ", done.stdout)


class Ran:
    """What a script did with our prologue and without."""

    def __init__(self, text: str, tmp_path: Path, **environment: str) -> None:
        folder = tmp_path / 'it\'s a "job" $HOME `id` \\ {x} *'
        folder.mkdir()
        self.failures = folder / "failures"
        script, bash_env = write_script(
            folder, "run", text, self.failures, bash_env=environment.get("BASH_ENV")
        )
        assert script.read_bytes() == text.encode()
        command = ["/bin/bash", str(script)]
        self.plain = run(command, tmp_path / "plain", **environment)
        self.ours = run(command, tmp_path / "ours", **{**environment, "BASH_ENV": bash_env})

    @property
    def warning(self) -> str | None:
        return unseen_failures(self.failures)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_does_what_it_does_under_plain_bash(name: str, tmp_path: Path) -> None:
    ran = Ran(SCRIPTS[name], tmp_path)
    assert ran.ours == ran.plain


def test_a_bash_env_of_the_user_is_read_as_ever(tmp_path: Path) -> None:
    own = tmp_path / "it's mine.sh"
    own.write_text("echo from $BASH_ENV\n")
    ran = Ran("echo $BASH_ENV; bash -c 'echo child'; false; true", tmp_path, BASH_ENV=str(own))
    assert ran.ours == ran.plain
    assert b"from" in ran.ours[1]
    assert ran.warning is not None


def test_a_bash_env_that_does_not_exist_is_no_obstacle(tmp_path: Path) -> None:
    ran = Ran("echo $BASH_ENV", tmp_path, BASH_ENV=str(tmp_path / "none"))
    assert ran.ours == ran.plain


def test_values_of_variables_arrive_byte_for_byte(tmp_path: Path) -> None:
    value = "a b'c\"d`e$f\\g\nline2 ünï"
    ran = Ran('printf "%s" "$V"', tmp_path, V=value)
    assert ran.ours == (0, value.encode())


def test_a_script_without_failures_gets_no_warning(tmp_path: Path) -> None:
    assert Ran("true; false || true; if false; then :; fi", tmp_path).warning is None


def test_a_failure_in_the_middle_is_told_with_line_command_and_code(tmp_path: Path) -> None:
    warning = Ran("echo one\npython3 missing.py\necho after", tmp_path).warning
    assert warning is not None
    assert warning.startswith("warning: 1 command(s) failed")
    assert "line 2: `python3 missing.py` exited with 2" in warning
    assert "set -e" in warning


def test_three_failures_are_listed_and_all_are_counted(tmp_path: Path) -> None:
    warning = Ran("\n".join(f"(exit {n})" for n in range(1, 6)) + "\ntrue", tmp_path).warning
    assert warning is not None
    assert "5 command(s)" in warning
    assert warning.count("exited with") == 3
    assert "line 3: `( exit 3 )` exited with 3" in warning


def test_more_than_twenty_failures_are_not_counted_further(tmp_path: Path) -> None:
    ran = Ran("for i in $(seq 5000); do false; done; true", tmp_path)
    assert ran.warning is not None
    assert "20 or more commands" in ran.warning
    assert len(ran.failures.read_text().splitlines()) == 20


def test_failures_in_subshells_do_not_fill_the_disk(tmp_path: Path) -> None:
    ran = Ran("set -E; for i in $(seq 100); do (false; true); done; true", tmp_path)
    assert not ran.failures.exists() or len(ran.failures.read_text().splitlines()) <= 20


def test_of_a_command_of_several_lines_the_first_is_shown(tmp_path: Path) -> None:
    warning = Ran("python3 -c '\nimport sys\nsys.exit(3)\n'\ntrue", tmp_path).warning
    assert warning is not None
    assert "`python3 -c '` exited with 3" in warning


@pytest.mark.parametrize("character", ["\t", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r"])
def test_odd_characters_in_a_command_do_not_confuse_the_warning(character: str, tmp_path: Path) -> None:
    warning = Ran(f"false 'a{character}b'\nfalse two\ntrue", tmp_path).warning
    assert warning is not None
    assert "2 command(s)" in warning


@pytest.mark.parametrize("content", [b"", b"no tabs\n", b"1\t2", b"\xff\t\xfe\t\xfd\n", b"1\t2\tx\n1\t"])
def test_a_spoilt_note_of_failures_never_fails_the_job(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "failures"
    path.write_bytes(content)
    unseen_failures(path)
