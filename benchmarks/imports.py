"""What importing the provider costs a DAG file."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.report import Figure, median

_ROUNDS = 7
_PROGRAM = """
import json, sys, time
import airflow.sdk
import airflow.sdk.exceptions
before = set(sys.modules)
begin = time.perf_counter()
from airflow_provider import ManagedTaskOperator, managed_job
seconds = time.perf_counter() - begin
print(json.dumps([seconds, sorted(set(sys.modules) - before)]))
"""
HEAVY = ("grpc", "paramiko", "sqlalchemy", "yaml", "numpy", "google.protobuf")


def cost() -> tuple[float, list[str]]:
    """Return the seconds that the import takes beyond ``airflow.sdk``, and the modules that it adds."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    seconds, modules = json.loads(done.stdout.splitlines()[-1])
    return seconds, modules


def measure() -> list[Figure]:
    """Import the operators in new interpreters."""
    rounds = [cost() for _ in range(_ROUNDS)]
    heavy = {name for _, modules in rounds for name in modules if name.partition(".")[0] in HEAVY}
    return [
        Figure(
            "import at DAG-parse time beyond airflow.sdk",
            median([seconds for seconds, _ in rounds]) * 1000,
            60,
            "ms",
            f"median of {_ROUNDS} interpreters",
        ),
        Figure("heavy modules that it adds", len(heavy), 0, "modules", ", ".join(HEAVY)),
    ]
