"""The text of the program that runs a job on a skylet's cluster."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from airflow_provider.runtime.client.base import JobRequest, RequestRefused

if TYPE_CHECKING:
    from typing import Any

    from airflow_provider.runtime.client.skylet_rows import Row

MAX_PROGRAM_BYTES = 4 * 1024 * 1024 - 64 * 1024
"""gRPC servers take messages of 4 MiB unless told otherwise, and a skylet is not."""

IDLE_SECONDS = 30.0
"""How often the log of a quiet job gets its idle mark."""

_PACKAGE = "airflow_provider.runtime.client.skylet_driver"
_MODULES = ("output", "processes", "claim", "keeper", "runner", "program")
_JANITOR_MODULES = ("output", "processes", "claim", "keeper", "janitor")
"""In the order of their imports; the last one has ``main``."""

# The name of the job's node, and of the only one: a skylet starts one program per job, on the head.
_ONE_NODE = {
    "SKYPILOT_NODE_RANK": "0",
    "SKYPILOT_NODE_IPS": "127.0.0.1",
    "SKYPILOT_NUM_NODES": "1",
    "SKYPILOT_SETUP_NODE_RANK": "0",
    "SKYPILOT_SETUP_NODE_IPS": "127.0.0.1",
}

_SURROGATE = re.compile("[\ud800-\udfff]")

_LOADER = """import json, sys, types
for name, source in json.loads({sources}).items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
module.main(json.loads({order}))
"""


def marker(key: str) -> str:
    """Return what marks the processes of the job with this key."""
    return "skylet-" + hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:32]


def path_part(name: str) -> str:
    """Return a name that is harmless in a path and a shell command: a skylet puts a job's name into both."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:64] or "job"


def program(
    *,
    key: str,
    marker: str,
    job_id: int,
    log: str,
    metadata: dict[str, Any],
    job: JobRequest,
    idle_seconds: float = IDLE_SECONDS,
) -> str:
    """Return the program that runs ``job`` once per ``key``; holds the job's secrets.

    Args:
        key: Of the submit.
        marker: Marks the job's processes.
        job_id: Of the skylet.
        log: Path of the job's log on the cluster.
        metadata: What is under ``managed_jobs`` in the job's metadata.
        job: What to run.
        idle_seconds: How often a quiet log gets its idle mark.

    Raises:
        RequestRefused: a skylet could not take or run it.
    """
    variables = {**_ONE_NODE, **job.envs, **job.secrets}
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name + value:
            raise RequestRefused(
                f"submit: {name!r} cannot be set: no name holds '=' and no name or value holds NUL"
            )
    texts = {"setup": job.setup, "run": job.run}
    if job.managed:
        texts["resources"] = job.managed.resources
    for name, value in variables.items():
        texts[f"the name of {name!r}"], texts[f"the value of {name!r}"] = name, value
    for name, value in texts.items():
        if _SURROGATE.search(value):
            raise RequestRefused(
                f"submit: {name} is no text: it holds half of a character (a lone surrogate)"
            )
    order = {
        "key": key,
        "marker": marker,
        "job_id": job_id,
        "log": log,
        "metadata": metadata,
        "setup": job.setup,
        "run": job.run,
        "variables": variables,
        "grace_seconds": job.grace_seconds,
        "idle_seconds": idle_seconds,
    }
    text = _text(_MODULES, order)
    if len(text) > MAX_PROGRAM_BYTES:
        raise RequestRefused(
            f"submit: setup, run and variables take {len(text)} bytes, a skylet takes {MAX_PROGRAM_BYTES}. "
            "Put large texts into files"
        )
    return text


def janitor_program(*, job: Row, log: str, janitor_id: int, janitor_metadata: dict[str, int]) -> str:
    """Return the program that cleans up after a cancelled job and has the last word on it; holds no secrets.

    Args:
        job: Ours, so it has a key.
        log: Path of the job's log on the cluster.
        janitor_id: The janitor's own id.
        janitor_metadata: What is under ``managed_jobs`` in the janitor's metadata.
    """
    order = {
        "key": job.key,
        "marker": marker(job.key or ""),
        "job_id": job.job_id,
        "log": log,
        "metadata": dict(job.fields),
        "grace_seconds": job.grace_seconds,
        "janitor_id": janitor_id,
        "janitor_metadata": janitor_metadata,
    }
    return _text(_JANITOR_MODULES, order)


def _text(modules: tuple[str, ...], order: dict[str, Any]) -> str:
    # Escaped twice and so plain ASCII, whatever the user's text holds.
    return _LOADER.format(sources=repr(_sources(modules)), order=repr(json.dumps(order)))


@cache
def _sources(modules: tuple[str, ...]) -> str:
    files = resources.files(_PACKAGE)
    return json.dumps({f"{_PACKAGE}.{name}": (files / f"{name}.py").read_text("utf-8") for name in modules})
