"""The ``resources`` field: a base and its alternatives -> the candidates that a task may run on.

Values are checked where they are written, once. Only then are alternatives laid over the base, and the
rules that concern several fields are checked on the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider.runtime.task.accelerators import read_accelerators
from airflow_provider.runtime.task.fields import Field
from airflow_provider.runtime.task.infra_names import combined_infra, read_cloud, read_infra, read_place
from airflow_provider.runtime.task.quantities import read_cpus, read_disk_size, read_memory
from airflow_provider.runtime.task.recovery import read_job_recovery
from airflow_provider.runtime.task.spec import Candidate, JobRecovery, Resources
from airflow_provider.runtime.task.vocabulary import check_resource_keys

_ALIASES = {"gpus": "accelerators", "spot_recovery": "job_recovery"}
_ALTERNATIVES = ("any_of", "ordered")
_CARRIED = ("disk_size", "disk_tier", "network_tier", "max_hourly_cost", "labels", "priority_class")


def _read_labels(labels: Field) -> dict[str, str | None]:
    """Labels; a null takes a label of the base away."""
    values: dict[str, str | None] = {}
    for key, value in (labels.mapping("Write key: value pairs below labels:, indented") or {}).items():
        text = None if value.is_null else value.text_or_empty()
        if value.is_null or text is not None:
            values[key] = text
    return values


_READERS: Mapping[str, Callable[[Field], Any]] = {
    "infra": read_infra,
    "cloud": read_cloud,
    "region": read_place,
    "zone": read_place,
    "cpus": read_cpus,
    "memory": read_memory,
    "accelerators": read_accelerators,
    "use_spot": Field.boolean,
    "job_recovery": read_job_recovery,
    "disk_size": read_disk_size,
    "disk_tier": lambda value: value.choice("low", "medium", "high", "ultra", "best", "none"),
    "network_tier": lambda value: value.choice("standard", "best"),
    "max_hourly_cost": Field.positive_number,
    "labels": _read_labels,
    "priority": lambda value: value.integer(-1000, 1000),
    "priority_class": Field.text,
}


@dataclass(frozen=True)
class _Part:
    """The values of one resources mapping; None where the field is null, absent where it is wrong."""

    values: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Field] = field(default_factory=dict)

    def overlaid_with(self, other: _Part) -> _Part:
        """This part with the values of ``other``, which win; labels are merged one by one."""
        values = {**self.values, **other.values}
        if self.values.get("labels") and other.values.get("labels"):
            values["labels"] = {**self.values["labels"], **other.values["labels"]}
        return _Part(values, {**self.fields, **other.fields})

    def without_nulls(self) -> _Part:
        """This part without the fields and labels that are null."""
        values = {key: value for key, value in self.values.items() if value is not None}
        if "labels" in values:
            values["labels"] = {key: value for key, value in values["labels"].items() if value is not None}
        return _Part(values, self.fields)


def read_resources(resources: Field) -> tuple[Resources, int | None]:
    """The resources, and the priority if one is set."""
    fields = resources.mapping("Write fields such as cpus: 4 below resources:, indented")
    if fields is None:
        return Resources(), None
    base = _read_part(fields)
    for label, value in (base.values.get("labels") or {}).items():
        if value is None:
            base.fields["labels"].misplaced(f"the label {label} has no value", 'Write a value, "" if empty')
    given = [name for name in _ALTERNATIVES if name in fields and not fields[name].is_null]
    if len(given) > 1:
        fields["ordered"].misplaced("any_of and ordered exclude each other", "Keep one of the two")
    entries = [
        base.overlaid_with(_read_entry(entry)) for name in given for entry in _read_entries(fields[name])
    ]
    mode = given[0] if given else None
    parts = [part.without_nulls() for part in (entries if given else [base])]
    candidates = tuple(candidate for part in parts for candidate in _candidates(part, mode))
    where = fields[mode] if mode is not None else resources
    recovery: JobRecovery = _agreed(parts, "job_recovery", JobRecovery(), where)
    priority: int | None = _agreed(parts, "priority", None, where)
    _agreed(parts, "priority_class", None, where)
    ordered = len(candidates) > 1 and (mode == "ordered" or (mode is None and _is_preference(base)))
    return Resources(candidates or (Candidate(),), ordered, recovery, priority or 0), priority


def _read_part(fields: Mapping[str, Field]) -> _Part:
    check_resource_keys(fields)
    part = _Part()
    for written, value in fields.items():
        name = _ALIASES.get(written, written)
        if name not in _READERS:
            continue
        if name in part.fields:
            value.misplaced(f"`{written}` is another name for `{name}`", "Keep one of the two")
            continue
        part.fields[name] = value
        if value.is_null:
            part.values[name] = None
            continue
        read = _READERS[name](value)
        if read is not None:
            part.values[name] = read
    return part


def _read_entries(alternatives: Field) -> list[Field]:
    entries = alternatives.items("Write a list of alternatives, each starting with '- '")
    if entries == []:
        alternatives.problem("the list is empty", "Write at least one alternative, or remove the field")
    return entries or []


def _read_entry(entry: Field) -> _Part:
    fields = entry.mapping("Write fields such as {cpus: 4} for each alternative")
    if fields is None:
        return _Part()
    for name in _ALTERNATIVES:
        if name in fields:
            fields[name].misplaced("alternatives cannot be nested", "Write one list of all alternatives")
    return _read_part(fields)


def _candidates(part: _Part, mode: str | None) -> list[Candidate]:
    """The candidates of one alternative: one for each way to choose its accelerators."""
    values = part.values
    infra = combined_infra(values, part.fields)
    memory = values.get("memory")
    if memory is not None and memory.amount <= 0 and not (infra or "").startswith("slurm"):
        part.fields["memory"].problem("memory must be above 0", "Write GB as a number above 0")
    candidate = Candidate(
        infra=infra,
        cpus=values.get("cpus"),
        memory_gb=memory,
        use_spot=values.get("use_spot", False),
        carried={name: values[name] for name in _CARRIED if values.get(name)},
    )
    accelerators = values.get("accelerators")
    if accelerators is None:
        return [candidate]
    if mode == "ordered" and len(accelerators.alternatives) > 1:
        part.fields["accelerators"].misplaced(
            "several accelerators do not go together with ordered", "Give each its own entry of ordered"
        )
    if mode == "any_of" and accelerators.kind == "list":
        part.fields["accelerators"].misplaced(
            "a list of accelerators has an order, any_of has none", "Write {A, B}, or use ordered"
        )
    return [replace(candidate, accelerators={name: count}) for name, count in accelerators.alternatives]


def _is_preference(base: _Part) -> bool:
    accelerators = base.values.get("accelerators")
    return accelerators is not None and accelerators.kind == "list"


def _agreed(parts: list[_Part], name: str, default: Any, where: Field) -> Any:
    """The one value that all alternatives have for ``name``."""
    values = [part.values.get(name, default) for part in parts]
    if any(value != values[0] for value in values):
        where.misplaced(f"the alternatives differ in {name}", f"Write {name} once, outside the alternatives")
    return values[0] if values else default
