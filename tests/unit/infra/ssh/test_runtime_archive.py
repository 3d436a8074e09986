"""What is packed for a host: enough to run the agent, and named after its content."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from airflow_provider.runtime.infra.ssh import archive as archives
from airflow_provider.runtime.infra.ssh.archive import (
    CHECKED_MODULES,
    RuntimeArchive,
    choose_runtime,
    own_code,
)
from airflow_provider.runtime.infra.ssh.platforms import Platform
from airflow_provider.runtime.infra.ssh.wheels import PackagesMissing
from tests.unit.infra.ssh.made_wheels import make_wheel, wheel_of_installed

OURS = Platform.own()
OTHER = replace(OURS, python=(OURS.python[0], OURS.python[1] + 1))


@pytest.fixture(autouse=True)
def nothing_chosen_yet() -> Iterator[None]:
    """Archives are kept per process: let each test begin without."""
    archives._chosen.cache_clear()
    yield
    archives._chosen.cache_clear()


def unpacked(runtime: RuntimeArchive, folder: Path) -> dict[str, bytes]:
    with tarfile.open(fileobj=BytesIO(b"".join(runtime.blocks())), mode="r:gz") as tar:
        content = {}
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            content[member.name] = file.read()
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content[member.name])
    return content


def test_a_python_that_has_nothing_else_can_start_the_agent_from_it(tmp_path: Path) -> None:
    content = unpacked(choose_runtime(OURS, None), tmp_path)
    program = "import sys; sys.path[:0] = [sys.argv[1]]; [__import__(name) for name in sys.argv[2:]]; print(*sys.modules)"
    words = [sys.executable, "-I", "-S", "-c", program, str(tmp_path), *CHECKED_MODULES]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd="/")
    assert "airflow_provider.runtime.agent.server" in done.stdout.split()
    assert "airflow" not in done.stdout.split()
    assert not [
        name
        for name in content
        if name.startswith("airflow_provider/")
        and "/agent/" not in name
        and "/wire/" not in name
        and not name.endswith(("__init__.py", "version.py"))
    ]
    # What it says of itself when it is asked how to be used needs everything that it imports at first.
    help_words = [sys.executable, "-S", "-m", "airflow_provider.runtime.agent", "--help"]
    environment = {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]}
    usage = subprocess.run(help_words, capture_output=True, text=True, env=environment, cwd="/", check=True)
    assert "--root" in usage.stdout


def test_what_it_says_of_its_size_is_so(tmp_path: Path) -> None:
    runtime = choose_runtime(OURS, None)
    content = unpacked(runtime, tmp_path)
    assert (runtime.files, runtime.bytes) == (len(content), sum(map(len, content.values())))
    assert abs(runtime.unpacked - runtime.bytes) < 100_000
    assert sum(map(len, runtime.blocks())) < runtime.bytes * 0.6


def test_equal_content_has_equal_bytes_and_an_equal_name(tmp_path: Path) -> None:
    def fill(folder: Path) -> RuntimeArchive:
        make_wheel(folder, "grpcio", "1.70.0")
        make_wheel(folder, "protobuf", "7.0.0")
        return choose_runtime(OURS, str(folder))

    one, other = fill(tmp_path / "one"), fill(tmp_path / "other")
    assert one is not other
    assert one.hash == other.hash
    assert one.blocks() == other.blocks()


def test_a_wheelhouse_and_our_own_packages_of_the_same_versions_are_the_same_runtime(tmp_path: Path) -> None:
    for name in ("grpcio", "protobuf", "typing_extensions"):
        wheel_of_installed(tmp_path, name)
    assert choose_runtime(OURS, str(tmp_path)).hash == choose_runtime(OURS, None).hash


def test_another_version_of_a_package_or_of_our_code_is_another_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path, "grpcio", "1.70.0")
    make_wheel(tmp_path, "protobuf", "7.0.0")
    hashes = [choose_runtime(OURS, str(tmp_path)).hash]
    make_wheel(tmp_path, "protobuf", "7.0.1")
    hashes.append(choose_runtime(OURS, str(tmp_path)).hash)
    changed = {**own_code(), "airflow_provider/version.py": b"VERSION = '0'"}
    monkeypatch.setattr(archives, "own_code", lambda: changed)
    archives._chosen.cache_clear()
    hashes.append(choose_runtime(OURS, str(tmp_path)).hash)
    assert len(set(hashes)) == 3


def test_a_host_that_our_packages_do_not_suit_installs_the_same_versions_itself(tmp_path: Path) -> None:
    runtime = choose_runtime(OTHER, None)
    exact, ranges = runtime.requirements
    assert [text.partition("==")[0] for text in exact] == ["grpcio", "protobuf"]
    assert ranges == ["grpcio>=1.67", "protobuf>=6.31.1,<8"]
    assert set(unpacked(runtime, tmp_path)) == set(own_code())
    assert runtime.hash != choose_runtime(replace(OTHER, machine="aarch64"), None).hash


def test_a_wheelhouse_that_lacks_something_comes_with_the_command_that_brings_it(tmp_path: Path) -> None:
    make_wheel(tmp_path, "protobuf", "7.0.0")
    with pytest.raises(PackagesMissing, match=r"has no wheel of grpcio>=1\.67 for CPython 3") as caught:
        choose_runtime(OURS, str(tmp_path))
    assert "pip download" in caught.value.remedy
    assert f"--dest '{tmp_path}' grpcio==" in caught.value.remedy
    make_wheel(tmp_path, "grpcio", "1.70.0")  # which is seen at once
    assert choose_runtime(OURS, str(tmp_path)).hash


def test_many_threads_share_one_archive_that_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = []
    finish = archives._Packing.finish
    monkeypatch.setattr(archives._Packing, "finish", lambda self: packed.append(self) or finish(self))
    barrier = threading.Barrier(6)

    def get(_: int) -> list[bytes]:
        barrier.wait(20)
        return choose_runtime(OURS, None).blocks()

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(get, range(6)))
    assert len(packed) == 1
    assert all(result is results[0] for result in results)


def test_a_forked_child_can_choose_while_the_parent_was_choosing() -> None:
    with archives._choosing.lock:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if choose_runtime(OURS, None).hash else 2
            finally:
                os._exit(code)
    handle = os.pidfd_open(child)
    if not select.select([handle], [], [], 20)[0]:
        os.kill(child, signal.SIGKILL)
    os.close(handle)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
