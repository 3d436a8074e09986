"""Local folders and files of a task: what may be written, and where it is found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_provider.runtime.task.errors import Report, join_path
from airflow_provider.runtime.task.fields import Field
from airflow_provider.runtime.task.git import (
    SSH_KEY,
    TOKEN,
    GitWorkdir,
    holds_credentials,
    unsuitable_ref,
    unsuitable_url,
)
from airflow_provider.runtime.task.nodes import node_of
from airflow_provider.runtime.task.substitute import references, substitute

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://|git@")
_REMOTE_WORKDIR = "~/sky_workdir"
_NO_BUCKET = "Copy the data in setup or run; buckets are not supported yet by this version"


@dataclass(frozen=True)
class Context:
    """What resolving the paths of a task needs."""

    envs: Mapping[str, str | None]
    secrets: Mapping[str, str]
    base_dir: str | None
    report: Report
    lines: Mapping[str, int]

    def problem(self, path: str, value: str, message: str, remedy: str) -> None:
        """Note a problem with the field at ``path``."""
        self.report.add(path, message, remedy, line=self.lines.get(path), value=repr(value))


def read_workdir(field: Field) -> str | GitWorkdir | None:
    """The local folder or the repository as written."""
    if field.is_mapping:
        return _read_repository(field)
    text = field.text()
    if text is not None and (reason := _unsuitable_workdir(text)):
        if holds_credentials(text):
            field.misplaced(*reason)
        else:
            field.problem(*reason)
    return text


def _read_repository(field: Field) -> GitWorkdir | None:
    fields = field.mapping() or {}
    for key in fields.keys() - {"url", "ref"}:
        fields[key].misplaced("unknown field of a git workdir", "Only url and ref are known")
    if "url" not in fields or fields["url"].is_null:
        field.misplaced(
            "a git workdir needs a url", "Write url: https://host/owner/repo, and a ref if needed"
        )
        return None
    url = fields["url"].text()
    given = fields.get("ref")
    ref = None if given is None or given.is_null else given.text()
    if url is None:
        return None
    if holds_credentials(url):
        fields["url"].misplaced(*_CREDENTIALS)
    elif not references(url) and (reason := unsuitable_url(url)):
        fields["url"].problem(*reason)
    if given is not None and ref and not references(ref) and (reason := unsuitable_ref(ref)):
        given.problem(*reason)
    return GitWorkdir(url, ref)


def workdir_override(workdir: str | None, report: Report) -> str | None:
    """The local folder given in Python, under the rules of ``read_workdir``; None for none."""
    node = None if workdir is None else node_of(workdir, report, "workdir")
    found = None if node is None else read_workdir(Field(report, node, "workdir", None))
    return found if isinstance(found, str) else None


def read_file_mounts(field: Field) -> dict[str, str]:
    """Destination -> local source, as written."""
    mounts: dict[str, str] = {}
    for destination, source in (
        field.mapping("Write destination: source pairs below it, indented") or {}
    ).items():
        # A destination with a variable in it can only be judged once the value is known.
        if not references(destination) and (reason := _unsuitable_destination(destination)):
            source.misplaced(*reason)
        if source.is_mapping:
            source.misplaced("storage is not supported yet by this version", _NO_BUCKET)
            continue
        text = source.text()
        if text is None:
            continue
        if _URL.match(text):
            source.problem("a bucket or other URL cannot be mounted", _NO_BUCKET)
        mounts[destination] = text
    return mounts


def check_workdir_mount(field: Field, *, has_workdir: bool) -> None:
    """Note a mount that would lie over the copied ``workdir``."""
    fields = (field.mapping() or {}) if field.is_mapping else {}
    if has_workdir and _REMOTE_WORKDIR in fields:
        fields[_REMOTE_WORKDIR].misplaced(*_OVER_WORKDIR)


def check_secret_paths(
    workdir: str | None, git: GitWorkdir | None, mounts: Mapping[str, str], context: Context
) -> None:
    """Note every path that refers to a secret: its value is not known here, and paths are not secret."""
    texts = [("workdir", workdir or "")]
    if git is not None:
        texts += [("workdir.url", git.url), ("workdir.ref", git.ref or "")]
    for destination, source in mounts.items():
        texts += [(join_path("file_mounts", destination), text) for text in (destination, source)]
    for path, text in texts:
        for name in references(text):
            if name in context.secrets:
                context.problem(path, text, f"{name} is a secret; a path cannot hold one", "Use envs for it")


def resolve_workdir(text: str | None, context: Context) -> str | None:
    """The absolute folder; None when there is none or it is not usable."""
    if text is None:
        return None
    substituted = _substituted(text, "workdir", context)
    if substituted is None:
        return None
    if reason := _unsuitable_workdir(substituted):
        context.problem("workdir", substituted, *reason)
        return None
    path = _absolute(substituted, "workdir", context)
    if path is not None and not _exists(path, folder=True):
        context.problem("workdir", str(path), "the folder does not exist", "Correct the path; it is local")
        return None
    return None if path is None else str(path)


def resolve_git(git: GitWorkdir | None, context: Context) -> GitWorkdir | None:
    """The repository with its variables replaced; None when there is none or it is not usable."""
    if git is None:
        return None
    url = _substituted(git.url, "workdir.url", context)
    ref = None if git.ref is None else _substituted(git.ref, "workdir.ref", context)
    if url is None or (git.ref is not None and ref is None):
        return None
    if holds_credentials(url):
        context.report.add("workdir.url", *_CREDENTIALS, line=context.lines.get("workdir.url"))
    elif reason := unsuitable_url(url):
        context.problem("workdir.url", url, *reason)
    if ref and (reason := unsuitable_ref(ref)):
        context.problem("workdir.ref", ref, *reason)
    return GitWorkdir(url, ref or None)


def resolve_mounts(mounts: Mapping[str, str], context: Context, *, has_workdir: bool) -> dict[str, str]:
    """Destination -> absolute local source, for all mounts that are usable."""
    resolved: dict[str, str] = {}
    for written, source in mounts.items():
        path = join_path("file_mounts", written)
        destination = _substituted(written, path, context)
        local = _resolve_source(source, path, context)
        if destination is None:
            continue
        if reason := _unsuitable_destination(destination):
            context.problem(path, destination, *reason)
        elif has_workdir and destination == _REMOTE_WORKDIR:
            context.problem(path, destination, *_OVER_WORKDIR)
        elif destination in resolved:
            context.problem(path, destination, "two mounts have this destination", "Remove one of them")
        elif local is not None:
            resolved[destination] = str(local)
    return resolved


_CREDENTIALS = (
    "a URL must not hold a user or a secret: it shows in logs",
    f"Leave out what is before the @; give the secret {TOKEN} for https, or {SSH_KEY} and an ssh URL",
)

_OVER_WORKDIR = (
    f"{_REMOTE_WORKDIR} is where workdir is copied to",
    "Mount somewhere else, or below it, or remove workdir",
)


def _resolve_source(text: str, path: str, context: Context) -> Path | None:
    source = _substituted(text, path, context)
    if source is None:
        return None
    if _URL.match(source):
        context.problem(path, source, "a bucket or other URL cannot be mounted", _NO_BUCKET)
        return None
    local = _absolute(source, path, context)
    if local is not None and not _exists(local, folder=False):
        context.problem(path, str(local), "source does not exist locally", "Correct the path")
        return None
    return local


def _substituted(text: str, path: str, context: Context) -> str | None:
    if any(name in context.secrets or context.envs.get(name, "") is None for name in references(text)):
        return None  # a problem of its own, noted elsewhere
    return substitute(text, context.envs)


def _absolute(text: str, path: str, context: Context) -> Path | None:
    try:
        local = Path(text).expanduser()
    except RuntimeError:
        context.problem(path, text, "the home folder is not known", "Write an absolute path")
        return None
    if local.is_absolute():
        return local
    if context.base_dir is None:
        context.problem(
            path,
            text,
            "a relative path, and no folder to start from",
            "Write an absolute path, or give base_dir",
        )
        return None
    return Path(context.base_dir) / local


def _exists(path: Path, *, folder: bool) -> bool:
    try:
        return path.is_dir() if folder else path.exists()
    except OSError:  # not allowed to look, or a name that is too long
        return False


def _unsuitable_workdir(text: str) -> tuple[str, str] | None:
    if not text.strip():
        return "must not be empty", "Give a local folder, or {url: ..., ref: ...}"
    if holds_credentials(text):
        return _CREDENTIALS
    if _URL.match(text):
        return "a URL is not a local folder", "For a Git repository write workdir: {url: ..., ref: ...}"
    return None


def _unsuitable_destination(text: str) -> tuple[str, str] | None:
    if _URL.match(text):
        return "a destination cannot be a URL", "Write the path on the nodes first, then the local source"
    if not text.startswith(("/", "~/")):
        return "the destination must be absolute", "Start it with / or ~/"
    if text.endswith("/"):
        return "the destination must not end in /", "Remove the last /"
    parts = text.split("/")[1:]
    if ".." in parts or "." in parts or "" in parts:
        return "the destination must not hold .., . or //", "Write the plain path"
    return None
