from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider.runtime.task import Problem, TaskSpec, TaskValidationError, load_chain_text


@pytest.fixture
def problems() -> Callable[..., tuple[Problem, ...]]:
    """Loads text that must be refused; gives the problems."""

    def load(text: str, **arguments: object) -> tuple[Problem, ...]:
        with pytest.raises(TaskValidationError) as caught:
            load_chain_text(text, **arguments)
        return caught.value.problems

    return load


@pytest.fixture
def problem(problems: Callable[..., tuple[Problem, ...]]) -> Callable[..., Problem]:
    """Loads text with exactly one thing wrong; gives that problem."""

    def load(text: str, **arguments: object) -> Problem:
        found = problems(text, **arguments)
        assert len(found) == 1, found
        return found[0]

    return load


@pytest.fixture
def task() -> Callable[..., TaskSpec]:
    """Loads text with a single task."""

    def load(text: str, **arguments: object) -> TaskSpec:
        (only,) = load_chain_text(text, **arguments).tasks
        return only

    return load
