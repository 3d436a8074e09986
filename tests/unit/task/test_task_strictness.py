"""Nothing that was written is ignored, and every mistake is told, with its place and its remedy."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.task import (
    Problem,
    TaskValidationError,
    chain_from_definitions,
    load_chain_file,
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


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "---\n---\nnull\n", "~"])
def test_an_empty_definition_is_refused(problem, text: str) -> None:
    assert "empty" in problem(text).message


def test_no_dictionaries_are_an_empty_definition() -> None:
    with pytest.raises(TaskValidationError, match="empty"):
        chain_from_definitions([])


@pytest.mark.parametrize("definitions", [{"run": "x"}, "run: x", None])
def test_dictionaries_come_in_a_list(definitions: object) -> None:
    with pytest.raises(TaskValidationError, match="list of definitions"):
        chain_from_definitions(definitions)  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "kind"), [("just text", "text"), ("- run: x", "list"), ("5", "text")])
def test_a_document_that_is_no_mapping_is_refused(problem, text: str, kind: str) -> None:
    assert kind in problem(text).message


def test_a_file_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes("name: a\nrun: ünï\n".encode("latin-1"))
    with pytest.raises(TaskValidationError, match="not UTF-8") as caught:
        load_chain_file(path)
    assert caught.value.problems[0].line == 2


def test_a_utf16_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes("run: x\n".encode("utf-16"))
    with pytest.raises(TaskValidationError, match="not UTF-8"):
        load_chain_file(path)


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: a\r\nrun: |\r\n  one\r\n  two\r\n")
    assert load_chain_file(path).tasks[0].run == "one\ntwo\n"


def test_a_missing_file_and_a_folder_are_problems_with_the_path(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path, f"{tmp_path}/\0"):
        with pytest.raises(TaskValidationError, match="cannot be read") as caught:
            load_chain_file(path)
        assert caught.value.problems[0].source == str(path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("run: 'open", 1),
        ("name: a\nrun: b: c", 2),
        ("name: a\nrun: @x", 2),
        ("name: a\n run: x", 2),
        ("a: [1", 1),
        ('name: a\nrun: "\\q"', 2),
        ('name: a\nrun: "\\UFFFFFFFF"', 2),
        ("run: \x01", 1),
        ("%YAML 3.0\n---\nrun: x", 1),
    ],
)
def test_text_that_is_not_yaml_is_a_problem_with_its_line(problem, text: str, line: int) -> None:
    found = problem(text)
    assert (found.document, found.line) == (1, line)


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system", "!!binary", "!secret", "!!timestamp"])
def test_yaml_tags_are_refused(problem, tag: str) -> None:
    found = problem(f"name: a\nrun: {tag} x")
    assert (found.line, found.path) == (2, "run")
    assert "tags" in found.message


def test_anchors_aliases_and_merge_keys_work(task) -> None:
    loaded = task(
        """\
run: &cmd echo hi
setup: *cmd
resources:
  any_of:
    - &first {cpus: 1, memory: 2}
    - {<<: *first, cpus: 4}
    - <<: [{cpus: 8}, *first]
"""
    )
    assert (loaded.setup, loaded.run) == ("echo hi", "echo hi")
    found = [(c.cpus.amount, c.memory_gb.amount) for c in loaded.resources.candidates]
    assert found == [(1, 2), (4, 2), (8, 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: *nothing", "without its anchor"),
        ("envs: &a {A: *a}", "inside its own anchor"),
        ("run: &a x\nsetup: &a y", "exists already"),
        ("envs: {<<: text}", "<< takes a mapping"),
        ("x: &a {A: b}\nenvs: {<<: *a, <<: *a}", "given twice"),
    ],
)
def test_misused_anchors_are_problems(problems, text: str, message: str) -> None:
    assert any(message in p.message for p in problems(text))


def _bomb(levels: int, width: int) -> str:
    lines = ["l0: &l0 [x]"]
    lines += [f"l{i}: &l{i} [{','.join([f'*l{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        _bomb(30, 10),
        "[" * 500,
        "{a: " * 500,
        "a: &a " + "x" * 200_000 + "\nb: [" + "*a," * 1000 + "]",
        "a: &a {" + ",".join(f"k{i}: 1" for i in range(500)) + "}\nb: {<<: [" + "*a," * 2000 + "]}",
        "envs: {A: '" + "x" * 1_100_000 + "'}",
    ],
    ids=["aliases", "lists", "mappings", "text", "merges", "size"],
)
def test_text_that_grows_or_nests_without_end_is_refused_quickly(problems, text: str) -> None:
    start = time.monotonic()
    found = problems(text)
    assert any("large" in p.message or "nesting" in p.message for p in found)
    assert time.monotonic() - start < 5


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"# " + b"\xff" * 1024 * 1024)
    with pytest.raises(TaskValidationError, match="1 MiB"):
        load_chain_file(path)


def test_dictionaries_that_contain_themselves_are_refused() -> None:
    loop: dict[str, object] = {}
    loop["envs"] = loop
    with pytest.raises(TaskValidationError, match="nesting"):
        task_from_definition(loop)


def test_dictionaries_that_grow_by_sharing_are_refused() -> None:
    shared: list[object] = ["x"]
    for _ in range(30):
        shared = [shared, shared]
    with pytest.raises(TaskValidationError, match="too large"):
        task_from_definition({"envs": shared})


def test_the_other_documents_of_a_broken_file_are_still_checked(problems) -> None:
    found = problems("%YAML 1.1\n---\nrun: @x\n---\nnum_nodes: 0\n---\nenvs: [\n--- # last\nsetup: 1\n")
    assert [(p.document, p.line) for p in found] == [(1, 3), (2, 5), (3, 7), (4, 9)]


def check(error: TaskValidationError) -> None:
    assert error.problems
    assert all(
        isinstance(p, Problem) and p.message and p.remedy and str(p) in str(error) for p in error.problems
    )


ALPHABET = "ab:-{}[]&*!|>'\"%@`#,?<= \n\t\0~.0159$\\é\u2028"
WORDS = [
    "name",
    "envs",
    "run",
    "resources",
    "any_of",
    "<<",
    "&a",
    "*a",
    "---",
    "file_mounts",
    "secrets",
    "null",
]


@given(st.one_of(st.text(), st.text(ALPHABET), st.lists(st.sampled_from([*WORDS, *ALPHABET])).map("".join)))
def test_no_text_makes_the_loader_raise_anything_else(text: str) -> None:
    try:
        load_chain_text(text)
    except TaskValidationError as error:
        check(error)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["A100:8", "4+", "$A", "/a", "s3://b", "aws/x", "16GB"])
    | st.binary(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*WORDS, "cpus", "infra", "labels", "strategy", 1]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "name",
        "num_nodes",
        "workdir",
        "resources",
        "envs",
        "secrets",
        "file_mounts",
        "setup",
        "run",
        "config",
        "x",
    ]
)
RESOURCES = st.sampled_from(
    [
        "infra",
        "cloud",
        "region",
        "cpus",
        "memory",
        "accelerators",
        "job_recovery",
        "labels",
        "any_of",
        "ordered",
    ]
)


@given(st.dictionaries(FIELDS, VALUES, max_size=5), st.dictionaries(RESOURCES, VALUES, max_size=4))
def test_no_dictionary_makes_the_loader_raise_anything_else(
    definition: dict[str, object], resources: dict[str, object]
) -> None:
    for candidate in (definition, {"resources": resources}):
        try:
            task_from_definition(candidate)
        except TaskValidationError as error:
            check(error)
