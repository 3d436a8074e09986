"""Autostop: the setting, the idle clock, and the moment at which the cluster is due to end.

The setting and the clock lie in one file, so that a restarted agent goes on counting where the last one was. After a
reboot the setting stays and the clock begins anew. SkyPilot's setting ends with a reboot, as its own server sets it
again; here a machine that came back by itself, with nobody to set anything, would then never stop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider.runtime.agent.autostop.hooks import Hook
from airflow_provider.runtime.agent.autostop.idle import (
    Action,
    AutostopConfig,
    Found,
    IdleClock,
    WaitFor,
    boot_time,
    decide,
    occupied,
    seconds_to_next_look,
)
from airflow_provider.runtime.agent.autostop.sessions import ssh_sessions
from airflow_provider.runtime.agent.jobs.job import Closing
from airflow_provider.runtime.agent.jobs.jobdir import write_private
from airflow_provider.runtime.agent.waiting import happens

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_provider.runtime.agent.gate import Gate

log = logging.getLogger(__name__)

FILE_NAME = "autostop.json"

_RESUMED = "an agent that died had begun its end"

_LOOK_SECONDS = 15.0
"""How often to look for SSH sessions: one that came and went between two looks is not counted as activity."""

_LONGEST_SLEEP_SECONDS = 60.0
"""The event loop's timers stand still while the machine is suspended, the idle clock does not."""


@dataclass(frozen=True)
class AutostopState:
    """The setting and the clock as others may see them; minutes are whole ones, and 0 when nothing is set."""

    set: bool
    idle_minutes: int
    down: bool
    wait_for: str
    idle_seconds: float
    autostopping: bool


class Decision(NamedTuple):
    """How the cluster is to end, and why."""

    action: Action
    why: str


class _Record(NamedTuple):
    """What the file holds; ``stopping`` is the mark that an end of this boot has begun, and the rest is how far it got."""

    boot_id: str
    config: AutostopConfig | None
    hooks: tuple[Hook, ...]
    clock: IdleClock
    stopping: Action = Action.NOTHING
    hooks_begun: bool = False

    def clock_to_keep(self) -> object:
        """Return what of the clock a restarted agent needs: a busy cluster's clock begins anew with its agent."""
        if self.config is None:
            return None
        if self.config.wait_for is WaitFor.NONE:
            return self.clock.submitted
        return self.clock.busy or self.clock.active


