"""Computes pi ever more exactly, and signs the result with a secret so that others can tell who computed it."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
from pathlib import Path

POINTS_PER_ROUND = 20_000
SECONDS_PER_ROUND = 0.5


def main() -> None:
    """Print an estimate twice a second, and leave the last one as the task's return value."""
    rounds = int(os.environ["ROUNDS"])
    estimate = 0.0
    for number in range(1, rounds + 1):
        points = number * POINTS_PER_ROUND
        estimate = sum(4 / (1 + ((point + 0.5) / points) ** 2) for point in range(points)) / points
        # What is printed is to be seen in the log at once.
        print(f"round {number} of {rounds}: {estimate:.13f}", flush=True)
        time.sleep(SECONDS_PER_ROUND)
    pi = f"{estimate:.10f}"
    signature = hmac.new(os.environ["SIGNING_KEY"].encode(), pi.encode(), hashlib.sha256).hexdigest()
    Path(os.environ["TASK_OUTPUT_FILE"]).write_text(json.dumps({"pi": pi, "signature": signature}))


if __name__ == "__main__":
    main()
