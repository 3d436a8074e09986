"""``python -m benchmarks [NAME …]``: measure, and print the figures as a Markdown table."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable

from benchmarks import agent, demonstration, imports, recovery, ssh
from benchmarks.report import Figure, machine, table

_ALL: dict[str, Callable[[], list[Figure]]] = {
    "imports": imports.measure,
    "agent": lambda: asyncio.run(agent.measure()),
    "recovery": lambda: asyncio.run(recovery.measure()),
    "ssh": ssh.measure,
    "demo": demonstration.measure,
}
_LONG: dict[str, Callable[[], list[Figure]]] = {
    "quiet": lambda: asyncio.run(agent.measure_quiet()),
    "crowd": ssh.measure_crowd,
}
"""Measured only when asked for by name."""


def main() -> int:
    """Measure what was asked for (default: all but the long ones); exit code 1 when a limit is not met."""
    measures = _ALL | _LONG
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"of {', '.join(measures)}; default: all but {', '.join(_LONG)}",
    )
    names = parser.parse_args().names or list(_ALL)
    unknown = [name for name in names if name not in measures]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(measures)}")
    figures = []
    for name in names:
        print(f"measuring: {name} …", file=sys.stderr, flush=True)
        figures += measures[name]()
    print(f"{machine()}\n\n{table(figures)}")
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
