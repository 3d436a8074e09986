"""From a loaded task to one that can run: overrides, values that must be there, local paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.task import (
    TaskSpec,
    TaskValidationError,
    chain_from_definitions,
    load_chain_file,
    load_chain_text,
    task_from_definition,
)
from airflow_provider.runtime.task.substitute import substitute


def refusal(task: TaskSpec, **overrides: object) -> list[tuple[str, str]]:
    with pytest.raises(TaskValidationError) as caught:
        task.resolve(**overrides)  # type: ignore[arg-type]
    return [(p.path, p.message) for p in caught.value.problems]


def test_overrides_of_the_loader_reach_every_task_and_win() -> None:
    chain = load_chain_text("envs: {A: 1, B: 2}\n---\nrun: x\n", envs={"A": "9", "C": "3"})
    assert [t.envs for t in chain.tasks] == [{"A": "9", "B": "2", "C": "3"}, {"A": "9", "C": "3"}]


def test_overrides_at_run_time_win_over_those_of_the_loader() -> None:
    task = task_from_definition({"envs": {"A": None}}, envs={"A": "1"})
    assert task.with_overrides(envs={"A": "2", "B": ""}).envs == {"A": "2", "B": ""}
    assert task.envs == {"A": "1"}


def test_wrong_overrides_are_told_once(problem) -> None:
    found = problem("run: x\n---\nrun: y\n", envs={"A-B": "1"})
    assert found.path == "envs.A-B"


def test_a_null_value_is_fine_until_the_task_is_resolved() -> None:
    task = task_from_definition({"envs": {"A": None, "B": "x", "C": None}})
    assert task.envs["A"] is None
    assert [path for path, _ in refusal(task)] == ["envs.A", "envs.C"]
    assert task.resolve(envs={"A": "", "C": "c"}).envs == {"A": "", "B": "x", "C": "c"}


def test_a_problem_at_run_time_still_names_file_document_and_line(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("name: c\n---\nrun: x\nenvs:\n  A:\nworkdir: nowhere\n", encoding="utf-8")
    stored = TaskSpec.from_json(load_chain_file(path).tasks[0].to_json())
    with pytest.raises(TaskValidationError) as caught:
        stored.resolve()
    found = [(p.source, p.document, p.line, p.path) for p in caught.value.problems]
    assert found == [(str(path), 2, 5, "envs.A"), (str(path), 2, 6, "workdir")]
    with pytest.raises(TaskValidationError) as caught:
        stored.resolve(envs={"A": "1"}, workdir="elsewhere")
    (problem,) = caught.value.problems
    assert problem.line is None
    assert problem.value is not None
    assert problem.value.startswith(repr(str(tmp_path))[:20])


def test_resolving_twice_changes_nothing_and_overriding_late_is_refused() -> None:
    resolved = task_from_definition({"envs": {"A": "1"}}).resolve()
    assert resolved.resolved
    assert resolved.resolve() is resolved
    with pytest.raises(ValueError, match="resolved already"):
        resolved.resolve(envs={"A": "2"})


def test_paths_start_from_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "code it's").mkdir()
    (tmp_path / "data").write_text("x", encoding="utf-8")
    path = tmp_path / "a.yaml"
    path.write_text('workdir: "code it\'s"\nfile_mounts: {/in: ./data}\n', encoding="utf-8")
    resolved = load_chain_file(path).tasks[0].resolve()
    assert resolved.workdir == str(tmp_path / "code it's")
    assert resolved.file_mounts == {"/in": str(tmp_path / "data")}
    as_dict = {"name": "a", "workdir": "code it's", "file_mounts": {"/in": Path("data")}}
    assert task_from_definition(as_dict, base_dir=tmp_path).resolve() == resolved


def test_a_relative_file_name_gives_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text("workdir: .\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    task = load_chain_file("a.yaml").tasks[0]
    monkeypatch.chdir("/")
    assert task.resolve().workdir == str(tmp_path)


def test_the_home_folder_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "w").mkdir()
    task = task_from_definition({"workdir": "~/w", "file_mounts": {"~/x": "~"}})
    assert task.resolve().workdir == str(tmp_path / "w")
    assert task.resolve().file_mounts == {"~/x": str(tmp_path)}
    assert refusal(task_from_definition({"workdir": "~no-such-user-here/w"}))[0][0] == "workdir"


def test_a_relative_path_needs_a_folder_to_start_from() -> None:
    assert "no folder to start from" in refusal(task_from_definition({"workdir": "x"}))[0][1]


def test_a_workdir_must_be_a_folder_and_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "broken").symlink_to("gone")
    (tmp_path / "file").write_text("x", encoding="utf-8")

    def task(name: str) -> TaskSpec:
        return task_from_definition({"workdir": name}, base_dir=tmp_path)

    assert task("link").resolve().workdir == str(tmp_path / "link")
    for wrong in ("broken", "file", "gone", "x" * 300):
        assert refusal(task(wrong)) == [("workdir", "the folder does not exist")]
    assert task("gone").resolve(workdir="real").workdir == str(tmp_path / "real")


def test_a_source_must_exist(tmp_path: Path) -> None:
    task = task_from_definition({"file_mounts": {"/a": "gone", "/b": "."}}, base_dir=tmp_path)
    assert refusal(task) == [('file_mounts["/a"]', "source does not exist locally")]


@pytest.mark.parametrize("workdir", ["https://x/y.git", "", " ", 5, "a\0b"])
def test_wrong_folders_at_run_time_are_refused(workdir: object) -> None:
    assert refusal(task_from_definition({"run": "x"}), workdir=workdir)[0][0] == "workdir"


@pytest.mark.parametrize(
    ("mount", "word"),
    [
        ("{data: x}", "absolute"),
        ("{./data: x}", "absolute"),
        ("{'~': x}", "absolute"),
        ("{'~root/x': x}", "absolute"),
        ("{'': x}", "absolute"),
        ("{/data/: x}", "end in /"),
        ("{/: x}", "end in /"),
        ("{/a/../b: x}", ".."),
        ("{/a//b: x}", "//"),
        ("{'s3://b/x': /x}", "URL"),
        ("{/data: 's3://bucket/x'}", "URL"),
        ("{/data: 'https://acc.blob.core.windows.net/c'}", "URL"),
        ("{/data: {name: bucket, mode: MOUNT}}", "storage is not supported yet"),
        ("{/data: {source: s3://b}}", "storage is not supported yet"),
        ("{/data: [a, b]}", "must be text"),
        ("{/data: }", "must be text"),
        ("{/data: ''}", "empty"),
        ("{/data: 5}", "must be text"),
        ('{"/a\\0b": x}', "NUL"),
    ],
)
def test_wrong_mounts(problems, mount: str, word: str) -> None:
    found = problems(f"file_mounts: {mount}")[0]
    assert word in found.message
    assert found.remedy


def test_a_mount_must_not_lie_over_the_workdir(problem, task, tmp_path: Path) -> None:
    assert "workdir" in problem("workdir: .\nfile_mounts: {~/sky_workdir: x}").message
    alone = task("file_mounts: {~/sky_workdir: .}", base_dir=tmp_path)
    assert alone.resolve().file_mounts == {"~/sky_workdir": str(tmp_path)}
    assert "workdir" in refusal(alone, workdir=".")[0][1]


def test_variables_are_replaced_in_paths_only(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    text = """\
envs: {V: v1, W: $V}
workdir: $V
file_mounts:
  /data/${V}/$UNKNOWN: ${V}
