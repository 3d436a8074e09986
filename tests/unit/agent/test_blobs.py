"""The node's store of chunks and the lists of archives in it: shared, bounded, and never wrong."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import multiprocessing
import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_provider.runtime.agent import chunkstore
from airflow_provider.runtime.agent.blobs import BadBlob, Blobs, ChunksMissing
from airflow_provider.runtime.agent.chunkstore import KEPT_SECONDS, ChunkStore

KIB = 1 << 10
DAY = 24 * 3600.0


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def noise(seed: int, size: int = 10 * KIB) -> bytes:
    return random.Random(seed).randbytes(size)


def put(blobs: Blobs, *pieces: bytes) -> str:
    """Store an archive of these pieces and return its digest."""
    for piece in pieces:
        blobs.add(piece)
    whole = b"".join(pieces)
    blobs.put_together(digest_of(whole), len(whole), [hashlib.sha256(piece).digest() for piece in pieces])
    return digest_of(whole)


def age(path: Path, seconds: float) -> None:
    """Make a file as if it was last used so long ago."""
    os.utime(path, (time.time() - seconds,) * 2)


def chunk(store: Path, data: bytes) -> Path:
    return store / digest_of(data)[:2] / digest_of(data)


def there(store: Path) -> list[Path]:
    return sorted(store.glob("??/*"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "chunks"


@pytest.fixture
def blobs(tmp_path: Path, store: Path) -> Blobs:
    (tmp_path / "one").mkdir()
    return Blobs(tmp_path / "one" / "blobs", store)


@pytest.fixture
def others(tmp_path: Path, store: Path) -> Blobs:
    """Another cluster with the same store."""
    (tmp_path / "other").mkdir()
    return Blobs(tmp_path / "other" / "blobs", store)


@pytest.fixture
def no_room_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store take nothing but what is needed."""
    monkeypatch.setattr(chunkstore, "STORE_BYTES", 0)


class TestAnArchive:
    def test_is_complete_once_it_is_put_together(self, blobs: Blobs) -> None:
        pieces = [noise(1), noise(2), noise(1)]
        assert not blobs.complete(digest_of(b"".join(pieces)))
        digest = put(blobs, *pieces)
        assert blobs.complete(digest)
        with blobs.open(digest) as file:
            assert file.read() == b"".join(pieces)

    def test_is_not_complete_any_more_without_one_of_its_chunks(self, blobs: Blobs, store: Path) -> None:
        digest = put(blobs, noise(1), noise(2))
        chunk(store, noise(2)).unlink()
        assert not blobs.complete(digest)
        assert blobs.missing([hashlib.sha256(noise(n)).digest() for n in (1, 2)]) == [
            hashlib.sha256(noise(2)).digest()
        ]

    def test_cannot_be_put_together_without_all_chunks(self, blobs: Blobs) -> None:
        blobs.add(noise(1))
        with pytest.raises(ChunksMissing, match="1 of the 2"):
            blobs.put_together("a" * 64, 20 * KIB, [hashlib.sha256(noise(n)).digest() for n in (1, 2)])
        assert not blobs.path("a" * 64).exists()

    def test_with_a_chunk_cut_short_by_a_power_cut_needs_it_again(self, blobs: Blobs, store: Path) -> None:
        digest = put(blobs, noise(1), noise(2))
        os.truncate(chunk(store, noise(2)), 5)
        assert not blobs.complete(digest)
        both = [hashlib.sha256(noise(n)).digest() for n in (1, 2)]
        with pytest.raises(ChunksMissing, match="damaged"):
            blobs.put_together(digest, 20 * KIB, both)
        assert there(store) == [chunk(store, noise(1))]

    def test_whose_chunks_are_of_another_size_is_refused(self, blobs: Blobs) -> None:
        blobs.add(noise(1))
        with pytest.raises(BadBlob, match="11 bytes, but its chunks have 10240"):
            blobs.put_together("a" * 64, 11, [hashlib.sha256(noise(1)).digest()])

    def test_of_a_cluster_that_is_gone_does_not_bring_it_back(self, tmp_path: Path, blobs: Blobs) -> None:
        blobs.add(noise(1))
        (tmp_path / "one").rmdir()
        with pytest.raises(FileNotFoundError):
            put(blobs, noise(1))
        assert not (tmp_path / "one").exists()

    def test_is_not_complete_for_an_agent_with_another_store(self, tmp_path: Path, blobs: Blobs) -> None:
        digest = put(blobs, noise(1))
        assert not Blobs(tmp_path / "one" / "blobs", tmp_path / "elsewhere").complete(digest)

    def test_of_nothing_is_possible(self, blobs: Blobs) -> None:
        assert blobs.complete(put(blobs))


