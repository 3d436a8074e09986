"""When a cluster counts as idle, and what is due then: a pure decision and the idle clock that it looks at.

The rules, by what is found on the cluster:

======================================  ==============  ==============  ==============
found                                   jobs_and_ssh    jobs            none
======================================  ==============  ==============  ==============
a live job (also PENDING, CANCELLING)   activity        activity        nothing
a hold of the lease                     activity        activity        nothing
an open interactive SSH session         activity        nothing         nothing
a tunnel or command over SSH            nothing         nothing         nothing
a follower of a log                     nothing         nothing         nothing
a daemon that an ended job left         nothing         nothing         nothing
======================================  ==============  ==============  ==============

A daemon is nothing because nothing of an ended job is left: what it started is swept before its status is terminal.
Whoever wants a service to keep the cluster runs it in the foreground of a job. Mode none is a plain timer that runs from
the setting or the last submission on: a cap in real seconds that also ends a job that hangs.
"""

from __future__ import annotations

import enum
import math
import time
from typing import NamedTuple


class WaitFor(enum.Enum):
    """What keeps a cluster from being idle; the values are SkyPilot's names."""

    JOBS_AND_SSH = "jobs_and_ssh"
    JOBS = "jobs"
    NONE = "none"


class Action(enum.Enum):
    """What is due; the values of the last two are the names of the hooks' events."""

    NOTHING = "nothing"
    STOP = "stop"
    DOWN = "down"


class AutostopConfig(NamedTuple):
    """A setting of autostop.

    Attributes:
        idle_seconds: How long the cluster is idle before it ends; 0: as soon as it is idle.
        down: Whether it then goes for good, instead of stopping.
        wait_for: What keeps it from being idle.
    """

    idle_seconds: float
    down: bool
    wait_for: WaitFor = WaitFor.JOBS_AND_SSH


class Found(NamedTuple):
    """What is found on the cluster.

    Attributes:
        live_jobs: Jobs whose status is not terminal.
        held: Seconds for which the lease is still held; 0: it is not.
        sessions: Interactive SSH sessions.
    """

    live_jobs: int = 0
    held: float = 0.0
    sessions: int = 0


class IdleClock(NamedTuple):
    """Since when the cluster is idle, in seconds of the clock of this boot (see ``boot_time``).

    Attributes:
        active: The last moment at which it was known not to be idle.
        submitted: When autostop was set, or a job submitted later than that.
        busy: Whether it was busy at the last look.
    """

    active: float
    submitted: float
    busy: bool = False

    @classmethod
    def begin(cls, now: float) -> IdleClock:
        """Return a clock that begins now."""
        return cls(active=now, submitted=now)

    def looked(self, now: float, busy: bool) -> IdleClock:
        """Return the clock after a look: what was busy at the look before counts as busy until this one."""
        return self._replace(active=now if busy or self.busy else self.active, busy=busy)

    def job_changed(self, now: float, *, submitted: bool) -> IdleClock:
        """Return the clock after a job was submitted, or came to its end."""
        return self._replace(active=now, submitted=now if submitted else self.submitted)

    def idle_seconds(self, config: AutostopConfig | None, now: float) -> float:
        """Return for how long the cluster has been idle, as the mode of the setting counts it."""
        if config is not None and config.wait_for is WaitFor.NONE:
            return max(0.0, now - self.submitted)
        return 0.0 if self.busy else max(0.0, now - self.active)


def boot_time() -> float:
    """Return the seconds since boot, those of a suspended machine too; no change of date or time touches them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def occupied(config: AutostopConfig | None, found: Found) -> bool:
    """Return whether what was found keeps the cluster from being idle."""
    if config is not None and config.wait_for is WaitFor.NONE:
        return False
    sessions = found.sessions if config is not None and config.wait_for is WaitFor.JOBS_AND_SSH else 0
    return found.live_jobs > 0 or found.held > 0 or sessions > 0


def decide(config: AutostopConfig | None, found: Found, idle_seconds: float) -> Action:
    """Return what is due."""
    if config is None or occupied(config, found) or idle_seconds < config.idle_seconds:
        return Action.NOTHING
    return Action.DOWN if config.down else Action.STOP


def seconds_to_next_look(
    config: AutostopConfig | None, found: Found, idle_seconds: float, *, look_seconds: float
) -> float:
    """Return for how long nothing can become due, if no job and no hold changes; infinite: for ever.

    Args:
        config: The setting.
        found: What was found just now.
        idle_seconds: For how long the cluster has been idle.
        look_seconds: How often to look for SSH sessions, which tell nobody when they come and go.
    """
    if config is None or (config.wait_for is not WaitFor.NONE and found.live_jobs):
        return math.inf
    if occupied(config, found):
        return found.held if found.held > 0 else look_seconds
    left = max(0.0, config.idle_seconds - idle_seconds)
    return min(left, look_seconds) if config.wait_for is WaitFor.JOBS_AND_SSH else left
