"""Names of jobs as parts of paths (K42)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.agent.jobs.names import safe_name

HARMLESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,59}")

AWKWARD = [
    "Größe.campaña_🚀", "a" * 300, "..", "../../etc", "-x", "x-", "a b", "", ".", "/", "con\0", "\n", "~", "\udcff",
]  # fmt: skip


@pytest.mark.parametrize("name", ["train", "a___b", "con", "v1.2", "123"])
def test_a_harmless_name_stays_as_it_is(name: str) -> None:
    assert safe_name(name) == name


@pytest.mark.parametrize("name", AWKWARD)
def test_k42_an_awkward_name_becomes_one_harmless_part_of_a_path(name: str) -> None:
    assert HARMLESS.fullmatch(safe_name(name))


@given(st.text())
def test_k42_any_name_becomes_one_harmless_part_of_a_path(name: str) -> None:
    assert HARMLESS.fullmatch(safe_name(name))


@given(st.text(max_size=80), st.text(max_size=80))
def test_k42_different_names_stay_different(one: str, other: str) -> None:
    assert (safe_name(one) == safe_name(other)) == (one == other)


def test_k42_names_that_differ_after_the_limit_stay_different() -> None:
    assert safe_name("a" * 80 + "b") != safe_name("a" * 80 + "c")
