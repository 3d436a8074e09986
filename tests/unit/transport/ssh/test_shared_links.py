"""Who shares which connection, with connections that are made up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import cast

import asyncssh
import pytest

from airflow_provider.runtime.transport.ssh import shared
from airflow_provider.runtime.transport.ssh.errors import SshError, SshRefused, SshUnreachable
from airflow_provider.runtime.transport.ssh.shared import Connected, Links, SharedLink
from airflow_provider.runtime.transport.ssh.target import SshTarget
from airflow_provider.runtime.transport.ssh.waiting import Way

HOST = SshTarget(name="h", host="h.example", user="u")


class MadeUpConnection:
    def __init__(self) -> None:
        self._closed = asyncio.Event()

    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        self._closed.set()

    abort = close

    async def wait_closed(self) -> None:
        await self._closed.wait()


@dataclass
class MadeUp:
    connection: MadeUpConnection
    host_key: str = "ssh-ed25519 AAAA"
    ended_because: str | None = None


class World:
    """Hosts that are connected to as told."""

    def __init__(self) -> None:
        self.attempts: list[SshTarget] = []
        self.tunnels: list[Way | None] = []
        self.made: list[MadeUpConnection] = []
        self.failures: list[SshError] = []
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0
        self.most = 0
        self.cancelled = 0

    async def connect(
        self, target: SshTarget, *, tunnel: asyncssh.SSHClientConnection | None = None
    ) -> Connected:
        self.attempts.append(target)
        self.tunnels.append(cast("Way | None", tunnel))
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1
        if self.failures:
            raise self.failures.pop(0)
        self.made.append(MadeUpConnection())
        return cast("Connected", MadeUp(self.made[-1]))


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def links(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Links]:
    monkeypatch.setattr(shared, "LINGER_SECONDS", 0.05)
    monkeypatch.setattr(shared, "_PAUSE_SECONDS", 0.01)
    links = Links(world.connect)
    yield links
    await links.close()


async def turns(count: int = 5) -> None:
    """Let everything happen that can happen without time going by."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_openers_at_the_same_time_share_one_attempt(links: Links, world: World) -> None:
    found = await asyncio.gather(*(links.acquire(HOST) for _ in range(20)))
    assert world.attempts == [HOST]
    assert len(set(found)) == 1


async def test_targets_that_are_equal_share_and_others_do_not(links: Links, world: World) -> None:
    first = await links.acquire(replace(HOST))
    assert await links.acquire(replace(HOST)) is first
    assert await links.acquire(replace(HOST, user="other")) is not first


async def test_one_opener_that_is_cancelled_leaves_the_attempt_to_the_others(
    links: Links, world: World
) -> None:
    world.open.clear()
    one, other = (asyncio.ensure_future(links.acquire(HOST)) for _ in range(2))
    await turns()
    one.cancel()
    await turns()
    assert not world.cancelled
    world.open.set()
    assert not (await other).is_lost


async def test_the_last_opener_that_is_cancelled_ends_the_attempt(links: Links, world: World) -> None:
    world.open.clear()
    openers = [asyncio.ensure_future(links.acquire(HOST)) for _ in range(2)]
    await turns()
    for opener in openers:
        opener.cancel()
    await turns()
    assert world.cancelled == 1
    world.open.set()
    assert not (await links.acquire(HOST)).is_lost


async def test_an_opener_waits_no_longer_than_it_said(links: Links, world: World) -> None:
    world.open.clear()
    with pytest.raises(SshUnreachable, match=r"no connection within 0\.02 s"):
        await links.acquire(HOST, 0.02)
    await turns()
    assert world.cancelled == 1


