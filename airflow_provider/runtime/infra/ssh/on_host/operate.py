"""Does an operation with the runtime that is installed on the host."""

from __future__ import annotations

import os
import sys


def main(arguments: dict[str, object]) -> dict[str, object]:
    """Return what the operation answers."""
    runtime = str(arguments["runtime"])
    if not os.path.isdir(runtime):  # noqa: PTH112 - pathlib would cost a tenth of the whole call
        return {
            "problem": f"{runtime} is not there any more",
            "remedy": "it is installed anew by the next try",
        }
    sys.path.insert(0, runtime)
    from airflow_provider.runtime.agent.host.operations import operate

    return operate(str(arguments["operation"]), arguments["arguments"])
