"""The demo in the terminal: a picture that changes, or plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typing_extensions import Self

from demo.checks import Check
from demo.stages import Stage

LOG_LINES = 8

_STYLES = {"SUCCEEDED": "green", "RUNNING": "cyan", "STARTING": "cyan", "RECOVERING": "yellow"}


class View(Protocol):
    """What the demo tells while it goes on."""

    def __enter__(self) -> Self:
        """Begin."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; the terminal is as before."""
        ...

    def say(self, text: str) -> None:
        """Tell something that stays."""
        ...

    def show(self, stages: Sequence[Stage], log_of: str, log: Sequence[str]) -> None:
        """Show the present state, and the log of the stage that runs."""
        ...


class PlainView:
    """Lines only: for files, pipes and CI."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._statuses: dict[str, tuple[str, int]] = {}
        self._shown: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, text: str) -> None:
        """Print a line with the time that has passed."""
        # Whole lines: what reads them wraps or searches as it likes.
        self._console.print(_since(self._started, text), soft_wrap=True)

    def show(self, stages: Sequence[Stage], log_of: str, log: Sequence[str]) -> None:
        """Print what is new."""
        for stage in stages:
            now = (stage.status, stage.attempt)
            if self._statuses.get(stage.name) != now:
                self._statuses[stage.name] = now
                attempt = f" (attempt {stage.attempt})" if stage.attempt > 1 else ""
                self.say(f"{stage.name}: {stage.status}{attempt}")
        for line in log[self._shown.get(log_of, 0) :]:
            self.say(f"  {log_of} | {line}")
        self._shown[log_of] = max(len(log), self._shown.get(log_of, 0))


class LiveView:
    """One picture, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._started = time.monotonic()
        self._stages: Sequence[Stage] = ()
        self._log_of = ""
        self._log: Sequence[str] = ()
        # Last: it draws at once.
        self._live = Live(console=console, get_renderable=self._picture, refresh_per_second=5)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a line above the picture."""
        self._live.console.print(_since(self._started, text), soft_wrap=True)

    def show(self, stages: Sequence[Stage], log_of: str, log: Sequence[str]) -> None:
        """Change the picture."""
        self._stages, self._log_of, self._log = stages, log_of, log

    def _picture(self) -> Group | Text:
        if not self._stages:
            return Text("waiting for Airflow to begin the run")
        table = Table(expand=True)
        for column in ("task", "status", "attempt", "recoveries"):
            table.add_column(column)
        table.add_column("elapsed", justify="right")
        for stage in self._stages:
            table.add_row(
                stage.name,
                Text(stage.status, style=_STYLES.get(stage.status, "dim")),
                str(stage.attempt or ""),
                str(stage.recoveries or ""),
                _duration(stage.elapsed),
            )
        lines = [*self._log[-LOG_LINES:]]
        lines += [""] * (LOG_LINES - len(lines))  # a height that stays, so that nothing jumps
        log = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
        return Group(table, Panel(log, title=f"log of {self._log_of}" if self._log_of else "log"))


def make_view(console: Console) -> View:
    """Return the view that suits the terminal."""
    return LiveView(console) if console.is_terminal else PlainView(console)


def print_result(console: Console, stages: Sequence[Stage], checks: Sequence[Check]) -> None:
    """Print the final table and the verdict on each check."""
    table = Table(title="train_digits")
    for column in ("task", "status", "attempts", "recoveries"):
        table.add_column(column)
    table.add_column("time", justify="right")
    table.add_column("result")
    for stage in stages:
        status = Text(stage.status, style=_STYLES.get(stage.status, "red"))
        table.add_row(
            stage.name,
            status,
            str(stage.attempt),
            str(stage.recoveries),
            _duration(stage.elapsed),
            stage.output or "",
        )
    console.print(table)
    for check in checks:
        mark = Text("  ok    ", style="green") if check.ok else Text("  FAILED ", style="bold red")
        console.print(Text.assemble(mark, f"{check.what}: {check.found}"), soft_wrap=True)


def _since(started: float, text: str) -> Text:
    return Text(f"{time.monotonic() - started:5.1f} s  {text}")


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f} s"
