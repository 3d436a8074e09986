"""Environment values and commands reach the task exactly as they were written."""

from __future__ import annotations

import enum
from pathlib import Path

import pytest

from airflow_provider.runtime.task import (
    TaskValidationError,
    chain_from_definitions,
    load_chain_file,
    load_chain_text,
    task_from_definition,
)

K56 = """\
name: k56
envs:
  COUNTRY: NO
  SWITCH: on
  PORTMODE: 012
  PYVER: 3.10
  CLOCK: 12:30:45
  DAY: 2024-02-30
  BIG: 12345678901234567890
  SCI: 1e3
  TRUEISH: true
  EMPTY: ""
run: printf '%s|' "$COUNTRY" "$SWITCH" "$PORTMODE" "$PYVER" "$CLOCK" "$BIG" "$SCI" "$TRUEISH" "$EMPTY"
"""

K56_ENVS = {
    "COUNTRY": "NO",
    "SWITCH": "on",
    "PORTMODE": "012",
    "PYVER": "3.10",
    "CLOCK": "12:30:45",
    "DAY": "2024-02-30",
    "BIG": "12345678901234567890",
    "SCI": "1e3",
    "TRUEISH": "true",
    "EMPTY": "",
}


def test_k56_values_are_the_text_that_was_written(task) -> None:
    assert task(K56).envs == K56_ENVS


def test_k56_file_text_and_dictionary_give_the_same_chain(tmp_path: Path) -> None:
    path = tmp_path / "k56.yaml"
    path.write_text(K56, encoding="utf-8")
    from_file = load_chain_file(path)
    command = from_file.tasks[0].run
    assert from_file == load_chain_text(K56)
    assert from_file == chain_from_definitions([{"name": "k56", "envs": K56_ENVS, "run": command}])


@pytest.mark.parametrize(
    "text", ["=", "<<", "1_000", "0x1F", ".inf", "~x", "é", "2024-02-28", "Null!", "yes", "1."]
)
def test_k56_unusual_plain_values_stay_text(task, text: str) -> None:
    assert task(f"envs:\n  A: {text}\n").envs == {"A": text}


@pytest.mark.parametrize("text", ["", "~", "null", "NULL", "!!null ''"])
def test_null_is_a_value_that_must_still_be_given(task, text: str) -> None:
    assert task(f"envs:\n  A: {text}\n").envs == {"A": None}


@pytest.mark.parametrize("text", ["'null'", '"null"', "!!str null"])
def test_quoted_null_is_text(task, text: str) -> None:
    assert task(f"envs:\n  A: {text}\n").envs == {"A": "null"}


def test_a_lone_equals_sign_in_other_places_does_not_stop_the_loader(task, problem) -> None:
    assert task("run: =").run == "="
    assert problem("num_nodes: =").path == "num_nodes"


class Flavour(str, enum.Enum):
    SWEET = "sweet"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a b", "a b"),
        ("", ""),
        (12, "12"),
        (-3, "-3"),
        (True, "true"),
        (False, "false"),
        (0.1, "0.1"),
        (1e3, "1000.0"),
        (float("nan"), "nan"),
        (None, None),
        (Flavour.SWEET, "sweet"),
        (Path("/data/x"), "/data/x"),
    ],
)
def test_python_values_become_text(value: object, text: str | None) -> None:
    assert task_from_definition({"envs": {"A": value}}).envs == {"A": text}


@pytest.mark.parametrize("value", [[1], {"a": 1}, b"x", {1, 2}, object(), 10**200])
def test_python_values_without_a_text_are_refused(value: object) -> None:
    with pytest.raises(TaskValidationError) as caught:
        task_from_definition({"envs": {"A": value}})
    assert caught.value.problems[0].path == "envs.A"
    assert caught.value.problems[0].line is None


@pytest.mark.parametrize("value", ["[a]", "{a: b}", "\n    - a"])
def test_a_list_or_mapping_is_not_a_value(problem, value: str) -> None:
    found = problem(f"envs:\n  A: {value}\n")
    assert (found.path, found.line) == ("envs.A", 2)
    assert "single value" in found.message


@pytest.mark.parametrize(("value", "word"), [('"a\\0b"', "NUL"), ('"\\ud800"', "surrogate")])
def test_characters_that_no_environment_can_hold_are_refused(problem, value: str, word: str) -> None:
    assert word in problem(f"envs:\n  A: {value}\n").message
    assert word in problem(f"run: {value}\n").message


@pytest.mark.parametrize("name", ["1A", "A-B", "A B", "A.B", "é", "''"])
def test_names_that_no_shell_accepts_are_refused(problem, name: str) -> None:
    assert "not a valid name" in problem(f"envs:\n  {name}: x\n").message


def test_variables_of_the_runtime_may_be_replaced_by_the_user(task) -> None:
    assert task("envs: {SKYPILOT_NODE_IPS: 10.0.0.1}").envs == {"SKYPILOT_NODE_IPS": "10.0.0.1"}


COMMANDS = """\
cat <<'EOF' > "/tmp/k60 dir.txt"
'single' "double" `tick` $HOME \\n %s {{braces}} !bang
\ttab
EOF
printf '%s' "$V" | sha256sum; awk '{print $1}' <<< "x y"
"""


def test_k60_commands_are_kept_byte_for_byte(task) -> None:
    indented = "".join(f"  {line}" for line in COMMANDS.splitlines(keepends=True))
    loaded = task(f"name: k60\nsetup: |\n{indented}run: |\n{indented}")
    assert loaded.run == COMMANDS
    assert loaded.setup == COMMANDS
    assert loaded == task_from_definition({"name": "k60", "setup": COMMANDS, "run": COMMANDS})


def test_k60_environment_values_keep_quotes_and_line_breaks(task) -> None:
    loaded = task('envs: {V: "a b\'c\\"d`e$f\\\\g\\nline2 ünï"}')
    assert loaded.envs == {"V": "a b'c\"d`e$f\\g\nline2 ünï"}


def test_k60_a_name_with_spaces_is_refused_with_one_that_would_do(problem) -> None:
    found = problem('name: "k60 it\'s"\nrun: hostname\n')
    assert found.message == "invalid task name"
    assert found.value == '"k60 it\'s"'
    assert "k60-it-s" in found.remedy


@pytest.mark.parametrize("run", ["[echo a, echo b]", "{cmd: x}"])
def test_commands_are_one_text(problem, run: str) -> None:
    assert "shell commands" in problem(f"run: {run}").message


def test_a_command_that_yaml_takes_for_a_boolean_needs_quotes(problem, task) -> None:
    assert problem("run: true").remedy == 'Put it in quotes: "true"'
    assert task("run: 'true'").run == "true"


def test_a_python_function_is_no_command() -> None:
    with pytest.raises(TaskValidationError, match="commands are shell text"):
        task_from_definition({"run": lambda: None})


def test_no_commands_at_all_are_allowed(task) -> None:
    loaded = task("name: idle\nsetup:\nrun: null\n")
    assert (loaded.setup, loaded.run) == (None, None)
