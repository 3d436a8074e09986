"""Every field of a task and of its resources: used, refused by name, or unknown with a suggestion."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from airflow_provider.runtime.task.errors import shortened
from airflow_provider.runtime.task.fields import Field

TASK_FIELDS = frozenset(
    {
        "name",
        "workdir",
        "num_nodes",
        "resources",
        "envs",
        "secrets",
        "file_mounts",
        "setup",
        "run",
        "api_server_access",
    }
)

RESOURCE_FIELDS = frozenset(
    {
        "infra",
        "cloud",
        "region",
        "zone",
        "cpus",
        "memory",
        "accelerators",
        "gpus",
        "use_spot",
        "job_recovery",
        "spot_recovery",
        "disk_size",
        "disk_tier",
        "network_tier",
        "max_hourly_cost",
        "labels",
        "priority",
        "priority_class",
        "any_of",
        "ordered",
    }
)

REFUSED_TASK_FIELDS: Mapping[str, str] = {
    "service": "Remove it; only tasks that end can be run",
    "pool": 'Remove it; to run on hosts of your own write resources: {infra: "ssh/<pool>"}',
    "volumes": "Remove it; keep data on storage that the nodes mount themselves",
    "volume_mounts": "Remove it; keep data on storage that the nodes mount themselves",
    "managed_secrets": "List them under secrets: NAME with no value refers to the Airflow variable NAME",
    "event_callback": "Use the callbacks of the Airflow task",
    "config": "Remove it; the settings of an infra belong in its Airflow connection",
    "inputs": "Remove it",
    "outputs": "Remove it",
    "file_mounts_mapping": "Remove it; it is internal to another program",
    "_metadata": "Remove it; it is internal to another program",
}

REFUSED_RESOURCE_FIELDS: Mapping[str, str] = {
    "instance_type": "Ask for cpus, memory and accelerators instead",
    "image_id": "Remove it, and install what the task needs in setup",
    "ports": "Remove it; no port of a cluster is opened",
    "volumes": "Remove it; keep data on storage that the nodes mount themselves",
    "accelerator_args": "Remove it",
    "local_disk": "Remove it, or ask for disk_size",
    "autostop": "Remove it; the cluster of a managed task is removed when the task ends",
    "hooks": "Remove it; lifecycle hooks belong in config.hooks, which is not supported either",
}

REFUSED_HEADER_FIELDS: Mapping[str, str] = {
    "execution": "Write it in a first document that has only name and execution, followed by ---",
    "primary_tasks": "Remove it; it belongs to job groups, which are not supported yet",
    "termination_delay": "Remove it; it belongs to job groups, which are not supported yet",
    "inter_connection": "Remove it; it belongs to job groups, which are not supported yet",
}

# Names that people use for a field, where spelling alone would not lead to the right one.
_SYNONYMS: Mapping[str, str] = {
    "env": "envs",
    "environment": "envs",
    "env_vars": "envs",
    "secret": "secrets",
    "resource": "resources",
    "num_workers": "num_nodes",
    "workers": "num_nodes",
    "nodes": "num_nodes",
    "command": "run",
    "commands": "run",
    "cmd": "run",
    "script": "run",
    "mounts": "file_mounts",
    "working_dir": "workdir",
    "cwd": "workdir",
    "accelerator": "resources.accelerators",
    "gpu": "resources.accelerators",
    "cpu": "resources.cpus",
    "mem": "resources.memory",
    "disk": "resources.disk_size",
    "spot": "resources.use_spot",
}


def check_task_keys(fields: Mapping[str, Field]) -> None:
    """Note every key of a task that is not supported, misplaced or unknown."""
    for key, field in fields.items():
        if key in REFUSED_TASK_FIELDS:
            _refuse(field, key, REFUSED_TASK_FIELDS[key])
        elif key in REFUSED_HEADER_FIELDS:
            field.misplaced(f"`{key}` is not a field of a task", REFUSED_HEADER_FIELDS[key])
        elif key not in TASK_FIELDS:
            _unknown(field, key, own_level="", own=TASK_FIELDS | REFUSED_TASK_FIELDS.keys())


def check_resource_keys(fields: Mapping[str, Field]) -> None:
    """Note every key of a resources mapping that is not supported, misplaced or unknown."""
    for key, field in fields.items():
        if key in REFUSED_RESOURCE_FIELDS:
            _refuse(field, key, REFUSED_RESOURCE_FIELDS[key])
        elif key not in RESOURCE_FIELDS:
            _unknown(field, key, own_level="resources", own=RESOURCE_FIELDS | REFUSED_RESOURCE_FIELDS.keys())


def check_known_keys(fields: Mapping[str, Field], known: frozenset[str]) -> None:
    """Note every key of a smaller mapping that is not among the ``known`` ones."""
    for key, field in fields.items():
        if key not in known:
            matches = get_close_matches(key.lower(), sorted(known), n=1)
            suggestion = f"Did you mean {matches[0]}? " if matches else ""
            field.misplaced(
                f"unknown field `{shortened(key)}`", f"{suggestion}Known here: {', '.join(sorted(known))}"
            )


def _refuse(field: Field, key: str, remedy: str) -> None:
    # A field that is there but empty asks for nothing, so nothing is lost without it.
    if not field.is_empty:
        field.misplaced(f"`{key}` is not supported yet by this version", remedy)


def _unknown(field: Field, key: str, *, own_level: str, own: frozenset[str]) -> None:
    in_task = own_level == ""
    other, refused = (
        (RESOURCE_FIELDS, REFUSED_RESOURCE_FIELDS) if in_task else (TASK_FIELDS, REFUSED_TASK_FIELDS)
    )
    if key in refused:
        _refuse(field, key, refused[key])
        return
    right_place = (
        "below resources:, indented" if in_task else "to the top level of the task, not below resources"
    )
    if key in other:
        field.misplaced(f"`{key}` is at the wrong level", f"Move it {right_place}")
        return
    name = key.lower().replace("-", "_")
    # What a close match leads to. Where a name means something at both levels, its own level counts.
    meanings = {
        **_SYNONYMS,
        **{field: f"resources.{field}" if in_task else field for field in other},
        **{field: f"{own_level}.{field}" if own_level else field for field in own},
    }
    matches = get_close_matches(name, sorted(meanings), n=1, cutoff=0.7)
    suggestion = meanings[matches[0]] if matches else None
    shown = ", ".join(sorted(own - REFUSED_TASK_FIELDS.keys() - REFUSED_RESOURCE_FIELDS.keys()))
    field.misplaced(
        f"unknown field `{shortened(key)}`",
        f"Did you mean {suggestion}?" if suggestion else f"Known here: {shown}",
    )
