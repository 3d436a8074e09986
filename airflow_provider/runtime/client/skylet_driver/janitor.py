"""The program that ends what is left of a cancelled job, and has the last word on it when nobody else can.

A job of its own to the skylet. A job that is cancelled before its program began says nothing any more, and what was
to be its program lies there with its secrets: this program is written over that one.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from airflow_provider.runtime.client.skylet_driver.claim import Claim
from airflow_provider.runtime.client.skylet_driver.keeper import Keeper
from airflow_provider.runtime.client.skylet_driver.output import end_line
from airflow_provider.runtime.client.skylet_driver.processes import SWEEP_LIMIT_SECONDS, marked, sweep

if TYPE_CHECKING:
    from typing import Any

_CLEAN = {"status": "SUCCEEDED", "reason": "", "exit_codes": [0]}


def main(order: dict[str, Any]) -> NoReturn:
    """Clean up after the job of ``order`` and report to SkyPilot.

    Args:
        order: ``job_id``, ``key``, ``marker``, ``metadata``, ``log`` and ``grace_seconds`` of the job that was cancelled,
            as for its own program; ``janitor_id`` and ``janitor_metadata`` of the janitor.
    """
    with suppress(OSError):
        Path(sys.argv[0]).unlink()
    janitor = Keeper(order["janitor_id"], order["janitor_metadata"])
    janitor.status("RUNNING")  # else no other job would start meanwhile
    end = _last_word(order)
    if end is not None:
        Keeper(order["job_id"], order["metadata"]).end(end)
    janitor.end(_CLEAN)
    sys.exit(0)


def _last_word(order: dict[str, Any]) -> dict[str, Any] | None:
    """Return the last word on the job once nothing of it is left; None: its own program lives, and will have it."""
    claim = Claim(order["key"])
    deadline = time.monotonic() + order["grace_seconds"] + SWEEP_LIMIT_SECONDS
    told: set[int] = set()
    while not claim.take():
        found = claim.read()
        if found.get("job_id", order["job_id"]) not in (order["job_id"], 0):
            return _other(found)
        pid = found.get("pid")
        if pid and pid not in told:  # the cancel may have missed it
            told.add(pid)
            with suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.1)
    found = claim.read()
    if found and found["job_id"] not in (order["job_id"], 0):
        return _other(found)
    end: dict[str, Any] | None = found.get("end")
    if end is None:
        sweep(lambda: marked(order["marker"]), grace=order["grace_seconds"], wait=time.sleep)
        end_line(Path(order["log"]).expanduser())
        if found:
            end = {"status": "FAILED_DRIVER", "reason": "the job's driver died", "exit_codes": []}
        else:
            end = {
                "status": "CANCELLED",
                "reason": "cancelled before it began",
                "exit_codes": [],
                "log_size": 0,
            }
        end["ended_at"] = time.time()
    # A program that comes late finds this and does not run.
    claim.write(job_id=order["job_id"], pid=0, end=end, told=True)
    return end


def _other(found: dict[str, Any]) -> dict[str, Any]:
    reason = f"the same was submitted as job {found['job_id']}"
    return {"status": "CANCELLED", "reason": reason, "exit_codes": [], "log_size": 0}
