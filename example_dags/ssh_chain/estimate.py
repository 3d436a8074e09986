"""Estimates pi by chance, and signs the result with a secret so that others can tell who computed it."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import random
import time
from pathlib import Path

POINTS_PER_ROUND = 100_000
SECONDS_PER_ROUND = 0.5


def main() -> None:
    """Print an estimate twice a second, and leave the last one as the task's return value."""
    rounds = int(os.environ["ROUNDS"])
    chance = random.Random(int(os.environ["SKYPILOT_NODE_RANK"]))
    inside = 0
    estimate = 0.0
    for number in range(1, rounds + 1):
        inside += sum(chance.random() ** 2 + chance.random() ** 2 < 1 for _ in range(POINTS_PER_ROUND))
        estimate = 4 * inside / (number * POINTS_PER_ROUND)
        print(f"round {number} of {rounds}: {estimate:.5f}", flush=True)
        time.sleep(SECONDS_PER_ROUND)
    signature = hmac.new(os.environ["SIGNING_KEY"].encode(), f"{estimate:.5f}".encode(), hashlib.sha256)
    result = {"pi": f"{estimate:.5f}", "signature": signature.hexdigest()}
    Path(os.environ["TASK_OUTPUT_FILE"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
