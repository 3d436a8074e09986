"""The text of the program that runs a job on a skylet's cluster."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from airflow_provider.runtime.client.base import JobRequest, RequestRefused

if TYPE_CHECKING:
    from typing import Any

MAX_PROGRAM_BYTES = 4 * 1024 * 1024 - 64 * 1024
"""gRPC servers take messages of 4 MiB unless told otherwise, and a skylet is not."""

IDLE_SECONDS = 30.0
"""How often the log of a quiet job gets its idle mark."""

_PACKAGE = "airflow_provider.runtime.client.skylet_driver"
_MODULES = ("output", "processes", "claim", "keeper", "runner", "program")
"""In the order of their imports."""

# The name of the job's node, and of the only one: a skylet starts one program per job, on the head.
_ONE_NODE = {
    "SKYPILOT_NODE_RANK": "0",
    "SKYPILOT_NODE_IPS": "127.0.0.1",
    "SKYPILOT_NUM_NODES": "1",
    "SKYPILOT_SETUP_NODE_RANK": "0",
    "SKYPILOT_SETUP_NODE_IPS": "127.0.0.1",
}

_LOADER = """import json, sys, types
for name, source in json.loads({sources}).items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
module.main(json.loads({order}))
"""


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
    # Escaped twice and so plain ASCII, whatever the user's text holds.
    text = _LOADER.format(sources=repr(_sources()), order=repr(json.dumps(order)))
    if len(text) > MAX_PROGRAM_BYTES:
        raise RequestRefused(
            f"submit: setup, run and variables take {len(text)} bytes, a skylet takes {MAX_PROGRAM_BYTES}. "
            "Put large texts into files"
        )
    return text


@cache
def _sources() -> str:
    files = resources.files(_PACKAGE)
    return json.dumps({f"{_PACKAGE}.{name}": (files / f"{name}.py").read_text("utf-8") for name in _MODULES})
