"""Documents, headers, names and order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider.runtime.task import (
    TaskValidationError,
    chain_from_definitions,
    load_chain_file,
    load_chain_text,
    task_from_definition,
)

K59 = """\
name: k59-pipe
---
name: one
run: echo ONE-OUT
---
name: two
run: echo TWO-OUT; exit 4
---
name: three
run: echo THREE-OUT
"""


def names(text: str) -> tuple[str, list[str]]:
    chain = load_chain_text(text)
    return chain.name, [task.name for task in chain.tasks]


def test_k59_a_header_names_the_chain_and_tasks_keep_their_order() -> None:
    assert names(K59) == ("k59-pipe", ["one", "two", "three"])


def test_k59_unnamed_tasks_get_stable_labels() -> None:
    assert names("name: p\n---\nrun: a\n---\nname: b\nrun: b\n---\nrun: c\n") == ("p", ["p-0", "b", "p-2"])


def test_k59_two_tasks_of_one_name_are_refused(problem) -> None:
    found = problem("name: a\nrun: x\n---\nrun: y\n---\nname: a\nrun: z\n")
    assert (found.document, found.line, found.path, found.value) == (3, 6, "name", "'a'")
    assert "document 1" in found.message
    assert "Rename" in found.remedy


def test_a_label_that_is_taken_is_refused_too(problem) -> None:
    assert "already" in problem("name: p\n---\nname: p-1\nrun: a\n---\nrun: b\n").message


def test_k59_a_chain_of_one_document_takes_its_name() -> None:
    assert names("name: solo\nrun: x") == ("solo", ["solo"])


def test_a_single_task_keeps_its_name_beside_that_of_the_header() -> None:
    assert names("name: outer\n---\nname: inner\nrun: x\n") == ("outer", ["inner"])


@pytest.mark.parametrize(
    "text", ["name: only", "name: only\nexecution: serial", "---\n---\nname: only\n---\n"]
)
def test_a_header_alone_is_one_task_without_commands(text: str) -> None:
    chain = load_chain_text(text)
    assert names(text) == ("only", ["only"])
    assert chain.tasks[0].run is None


def test_a_first_task_with_only_a_name_is_the_header() -> None:
    assert names("name: a\n---\nname: b\nrun: x\n---\nname: c\nrun: y\n") == ("a", ["b", "c"])


def test_without_any_name_the_file_gives_it(tmp_path: Path) -> None:
    path = tmp_path / "train (v2).yaml"
    path.write_text("run: a\n---\nrun: b\n", encoding="utf-8")
    chain = load_chain_file(path)
    assert (chain.name, [t.name for t in chain.tasks]) == ("train-v2", ["train-v2-0", "train-v2-1"])
    assert load_chain_file(str(path)) == chain


def test_without_any_name_or_file_it_is_chain() -> None:
    assert names("run: a") == ("chain", ["chain"])
    assert names("run: a\n---\nname: b\nrun: b\n") == ("chain", ["chain-0", "b"])
    assert names("{}") == ("chain", ["chain"])


def test_null_documents_are_skipped() -> None:
    assert names("---\n# nothing\n---\nname: a\nrun: x\n---\n---\nname: b\nrun: y\n...\n")[1] == ["a", "b"]


def test_execution_may_be_serial() -> None:
    assert names("name: p\nexecution: serial\n---\nrun: a\n---\nrun: b\n")[0] == "p"
    assert names("name: p\nexecution:\n---\nrun: a\n---\nrun: b\n")[0] == "p"


@pytest.mark.parametrize("value", ["Serial", "random", "1", "[serial]"])
def test_other_executions_are_refused(problem, value: str) -> None:
    found = problem(f"name: p\nexecution: {value}\n---\nrun: a\n")
    assert (found.path, found.line) == ("execution", 2)
    assert "serial" in found.remedy


def test_job_groups_are_refused_by_name(problems) -> None:
    found = problems(
        "name: g\nexecution: parallel\nprimary_tasks: [a]\n---\nname: a\nrun: x\n---\nname: b\nrun: y\n"
    )
    assert "job groups" in found[0].message
    assert "job groups" in found[1].remedy
    assert "primary_tasks" in found[1].message


def test_execution_in_a_task_is_refused(problem) -> None:
    found = problem("name: a\nexecution: serial\nrun: x\n")
    assert "first document" in found.remedy


def test_an_invalid_name_of_a_chain_is_refused(problem) -> None:
    assert problem("name: a b\n---\nrun: x\n").message == "invalid chain name"


def test_a_list_of_dictionaries_follows_the_same_rules() -> None:
    assert chain_from_definitions(
        [
            {"name": "k59-pipe"},
            {"name": "one", "run": "echo ONE-OUT"},
            {"name": "two", "run": "echo TWO-OUT; exit 4"},
            None,  # type: ignore[list-item]
            {"name": "three", "run": "echo THREE-OUT"},
        ]
    ) == load_chain_text(K59)


def test_a_name_given_in_python_wins_over_the_header() -> None:
    chain = chain_from_definitions([{"name": "h"}, {"run": "a"}, {"run": "b"}], name="mine")
    assert (chain.name, [t.name for t in chain.tasks]) == ("mine", ["mine-0", "mine-1"])
    with pytest.raises(TaskValidationError, match="invalid chain name"):
        chain_from_definitions([{"run": "a"}], name="not mine")


def test_one_dictionary_is_one_task() -> None:
    assert task_from_definition({"name": "a", "run": "x"}).name == "a"
    assert task_from_definition({"name": "a"}).run is None


def test_tasks_must_agree_on_the_priority(problem) -> None:
    assert load_chain_text("resources: {priority: 5}\n---\nrun: x\n---\nresources: {priority: 5}\n")
    found = problem("resources: {priority: 5}\n---\nresources: {priority: 0}\n")
    assert (found.document, found.path, found.value) == (2, "resources.priority", "0")
    assert problem("resources: {priority_class: a}\n---\nresources: {priority_class: b}\n").document == 2


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys; import airflow_provider.runtime.task; "
        "print(sorted({'airflow', 'grpc', 'sqlalchemy', 'paramiko', 'numpy'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
