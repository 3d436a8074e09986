"""The project's own rules: packaging, layers, sizes, and words that do not belong in a public tree."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import jsonschema
import pathspec
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "airflow_provider"
RUNTIME = PACKAGE / "runtime"
DISTRIBUTION = "airflow-provider-managed-jobs"

MAX_LINES = 450

# From the top down. A layer imports itself and what stands below it.
AIRFLOW_LAYERS = ["operators", "sensors", "decorators", "plugin", "triggers", "hooks"]
RUNTIME_LAYERS = [
    "control",
    "state",
    "machine",
    "infra",
    "client",
    "transport",
    "files",
    "task",
    "agent",
    "wire",
]

# The pure half of control/: values and decisions, which the state store keeps. The controller stands above both.
PURE = {"codec", "events", "machine", "status", "taskstate"}


def _project_files() -> list[Path]:
    """All files of the source tree, without what .gitignore names."""
    ignored = pathspec.GitIgnoreSpec.from_lines((ROOT / ".gitignore").read_text().splitlines())
    files = []
    for folder, subfolders, names in os.walk(ROOT):
        base = Path(folder).relative_to(ROOT)
        subfolders[:] = [s for s in subfolders if s != ".git" and not ignored.match_file(f"{base / s}/")]
        files += [ROOT / base / n for n in names if not ignored.match_file(str(base / n))]
    return sorted(files)


def _python_files(folder: Path) -> list[Path]:
    return [p for p in sorted(folder.rglob("*.py")) if "_pb2" not in p.name]


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of every module imported anywhere in a file, lazily or for types too."""
    package = [*path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [] if node.level == 0 else package[: len(package) - node.level + 1]
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from package import name` may import a module called name.
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def _where(path: Path, line: int, what: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {what}"


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _layer(module: str) -> str | None:
    """The layer a module of this project belongs to; None for foreign modules and for those that layers share."""
    parts = module.split(".")
    if parts[0] != "airflow_provider" or len(parts) < 2:
        return None
    if parts[1] != "runtime":
        return parts[1] if parts[1] in AIRFLOW_LAYERS else None
    if len(parts) > 3 and parts[2] == "control" and parts[3] in PURE:
        return "machine"
    return parts[2] if len(parts) > 2 and parts[2] in RUNTIME_LAYERS else None


# ---- packaging


def test_airflow_finds_the_provider_and_its_description_is_valid() -> None:
    found = [
        entry
        for entry in importlib.metadata.entry_points(group="apache_airflow_provider")
        if entry.dist is not None and entry.dist.name == DISTRIBUTION
    ]
    assert len(found) == 1, "the package must be installed: run `make test`, which does it"
    info = found[0].load()()
    airflow = importlib.import_module("airflow")
    schema = json.loads((Path(airflow.__path__[0]) / "provider_info.schema.json").read_text())
    jsonschema.validate(info, schema)
    assert info["package-name"] == DISTRIBUTION


def test_everything_the_provider_announces_can_be_imported() -> None:
    from airflow_provider.get_provider_info import get_provider_info

    info = get_provider_info()
    modules = [
        m
        for kind in ("operators", "sensors", "hooks", "triggers")
        for entry in info.get(kind, ())
        for m in entry["python-modules"]
    ]
    classes = [c["hook-class-name"] for c in info.get("connection-types", ())]
    classes += [d["class-name"] for d in info.get("task-decorators", ())]
    classes += info.get("extra-links", [])
    assert modules
    for name in modules:
        importlib.import_module(name)
    for name in classes:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


def test_changelog_begins_with_the_version_that_is_packaged() -> None:
    versions = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == importlib.metadata.version(DISTRIBUTION)


def test_dependencies_are_those_that_are_imported() -> None:
    imported = {
        module.split(".")[0]
        for path in _python_files(PACKAGE)
        for _, module in _imports(path)
        if module.split(".")[0] not in {*sys.stdlib_module_names, "airflow_provider"}
    }
    # Many distributions share these two.
    owners = {"airflow": ["apache-airflow"], "google": ["protobuf"]}
    distributions = importlib.metadata.packages_distributions() | owners
    needed = {canonicalize_name(distributions[name][0]) for name in imported}
    requirements = [Requirement(text) for text in importlib.metadata.requires(DISTRIBUTION) or []]
    declared = {canonicalize_name(r.name) for r in requirements if "extra" not in str(r.marker)}
    assert needed == declared, "the imports of airflow_provider and the dependencies in pyproject.toml differ"


# ---- layers


def test_nothing_under_runtime_imports_airflow() -> None:
    above = ["airflow", *(f"airflow_provider.{layer}" for layer in AIRFLOW_LAYERS)]
    wrong = [
        _where(path, line, module)
        for path in _python_files(RUNTIME)
        for line, module in _imports(path)
        if any(_is_in(module, package) for package in above)
    ]
    assert not wrong, "runtime/ knows nothing of Airflow: " + ", ".join(wrong)


@pytest.mark.parametrize("layers", [AIRFLOW_LAYERS, RUNTIME_LAYERS], ids=["airflow", "runtime"])
def test_imports_point_down_only(layers: list[str]) -> None:
    wrong = []
    for path in _python_files(PACKAGE):
        own = _layer(".".join(path.relative_to(ROOT).with_suffix("").parts))
        if own not in layers:
            continue
        above = layers[: layers.index(own)]
        wrong += [_where(path, line, module) for line, module in _imports(path) if _layer(module) in above]
    assert not wrong, "imports of a layer above: " + ", ".join(wrong)


def test_the_agent_needs_only_what_a_node_has() -> None:
    own = ("airflow_provider.runtime.agent", "airflow_provider.runtime.wire", "airflow_provider.version")
    allowed = {*sys.stdlib_module_names, "grpc"}
    wrong = [
        _where(path, line, module)
        for path in _python_files(RUNTIME / "agent")
        for line, module in _imports(path)
        if module.split(".")[0] not in allowed
        and not _is_in(module, "google.protobuf")
        and not any(_is_in(module, package) for package in own)
    ]
    assert not wrong, "on a node there is only python3, grpcio and protobuf: " + ", ".join(wrong)


def test_skypilot_is_never_imported() -> None:
    wrong = [
        _where(path, line, module)
        for path in _python_files(PACKAGE)
        for line, module in _imports(path)
        if _is_in(module, "sky")
    ]
    assert not wrong, "SkyPilot and Airflow cannot share a virtualenv: " + ", ".join(wrong)


# ---- size and words


def test_files_stay_small_enough_to_read() -> None:
    sizes = {
        str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines())
        for p in _project_files()
        if p.suffix == ".py" and "_pb2" not in p.name
    }
    long = {name: lines for name, lines in sizes.items() if lines > MAX_LINES}
    assert not long, f"more than {MAX_LINES} lines; are there two ideas in it? {long}"


def test_no_file_speaks_of_the_machine_it_was_written_on() -> None:
    index_settings = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX")
    hosts = {urlsplit(u).hostname for name in index_settings for u in os.environ.get(name, "").split()}
    personal = [re.escape(host) for host in hosts if host]
    # Short paths such as / or /app say nothing.
    personal += [re.escape(str(p)) + r"(?![\w.-])" for p in (ROOT, Path.home()) if len(str(p)) > 6]
    personal += [r"(?<![\w.~}$-])/(?:home|Users)/[a-z]\w*/"]
    pattern = re.compile("|".join(personal))
    wrong = []
    for path in _project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # pictures
        wrong += [
            _where(path, n, line.strip())
            for n, line in enumerate(text.splitlines(), 1)
            if pattern.search(line)
        ]
    assert not wrong, "paths or hosts of one machine: " + "; ".join(wrong)


def test_no_unfinished_work_is_left_behind() -> None:
    marker = re.compile(r"#\s*(?:TO" r"DO|FIX" r"ME|X" r"XX)\b|\bbreak" r"point\(\)")
    wrong = [
        _where(path, n, line.strip())
        for path in _project_files()
        if path.suffix == ".py"
        for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if marker.search(line)
    ]
    assert not wrong, "; ".join(wrong)
