"""The runtime is brought to real hosts: over every login shell, once, whole or not at all, or with a reason why not."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from airflow_provider.runtime.infra.ssh import archive, packages
from airflow_provider.runtime.infra.ssh.host import HostProblem, ask
from airflow_provider.runtime.infra.ssh.packages import Installed, install
from airflow_provider.runtime.infra.ssh.wheels import OwnPackages
from airflow_provider.runtime.transport.ssh.command import Completed
from airflow_provider.runtime.transport.ssh.errors import SshError
from airflow_provider.runtime.transport.ssh.links import Link, open_link
from airflow_provider.runtime.transport.ssh.target import HostKeys, Identity, SshTarget
from tests.hosts.host import Host
from tests.hosts.keys import ClientKeys
from tests.hosts.settings import NOISY_BASHRC, HostSettings
from tests.integration.clusters import eventually
from tests.unit.infra.ssh.made_wheels import wheel_of_installed

MakeHost = Callable[[HostSettings], Host]

MEGABYTE = 1_000_000


@pytest.fixture(autouse=True, scope="module")
def _our_packages_suit_the_hosts() -> None:
    """Test hosts have this machine's /usr/bin/python3; packages for another version are not at hand without network."""
    words = ["/usr/bin/python3", "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
    version = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version != ours:
        pytest.skip(f"/usr/bin/python3 is {version}, and these tests run with {ours}")


class Interrupted:
    """A link that does something once most of the runtime is sent: more than may be on its way at a time."""

    def __init__(self, link: Link, interrupt: Callable[[], object]) -> None:
        self._link = link
        self._interrupt = interrupt

    @property
    def is_lost(self) -> bool:
        return self._link.is_lost

    async def run(self, command: str, *, stdin: bytes | Iterable[bytes], seconds: float) -> Completed:
        return await self._link.run(
            command, stdin=stdin if isinstance(stdin, bytes) else self._pieces(stdin), seconds=seconds
        )

    def _pieces(self, stdin: Iterable[bytes]) -> Iterator[bytes]:
        for count, piece in enumerate(stdin):
            if count == 25:
                self._interrupt()
            yield piece


class Bootstrap:
    """Installs on a host, remembering what was said."""

    def __init__(self, host: Host, link: Link | Interrupted) -> None:
        self.host = host
        self.link = link
        self.said: list[str] = []

    async def __call__(
        self,
        wheelhouse: Path | None = None,
        *,
        python: str = "python3",
        hours: float = 0,
        again: bool = False,
    ) -> Installed:
        async def say(line: str) -> None:
            self.said.append(line)

        return await install(
            self.link,
            host=self.host.name,
            base="~/.managed-jobs",
            python=python,
            wheelhouse=None if wheelhouse is None else str(wheelhouse),
            say=say,
            clock=lambda: time.time() + 3600 * hours,
            again=again,
        )

    async def facts(self, installed: Installed) -> dict[str, object]:
        return await ask(
            self.link,
            "facts",
            {"base": installed.base},
            runtime_dir=installed.runtime_dir,
            python=installed.python,
            seconds=20,
        )

    @property
    def runtimes(self) -> list[str]:
        """Names of what lies where runtimes are."""
        return sorted(os.listdir(self.host.home / ".managed-jobs/runtime"))


Bootstrapping = Callable[..., AbstractAsyncContextManager[Bootstrap]]


@pytest.fixture
def bootstrap(client_keys: ClientKeys) -> Bootstrapping:
    """Opens a link to a host's unprivileged account."""

    @asynccontextmanager
    async def opened(host: Host, **settings: float) -> AsyncIterator[Bootstrap]:
        target = SshTarget(
            name=host.name,
            host=host.address,
            user=host.user,
            identities=(Identity("test key", path=str(client_keys.ed25519.path)),),
            host_keys=HostKeys(pinned=tuple(host.disk.host_keys)),
            **settings,
        )
        link = await open_link(target)
        try:
            yield Bootstrap(host, link)
        finally:
            await link.close()

    return opened


SHELLS = [shell for shell in ("/bin/bash", "/bin/dash", "/bin/tcsh", "/usr/bin/fish") if Path(shell).exists()]


@pytest.mark.parametrize("shell", SHELLS)
async def test_the_runtime_comes_through_each_login_shell(
    make_host: MakeHost, bootstrap: Bootstrapping, shell: str
) -> None:
    noise = {
        ".bashrc": NOISY_BASHRC,
        ".tcshrc": "echo hello\n",
        ".config/fish/config.fish": "echo hello\necho ack >&2\n",
    }
    host = make_host(HostSettings(shell=shell, home_files=noise))
    async with bootstrap(host) as boot:
        installed = await boot()
        facts = await boot.facts(installed)
        assert facts["hostname"] == host.name
        assert facts["boot_id"] == installed.boot_id == host.boot_id
        assert installed.address == host.address
        assert installed.runtime_dir == f"/home/{host.user}/.managed-jobs/runtime/{installed.runtime_hash}"
        assert boot.said[0].startswith(f"installing the agent on {host.name} (")


async def test_a_host_that_has_the_runtime_is_asked_one_thing(host: Host, bootstrap: Bootstrapping) -> None:
    async with bootstrap(host) as boot:
        first = await boot()
        boot.said.clear()
        commands = host.sshd_log.count("Starting session: command")
        assert await boot() == first
        assert boot.said == []
        assert host.sshd_log.count("Starting session: command") == commands + 1


async def test_nothing_but_the_base_is_touched_and_nobody_else_can_look_into_it(
    host: Host, bootstrap: Bootstrapping
) -> None:
    places = [host.home, *(host.disk.path / name for name in ("root", "tmp", "var/tmp"))]

    def seen() -> set[Path]:
        return {path for place in places for path in place.rglob("*") if ".managed-jobs" not in path.parts}

    before = seen()
    async with bootstrap(host) as boot:
        await boot()
    assert seen() == before
    base = host.home / ".managed-jobs"
    assert stat.S_IMODE(base.stat().st_mode) == 0o700
    assert base.stat().st_uid == host.home.stat().st_uid
    assert os.listdir(base) == ["runtime"]


async def test_a_host_without_python_says_so(make_host: MakeHost, bootstrap: Bootstrapping) -> None:
    host = make_host(HostSettings(hidden_commands=("python*",)))
    async with bootstrap(host) as boot:
        with pytest.raises(HostProblem) as caught:
            await boot()
        told = str(caught.value)
        assert told.startswith(f"{host.name}: python3 is not installed (PATH /")
        assert told.endswith("install CPython 3.10 or newer, or name its path with `python` in the pool")


async def test_all_that_is_wrong_with_a_host_is_told_at_once(
    make_host: MakeHost, bootstrap: Bootstrapping
) -> None:
    host = make_host(HostSettings(noexec=True))
    async with bootstrap(host) as boot:
        with pytest.raises(HostProblem) as caught:
            await boot(hours=2)
        text = str(caught.value)
        assert "its clock is 120 minutes behind ours: set it" in text
        assert "mounted noexec: name a place on another file system with `base`" in text
        assert caught.value.lasting
        assert not (host.home / ".managed-jobs/runtime").exists()


async def test_a_disk_that_is_too_small_is_named_before_anything_is_sent(
    make_host: MakeHost, bootstrap: Bootstrapping
) -> None:
    host = make_host(HostSettings(disk_bytes=40 * MEGABYTE))
    async with bootstrap(host) as boot:
        with pytest.raises(
            HostProblem, match=r"has \d+ MB left, \d+ MB are needed: free some space"
        ) as caught:
            await boot()
        assert not caught.value.lasting
        assert boot.said == []


async def test_a_disk_that_is_full_by_now_keeps_new_work_away_and_lets_in_who_looks_after_the_old(
    make_host: MakeHost, bootstrap: Bootstrapping
) -> None:
    host = make_host(HostSettings(disk_bytes=200 * MEGABYTE))
    async with bootstrap(host) as boot:
        await boot()
        host.disk.fill(leave_bytes=MEGABYTE)
        with pytest.raises(HostProblem, match=r"has \d MB left, 50 MB are needed: free some space"):
            await boot()
        await boot(again=True)


async def test_a_disk_that_fills_up_meanwhile_leaves_nothing_and_the_next_try_goes_on(
    make_host: MakeHost, bootstrap: Bootstrapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(HostSettings(disk_bytes=120 * MEGABYTE))
    host.disk.fill(leave_bytes=15 * MEGABYTE)
    monkeypatch.setattr(packages, "SPARE_BYTES", -100 * MEGABYTE)  # as if there had been room when we looked
    async with bootstrap(host) as boot:
        with pytest.raises(
            HostProblem, match=r"cannot be written to .*: No space left on device: free some space"
        ):
            await boot()
        assert boot.runtimes == []
        host.disk.empty()
        installed = await boot()
        assert boot.runtimes == [installed.runtime_hash]


async def test_packages_come_from_a_wheelhouse(host: Host, bootstrap: Bootstrapping, tmp_path: Path) -> None:
    for name in ("grpcio", "protobuf"):
        wheel_of_installed(tmp_path, name)
    async with bootstrap(host) as boot:
        with pytest.raises(
            HostProblem, match=r"has no wheel of typing-extensions.*run `python3 -m pip download"
        ):
            await boot(tmp_path)
        wheel_of_installed(tmp_path, "typing_extensions")
        assert await boot.facts(await boot(tmp_path))


async def test_several_who_install_at_the_same_time_end_with_one_runtime(
    host: Host, bootstrap: Bootstrapping
) -> None:
    async with bootstrap(host) as one, bootstrap(host, silence_limit=8.0) as other:
        first, *rest = await asyncio.gather(one(), other(), one())
        assert rest == [first, first]
        assert one.runtimes == [first.runtime_hash]
        assert await one.facts(first)


async def test_a_transfer_that_breaks_leaves_no_runtime_and_the_next_one_works(
    host: Host, bootstrap: Bootstrapping
) -> None:
    runtimes = host.home / ".managed-jobs/runtime"
    async with bootstrap(host) as boot:
        boot.link = Interrupted(boot.link, host.power_off)
        with pytest.raises(SshError):
            await boot()
    [left] = runtimes.iterdir()
    assert left.name.startswith(".")
    assert list(left.iterdir())
    os.utime(left, (0, 0))  # as if it had happened long ago
    await asyncio.to_thread(host.start)
    async with bootstrap(host) as boot:
        installed = await boot()
        assert boot.runtimes == [installed.runtime_hash]
        assert await boot.facts(installed)


async def test_whoever_is_cancelled_while_installing_leaves_nothing(
    host: Host, bootstrap: Bootstrapping
) -> None:
    async with bootstrap(host) as boot:
        sending = asyncio.Event()
        loop = asyncio.get_running_loop()
        boot.link = Interrupted(boot.link, lambda: loop.call_soon_threadsafe(sending.set))
        installing = asyncio.ensure_future(boot())
        await sending.wait()
        installing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await installing
        await eventually(lambda: boot.runtimes == [], "the remains to go")


async def test_a_runtime_that_lost_files_in_a_power_cut_is_brought_again(
    host: Host, bootstrap: Bootstrapping
) -> None:
    async with bootstrap(host) as boot:
        installed = await boot()
    await asyncio.to_thread(host.reboot)
    async with bootstrap(host) as boot:
        assert (await boot()).runtime_hash == installed.runtime_hash
        assert boot.said == []  # all is there
    lost = host.disk.path / installed.runtime_dir.lstrip("/") / "grpc/__init__.py"
    lost.write_bytes(b"")
    await asyncio.to_thread(host.reboot)
    async with bootstrap(host) as boot:
        assert (await boot()).runtime_hash == installed.runtime_hash
        assert len(boot.said) == 2
        assert lost.stat().st_size > 0
        assert boot.runtimes == [installed.runtime_hash]


@pytest.fixture
def no_packages_of_ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if ours suited no host."""
    monkeypatch.setattr(OwnPackages, "find", lambda self, requirement: None)
    archive._chosen.cache_clear()
    yield
    archive._chosen.cache_clear()


PIP_CONFIGURATION = "[global]\nno-index = true\nfind-links = {folder}\nuser = true\n"


@pytest.mark.usefixtures("no_packages_of_ours")
async def test_a_host_that_our_packages_do_not_suit_asks_its_package_index(
    make_host: MakeHost, bootstrap: Bootstrapping
) -> None:
    configuration = PIP_CONFIGURATION.format(folder="/tmp/index")
    host = make_host(HostSettings(home_files={".config/pip/pip.conf": configuration}))
    if (await asyncio.to_thread(host.run, "python3 -m pip --version")).returncode != 0:
        pytest.skip("/usr/bin/python3 has no pip")
    async with bootstrap(host) as boot:
        with pytest.raises(
            HostProblem, match=r"pip cannot install grpcio==.*No matching distribution"
        ) as caught:
            await boot()
        assert "make the package index reachable" in str(caught.value)
        assert "`wheelhouse` in the pool, made by `python3 -m pip download" in str(caught.value)
        assert boot.runtimes == []
        for name in ("grpcio", "protobuf", "typing_extensions"):
            wheel_of_installed(host.disk.path / "tmp/index", name)
        installed = await boot()
        assert any("from its package index" in line for line in boot.said)
        assert await boot.facts(installed)
        assert boot.runtimes == [installed.runtime_hash]
        assert not (host.home / ".local").exists()
