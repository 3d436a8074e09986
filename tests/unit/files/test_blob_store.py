"""The blob store, on this machine's disk and on a filesystem that is not local."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from airflow_provider.runtime.files.archive import pack
from airflow_provider.runtime.files.blobs import BlobMissingError, BlobStore

ABSENT = "0" * 64

KILLED_HALFWAY = """
import os, signal, sys
from pathlib import Path
from airflow_provider.runtime.files.archive import Archive
from airflow_provider.runtime.files import blobs

def copy(source, sink, length):
    sink.write(source.read(1000))
    sink.flush()
    os.kill(os.getpid(), signal.SIGKILL)

blobs.shutil.copyfileobj = copy
path = Path(sys.argv[1])
blobs.BlobStore.local(Path(sys.argv[2])).put(Archive(path, path.stem, path.stat().st_size, 1, "directory"))
"""


@pytest.fixture
def archive(tmp_path, plant):
    return pack(plant(tmp_path / "src", {"a": b"x" * 3_000_000}), tmp_path / "packed")


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    if request.param == "local":
        yield BlobStore.local(tmp_path / "blob store's")
        return
    fs, root = fsspec.core.url_to_fs(f"memory://{uuid.uuid4().hex}/blobs")
    yield BlobStore(fs, root)
    for path in fs.find(root):
        fs.rm_file(path)


@pytest.fixture
def local(tmp_path):
    return BlobStore.local(tmp_path / "blobs")


def everything(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


class TestABlob:
    def test_comes_back_as_it_was_put(self, store, archive):
        assert store.put(archive) is True
        assert store.has(archive.digest)
        assert store.size(archive.digest) == archive.size
        with store.open(archive.digest) as stream:
            assert stream.read() == archive.path.read_bytes()

    def test_is_sent_once(self, store, archive, monkeypatch):
        assert store.put(archive) is True
        monkeypatch.setattr(BlobStore, "_upload", None)
        assert store.put(archive) is False

    def test_lies_in_a_folder_named_after_its_first_two_digits(self, local, tmp_path, archive):
        local.put(archive)
        shard = archive.digest[:2]
        assert everything(tmp_path / "blobs") == [shard, f"{shard}/{archive.digest}.tar"]

    def test_that_is_deleted_leaves_nothing(self, local, tmp_path, archive):
        local.put(archive)
        local.delete(archive.digest)
        assert everything(tmp_path / "blobs") == []

    def test_can_be_deleted_twice_and_put_again(self, store, archive):
        store.delete(archive.digest)
        store.put(archive)
        store.delete(archive.digest)
        store.delete(archive.digest)
        assert not store.has(archive.digest)
        assert store.put(archive) is True

    def test_that_is_deleted_does_not_take_its_neighbours_along(self, local, tmp_path, archive):
        neighbour = replace(archive, digest=archive.digest[:2] + "f" * 62)
        local.put(archive)
        local.put(neighbour)
        local.delete(archive.digest)
        assert local.digests() == {neighbour.digest}

    def test_can_be_read_by_another_process_as_soon_as_it_is_there(self, tmp_path, archive):
        worker, triggerer = BlobStore.local(tmp_path / "blobs"), BlobStore.local(tmp_path / "blobs")
        assert not triggerer.has(archive.digest)
        worker.put(archive)
        assert triggerer.has(archive.digest)


class TestAMissingBlob:
    def test_is_named_with_the_store_and_the_remedy(self, store):
        for ask in (store.open, store.size):
            with pytest.raises(BlobMissingError, match=rf"{ABSENT} is not in \S+://.*blob_path") as caught:
                ask(ABSENT)
            assert store.url in str(caught.value)

    def test_is_not_there(self, store):
        assert store.has(ABSENT) is False


class TestDigests:
    def test_are_listed(self, store, archive):
        assert store.digests() == set()
        other = replace(archive, digest="f" * 64)
        store.put(archive)
        store.put(other)
        assert store.digests() == {archive.digest, other.digest}

    def test_of_files_that_are_no_blobs_are_not_listed(self, local, tmp_path, archive, plant):
        local.put(archive)
        shard = archive.digest[:2]
        plant(
            tmp_path / "blobs", {"README": "", f"{shard}/x.tar": "", f"{shard}/{archive.digest}.part-1": ""}
        )
        assert local.digests() == {archive.digest}

    @pytest.mark.parametrize(
        "digest",
        ["", "abc", "../" * 21 + "a", "/etc/passwd", "A" * 64, "0" * 63, "0" * 65, "0" * 64 + "\n", "٣" * 64],
    )
    def test_that_are_none_are_refused(self, store, archive, digest):
        for ask in (store.has, store.open, store.size, store.delete):
            with pytest.raises(ValueError, match="is not a digest"):
                ask(digest)
        with pytest.raises(ValueError, match="is not a digest"):
            store.put(replace(archive, digest=digest))


class TestUploadsAtTheSameTime:
    def test_of_the_same_archive_all_succeed_and_leave_one_blob(self, store, archive):
        start = threading.Barrier(8)

        def put(_):
            start.wait()
            return store.put(archive)

        with ThreadPoolExecutor(8) as pool:
            assert any(pool.map(put, range(8)))
        assert store.digests() == {archive.digest}
        with store.open(archive.digest) as stream:
            assert stream.read() == archive.path.read_bytes()

    def test_leave_no_part(self, local, tmp_path, archive):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: local.put(archive), range(8)))
        assert len(everything(tmp_path / "blobs")) == 2

    def test_survive_that_others_delete_the_folder(self, local, tmp_path, archive, plant):
        small = pack(plant(tmp_path / "small", {"a": ""}), tmp_path / "packed")
        neighbour = replace(small, digest=archive.digest[:2] + "0" * 62)
        small = replace(small, digest=archive.digest)
        stop = threading.Event()

        def come_and_go():
            while not stop.is_set():
                local.put(neighbour)
                local.delete(neighbour.digest)

        with ThreadPoolExecutor(1) as pool:
            busy = pool.submit(come_and_go)
            for _ in range(50):
                assert local.put(small) is True
                local.delete(small.digest)
            stop.set()
            busy.result()

    def test_are_fine_where_a_move_does_not_replace(self, local, tmp_path, archive, monkeypatch):
        def move_after_another_upload(_, part, blob):
            monkeypatch.undo()
            assert BlobStore.local(tmp_path / "blobs").put(archive) is True
            raise FileExistsError(errno.EEXIST, "File exists", blob)

        monkeypatch.setattr(LocalFileSystem, "mv", move_after_another_upload)
        assert local.put(archive) is False
        assert everything(tmp_path / "blobs") == [
            archive.digest[:2],
            f"{archive.digest[:2]}/{archive.digest}.tar",
        ]


class TestAnUploadThatFails:
    def test_halfway_leaves_neither_the_blob_nor_a_part(self, local, tmp_path, archive, monkeypatch):
        def broken(source, sink, length):
            sink.write(source.read(1000))
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("airflow_provider.runtime.files.blobs.shutil.copyfileobj", broken)
        with pytest.raises(OSError, match="No space left"):
            local.put(archive)
        assert everything(tmp_path / "blobs") == [archive.digest[:2]]
        monkeypatch.undo()
        assert local.put(archive) is True

    def test_because_the_process_was_killed_leaves_no_blob(self, tmp_path, archive):
        killed = subprocess.run(
            [sys.executable, "-c", KILLED_HALFWAY, archive.path, tmp_path / "blobs"], check=False
        )
        assert killed.returncode == -signal.SIGKILL
        store = BlobStore.local(tmp_path / "blobs")
        assert not store.has(archive.digest)
        assert store.digests() == set()
        assert any(".part-" in name for name in everything(tmp_path / "blobs"))
        assert store.put(archive) is True
        assert store.size(archive.digest) == archive.size

    def test_because_fewer_bytes_arrived_is_noticed(self, store, archive, monkeypatch):
        monkeypatch.setattr("airflow_provider.runtime.files.blobs.shutil.copyfileobj", lambda *_: None)
        with pytest.raises(OSError, match=r"bytes, but 0 arrived"):
            store.put(archive)
        assert not store.has(archive.digest)

    def test_because_the_archive_is_gone_says_so(self, store, archive):
        archive.path.unlink()
        with pytest.raises(FileNotFoundError, match=archive.digest):
            store.put(archive)


class TestPartsOfCrashedUploads:
    def leave(self, tmp_path, digest, age):
        part = tmp_path / "blobs" / digest[:2] / f"{digest}.part-{uuid.uuid4().hex}"
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(b"half")
        os.utime(part, (time.time() - age,) * 2)
        return part

    def test_are_removed_by_the_next_upload_once_they_are_an_hour_old(self, local, tmp_path, archive):
        old, young = self.leave(tmp_path, archive.digest, 3700), self.leave(tmp_path, archive.digest, 3500)
        local.put(archive)
        assert (old.exists(), young.exists()) == (False, True)

    def test_are_removed_with_the_blob(self, local, tmp_path, archive):
        local.put(archive)
        self.leave(tmp_path, archive.digest, 3700)
        local.delete(archive.digest)
        assert everything(tmp_path / "blobs") == []

    def test_are_removed_everywhere_on_demand(self, local, tmp_path, archive):
        local.remove_stale_parts()
        local.put(archive)
        self.leave(tmp_path, "e" * 64, 3700)
        self.leave(tmp_path, "f" * 64, 10)
        local.remove_stale_parts()
        assert local.digests() == {archive.digest}
        assert sorted(path.name for path in (tmp_path / "blobs").iterdir()) == sorted(
            {archive.digest[:2], "ff"}
        )

    def test_are_removed_from_a_store_that_is_not_local(self, archive):
        fs, root = fsspec.core.url_to_fs(f"memory://{uuid.uuid4().hex}")
        part = f"{root}/{archive.digest[:2]}/{archive.digest}.part-1"
        fs.pipe(part, b"half")
        fs.store[part].modified = datetime.now(timezone.utc) - timedelta(hours=2)
        BlobStore(fs, root).put(archive)
        assert not fs.exists(part)

    def test_are_left_alone_where_the_store_tells_no_times(self, local, tmp_path, archive, monkeypatch):
        old = self.leave(tmp_path, archive.digest, 3700)

        def unknown(*_):
            raise NotImplementedError

        monkeypatch.setattr(LocalFileSystem, "modified", unknown)
        assert local.put(archive) is True
        assert old.exists()
