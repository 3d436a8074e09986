"""Documents -> a chain: the header, the tasks in order, and a name for each.

The first document is a header, not a task, if its only fields are ``name`` or ``name`` and
``execution``. A header with no document after it stands for one task of that name without commands.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_provider.runtime.task import environment, secret_references
from airflow_provider.runtime.task.document import MAX_BYTES, Document, read_documents, refuse_size
from airflow_provider.runtime.task.errors import Problem, Report, TaskValidationError, join_path
from airflow_provider.runtime.task.fields import Field
from airflow_provider.runtime.task.nodes import MappingNode, Scalar, node_of, walk_mappings
from airflow_provider.runtime.task.spec import Chain, TaskSpec
from airflow_provider.runtime.task.task import Overrides, ReadTask, is_name, read_name, read_task, usable_name
from airflow_provider.runtime.task.vocabulary import REFUSED_HEADER_FIELDS

_DEFAULT_NAME = "chain"
_DEFINITIONS = "<definition>"


def load_chain_file(
    path: str | os.PathLike[str],
    *,
    envs: Mapping[str, str | None] | None = None,
    secrets: Mapping[str, str | None] | None = None,
) -> Chain:
    """The chain that a YAML file defines; relative paths in it start from its folder.

    Args:
        path: the file: UTF-8, at most 1 MiB.
        envs: environment variables that are set or added in every task.
        secrets: references to secrets that are set or added in every task; never values.

    Raises:
        TaskValidationError: the file cannot be read, or anything in it is wrong; lists all problems.
    """
    file = Path(path)
    source = str(file)
    return _chain(
        read_documents(_read_text(file, source), source),
        source=source,
        name=None,
        fallback=usable_name(file.stem),
        base_dir=file.parent,
        envs=envs,
        secrets=secrets,
    )


def load_chain_text(
    text: str,
    *,
    source: str = "<string>",
    base_dir: Path | None = None,
    envs: Mapping[str, str | None] | None = None,
    secrets: Mapping[str, str | None] | None = None,
) -> Chain:
    """The chain that YAML text defines.

    Args:
        text: at most 1 MiB as UTF-8.
        source: what messages call the text.
        base_dir: folder that relative local paths start from; without it they are refused when resolved.
        envs: environment variables that are set or added in every task.
        secrets: references to secrets that are set or added in every task; never values.

    Raises:
        TaskValidationError: anything in the text is wrong; lists all problems.
    """
    return _chain(
        read_documents(text, source),
        source=source,
        name=None,
        fallback="",
        base_dir=base_dir,
        envs=envs,
        secrets=secrets,
    )


def chain_from_definitions(
    definitions: Sequence[Mapping[str, object]],
    *,
    name: str | None = None,
    base_dir: Path | None = None,
    envs: Mapping[str, str | None] | None = None,
    secrets: Mapping[str, str | None] | None = None,
) -> Chain:
    """The chain that Python dictionaries define, each being what a YAML document would be.

    Environment variables may be text, numbers (as Python writes them), booleans (``true``, ``false``)
    or None.

    Args:
        definitions: one mapping for each document.
        name: name of the chain; wins over a header.
        base_dir: folder that relative local paths start from; without it they are refused when resolved.
        envs: environment variables that are set or added in every task.
        secrets: references to secrets that are set or added in every task; never values.

    Raises:
        TaskValidationError: anything in the definitions is wrong; lists all problems.
    """
    if isinstance(definitions, (str, bytes, Mapping)) or not isinstance(definitions, Sequence):
        report = Report(_DEFINITIONS, 1)
        report.add("", "must be a list of definitions", "Put the dictionary of each task in a list")
        raise TaskValidationError(report.problems)
    documents = []
    for number, definition in enumerate(definitions, start=1):
        report = Report(_DEFINITIONS, number)
        node = node_of(definition, report)
        if not (isinstance(node, Scalar) and node.value is None):
            documents.append(Document(report, node))
    return _chain(
        documents,
        source=_DEFINITIONS,
        name=name,
        fallback="",
        base_dir=base_dir,
        envs=envs,
        secrets=secrets,
    )


def task_from_definition(
    definition: Mapping[str, object],
    *,
    base_dir: Path | None = None,
    envs: Mapping[str, str | None] | None = None,
    secrets: Mapping[str, str | None] | None = None,
) -> TaskSpec:
    """The task that a Python dictionary defines; see ``chain_from_definitions``."""
    chain = chain_from_definitions([definition], base_dir=base_dir, envs=envs, secrets=secrets)
    return chain.tasks[0]


def _read_text(file: Path, source: str) -> str:
    report = Report(source, 1)
    try:
        with file.open("rb") as stream:
            # One byte more than allowed is enough to know that the file is too large.
            content = stream.read(MAX_BYTES + 1)
        text = content.decode("utf-8") if len(content) <= MAX_BYTES else None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        report.add("", "the file is not UTF-8", "Save it as UTF-8", line=line)
        raise TaskValidationError(report.problems) from None
    except (OSError, ValueError) as error:  # ValueError: a path that holds a NUL character
        reason = getattr(error, "strerror", None) or error
        report.add("", f"the file cannot be read: {reason}", "Correct the path or permissions")
        raise TaskValidationError(report.problems) from error
    if text is None:
        refuse_size(report)
        raise TaskValidationError(report.problems)
    return text


def _chain(
    documents: Sequence[Document],
    *,
    source: str,
    name: str | None,
    fallback: str,
    base_dir: Path | None,
    envs: Mapping[str, str | None] | None,
    secrets: Mapping[str, str | None] | None,
) -> Chain:
    if not documents:
        report = Report(source, 1)
        report.add("", "the definition is empty", "Write at least one task, for example run: echo hello")
        raise TaskValidationError(report.problems)
    if name is not None and not is_name(name):
        documents[0].report.add(
            "name", "invalid chain name", "Use letters, digits, . _ and -", value=repr(name)
        )
    roots = [(_mapping_root(document), document.report) for document in documents]
    header = _read_header(*roots[0])
    if header is not None:
        # Without a task after it, a header is a task without commands.
        roots = roots[1:] or [(MappingNode(None, ()), documents[0].report)]
    overrides = Overrides(
        environment.overrides(envs, documents[0].report),
        secret_references.overrides(secrets, documents[0].report),
    )
    folder = None if base_dir is None else str(Path(base_dir).absolute())
    tasks = [read_task(root, report, folder, overrides) for root, report in roots if root is not None]
    name = name or (header.name if header is not None else None)
    if name is None and len(roots) == 1 and tasks:
        name = tasks[0].spec.name
    name = name or fallback or _DEFAULT_NAME
    specs = _named(tasks, name)
    _check_priorities(tasks)
    problems = [problem for document in documents for problem in _in_order(document.report)]
    if problems:
        raise TaskValidationError(problems)
    return Chain(name, specs)


@dataclass(frozen=True)
class _Header:
    name: str | None


def _mapping_root(document: Document) -> MappingNode | None:
    root, report = document.root, document.report
    if root is None:
        return None
    for path, mapping in walk_mappings(root):
        for key, first_line in mapping.repeated:
            first = "" if first_line is None else f", first on line {first_line}"
            report.add(join_path(path, key.text), f"given twice{first}", "Keep one of the two", line=key.line)
    if isinstance(root, MappingNode):
        return root
    kind = "a text" if isinstance(root, Scalar) else "a list"
    report.add(
        "", f"the document is {kind}, not a mapping", "Write fields, such as run: echo hello", line=root.line
    )
    return None


def _read_header(root: MappingNode | None, report: Report) -> _Header | None:
    """The header that the first document is; None when it is a task."""
    if root is None:
        return None
    fields = Field(report, root, "", root.line).mapping() or {}
    execution = fields.get("execution")
    is_header = fields.keys() in ({"name"}, {"name", "execution"})
    is_job_group = execution is not None and fields.keys() <= {"name", *REFUSED_HEADER_FIELDS}
    if not is_header and not is_job_group:
        return None
    if execution is not None and not execution.is_null:
        _check_execution(execution)
    for key in fields.keys() - {"name", "execution"}:
        fields[key].misplaced(f"`{key}` is not supported", REFUSED_HEADER_FIELDS[key])
    name = fields.get("name")
    return _Header(None if name is None or name.is_null else read_name(name, "chain"))


def _check_execution(execution: Field) -> None:
    value = execution.node.value if isinstance(execution.node, Scalar) else None
    if value == "parallel":
        execution.problem(
            "job groups (execution: parallel) are not supported yet",
            "Use execution: serial, or run each task from an Airflow task of its own",
        )
    elif value != "serial":
        execution.problem(
            "a chain runs its tasks one after the other", "Write execution: serial, or remove it"
        )


def _named(tasks: Sequence[ReadTask], chain_name: str) -> tuple[TaskSpec, ...]:
    """The tasks with their names: their own, else the chain's for a single one, else by position.

    SkyPilot gives a single task the chain's name in any case; in Airflow both show, so each keeps its own.
    """
    if len(tasks) == 1:
        return (replace(tasks[0].spec, name=tasks[0].spec.name or chain_name),)
    specs: list[TaskSpec] = []
    taken: dict[str, int] = {}
    for index, task in enumerate(tasks):
        name = task.spec.name or f"{chain_name}-{index}"
        if name in taken:
            task.report.add(
                "name",
                f"document {taken[name]} has a task of this name already",
                "Rename one of them, or leave the name out",
                line=task.fields["name"].line if "name" in task.fields else None,
                value=repr(name),
            )
        taken.setdefault(name, task.report.document)
        specs.append(replace(task.spec, name=name))
    return tuple(specs)


def _check_priorities(tasks: Sequence[ReadTask]) -> None:
    """Note tasks whose priority or priority class is not that of an earlier task."""
    for field in ("priority", "priority_class"):
        first: tuple[object, int] | None = None
        for task in tasks:
            candidate = task.spec.resources.candidates[0]
            value = task.priority if field == "priority" else candidate.carried.get(field)
            if value is None:
                continue
            if first is None:
                first = (value, task.report.document)
            elif value != first[0]:
                task.report.add(
                    f"resources.{field}",
                    f"document {first[1]} has {field} {first[0]}, and a chain has only one",
                    "Write the same value, or write it once",
                    line=task.fields["resources"].line if "resources" in task.fields else None,
                    value=str(value),
                )


def _in_order(report: Report) -> list[Problem]:
    return sorted(report.problems, key=lambda problem: problem.line or 0)
