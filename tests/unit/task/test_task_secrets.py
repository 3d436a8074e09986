"""Secrets are named, never held, and never shown."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.task import TaskValidationError, load_chain_text, task_from_definition

VALUE = "hunter2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{TOKEN: }", {"TOKEN": "variable:TOKEN"}),
        ("{TOKEN: null}", {"TOKEN": "variable:TOKEN"}),
        ("{TOKEN: 'variable:team/hf-token'}", {"TOKEN": "variable:team/hf-token"}),
        ("{TOKEN: 'connection:hf'}", {"TOKEN": "connection:hf"}),
        ("{TOKEN: 'connection:hf.password'}", {"TOKEN": "connection:hf.password"}),
        ("{TOKEN: 'connection:hf.eu.port'}", {"TOKEN": "connection:hf.eu.port"}),
        ("{TOKEN: 'connection:hf.extra.token'}", {"TOKEN": "connection:hf.extra.token"}),
        ("['secrets:A', 'secrets:B']", {"A": "variable:A", "B": "variable:B"}),
        ("{'secrets:A': null, B: }", {"A": "variable:A", "B": "variable:B"}),
        ("[]", {}),
        ("{}", {}),
    ],
)
def test_references(task, text: str, expected: dict[str, str]) -> None:
    assert task(f"secrets: {text}").secrets == expected


SHOWING = [
    f"secrets: {{TOKEN: {VALUE}}}",
    f"secrets: {{TOKEN: [{VALUE}]}}",
    f"secrets: {{TOKEN: {{a: {VALUE}}}}}",
    f"secrets: {VALUE}",
    f"secrets: [{VALUE}]",
    f"secrets: ['secrets:personal.{VALUE}']",
    f"secrets: ['TOKEN={VALUE}']",
    f"secrets: ['TOKEN: {VALUE}']",
    f"secrets: {{'TOKEN={VALUE}': }}",
    f"secrets: {{'TOKEN={VALUE}': , 'TOKEN={VALUE}': }}",
    f"secrets: {{TOKEN: {VALUE}, TOKEN: {VALUE}}}",
    f"secrets: {{'secrets:TOKEN': {VALUE}}}",
    f"secrets: {{TOKEN: 'connection:hf.{VALUE}'}}",
    f"secrets: {{TOKEN: 'variable: {VALUE}'}}",
    f"secrets: {{TOKEN: *{VALUE}}}",
    f"secrets: {{TOKEN: !{VALUE} x}}",
    f"secrets: {{TOKEN: !{VALUE}!x x}}",
    f"secrets: {{TOKEN: @{VALUE}}}",
    f"secrets: {{TOKEN: %{VALUE}}}",
    f"secrets: {{TOKEN: '{VALUE}",
    f"secrets:\n  TOKEN: {VALUE}: x",
    f"secrets:\n  TOKEN: {VALUE}\n  - a",
    f'secrets: {{TOKEN: "{VALUE}\\0"}}',
    f"secret: {{TOKEN: {VALUE}}}",
    f"secret: {{'TOKEN={VALUE}': 1, 'TOKEN={VALUE}': 1}}",
    f"resources: {{secrets: {{TOKEN: {VALUE}}}}}",
    f"- {VALUE}",
    VALUE,
]


@pytest.mark.parametrize("text", SHOWING)
def test_a_value_is_refused_and_shown_nowhere(text: str) -> None:
    with pytest.raises(TaskValidationError) as caught:
        load_chain_text(text)
    for shown in (str(caught.value), repr(caught.value), repr(caught.value.problems)):
        assert VALUE not in shown
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_the_remedy_tells_where_a_value_belongs(problem) -> None:
    found = problem(f"secrets:\n  TOKEN: {VALUE}\n")
    assert (found.path, found.line, found.value) == ("secrets.TOKEN", 2, None)
    assert "connection:<id>" in found.remedy
    assert "variable TOKEN" in found.remedy


@pytest.mark.parametrize("value", [VALUE, 12345, True, b"hunter2", [VALUE]])
def test_values_in_dictionaries_and_overrides_are_refused_too(value: object) -> None:
    for load in (
        lambda: task_from_definition({"secrets": {"TOKEN": value}}),
        lambda: task_from_definition({"run": "x"}, secrets={"TOKEN": value}),  # type: ignore[dict-item]
        lambda: task_from_definition({"run": "x"}).resolve(secrets={"TOKEN": value}),  # type: ignore[dict-item]
    ):
        with pytest.raises(TaskValidationError) as caught:
            load()
        assert VALUE not in str(caught.value)
        assert "12345" not in str(caught.value)


def test_overrides_carry_references() -> None:
    loaded = task_from_definition({"secrets": {"A": None}}, secrets={"A": "connection:c", "B": None})
    assert loaded.secrets == {"A": "connection:c", "B": "variable:B"}
    assert loaded.resolve(secrets={"B": "variable:b"}).secrets == {"A": "connection:c", "B": "variable:b"}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{A: , 'secrets:A': }", "twice"),
        ("['secrets:A', 'secrets:A']", "twice"),
        ("{'secrets:A': 'variable:a'}", "takes no value"),
        ("{1A: }", "not a valid name"),
        ("['secrets:workspace.A']", "not a valid name"),
        ("[A]", "references only"),
        ("{A: 'connection:c.pasword'}", "not a valid reference"),
        ("{A: 'connection:'}", "not a valid reference"),
        ("{A: 'variable:'}", "not a valid reference"),
        ("{A: 'Variable:a'}", "must not be written"),
        ("5", "must be a mapping"),
    ],
)
def test_wrong_references(problem, text: str, word: str) -> None:
    assert word in problem(f"secrets: {text}").message


def test_a_name_is_a_variable_or_a_secret_not_both(problem) -> None:
    found = problem("envs: {A: 1}\nsecrets: {A: }\n")
    assert found.path == "envs.A"
    assert "also a secret" in found.message
    assert "also a secret" in problem("secrets: {A: }", envs={"A": "1"}).message


USER, PASSWORD, SERVER = (f"SKYPILOT_DOCKER_{part}" for part in ("USERNAME", "PASSWORD", "SERVER"))


def test_a_docker_login_is_whole_and_in_one_place(task, problem) -> None:
    assert len(task(f"envs: {{{USER}: a, {PASSWORD}: b, {SERVER}: c}}").envs) == 3
    assert len(task(f"secrets: {{{USER}: , {PASSWORD}: , {SERVER}: }}").secrets) == 3
    assert "split" in problem(f"envs: {{{USER}: a, {SERVER}: c}}\nsecrets: {{{PASSWORD}: }}").message
    assert PASSWORD in problem(f"envs: {{{USER}: a, {SERVER}: c}}").message
    assert "lacks" in problem(f"secrets: {{{USER}: }}").message
