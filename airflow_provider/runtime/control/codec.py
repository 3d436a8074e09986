"""State to JSON and back, for the state store."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from airflow_provider.runtime.control.events import Outcome
from airflow_provider.runtime.control.machine import State, Step
from airflow_provider.runtime.control.status import Status


def state_to_json(state: State) -> dict[str, Any]:
    """Return JSON scalars, lists and string-keyed dictionaries."""
    return asdict(state)


def state_from_json(data: dict[str, Any]) -> State:
    """Build from what ``state_to_json`` returned, also by an earlier version: unknown keys are left out."""
    known = {field.name for field in fields(State)}
    values = {name: value for name, value in data.items() if name in known}
    values["status"] = Status(values["status"])
    values["step"] = Step(values["step"])
    values["after_wait"] = Step(values["after_wait"])
    if values.get("outcome") is not None:
        outcome = values["outcome"]
        values["outcome"] = Outcome(
            Status(outcome["status"]),
            outcome["reason"],
            tuple(outcome["exit_codes"]),
            outcome["output"],
            tuple(outcome["last_lines"]),
        )
    return State(**values)