class Autostop:
    """Knows when the cluster is due to end. Belongs to one event loop.

    Args:
        directory: Where the file lies.
        boot_id: Identity of this boot: clock and mark of another one mean nothing.
        live: Returns the number of jobs that are not terminal.
        held: Returns the seconds for which the lease is held.
        gate: Is closed as soon as the end is decided.
        initial: The setting to begin with where none was ever stored.
        sessions: Returns the number of interactive SSH sessions. Called in a thread.
        now: Returns the seconds since boot.
        look_seconds: How often to look for sessions.
    """

    def __init__(
        self,
        *,
        directory: Path,
        boot_id: str,
        live: Callable[[], int],
        held: Callable[[], float],
        gate: Gate,
        initial: AutostopConfig | None = None,
        sessions: Callable[[], int] = ssh_sessions,
        now: Callable[[], float] = boot_time,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._file = directory / FILE_NAME
        self._boot_id = boot_id
        self._live = live
        self._held = held
        self._gate = gate
        self._sessions = sessions
        self._now = now
        self._look_seconds = look_seconds
        self._config = initial
        self._hooks: tuple[Hook, ...] = ()
        self._clock = IdleClock.begin(now())
        self._stopping = Action.NOTHING
        self._resumed = False
        self._hooks_begun = False
        self._found = Found()
        self._seen_live: int | None = None
        self._kept = False
        self._kept_clock: object = None
        self._storing = asyncio.Lock()
        self._storing_fails = False
        self._setting: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    async def load(self) -> None:
        """Take over what an earlier agent stored. To be called before the jobs are loaded."""
        record = await asyncio.to_thread(self._read)
        self._clock = IdleClock.begin(self._now())
        if record is not None:
            self._kept = True
            self._config = record.config
            self._hooks = record.hooks
            if record.boot_id == self._boot_id:
                self._clock = record.clock  # one that was busy then counts as busy until the first look
                self._stopping = record.stopping
                self._resumed = record.stopping is not Action.NOTHING
                self._hooks_begun = self._resumed and record.hooks_begun
        if self._resumed:
            self._gate.close(_RESUMED)
        async with self._storing:
            await self._keep()

    def activity(self) -> None:
        """Note that a job was submitted or came to its end; call it after the number of live jobs has changed."""
        live = self._live()
        # The first calls come while jobs of an earlier agent are taken over: these are not submitted now.
        submitted = self._seen_live is not None and live >= self._seen_live
        if self._seen_live is not None:
            self._seen_live = live
        self._clock = self._clock.job_changed(self._now(), submitted=submitted)
        self._wake.set()

    def wake(self) -> None:
        """Look again: the lease is held or let go."""
        self._wake.set()

    def state(self) -> AutostopState:
        """Return the setting and the clock as of now."""
        config = self._config
        idle = not occupied(config, Found(self._live(), self._held(), self._found.sessions))
        return AutostopState(
            set=config is not None,
            idle_minutes=int(config.idle_seconds // 60) if config is not None else 0,
            down=config is not None and config.down,
            wait_for=(config.wait_for if config is not None else WaitFor.JOBS_AND_SSH).value,
            idle_seconds=self._clock.idle_seconds(config, self._now()) if idle else 0.0,
            autostopping=self._stopping is not Action.NOTHING,
        )

    async def set(self, config: AutostopConfig | None, hooks: tuple[Hook, ...] | None = None) -> None:
        """Store a setting. The first one, also the first after a cancel, restarts the idle clock; later ones do not.

        Args:
            config: The setting; None cancels the present one.
            hooks: The hooks from now on; None leaves the stored ones.

        Raises:
            Closing: the end was decided meanwhile.
            OSError: it cannot be stored; the old setting stays.
        """
        # In a task of its own: a caller that gives up meanwhile leaves file and memory alike.
        task = asyncio.create_task(self._set(config, hooks))
        self._setting.add(task)
        task.add_done_callback(self._setting.discard)
        await asyncio.shield(task)

    async def _set(self, config: AutostopConfig | None, hooks: tuple[Hook, ...] | None) -> None:
        async with self._storing:
            if self._stopping is not Action.NOTHING:
                raise Closing("the cluster is ending")
            hooks = self._hooks if hooks is None else hooks
            first = config is not None and self._config is None
            now = self._now()
            clock = self._clock._replace(active=now, submitted=now) if first else self._clock
            await self._store(self._record()._replace(config=config, hooks=hooks, clock=clock))
            self._config = config
            self._hooks = hooks
            if first:
                self._clock = self._clock._replace(active=now, submitted=now)
        if any("preemption" in hook.events for hook in hooks):
            log.info("hooks of preemption are stored and shown, not run: nothing announces one to this agent")
        log.info("autostop: %s, %s hook(s)", config if config is not None else "not set", len(hooks))
        self._wake.set()

    async def due(self) -> Decision:
        """Return when the cluster is due to end; by then that is marked, and the gate is closed."""
        if self._resumed:
            return Decision(self._stopping, _RESUMED)
        while True:
            self._wake.clear()
            seconds = await self._look()
            if self._wake.is_set():
                continue  # what was found is old already
            action = decide(self._config, self._found, self._idle_seconds())
            if action is not Action.NOTHING:
                decision = await self._begin(action)
                if decision is not None:
                    return decision
                continue
            await happens(self._wake, None if math.isinf(seconds) else min(seconds, _LONGEST_SLEEP_SECONDS))

    async def claim_hooks(self) -> tuple[Hook, ...]:
        """Return the hooks to run before the end; none when an agent that died has begun them: they run once."""
        if self._hooks_begun or not self._hooks:
            return ()
        self._hooks_begun = True
        async with self._storing:
            await self._keep()
        return self._hooks

    async def finished(self) -> None:
        """Forget the mark and the clock after the end: an agent that is started here again begins as after a boot.

        Raises:
            OSError: it cannot be stored; a new agent would end the cluster again.
        """
        if not self._kept:
            return
        async with self._storing:
            await self._store(_Record("", self._config, self._hooks, self._clock))

    async def _look(self) -> float:
        """See what is on the cluster, move the clock, and return the seconds to the next look."""
        config = self._config
        found = Found(self._live(), self._held())
        if config is not None and config.wait_for is WaitFor.JOBS_AND_SSH and not occupied(config, found):
            sessions = await asyncio.to_thread(self._sessions)
            found = Found(self._live(), self._held(), sessions)
        self._found = found
        self._seen_live = found.live_jobs
        self._clock = self._clock.looked(self._now(), occupied(config, found))
        if self._record().clock_to_keep() != self._kept_clock:
            async with self._storing:
                await self._keep()
        return seconds_to_next_look(config, found, self._idle_seconds(), look_seconds=self._look_seconds)

    async def _begin(self, action: Action) -> Decision | None:
        """Close the gate and mark the end; None when something that was under way just then speaks against it."""
        why = f"autostop: idle for {self._idle_seconds():.0f} s"
        self._stopping = action
        self._gate.close(why)
        async with self._storing:
            await self._keep()
            if not self._wake.is_set() and self._live() == self._found.live_jobs:
                return Decision(action, why)
            # A job or a setting that had passed the gate: it is looked at first.
            self._stopping = Action.NOTHING
            self._gate.open(why)
            await self._keep()
        return None

    def _idle_seconds(self) -> float:
        return self._clock.idle_seconds(self._config, self._now())

    def _record(self) -> _Record:
        return _Record(
            self._boot_id, self._config, self._hooks, self._clock, self._stopping, self._hooks_begun
        )

    async def _keep(self) -> None:
        """Store what there is; a full disk must neither end the agent nor keep the cluster from ending."""
        if self._config is None and not self._kept:
            return
        try:
            await self._store(self._record())
        except OSError as error:
            if not self._storing_fails:
                log.error("the idle clock cannot be stored: %s", error)
            self._storing_fails = True
        else:
            self._storing_fails = False

    async def _store(self, record: _Record) -> None:
        await asyncio.to_thread(write_private, self._file, _dump(record))
        self._kept = True
        self._kept_clock = record.clock_to_keep()

    def _read(self) -> _Record | None:
        try:
            return _parse(self._file.read_text(encoding="utf-8", errors="surrogateescape"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.error("%s cannot be read, the setting is lost: %s", self._file, error)
            return None


def _dump(record: _Record) -> str:
    config = record.config
    return json.dumps(
        {
            "boot_id": record.boot_id,
            "config": None if config is None else {**config._asdict(), "wait_for": config.wait_for.value},
            "hooks": [hook._asdict() for hook in record.hooks],
            "clock": record.clock._asdict(),
            "stopping": record.stopping.value,
            "hooks_begun": record.hooks_begun,
        }
    )


def _parse(text: str) -> _Record:
    data: dict[str, Any] = json.loads(text)
    config = data["config"]
    clock = data["clock"]
    return _Record(
        boot_id=str(data["boot_id"]),
        config=None
        if config is None
        else AutostopConfig(float(config["idle_seconds"]), bool(config["down"]), WaitFor(config["wait_for"])),
        hooks=tuple(
            Hook(str(hook["run"]), tuple(map(str, hook["events"])), float(hook["timeout"]))
            for hook in data["hooks"]
        ),
        clock=IdleClock(float(clock["active"]), float(clock["submitted"]), bool(clock["busy"])),
        stopping=Action(data["stopping"]),
        hooks_begun=bool(data["hooks_begun"]),
    )