class TestAChunk:
    def test_is_kept_once_for_all_clusters(self, blobs: Blobs, others: Blobs, store: Path) -> None:
        for cluster in (blobs, others):
            put(cluster, noise(1))
        assert there(store) == [chunk(store, noise(1))]

    def test_is_readable_for_this_user_alone(self, blobs: Blobs, store: Path) -> None:
        put(blobs, noise(1))
        modes = {path: path.stat().st_mode & 0o777 for path in [store, *store.rglob("*")]}
        assert {modes[path] for path in modes if path.is_file()} == {0o600}
        assert {modes[path] for path in modes if path.is_dir()} == {0o700}

    def test_that_was_damaged_is_replaced_by_a_sound_one_of_that_name(
        self, blobs: Blobs, store: Path
    ) -> None:
        blobs.add(noise(1))
        os.truncate(chunk(store, noise(1)), 0)
        assert blobs.missing([hashlib.sha256(noise(1)).digest()])
        blobs.add(noise(1))
        assert chunk(store, noise(1)).read_bytes() == noise(1)

    @pytest.mark.parametrize("size", [0, chunkstore.LARGEST_CHUNK_BYTES + 1])
    def test_of_no_sensible_size_is_refused(self, blobs: Blobs, size: int) -> None:
        with pytest.raises(BadBlob, match=f"{size} bytes"):
            blobs.add(bytes(size))

    @pytest.mark.parametrize("name", [b"", b"x" * 31, b"../../../../../../../../etc/passwd"[:33]])
    def test_of_no_sensible_name_is_refused(self, blobs: Blobs, name: bytes) -> None:
        with pytest.raises(BadBlob, match="SHA-256"):
            blobs.missing([name])
        with pytest.raises(BadBlob, match="SHA-256"):
            blobs.put_together("a" * 64, 1, [name])


@pytest.mark.usefixtures("no_room_to_keep")
class TestCollecting:
    def test_removes_what_nobody_needs_any_more(self, blobs: Blobs, store: Path) -> None:
        blobs.add(noise(1))
        age(chunk(store, noise(1)), KEPT_SECONDS + 1)
        blobs.collect(set())
        assert there(store) == []

    def test_keeps_what_was_used_within_the_last_hour(self, blobs: Blobs, store: Path) -> None:
        blobs.add(noise(1))
        age(chunk(store, noise(1)), KEPT_SECONDS - 60)
        blobs.collect(set())
        assert there(store) == [chunk(store, noise(1))]

    def test_keeps_what_was_asked_about_or_came_again(self, blobs: Blobs, store: Path) -> None:
        for n in (1, 2):
            blobs.add(noise(n))
            age(chunk(store, noise(n)), DAY)
        blobs.missing([hashlib.sha256(noise(1)).digest()])
        blobs.add(noise(2))
        blobs.collect(set())
        assert len(there(store)) == 2

    def test_keeps_what_a_cluster_needs_whoever_collects(
        self, blobs: Blobs, others: Blobs, store: Path
    ) -> None:
        digest = put(others, noise(1))
        age(chunk(store, noise(1)), DAY)
        blobs.collect(set())
        assert others.complete(digest)

    def test_forgets_clusters_that_are_gone(
        self, tmp_path: Path, blobs: Blobs, others: Blobs, store: Path
    ) -> None:
        digest = put(others, noise(1))
        put(blobs, noise(2))
        for n in (1, 2):
            age(chunk(store, noise(n)), DAY)
        (tmp_path / "other" / "blobs" / digest).unlink()
        (tmp_path / "other" / "blobs").rmdir()
        blobs.collect(set())
        assert there(store) == [chunk(store, noise(2))]
        assert len(list((store / "users").iterdir())) == 1

    def test_forgets_archives_that_no_job_needs(self, tmp_path: Path, blobs: Blobs, store: Path) -> None:
        waiting, over, fresh = (put(blobs, noise(n)) for n in (1, 2, 3))
        for digest in (waiting, over):
            age(tmp_path / "one" / "blobs" / digest, DAY)
        for n in (1, 2, 3):
            age(chunk(store, noise(n)), DAY)
        blobs.collect({waiting})
        assert there(store) == sorted(chunk(store, noise(n)) for n in (1, 3))
        assert blobs.complete(waiting)
        assert blobs.complete(fresh)
        assert not blobs.path(over).exists()

    def test_removes_what_was_not_used_for_longest_first_and_no_more_than_needed(
        self, blobs: Blobs, store: Path
    ) -> None:
        for n in range(5):
            blobs.add(noise(n))
            age(chunk(store, noise(n)), DAY * (n + 1))
        assert ChunkStore(store).collect(limit=35 * KIB) == 20 * KIB
        assert there(store) == sorted(chunk(store, noise(n)) for n in range(3))

    def test_removes_what_senders_left_that_died(self, blobs: Blobs, store: Path) -> None:
        blobs.add(noise(1))
        folder = chunk(store, noise(1)).parent
        for name, seconds in (("old", DAY), ("new", 0)):
            (folder / f".part-{name}").write_bytes(b"x")
            age(folder / f".part-{name}", seconds)
        blobs.collect(set())
        assert [path.name for path in folder.glob(".part-*")] == [".part-new"]

    def test_of_a_store_that_was_never_made_does_nothing(self, blobs: Blobs, store: Path) -> None:
        blobs.collect(set())
        assert not store.exists()

    def test_waits_for_nobody_who_puts_an_archive_together(self, blobs: Blobs, store: Path) -> None:
        blobs.add(noise(1))
        age(chunk(store, noise(1)), DAY)
        with ChunkStore(store).kept_for(store.parent / "one" / "blobs"):
            blobs.collect(set())
            assert there(store) == [chunk(store, noise(1))]
        blobs.collect(set())
        assert there(store) == []


