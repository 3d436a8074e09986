"""What must be true at the end of the demo."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EPOCH = re.compile(r"^epoch (\d+)/(\d+) ", re.MULTILINE)
RESUMED = re.compile(r"^resuming at epoch (\d+) from checkpoint ", re.MULTILINE)

# The bundled digits are easy: whatever learns at all gets this far.
ACCURACY = 0.9


@dataclass(frozen=True)
class Check:
    """One thing that must be true, and what was found."""

    what: str
    ok: bool
    found: str


def epochs_in(log: str) -> list[int]:
    """Return the numbers of the epochs in a training log, in order."""
    return [int(number) for number, _ in EPOCH.findall(log)]


def all_checks(
    *, run_state: str, recoveries: int, log: str, result: Mapping[str, Any] | None, left: Sequence[str]
) -> list[Check]:
    """Return the verdicts.

    Args:
        run_state: the DAG run's final state.
        recoveries: how often the train task got a new cluster.
        log: the train task's log, as text, from Airflow.
        result: the value that the evaluate task returned to Airflow.
        left: what is left of the clusters.
    """
    accuracy = result.get("accuracy", 0.0) if result else 0.0
    return [
        Check("the run succeeded", run_state == "success", run_state),
        Check("the lost machine was replaced", recoveries >= 1, f"recoveries: {recoveries}"),
        _resumed(log),
        Check("the model is good", accuracy >= ACCURACY, f"accuracy {accuracy} on unseen digits"),
        Check("nothing was left behind", not left, "; ".join(left) or "no process, no cluster, no blob"),
    ]


def _resumed(log: str) -> Check:
    what = "training went on from its checkpoint, in one log"
    epochs, resumed = epochs_in(log), RESUMED.search(log)
    if resumed is None:
        return Check(what, False, f"no such line in the task log; epochs in it: {epochs}")
    at = int(resumed.group(1))
    before = epochs_in(log[: resumed.start()])
    after = epochs_in(log[resumed.end() :])
    last = int(EPOCH.findall(log)[-1][1]) if epochs else 0
    # The machine may have been lost between a checkpoint and the line that tells of its epoch.
    complete = bool(before) and before[0] == 1 and at > 1 and before[-1] in (at - 1, at - 2)
    return Check(
        what,
        complete and after == list(range(at, last + 1)),
        f"epochs {before}, resumed at {at}, then {after}",
    )
