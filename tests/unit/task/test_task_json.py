"""Records survive JSON unchanged."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider.runtime.task import (
    Candidate,
    Chain,
    GitWorkdir,
    JobRecovery,
    Origin,
    Quantity,
    Resources,
    TaskSpec,
    TaskValidationError,
    load_chain_text,
)

texts = st.text(max_size=10)
amounts = st.floats(min_value=0, max_value=1e12, allow_nan=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | amounts | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
quantities = st.builds(Quantity, amounts, st.booleans())
candidates = st.builds(
    Candidate,
    infra=st.none() | texts,
    cpus=st.none() | quantities,
    memory_gb=st.none() | quantities,
    accelerators=st.dictionaries(texts, amounts, max_size=2),
    use_spot=st.booleans(),
    carried=st.dictionaries(texts, json_values, max_size=2),
)
recoveries = st.builds(
    JobRecovery,
    st.sampled_from(["FAILOVER", "EAGER_NEXT_REGION", "NONE"]),
    st.integers(0, 100),
    st.lists(st.integers(0, 255), max_size=3).map(tuple),
)
specs = st.builds(
    TaskSpec,
    name=texts,
    num_nodes=st.integers(1, 1000),
    resources=st.builds(
        Resources,
        st.lists(candidates, min_size=1, max_size=3).map(tuple),
        st.booleans(),
        recoveries,
        st.integers(-1000, 1000),
    ),
    envs=st.dictionaries(texts, st.none() | texts, max_size=3),
    secrets=st.dictionaries(texts, texts, max_size=3),
    workdir=st.none() | texts,
    git=st.none() | st.builds(GitWorkdir, texts, st.none() | texts),
    file_mounts=st.dictionaries(texts, texts, max_size=3),
    setup=st.none() | texts,
    run=st.none() | texts,
    carried=st.dictionaries(texts, json_values, max_size=2),
    resolved=st.booleans(),
    origin=st.builds(
        Origin,
        texts,
        st.integers(1, 9),
        st.none() | texts,
        st.dictionaries(texts, st.integers(1, 99), max_size=2),
    ),
)
chains = st.builds(Chain, texts, st.lists(specs, max_size=2).map(tuple))


@settings(max_examples=25)
@given(chains)
def test_a_chain_survives_json(chain: Chain) -> None:
    data = json.loads(json.dumps(chain.to_json()))
    again = Chain.from_json(data)
    assert again == chain
    assert [t.origin for t in again.tasks] == [t.origin for t in chain.tasks]
    assert again.to_json() == data


@given(specs)
def test_a_task_survives_json(spec: TaskSpec) -> None:
    again = TaskSpec.from_json(spec.to_json())
    assert again == spec
    assert repr(again) == repr(spec)


def test_the_smaller_records_survive_json_too() -> None:
    for record in (
        Candidate(cpus=Quantity(4, True)),
        Resources(),
        JobRecovery("NONE", 2, (1, 2)),
        Quantity(1.5),
    ):
        assert type(record).from_json(record.to_json()) == record


def test_loaded_values_have_plain_json_types() -> None:
    chain = load_chain_text(
        "envs: {A: 012}\nresources: {cpus: 4+, accelerators: {L4, A100:8}, labels: {a: b}}\n"
    )
    assert Chain.from_json(json.loads(json.dumps(chain.to_json(), allow_nan=False))) == chain


@pytest.mark.parametrize(
    "change", [{"new_field": 1}, {"num_nodes": "many"}, {"resources": {"candidates": [{"x": 1}]}}]
)
def test_a_record_of_another_shape_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a stored TaskSpec"):
        TaskSpec.from_json({**TaskSpec("a").to_json(), **change})


def test_a_refused_record_does_not_show_its_values() -> None:
    with pytest.raises(ValueError, match="envs") as caught:
        TaskSpec.from_json({**TaskSpec("a").to_json(), "envs": {"A": ["private text"]}})
    assert "private text" not in str(caught.value)
    assert caught.value.__context__ is None


def test_records_are_frozen_and_can_be_copied_and_pickled() -> None:
    spec = load_chain_text("envs: {A: 1}").tasks[0]
    with pytest.raises(FrozenInstanceError):
        spec.name = "b"  # type: ignore[misc]
    assert copy.deepcopy(spec) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec  # noqa: S301


def test_the_exception_can_be_pickled() -> None:
    with pytest.raises(TaskValidationError) as caught:
        load_chain_text("num_nodes: 0")
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert again.problems == caught.value.problems
    assert str(again) == str(caught.value)
    assert isinstance(again, ValueError)


def test_where_a_task_was_written_makes_no_difference() -> None:
    assert load_chain_text("run: x", source="a") == load_chain_text("\n\nrun: x", source="b")
