"""``python -m benchmarks [NAME …]``: measure, and print the figures as a Markdown table."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable

from benchmarks import agent, demonstration, imports, recovery
from benchmarks.report import Figure, machine, table

_ALL: dict[str, Callable[[], list[Figure]]] = {
    "imports": imports.measure,
    "agent": lambda: asyncio.run(agent.measure()),
    "recovery": lambda: asyncio.run(recovery.measure()),
    "demo": demonstration.measure,
}


def main() -> int:
    """Measure what was asked for (default: everything); exit code 1 when a limit is not met."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(_ALL)}; default: all")
    names = parser.parse_args().names or list(_ALL)
    unknown = [name for name in names if name not in _ALL]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(_ALL)}")
    figures = []
    for name in names:
        print(f"measuring: {name} …", file=sys.stderr, flush=True)
        figures += _ALL[name]()
    print(f"{machine()}\n\n{table(figures)}")
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
