"""Nothing that was written is ignored, and every mistake is told, with its place and its remedy."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.task import (
    TaskValidationError,
    chain_from_definitions,
    load_chain_text,
    task_from_definition,
)


def test_k58_all_mistakes_of_all_documents_are_listed_in_one_go(problems) -> None:
    found = problems(
        """\
name: first
num_workers: 2
env: {A: 1}
accelerator: A100:1
use_spot: true
resources:
  run: echo hi
envs: {A: 1}
envs: {B: 2}
---
name: second
resources:
\tcpus: 2
---
name: third
num_nodes: "2"
""",
        source="k58.yaml",
    )
    assert [(p.document, p.line, p.path) for p in found] == [
        (1, 2, "num_workers"),
        (1, 3, "env"),
        (1, 4, "accelerator"),
        (1, 5, "use_spot"),
        (1, 7, "resources.run"),
        (1, 9, "envs"),
        (2, 13, ""),
        (3, 16, "num_nodes"),
    ]
    assert {p.source for p in found} == {"k58.yaml"}
    assert all(p.message and p.remedy for p in found)
    remedies = [p.remedy for p in found]
    assert remedies[0] == "Did you mean num_nodes?"
    assert remedies[1] == "Did you mean envs?"
    assert remedies[2] == "Did you mean resources.accelerators?"
    assert "below resources" in remedies[3]
    assert "top level" in remedies[4]
    assert found[5].message == "given twice, first on line 8"
    assert remedies[6] == "Indent with spaces"
    assert found[7].value == "'2'"


def test_k58_the_exception_reads_as_one_block() -> None:
    with pytest.raises(TaskValidationError) as caught:
        load_chain_text("name: a b\nnum_nodes: 0\n", source="k58.yaml")
    assert str(caught.value).splitlines() == [
        "The task definition has 2 problems:",
        "  - k58.yaml, document 1, line 1: name = 'a b': invalid task name. "
        "Use letters and digits, with one or two of . _ - between them, for example a-b.",
        "  - k58.yaml, document 1, line 2: num_nodes = 0: must be a whole number of at least 1. "
        "Change the number.",
    ]


@pytest.mark.parametrize("value", ['"2"', "0", "-1", "2.5", "true", "010", "1_0", "2x", "[2]", "2.0", "0x2"])
def test_k58_num_nodes_is_a_positive_whole_number_and_nothing_else(problem, value: str) -> None:
    found = problem(f"num_nodes: {value}")
    assert (found.path, found.line) == ("num_nodes", 1)
    assert "at least 1" in found.message


@pytest.mark.parametrize("value", ["2", 0, -1, 2.5, True, [2], 2.0])
def test_k58_the_same_holds_for_dictionaries(value: object) -> None:
    with pytest.raises(TaskValidationError) as caught:
        chain_from_definitions([{"name": "h"}, {"run": "x"}, {"num_nodes": value}])
    (found,) = caught.value.problems
    assert (found.source, found.document, found.line, found.path) == ("<definition>", 3, None, "num_nodes")


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("resource: {cpus: 1}", "resources"),
        ("Run: x", "run"),
        ("num-nodes: 2", "num_nodes"),
        ("comand: x", "run"),
        ("setpu: x", "setup"),
        ("acelerators: A100", "resources.accelerators"),
        ("resources: {cpu: 1}", "resources.cpus"),
        ("resources: {memroy: 1}", "resources.memory"),
        ("resources: {any_off: [{}]}", "resources.any_of"),
        ("resources: {num_node: 1}", "num_nodes"),
        ("resources: {job_recovery: {stratgy: x}}", "strategy"),
    ],
)
def test_k58_unknown_fields_come_with_a_close_match(problem, text: str, suggestion: str) -> None:
    found = problem(text)
    assert "unknown field" in found.message
    assert f"Did you mean {suggestion}?" in found.remedy


def test_k58_an_unknown_field_without_a_close_match_comes_with_what_is_known(problem) -> None:
    assert "num_nodes" in problem("zzz: 1").remedy


@pytest.mark.parametrize(
    "text", ["infra: local", "cpus: 4", "any_of: []", "job_recovery: none", "gpus: A100"]
)
def test_k58_resources_at_the_top_level_are_sent_below_resources(problem, text: str) -> None:
    assert "below resources" in problem(text).remedy


@pytest.mark.parametrize("text", ["setup: x", "envs: {}", "num_nodes: 2", "workdir: ."])
def test_k58_task_fields_below_resources_are_sent_to_the_top(problem, text: str) -> None:
    assert "top level" in problem(f"resources: {{{text}}}").remedy


def test_k58_keys_given_twice_are_found_at_every_level(problems) -> None:
    found = problems("resources:\n  cpus: 1\n  any_of:\n    - {cpus: 1, 'cpus': 2}\nenvs:\n  A: 1\n  A: 1\n")
    assert [(p.line, p.path) for p in found] == [(4, "resources.any_of[0].cpus"), (7, "envs.A")]


def test_k58_equal_keys_of_a_dictionary_are_found_too() -> None:
    with pytest.raises(TaskValidationError, match="given twice"):
        task_from_definition({"envs": {True: "a", "true": "b"}})


REFUSED = [
    "service: {replicas: 2}",
    "pool: {workers: 1}",
    "volumes: {/mnt: data}",
    "volume_mounts: [a]",
    "managed_secrets: [a]",
    "event_callback: echo",
    "config: {docker: {run_options: x}}",
    "inputs: {s3://a: 1}",
    "outputs: {s3://a: 1}",
    "file_mounts_mapping: {a: b}",
    "_metadata: {a: b}",
    "resources: {instance_type: m5.large}",
    "resources: {image_id: docker:ubuntu}",
    "resources: {ports: 8080}",
    "resources: {volumes: [{path: /a}]}",
    "resources: {accelerator_args: {tpu_vm: true}}",
    "resources: {local_disk: nvme}",
    "resources: {autostop: 5}",
    "resources: {hooks: [{run: x}]}",
    "resources: {any_of: [{image_id: x}]}",
    "autostop: true",
    "resources: {service: {a: b}}",
]


@pytest.mark.parametrize("text", REFUSED)
def test_fields_that_cannot_be_honoured_are_refused_by_name(problem, text: str) -> None:
    found = problem(text)
    assert "is not supported yet by this version" in found.message
    assert found.path.rpartition(".")[2] in found.message
    assert found.remedy


@pytest.mark.parametrize(
    "text", ["service:", "config: {}", "volumes: null", "resources: {ports: null, volumes: []}"]
)
def test_fields_that_ask_for_nothing_are_no_problem(task, text: str) -> None:
    assert task(f"name: a\nrun: x\n{text}\n") == task("name: a\nrun: x\n")


@pytest.mark.parametrize(
    "field", ["num_nodes", "resources", "envs", "secrets", "workdir", "file_mounts", "name"]
)
def test_null_means_not_set(task, field: str) -> None:
    assert task(f"run: x\n{field}:\n") == task("run: x\n")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("name: 12", "name"),
        ("name: NO", "name"),
        ("name: [a]", "name"),
        ("name: ''", "name"),
        ("workdir: 1", "workdir"),
        ("workdir: [a]", "workdir"),
        ("envs: [A=1]", "envs"),
        ("envs: A=1", "envs"),
        ("file_mounts: [/a]", "file_mounts"),
        ("resources: A100:8", "resources"),
        ("resources: [{cpus: 1}]", "resources"),
        ("setup: 5", "setup"),
        ("api_server_access: 'yes'", "api_server_access"),
        ("resources: {use_spot: 'true'}", "resources.use_spot"),
        ("resources: {use_spot: 1}", "resources.use_spot"),
    ],
)
def test_a_wrong_type_is_told_with_its_field(problem, text: str, path: str) -> None:
    found = problem(text + "\nrun: x\n")
    assert (found.path, found.line) == (path, 1)
    assert "must" in found.message


@pytest.mark.parametrize("name", ["a", "A1", "a-b", "a__b", "a._b", "x.y_z-1", "012", "2024-01-01"])
def test_valid_names(task, name: str) -> None:
    assert task(f"name: {name}\nrun: x").name == name


@pytest.mark.parametrize("name", ["-a", "a-", "a---b", "a b", "a/b", "ä", r"a\n"])
def test_invalid_names(problem, name: str) -> None:
    assert problem(f'name: "{name}"\nrun: x').message == "invalid task name"


def test_an_unquoted_template_is_explained(problems) -> None:
    found = problems("run: x\nworkdir: {{ folder }}\n")[0]
    assert found.line == 2
    assert "{{" in found.remedy
