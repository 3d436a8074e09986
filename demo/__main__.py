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

INTERRUPTED = 130


def _terminate(number: int, _frame: FrameType | None) -> None:
    # As an exception, so that everything that was started is stopped.
    raise SystemExit(128 + number)


def run() -> int:
    """Run the demo; return the exit code."""
    # Explicitly: a shell that starts us in the background has SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    console = Console(highlight=False)
    try:
        return 0 if main(console, keep=bool(os.environ.get("KEEP"))) else 1
    except KeyboardInterrupt:
        console.print("Interrupted; everything that was started is gone.")
        return INTERRUPTED
    except (AirflowError, TimeoutError) as error:
        console.print(Text(f"The demo failed: {error}", style="red"))
        return 1


if __name__ == "__main__":
    sys.exit(run())
