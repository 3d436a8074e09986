"""Text that is no definition, or not even YAML; and that nothing else than TaskValidationError comes of it."""

from __future__ import annotations

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
def test_text_that_grows_or_nests_without_end_is_refused(problems, text: str) -> None:
    """Before it is unfolded: nobody would see the end of that."""
    found = problems(text)
    assert any("large" in p.message or "nesting" in p.message for p in found)


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
