"""The ``job_recovery`` field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from airflow_provider.runtime.task.fields import Field
from airflow_provider.runtime.task.spec import JobRecovery, Strategy
from airflow_provider.runtime.task.vocabulary import check_known_keys

_STRATEGIES: Mapping[str, Strategy] = {name.lower(): name for name in get_args(Strategy)}
_FIELDS = frozenset({"strategy", "max_restarts_on_errors", "recover_on_exit_codes"})


def read_job_recovery(field: Field) -> JobRecovery | None:
    """A strategy's name, or a mapping; what is not given, or null, has its default."""
    default = JobRecovery()
    if not field.is_mapping:
        strategy = _read_strategy(field)
        return None if strategy is None else JobRecovery(strategy)
    fields = field.mapping() or {}
    check_known_keys(fields, _FIELDS)
    given = {key: value for key, value in fields.items() if not value.is_null}
    recovery = JobRecovery(
        (_read_strategy(given["strategy"]) if "strategy" in given else None) or default.strategy,
        (given["max_restarts_on_errors"].integer(0) if "max_restarts_on_errors" in given else None) or 0,
        _read_exit_codes(given["recover_on_exit_codes"]) if "recover_on_exit_codes" in given else (),
    )
    return recovery


def _read_strategy(field: Field) -> Strategy | None:
    choice = field.choice(*_STRATEGIES)
    return None if choice is None else _STRATEGIES[choice]


def _read_exit_codes(field: Field) -> tuple[int, ...]:
    fields = (field.items() or []) if field.is_list else [field]
    codes = [code for code in (item.integer(0, 255) for item in fields) if code is not None]
    if len(set(codes)) < len(codes):
        field.problem("an exit code is given twice", "Give each one once")
    return tuple(codes)
