"""``python -m airflow_provider.runtime.agent --root DIR``: start an agent in the background.

Returns once it serves (exit code 0) or has failed to start (1, with the reason on stderr). An agent that runs already
is as good as a new one.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import os
import select
import sys
import time
from pathlib import Path
from typing import NoReturn

_READY_SECONDS = 30.0
_RETRY_SECONDS = 0.05


def main() -> int:
    """Start the agent and wait for its first word."""
    parser = argparse.ArgumentParser(prog="airflow_provider.runtime.agent", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="the agent's directory")
    parser.add_argument("--instance", required=True, help="identity of the cluster that it serves")
    parser.add_argument(
        "--lease", type=float, required=True, help="seconds to live without hearing from a controller"
    )
    parser.add_argument(
        "--disposable",
        action="store_true",
        help="the root goes when the lease ends or autostop takes the cluster down",
    )
    parser.add_argument(
        "--private-homes",
        action="store_true",
        help="each job has a home directory of its own below the root, not the user's",
    )
    parser.add_argument(
        "--host-lease",
        type=Path,
        metavar="DIR",
        help="keep the host's lease, whose records are there; the cluster ends where somebody else has the host",
    )
    parser.add_argument(
        "--chunks",
        type=Path,
        metavar="DIR",
        help="where pieces of files are kept, for other clusters of the account too; by default below the root",
    )
    parser.add_argument(
        "--ready-seconds",
        type=float,
        metavar="SECONDS",
        default=_READY_SECONDS,
        help="within what time the agent has to serve",
    )
    parser.add_argument(
        "--autostop",
        type=_minutes,
        metavar="MINUTES",
        help="end the cluster when it was idle for so long, unless another setting was stored since",
    )
    parser.add_argument(
        "--autostop-down", action="store_true", help="an idle cluster goes down instead of stopping"
    )
    parser.add_argument(
        "--autostop-wait-for",
        choices=("jobs_and_ssh", "jobs", "none"),
        default="jobs_and_ssh",
        help="what keeps the cluster from being idle",
    )
    parser.add_argument("--on-stop", metavar="COMMAND", help="bash command that stops the machine")
    parser.add_argument(
        "--on-down", metavar="COMMAND", help="bash command that takes the machine away for good"
    )
    arguments = parser.parse_args()
    root: Path = arguments.root.absolute()
    directory = root / "agent"
    try:
        # Not the root: where it is gone, its cluster was removed meanwhile and must not come back.
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    hear, tell = os.pipe()
    if os.fork() == 0:
        os.close(hear)
        _become_agent(arguments, root, tell)
    os.close(tell)
    seconds: float = arguments.ready_seconds
    heard = _hear(hear, seconds)
    if heard == b"ready":
        return 0
    if not heard:
        heard = (
            f"the agent did not start within {seconds:g} s or died; see {directory / 'agent.log'}".encode()
        )
    sys.stderr.write(heard.decode(errors="replace") + "\n")
    return 1


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 <= minutes < math.inf:
        raise ValueError(text)
    return minutes


def _hear(handle: int, seconds: float) -> bytes:
    poll = select.poll()
    poll.register(handle, select.POLLIN | select.POLLHUP)
    return os.read(handle, 4096) if poll.poll(seconds * 1000) else b""


def _become_agent(arguments: argparse.Namespace, root: Path, tell: int) -> NoReturn:
    """Leave the caller's session and serve; never returns into the caller's code."""
    code = 1
    try:
        os.setsid()
        # A writable file in place of the caller's terminal or pipes, which must not keep the agent's caller waiting.
        output = os.open(
            root / "agent" / "agent.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        code = _serve(arguments, root, tell)
    except BaseException as error:
        logging.getLogger(__name__).exception("the agent ends")
        _say(tell, f"{type(error).__name__}: {error}".encode())
    finally:
        logging.shutdown()
        os._exit(code)


def _serve(arguments: argparse.Namespace, root: Path, tell: int) -> int:
    # After the fork, as all that loads grpc.
    from airflow_provider.runtime.agent.autostop.idle import AutostopConfig, WaitFor
    from airflow_provider.runtime.agent.server import AgentConfig, AgentRuns, answers, serve

    autostop = None
    if arguments.autostop is not None:
        autostop = AutostopConfig(
            idle_seconds=arguments.autostop * 60,
            down=arguments.autostop_down,
            wait_for=WaitFor(arguments.autostop_wait_for),
        )
    config = AgentConfig(
        root=root,
        instance=arguments.instance,
        lease_seconds=arguments.lease,
        disposable=arguments.disposable,
        private_homes=arguments.private_homes,
        host_lease=arguments.host_lease,
        chunks=arguments.chunks,
        autostop=autostop,
        stop_command=arguments.on_stop,
        down_command=arguments.on_down,
    )
    deadline = time.monotonic() + arguments.ready_seconds
    while True:
        try:
            asyncio.run(serve(config, lambda: _say(tell, b"ready")))
        except AgentRuns:
            if answers():
                _say(tell, b"ready")
                return 0
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)  # it is starting or ending
        else:
            return 0


def _say(tell: int, word: bytes) -> None:
    try:
        os.write(tell, word)
        os.close(tell)
    except OSError:
        pass  # said already, or nobody listens any more


if __name__ == "__main__":
    sys.exit(main())