async def test_every_opener_gets_the_reason_of_the_one_failed_attempt_as_an_error_of_its_own(
    links: Links, world: World
) -> None:
    world.failures = [SshUnreachable("no route to host")]
    answers = await asyncio.gather(*(links.acquire(HOST) for _ in range(3)), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["no route to host"] * 3
    assert len(set(map(id, answers))) == 3
    assert len(world.attempts) == 1
    await links.acquire(HOST)
    assert len(world.attempts) == 2


@pytest.mark.parametrize("cause", [asyncssh.ConnectionLost("Connection lost"), ConnectionResetError()])
async def test_a_host_that_drops_connections_before_the_login_is_tried_again(
    links: Links, world: World, cause: Exception
) -> None:
    for _ in range(3):
        dropped = SshUnreachable("closed before it greeted")
        dropped.__cause__ = cause
        world.failures.append(dropped)
    await links.acquire(HOST)
    assert len(world.attempts) == 4


async def test_a_host_that_goes_on_dropping_is_given_up_with_its_reason_at_the_deadline(
    links: Links, world: World
) -> None:
    for _ in range(1000):
        dropped = SshUnreachable("closed before it greeted")
        dropped.__cause__ = ConnectionResetError()
        world.failures.append(dropped)
    with pytest.raises(SshUnreachable, match=r"within 0\.2 s: .*closed before it greeted"):
        await links.acquire(HOST, 0.2)
    made = len(world.attempts)
    assert 3 <= made <= 10, "backs off"
    await asyncio.sleep(0.1)
    assert len(world.attempts) == made


async def test_a_proxy_command_that_ends_is_not_tried_again(links: Links, world: World) -> None:
    """It says more about the command than about the host."""
    ended = SshUnreachable("the proxy command ended")
    ended.__cause__ = BrokenPipeError()
    world.failures = [ended]
    with pytest.raises(SshUnreachable, match="the proxy command ended"):
        await links.acquire(replace(HOST, proxy_command="exit 3"))


async def test_no_more_than_four_connect_to_one_host_at_the_same_time(links: Links, world: World) -> None:
    world.open.clear()
    users = [replace(HOST, user=f"u{n}") for n in range(10)]
    elsewhere = replace(HOST, host="other.example")
    openers = [asyncio.ensure_future(links.acquire(target)) for target in [*users, elsewhere]]
    await turns()
    assert world.waiting == 5
    world.open.set()
    await asyncio.gather(*openers)
    assert world.most == 5


async def test_after_a_refusal_nobody_knocks_again_for_a_while(
    links: Links, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.failures = [SshRefused("it does not let us in")]
    for _ in range(50):
        with pytest.raises(SshRefused, match="does not let us in"):
            await links.acquire(HOST)
    assert len(world.attempts) == 1
    await links.acquire(replace(HOST, user="other"))
    monkeypatch.setattr(shared, "REFUSAL_SECONDS", 0.0)
    await links.acquire(HOST)
    assert len(world.attempts) == 3


async def test_a_connection_goes_some_time_after_its_last_user(links: Links, world: World) -> None:
    one, other = await links.acquire(HOST), await links.acquire(HOST)
    one.release()
    await asyncio.sleep(0.1)
    assert not other.is_lost
    other.release()
    assert not other.is_lost
    await asyncio.wait_for(world.made[0].wait_closed(), 5)
    await links.acquire(HOST)
    assert len(world.made) == 2


async def test_a_user_that_comes_soon_gets_the_connection_that_is_still_there(
    links: Links, world: World
) -> None:
    (await links.acquire(HOST)).release()
    link = await links.acquire(HOST)
    await asyncio.sleep(0.1)
    assert not link.is_lost
    assert len(world.made) == 1


async def test_a_connection_that_broke_is_made_anew_for_the_next_opener(links: Links, world: World) -> None:
    broken = await links.acquire(HOST)
    world.made[0].abort()
    assert broken.is_lost
    link = await links.acquire(HOST)
    assert not link.is_lost
    broken.release()
    await asyncio.sleep(0.1)
    assert not link.is_lost, "the holder of the broken one has no say about the new one"


async def test_everybody_leaves_just_when_the_connection_is_made(links: Links, world: World) -> None:
    world.open.clear()
    opener = asyncio.ensure_future(links.acquire(HOST))
    await turns()
    world.open.set()
    await asyncio.sleep(0)
    opener.cancel()
    await asyncio.gather(opener, return_exceptions=True)
    await turns()
    await asyncio.sleep(0.1)
    assert all(connection.is_closed() for connection in world.made)


async def test_hosts_behind_one_jump_host_share_the_connection_to_it(links: Links, world: World) -> None:
    bastion = replace(HOST, host="bastion.example")
    behind = [replace(HOST, host=f"n{n}.example", jump=bastion) for n in range(3)]
    found = await asyncio.gather(*(links.acquire(target) for target in behind))
    assert world.attempts.count(bastion) == 1
    assert {tunnel._connection for tunnel in world.tunnels if tunnel is not None} == {world.made[0]}
    for link in found[:2]:
        link.release()
    await asyncio.sleep(0.2)
    assert not world.made[0].is_closed(), "one closed target must not take the jump host from the others"
    found[2].release()
    await asyncio.wait_for(world.made[0].wait_closed(), 5)


async def test_a_jump_host_that_was_lost_is_connected_to_again(links: Links, world: World) -> None:
    bastion = replace(HOST, host="bastion.example")
    target = replace(HOST, jump=bastion)
    await links.acquire(target)
    for connection in world.made:
        connection.abort()
    await links.acquire(target)
    assert world.attempts == [bastion, target, bastion, target]


async def test_a_jump_host_that_cannot_be_reached_is_the_reason(links: Links, world: World) -> None:
    bastion = replace(HOST, host="bastion.example")
    world.failures = [SshUnreachable("bastion: no route to host")]
    with pytest.raises(SshUnreachable, match="bastion: no route to host"):
        await links.acquire(replace(HOST, jump=bastion))


async def test_closing_all_ends_connections_and_attempts(links: Links, world: World) -> None:
    link: SharedLink = await links.acquire(HOST)
    world.open.clear()
    opener = asyncio.ensure_future(links.acquire(replace(HOST, user="other")))
    await turns()
    await links.close()
    assert link.is_lost
    assert world.cancelled == 1
    with pytest.raises(SshUnreachable, match="closed"):
        await opener
