"""Entry point: `python -m demo`, or `make demo`. KEEP=1 leaves Airflow up at the end."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from rich.console import Console
from rich.text import Text

from demo.run import main
from harness import AirflowError

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _end(number: int, _frame: FrameType | None) -> None:
    """End as an exception does, so that everything that was started is stopped; further signals wait for that."""
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


def run() -> int:
    """Run the demo; return the exit code."""
    for number in _ENDING:
        signal.signal(number, _end)
    console = Console(highlight=False)
    try:
        return 0 if main(console, keep=bool(os.environ.get("KEEP"))) else 1
    except KeyboardInterrupt as interrupt:
        console.print("Interrupted; everything that was started is gone.")
        return 128 + int(interrupt.args[0])
    except (AirflowError, TimeoutError) as error:
        console.print(Text(f"The demo failed: {error}", style="red"))
        return 1


if __name__ == "__main__":
    sys.exit(run())
