"""State to JSON and back, for the state store."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from airflow_provider.runtime.control.events import Outcome
from airflow_provider.runtime.control.machine import State, Step
from airflow_provider.runtime.control.status import Status


def state_to_json(state: State) -> dict[str, Any]:
    """Return JSON scalars, lists and string-keyed dictionaries."""
    outcome = None if state.outcome is None else dict(vars(state.outcome))
    return {**vars(state), "outcome": outcome}


def state_from_json(data: dict[str, Any]) -> State:
    """Build from what ``state_to_json`` returned, also by another version.

    Keys that this version does not know are left out, keys that it misses have their defaults.
    """
    values = _known(State, data)
    for name, kind in (("status", Status), ("step", Step), ("after_wait", Step)):
        if name in values:
            values[name] = kind(values[name])
    if values.get("outcome") is not None:
        outcome = _known(Outcome, values["outcome"])
        outcome["status"] = Status(outcome["status"])
        for name in ("exit_codes", "last_lines"):
            outcome[name] = tuple(outcome.get(name, ()))
        values["outcome"] = Outcome(**outcome)
    return State(**values)


def _known(kind: type[State] | type[Outcome], data: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in data.items() if name in names}
