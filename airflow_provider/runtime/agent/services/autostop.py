"""autostop.v1: the setting of autostop and its hooks, as SkyPilot's clients send them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.autostop.hooks import DEFAULT_TIMEOUT, EVENTS, Hook
from airflow_provider.runtime.agent.autostop.idle import AutostopConfig, WaitFor
from airflow_provider.runtime.agent.guard import BadRequest, answering
from airflow_provider.runtime.wire import autostop_pb2 as pb

if TYPE_CHECKING:
    import grpc.aio
    from google.protobuf.message import Message

    from airflow_provider.runtime.agent.autostop.autostop import Autostop

    Context = grpc.aio.ServicerContext[Message, Message]

_WAIT_FOR = {
    # As SkyPilot reads a client that does not say.
    pb.AUTOSTOP_WAIT_FOR_UNSPECIFIED: WaitFor.JOBS_AND_SSH,
    pb.AUTOSTOP_WAIT_FOR_JOBS_AND_SSH: WaitFor.JOBS_AND_SSH,
    pb.AUTOSTOP_WAIT_FOR_JOBS: WaitFor.JOBS,
    pb.AUTOSTOP_WAIT_FOR_NONE: WaitFor.NONE,
}

_EVENTS = {pb.EVENT_STOP: "stop", pb.EVENT_PREEMPTION: "preemption", pb.EVENT_DOWN: "down"}


class AutostopService:
    """One method per RPC of ``AUTOSTOP_RPCS`` in ``wire/rpcs.py``."""

    def __init__(self, *, autostop: Autostop) -> None:
        self._autostop = autostop

    @answering
    async def set_autostop(self, request: pb.SetAutostopRequest, context: Context) -> pb.SetAutostopResponse:
        """Store the setting and the hooks; negative idle minutes cancel the setting and leave the hooks."""
        await self._autostop.set(_config(request), _hooks(request))
        return pb.SetAutostopResponse()

    @answering
    async def is_autostopping(
        self, request: pb.IsAutostoppingRequest, context: Context
    ) -> pb.IsAutostoppingResponse:
        """Say whether the cluster has begun to stop or go down, in this boot."""
        return pb.IsAutostoppingResponse(is_autostopping=self._autostop.state().autostopping)


def _config(request: pb.SetAutostopRequest) -> AutostopConfig | None:
    """Return the setting that a request asks for, None when it cancels.

    Raises:
        BadRequest: a mode that is not known.
    """
    if request.wait_for not in _WAIT_FOR:
        raise BadRequest(f"wait_for is {request.wait_for}: one of {sorted(_WAIT_FOR)} is needed")
    if request.idle_minutes < 0:
        return None
    return AutostopConfig(
        idle_seconds=request.idle_minutes * 60.0, down=request.down, wait_for=_WAIT_FOR[request.wait_for]
    )


def _hooks(request: pb.SetAutostopRequest) -> tuple[Hook, ...] | None:
    """Return the hooks that a request sets, None when it leaves the stored ones.

    As with SkyPilot, ``clear_hooks`` wins over ``hooks``, and both over the one ``hook`` of older clients.

    Raises:
        BadRequest: a hook that makes no sense, even when another field wins over it.
    """
    hooks = tuple(_hook(index, hook) for index, hook in enumerate(request.hooks))
    older = _older_hook(request)
    if request.clear_hooks:
        return ()
    return hooks or older or None


def _hook(index: int, hook: pb.Hook) -> Hook:
    where = f"hooks[{index}]"
    unknown = [event for event in hook.events if event not in _EVENTS]
    if unknown:
        raise BadRequest(f"{where}.events holds {unknown[0]}: only {sorted(_EVENTS)} are known")
    if not hook.run.strip():
        raise BadRequest(f"{where}.run is {hook.run!r}: a command is needed")
    named = {_EVENTS[event] for event in hook.events}
    return Hook(
        run=hook.run,
        events=tuple(event for event in EVENTS if event in named) or EVENTS,
        timeout=_timeout(f"{where}.timeout", hook.timeout),
    )


def _older_hook(request: pb.SetAutostopRequest) -> tuple[Hook, ...]:
    timeout = _timeout("hook_timeout", request.hook_timeout)
    if not request.hook.strip():
        return ()  # older clients send an empty one for none
    return (Hook(run=request.hook, events=("down" if request.down else "stop",), timeout=timeout),)


def _timeout(field: str, seconds: int) -> float:
    if seconds < 0:
        raise BadRequest(
            f"{field} is {seconds}: seconds from 0 (the default of {DEFAULT_TIMEOUT:g}) on are needed"
        )
    return float(seconds) or DEFAULT_TIMEOUT
