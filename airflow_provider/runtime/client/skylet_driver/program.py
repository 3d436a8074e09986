"""The program's way from start to end; see the package."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from airflow_provider.runtime.client.skylet_driver.claim import Claim
from airflow_provider.runtime.client.skylet_driver.keeper import Keeper
from airflow_provider.runtime.client.skylet_driver.output import end_line
from airflow_provider.runtime.client.skylet_driver.processes import marked, sweep
from airflow_provider.runtime.client.skylet_driver.runner import Runner, say

if TYPE_CHECKING:
    from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOST = {"status": "FAILED_DRIVER", "reason": "the job's driver died", "exit_codes": []}


def main(order: dict[str, Any]) -> NoReturn:
    """Run the job of ``order``, once per its key, and report to SkyPilot; ends with 0 when the job succeeded.

    Args:
        order: ``job_id``; ``key``; ``marker`` (value that marks the job's processes); ``metadata`` (what the client
            put under ``managed_jobs``); ``log`` (path); ``setup``; ``run``; ``variables``; ``grace_seconds``;
            ``idle_seconds`` (how often a quiet log gets its idle mark).
    """
    # A handler, as to ignore the signal would make the next job's driver, which we start, ignore it too.
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    with suppress(OSError):
        Path(sys.argv[0]).unlink()
    claim = Claim(order["key"])
    end = _run(order, claim, asked) if claim.take() and not claim.read() else _repeat(order, claim, asked)
    sys.exit(0 if end["status"] == "SUCCEEDED" else 1)


def _run(order: dict[str, Any], claim: Claim, asked: list[int]) -> dict[str, Any]:
    hear, tell = os.pipe()
    keeper_pid = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    runner_pid = os.fork()
    if runner_pid == 0:
        os.close(hear)
        _be_runner(order, claim, tell, keeper_pid)
    if asked:  # before there was a runner to hear it
        os.kill(runner_pid, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.close(tell)
    for name in ("setup", "run", "variables"):
        del order[name]
    keeper = Keeper(order["job_id"], order["metadata"])
    end: dict[str, Any] | None = None
    # Open until all is written: the runner waits for its end, which is ours.
    with open(hear, encoding="utf-8") as lines:
        for line in lines:
            word = json.loads(line)
            if "end" in word:
                end = word["end"]
                break
            keeper.status(word["status"])
        if end is None:
            # The runner died.
            sweep(lambda: marked(order["marker"]), grace=order["grace_seconds"], wait=time.sleep)
            end_line(Path(order["log"]).expanduser())
            end = _LOST
        keeper.end(end)
        claim.write(job_id=order["job_id"], pid=0, end=end, told=True)
    return end


def _be_runner(order: dict[str, Any], claim: Claim, tell: int, keeper_pid: int) -> NoReturn:
    code = 1
    try:
        runner = Runner(order, tell)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() == keeper_pid:
            claim.write(job_id=order["job_id"], pid=os.getpid())
            end = runner.run()
            claim.write(job_id=order["job_id"], pid=0, end=end)
            _hand_over(end, tell, keeper_pid)
            if not claim.read().get("told"):  # the keeper died
                Keeper(order["job_id"], order["metadata"]).end(end)
            code = 0
    except BaseException as error:
        print(f"the runner failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _hand_over(end: dict[str, Any], tell: int, keeper_pid: int) -> None:
    """Give the keeper the last word and wait for its end: that it takes a word is no sign that it lives.

    A killed process with many threads may be told of by the kernel before its descriptors are closed.
    """
    with suppress(BrokenPipeError):
        say(tell, {"end": end})
    closed = select.poll()
    closed.register(tell, 0)
    while not closed.poll(1000) and os.getppid() == keeper_pid:
        pass


def _repeat(order: dict[str, Any], claim: Claim, asked: list[int]) -> dict[str, Any]:
    """Stand in for the program that runs or ran for this key: ours is the pid that the skylet knows now."""
    while not claim.take():
        pid = claim.read().get("pid")
        if asked and pid:
            asked.clear()
            with suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        time.sleep(0.2)
    found = claim.read()
    end: dict[str, Any] = found.get("end") or _LOST
    if found["job_id"] not in (order["job_id"], 0):
        reason = f"the same was submitted as job {found['job_id']}, which has run"
        end = {"status": "FAILED_DRIVER", "reason": reason, "exit_codes": []}
    Keeper(order["job_id"], order["metadata"]).end(end)
    return end
