"""One conversation with a host: connected, the runtime in place, and the questions of ``agent.host.operations``."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from airflow_provider.runtime.agent.host.operations import FactsArguments, NameArguments, ProbeArguments
from airflow_provider.runtime.infra.ssh.host import ask
from airflow_provider.runtime.infra.ssh.packages import install
from airflow_provider.runtime.transport.ssh.links import open_link

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from airflow_provider.runtime.agent.host.operations import (
        DownAnswer,
        Facts,
        Found,
        ProbeAnswer,
        RestartAnswer,
        UpAnswer,
        UpArguments,
    )
    from airflow_provider.runtime.infra.ssh.packages import Installed
    from airflow_provider.runtime.infra.ssh.pool import PoolHost
    from airflow_provider.runtime.transport.ssh.links import Link
    from airflow_provider.runtime.transport.ssh.target import SshTarget

_ASK_SECONDS = 20.0
_START_SECONDS = 60.0
_DOWN_SECONDS = 60.0


async def silence(line: str) -> None:
    """Take progress that nobody waits for."""


@asynccontextmanager
async def visit(
    host: PoolHost,
    *,
    target: SshTarget | None = None,
    wheelhouse: str | None = None,
    say: Callable[[str], Awaitable[None]] = silence,
    again: bool = False,
) -> AsyncIterator[Visit]:
    """Connect to a host and make sure that the runtime is there.

    Args:
        host: The host.
        target: How it is reached, where that is not what the pool says.
        wheelhouse: See ``packages.install``.
        say: Takes lines on progress.
        again: See ``packages.install``.

    Raises:
        SshError: it cannot be reached.
        HostProblem: it cannot be used.
    """
    link = await open_link(target or host.target)
    try:
        installed = await install(
            link,
            host=host.name,
            base=host.base,
            python=host.python,
            wheelhouse=wheelhouse,
            say=say,
            again=again,
        )
        yield Visit(host, link, installed)
    finally:
        await link.close()


class Visit:
    """The questions; each raises SshError and HostProblem.

    Attributes:
        host: The host.
        link: The connection to it.
        installed: What is installed on it.
    """

    def __init__(self, host: PoolHost, link: Link, installed: Installed) -> None:
        self.host = host
        self.link = link
        self.installed = installed

    async def facts(self) -> Facts:
        """Ask what the host is and who has it."""
        arguments = FactsArguments(base=self.installed.base)
        return cast("Facts", await self._ask("facts", arguments, _ASK_SECONDS))

    async def up(self, arguments: UpArguments) -> UpAnswer:
        """Take the host for a cluster and start its agent, as far as that is not done yet."""
        return cast("UpAnswer", await self._ask("up", arguments, _START_SECONDS))

    async def restart(self, arguments: UpArguments) -> RestartAnswer:
        """Start the agent of a cluster that is there."""
        return cast("RestartAnswer", await self._ask("restart", arguments, _START_SECONDS))

    async def find(self, name: str) -> Found:
        """Ask for the cluster of a name."""
        arguments = NameArguments(base=self.installed.base, name=name)
        return cast("Found", await self._ask("find", arguments, _ASK_SECONDS))

    async def probe(self, name: str, instance: str) -> ProbeAnswer:
        """Ask what is left of a cluster."""
        arguments = ProbeArguments(base=self.installed.base, name=name, instance=instance)
        return cast("ProbeAnswer", await self._ask("probe", arguments, _ASK_SECONDS))

    async def down(self, name: str, instance: str) -> DownAnswer:
        """Remove a cluster and give the host back."""
        arguments = ProbeArguments(base=self.installed.base, name=name, instance=instance)
        return cast("DownAnswer", await self._ask("down", arguments, _DOWN_SECONDS))

    async def _ask(self, operation: str, arguments: FactsArguments, seconds: float) -> dict[str, object]:
        return await ask(
            self.link,
            operation,
            arguments,
            runtime_dir=self.installed.runtime_dir,
            host=self.host.name,
            python=self.installed.python,
            seconds=seconds,
        )
