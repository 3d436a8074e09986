"""``python -m airflow_provider.runtime.agent.host OPERATION``: one question to this host, in JSON.

The arguments come as one JSON object on standard input, the answer goes as one line to standard output. Exit code 0 for
an answer, 1 for a problem of the host, 2 for a question that makes no sense.
"""

from __future__ import annotations

import json
import sys

from airflow_provider.runtime.agent.host.operations import OPERATIONS, operate


def main() -> int:
    """Answer the question."""
    try:
        if len(sys.argv) != 2:
            raise ValueError(f"one operation is needed: {', '.join(OPERATIONS)}")
        answer = operate(sys.argv[1], json.load(sys.stdin))
    except (ValueError, KeyError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0 if "ok" in answer else 1


if __name__ == "__main__":
    sys.exit(main())
