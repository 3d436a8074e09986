"""One document -> one task."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider.runtime.task import environment, files, secret_references
from airflow_provider.runtime.task.errors import Report, join_path
from airflow_provider.runtime.task.fields import Field
from airflow_provider.runtime.task.git import GitWorkdir
from airflow_provider.runtime.task.nodes import MappingNode
from airflow_provider.runtime.task.resources import read_resources
from airflow_provider.runtime.task.spec import Origin, Resources, TaskSpec
from airflow_provider.runtime.task.vocabulary import check_task_keys

_NAME = re.compile(r"[a-zA-Z0-9]+(?:[._-]{1,2}[a-zA-Z0-9]+)*")


@dataclass(frozen=True)
class Overrides:
    """What the caller of the loader sets for every task of the chain; checked already."""

    envs: Mapping[str, str | None]
    secrets: Mapping[str, str]


@dataclass(frozen=True)
class ReadTask:
    """A task before names are filled in. ``spec.name`` is empty where none was given."""

    spec: TaskSpec
    report: Report
    fields: Mapping[str, Field]
    priority: int | None


def read_task(node: MappingNode, report: Report, base_dir: str | None, overrides: Overrides) -> ReadTask:
    """The task that ``node`` defines; what is wrong with it is in ``report``."""
    fields = Field(report, node, "", node.line).mapping() or {}
    check_task_keys(fields)
    given = {key: value for key, value in fields.items() if not value.is_null}
    name = read_name(given["name"], "task") if "name" in given else None
    num_nodes = given["num_nodes"].integer(1) if "num_nodes" in given else 1
    resources, priority = read_resources(given["resources"]) if "resources" in given else (Resources(), None)
    envs = {**(environment.read_envs(given["envs"]) if "envs" in given else {}), **overrides.envs}
    secrets = {
        **(secret_references.read_secrets(given["secrets"]) if "secrets" in given else {}),
        **overrides.secrets,
    }
    environment.check_names_together(envs, secrets, report, node.line)
    source = files.read_workdir(given["workdir"]) if "workdir" in given else None
    workdir, git = (None, source) if isinstance(source, GitWorkdir) else (source, None)
    mounts = files.read_file_mounts(given["file_mounts"]) if "file_mounts" in given else {}
    if "file_mounts" in given:
        files.check_workdir_mount(given["file_mounts"], has_workdir="workdir" in given)
    api_access = given["api_server_access"].boolean() if "api_server_access" in given else None
    lines = _lines(fields)
    files.check_secret_paths(workdir, git, mounts, files.Context(envs, secrets, base_dir, report, lines))
    spec = TaskSpec(
        name=name or "",
        num_nodes=num_nodes or 1,
        resources=resources,
        envs=envs,
        secrets=secrets,
        workdir=workdir,
        git=git,
        file_mounts=mounts,
        setup=_read_commands(given["setup"]) if "setup" in given else None,
        run=_read_commands(given["run"]) if "run" in given else None,
        carried={} if api_access is None else {"api_server_access": api_access},
        origin=Origin(report.source, report.document, base_dir, lines),
    )
    return ReadTask(spec, report, fields, priority)


def read_name(field: Field, what: str) -> str | None:
    """The name of a task or chain (``what``); a problem, with a name that would do, for any other text."""
    text = field.text()
    if text is None or is_name(text):
        return text
    suggestion = usable_name(text)
    example = f", for example {suggestion}" if suggestion else ""
    field.problem(
        f"invalid {what} name",
        f"Use letters and digits, with one or two of . _ - between them{example}",
    )
    return None


def is_name(text: str) -> bool:
    """Whether ``text`` can name a task or chain."""
    return _NAME.fullmatch(text) is not None


def usable_name(text: str) -> str:
    """A valid name close to ``text``; empty when nothing of it can be used."""
    return text if is_name(text) else re.sub(r"[^a-zA-Z0-9]+", "-", text).strip("-")


def _read_commands(field: Field) -> str | None:
    if field.is_mapping or field.is_list:
        field.problem("must be shell commands as one text", "Write | and the commands below it, indented")
        return None
    return field.text_or_empty()


def _lines(fields: Mapping[str, Field]) -> dict[str, int]:
    """Lines of what is checked again when the task is resolved."""
    lines = {"workdir": fields["workdir"].line} if "workdir" in fields else {}
    for name in ("workdir", "envs", "file_mounts"):
        if name in fields and fields[name].is_mapping:
            for key, value in (fields[name].mapping() or {}).items():
                lines[join_path(name, key)] = value.line
    return {path: line for path, line in lines.items() if line is not None}