def test_a_store_takes_no_more_than_its_share_of_the_disk(
    blobs: Blobs, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        blobs.add(noise(n))
        age(chunk(store, noise(n)), DAY)
    blobs.collect(set())
    assert len(there(store)) == 4, "a tenth of this disk is more than that"
    disk = os.statvfs(store)
    monkeypatch.setattr(chunkstore, "STORE_SHARE", 25 * KIB / (disk.f_blocks * disk.f_frsize))
    blobs.collect(set())
    assert len(there(store)) == 2


def test_a_process_that_holds_the_lock_and_hangs_is_told_of(
    blobs: Blobs, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunkstore, "_LOCK_SECONDS", 0.1)
    blobs.add(noise(1))
    with (store / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="locked"):
            put(blobs, noise(1))
    put(blobs, noise(1))


def _keep_putting(folder: Path, number: int, seconds: float) -> None:
    """Put archives together and collect, as fast as it goes."""
    (folder / f"{number}").mkdir()
    blobs = Blobs(folder / f"{number}" / "blobs", folder / "chunks")
    chunkstore.STORE_BYTES = 0
    chunkstore.KEPT_SECONDS = -1.0  # nothing is too fresh to be removed
    chance = random.Random(number)
    deadline = time.monotonic() + seconds
    done = 0
    while time.monotonic() < deadline:
        pieces = [noise(chance.randrange(6), 500) for _ in range(4)]
        try:
            digest = put(blobs, *pieces)
        except ChunksMissing:
            blobs.collect(set())
            continue  # another collected between the two: to be sent again
        blobs.collect({digest})
        assert blobs.complete(digest), "what an archive consists of was removed"
        with blobs.open(digest) as file:
            assert file.read() == b"".join(pieces)
        done += 1
    assert done > 3


def test_several_agents_never_remove_what_another_needs(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_keep_putting, args=(tmp_path, n, 1.0)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted: {done.stderr}")
    yield folder
    subprocess.run(["umount", folder], check=True)


class TestAFullDisk:
    def test_is_named_and_nothing_half_is_left_on_it(self, small_disk: Path) -> None:
        blobs = Blobs(small_disk / "blobs", small_disk / "chunks")
        for n in range(9):
            blobs.add(noise(n, 100 * KIB))
        with pytest.raises(OSError, match=f"mounted at {small_disk}") as caught:
            blobs.add(noise(20, 200 * KIB))
        assert caught.value.errno == errno.ENOSPC
        assert all(digest_of(path.read_bytes()) == path.name for path in there(small_disk / "chunks"))

    def test_makes_room_of_what_nobody_needs(self, small_disk: Path) -> None:
        store = small_disk / "chunks"
        blobs = Blobs(small_disk / "blobs", store)
        needed = put(blobs, noise(0, 100 * KIB))
        for n in range(1, 9):
            blobs.add(noise(n, 100 * KIB))
            age(chunk(store, noise(n, 100 * KIB)), DAY)
        for n in range(10, 15):
            blobs.add(noise(n, 100 * KIB))
        assert blobs.complete(needed)
        assert all(chunk(store, noise(n, 100 * KIB)).exists() for n in range(10, 15))

    def test_has_no_room_for_a_list_either(self, small_disk: Path) -> None:
        blobs = Blobs(small_disk / "blobs", small_disk / "chunks")
        blobs.add(noise(1))
        with (small_disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(4096))
        many = [hashlib.sha256(noise(1)).digest()] * 2_000
        with pytest.raises(OSError, match=f"mounted at {small_disk}"):
            blobs.put_together("a" * 64, 2_000 * 10 * KIB, many)
        assert not blobs.complete("a" * 64)
