"""Environment variables of a task: exact text in, exact text out."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_provider.runtime.task.errors import Report, join_path
from airflow_provider.runtime.task.fields import Field
from airflow_provider.runtime.task.nodes import node_of

NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
"""A name that a shell accepts for a variable."""

_DOCKER_LOGIN = ("SKYPILOT_DOCKER_USERNAME", "SKYPILOT_DOCKER_PASSWORD", "SKYPILOT_DOCKER_SERVER")


def read_envs(field: Field) -> dict[str, str | None]:
    """The variables of an ``envs`` mapping: the text as written; None for null."""
    envs: dict[str, str | None] = {}
    for name, value in (field.mapping("Write NAME: value pairs below envs:, indented") or {}).items():
        if not NAME.fullmatch(name):
            value.misplaced(
                "not a valid name of an environment variable",
                "Use letters, digits and _, not starting with a digit",
            )
            continue
        scalar = value.scalar()
        if scalar is not None:
            envs[name] = None if scalar.value is None else scalar.text
    return envs


def overrides(values: Mapping[str, str | None] | None, report: Report) -> dict[str, str | None]:
    """The variables of a Python mapping, under the rules of ``read_envs``."""
    if values is None:
        return {}
    node = node_of(values, report, "envs")
    return {} if node is None else read_envs(Field(report, node, "envs", None))


def check_values_present(envs: Mapping[str, str | None], report: Report, lines: Mapping[str, int]) -> None:
    """Note every variable that still has no value."""
    for name, value in envs.items():
        if value is None:
            path = join_path("envs", name)
            report.add(
                path,
                "the environment variable has no value",
                'Set one, write "" for an empty one, or pass it as an override',
                line=lines.get(path),
            )


def check_names_together(
    envs: Mapping[str, str | None], secrets: Mapping[str, str], report: Report, line: int | None = None
) -> None:
    """Note names that are both a variable and a secret, and an incomplete or split docker login."""
    for name in sorted(envs.keys() & secrets.keys()):
        report.add(
            join_path("envs", name), "the name is also a secret", "Keep it in envs or in secrets", line=line
        )
    in_envs = [name for name in _DOCKER_LOGIN if name in envs]
    in_secrets = [name for name in _DOCKER_LOGIN if name in secrets]
    if in_envs and in_secrets:
        report.add(
            "envs",
            f"the docker login is split: {', '.join(in_envs)} in envs, {', '.join(in_secrets)} in secrets",
            "Put all three in secrets",
            line=line,
        )
    elif (present := in_envs or in_secrets) and len(present) < len(_DOCKER_LOGIN):
        missing = [name for name in _DOCKER_LOGIN if name not in present]
        report.add(
            "envs" if in_envs else "secrets",
            f"the docker login lacks {', '.join(missing)}",
            f"Give all of {', '.join(_DOCKER_LOGIN)}",
            line=line,
        )