setup: echo $V
run: echo ${V}
resources: {labels: {a: $V}}
"""
    task = load_chain_text(text, base_dir=tmp_path).tasks[0]
    assert (task.workdir, task.file_mounts) == ("$V", {"/data/${V}/$UNKNOWN": "${V}"})
    resolved = task.resolve()
    assert resolved.workdir == str(tmp_path / "v1")
    assert resolved.file_mounts == {"/data/v1/$UNKNOWN": str(tmp_path / "v1")}
    assert (resolved.setup, resolved.run) == ("echo $V", "echo ${V}")
    assert resolved.envs == {"V": "v1", "W": "$V"}
    assert resolved.resources == task.resources


def test_overrides_come_before_substitution(tmp_path: Path) -> None:
    (tmp_path / "late").mkdir()
    task = task_from_definition({"envs": {"V": None}, "workdir": "$V"}, base_dir=tmp_path)
    assert refusal(task) == [("envs.V", "the environment variable has no value")]
    assert task.resolve(envs={"V": "late"}).workdir == str(tmp_path / "late")
    assert task.resolve(envs={"V": "x"}, workdir="late").workdir == str(tmp_path / "late")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$X", "1"),
        ("${X}", "1"),
        ("a$X/b", "a1/b"),
        ("$X}", "1}"),
        ("${X", "${X"),
        ("$XY", "$XY"),
        ("${XY}z", "${XY}z"),
        ("${X:-d}", "${X:-d}"),
        ("$$X", "$1"),
        ("$1", "$1"),
        ("$D", "$X"),
        ("$Q", '"}, "evil": "\\b'),
    ],
)
def test_substitution(text: str, expected: str) -> None:
    assert substitute(text, {"X": "1", "D": "$X", "Q": '"}, "evil": "\\b'}) == expected


@given(st.text(), st.text())
def test_a_value_is_put_in_as_it_is(value: str, around: str) -> None:
    plain = around.replace("$", "")
    assert substitute(f"{plain}${{X}}{plain}", {"X": value}) == plain + value + plain


def test_a_value_cannot_bring_in_what_may_not_be_written(tmp_path: Path) -> None:
    def task(value: str) -> TaskSpec:
        return task_from_definition({"envs": {"V": value}, "file_mounts": {"/a/$V": "."}}, base_dir=tmp_path)

    assert ".." in refusal(task("../etc"))[0][1]
    assert "end in /" in refusal(task("x/"))[0][1]
    source = task_from_definition({"envs": {"V": "s3://b"}, "file_mounts": {"/a": "$V"}})
    assert "URL" in refusal(source)[0][1]


def test_two_mounts_must_not_end_up_at_one_place(tmp_path: Path) -> None:
    task = task_from_definition(
        {"envs": {"V": "x"}, "file_mounts": {"/$V": ".", "/x": "."}}, base_dir=tmp_path
    )
    assert "two mounts" in refusal(task)[0][1]


def test_paths_cannot_refer_to_secrets(problem) -> None:
    for text in ("workdir: /a/$TOKEN", "file_mounts: {/$TOKEN: x}", "file_mounts: {/x: '${TOKEN}'}"):
        assert "TOKEN is a secret" in problem(f"secrets: {{TOKEN: }}\n{text}\n").message
    late = task_from_definition({"workdir": "/$TOKEN"})
    assert "TOKEN is a secret" in refusal(late, secrets={"TOKEN": None})[0][1]


def test_a_chain_of_dictionaries_takes_overrides() -> None:
    chain = chain_from_definitions([{"run": "a"}, {"run": "b"}], envs={"A": "1"}, secrets={"B": None})
    assert all(t.envs == {"A": "1"} and t.secrets == {"B": "variable:B"} for t in chain.tasks)
