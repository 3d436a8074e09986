"""The demo, from its start to its exit code."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.report import Figure


def measure() -> list[Figure]:
    """Run the demo once.

    Raises:
        subprocess.CalledProcessError: it did not succeed.
    """
    begin = time.monotonic()
    subprocess.run([sys.executable, "-m", "demo"], check=True, stdout=subprocess.DEVNULL)
    return [
        Figure(
            "demo after installation", time.monotonic() - begin, 120, "s", "one run, Airflow's start included"
        )
    ]
