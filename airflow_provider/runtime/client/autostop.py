"""Autostop as it travels; both kinds of agent know it by SkyPilot's service."""

from __future__ import annotations

from airflow_provider.runtime.client.base import Autostop, HookEvent, WaitFor
from airflow_provider.runtime.wire import autostop_pb2 as pb

_BACKEND = "cloudvmray"
"""The only one that a skylet stops by itself; our agent does not ask."""

_WAIT_FOR = {
    WaitFor.JOBS_AND_SSH: pb.AUTOSTOP_WAIT_FOR_JOBS_AND_SSH,
    WaitFor.JOBS: pb.AUTOSTOP_WAIT_FOR_JOBS,
    WaitFor.NONE: pb.AUTOSTOP_WAIT_FOR_NONE,
}
_EVENTS = {
    HookEvent.STOP: pb.EVENT_STOP,
    HookEvent.PREEMPTION: pb.EVENT_PREEMPTION,
    HookEvent.DOWN: pb.EVENT_DOWN,
}


def autostop_request(autostop: Autostop) -> pb.SetAutostopRequest:
    """Return the request that sets it."""
    return pb.SetAutostopRequest(
        idle_minutes=autostop.idle_minutes,
        backend=_BACKEND,
        wait_for=_WAIT_FOR[autostop.wait_for],
        down=autostop.down,
        hooks=[
            pb.Hook(
                run=hook.run, events=[_EVENTS[event] for event in sorted(hook.events)], timeout=hook.timeout
            )
            for hook in autostop.hooks or ()
        ],
        clear_hooks=autostop.hooks == (),
    )
