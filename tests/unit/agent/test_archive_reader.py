"""Reading an archive that lies in chunks: like one file, and never to the end when a byte is wrong."""

from __future__ import annotations

import hashlib
import io
import os
import random
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider.runtime.agent.driver.archive import (
    BrokenBlob,
    Chunk,
    Manifest,
    chunk_path,
    open_archive,
)


def store(folder: Path, data: bytes, size: int = 1000) -> Path:
    """Put data into a folder in chunks of some size, and return the manifest."""
    pieces = [data[n : n + size] for n in range(0, len(data), size)]
    chunks = tuple(Chunk(hashlib.sha256(piece).hexdigest(), len(piece)) for piece in pieces)
    for chunk, piece in zip(chunks, pieces, strict=True):
        path = chunk_path(folder / "chunks", chunk.digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(piece)
    digest = hashlib.sha256(data).hexdigest()
    manifest = folder / digest
    manifest.write_text(Manifest(digest, len(data), str(folder / "chunks"), chunks).dump())
    return manifest


def chunk_files(folder: Path) -> list[Path]:
    return sorted((folder / "chunks").glob("*/*"))


@pytest.fixture
def data() -> bytes:
    return random.Random(1).randbytes(10_500)


def test_the_whole_can_be_read_at_once_or_piece_by_piece(tmp_path: Path, data: bytes) -> None:
    manifest = store(tmp_path, data)
    with open_archive(manifest) as file:
        assert file.read() == data
        assert file.read() == b""
    with open_archive(manifest) as file:
        assert b"".join(iter(lambda: file.read(333), b"")) == data


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END]), st.integers(-600, 600))))
def test_it_answers_as_a_file_with_the_same_bytes_does(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]]
) -> None:
    data = random.Random(2).randbytes(700)
    manifest = store(tmp_path_factory.mktemp("archive"), data, size=90)
    real = io.BytesIO(data)
    with open_archive(manifest) as file:
        for whence, offset in steps:
            base = {os.SEEK_SET: 0, os.SEEK_CUR: real.tell(), os.SEEK_END: len(data)}[whence]
            position = max(0, base + offset)
            assert file.seek(position - base, whence) == real.seek(position)
            assert file.read(50) == real.read(50)
            assert file.tell() == real.tell()


def test_tar_reads_it_as_it_reads_a_file(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for n in range(50):
            member = tarfile.TarInfo(f"{n}")
            member.size = n * 100
            tar.addfile(member, io.BytesIO(bytes([n]) * member.size))
    with (
        open_archive(store(tmp_path, buffer.getvalue())) as file,
        tarfile.open(fileobj=file, mode="r:") as tar,
    ):
        contents = [tar.extractfile(member).read() for member in tar]  # type: ignore[union-attr]  # all are files
    assert contents == [bytes([n]) * (n * 100) for n in range(50)]


def test_an_empty_one_is_empty(tmp_path: Path) -> None:
    with open_archive(store(tmp_path, b"")) as file:
        assert file.read() == b""


class TestADamagedOne:
    def test_is_not_read_to_its_end_and_its_damaged_chunk_is_removed(
        self, tmp_path: Path, data: bytes
    ) -> None:
        manifest = store(tmp_path, data)
        damaged = chunk_files(tmp_path)[4]
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
        with open_archive(manifest) as file, pytest.raises(BrokenBlob, match=damaged.name):
            list(iter(lambda: file.read(100), b""))
        assert not damaged.exists()
        assert len(chunk_files(tmp_path)) == 10
        assert manifest.exists()

    def test_is_noticed_by_who_reads_only_the_end(self, tmp_path: Path, data: bytes) -> None:
        manifest = store(tmp_path, data)
        damaged = chunk_files(tmp_path)[4]
        damaged.write_bytes(b"?" + damaged.read_bytes()[1:])
        with open_archive(manifest) as file:
            file.seek(-1, os.SEEK_END)
            with pytest.raises(BrokenBlob, match=damaged.name):
                file.read(1)

    @pytest.mark.parametrize("change", [-1, 1, -1000])
    def test_with_a_chunk_of_another_size_is_noticed_when_it_is_reached(
        self, tmp_path: Path, data: bytes, change: int
    ) -> None:
        manifest = store(tmp_path, data)
        damaged = chunk_path(tmp_path / "chunks", hashlib.sha256(data[:1000]).hexdigest())
        os.truncate(damaged, 1000 + change)
        with (
            open_archive(manifest) as file,
            pytest.raises(BrokenBlob, match=f"{1000 + change} bytes instead"),
        ):
            file.read(1)
        assert not damaged.exists()

    def test_with_a_missing_chunk_names_it(self, tmp_path: Path, data: bytes) -> None:
        manifest = store(tmp_path, data)
        gone = chunk_files(tmp_path)[0]
        gone.unlink()
        with open_archive(manifest) as file, pytest.raises(BrokenBlob, match=f"{gone.name} is missing"):
            file.read()

    def test_whose_list_is_wrong_is_forgotten(self, tmp_path: Path, data: bytes) -> None:
        manifest = store(tmp_path, data)
        wrong = manifest.with_name("a" * 64)
        wrong.write_text(Manifest.load(manifest)._replace(digest="a" * 64).dump())
        with open_archive(wrong) as file, pytest.raises(BrokenBlob, match="do not make up"):
            file.read()
        assert not wrong.exists()
        assert len(chunk_files(tmp_path)) == 11

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{}",
            "[]",
            "nonsense",
            '{"format": 2}',
            '{"format": 1, "digest": "a", "size": 5, "store": "/", "chunks": []}',
        ],
    )
    def test_whose_list_makes_no_sense_is_refused(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "list").write_text(text)
        with pytest.raises(BrokenBlob, match="not a list"):
            open_archive(tmp_path / "list")

    def test_that_is_not_there_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            open_archive(tmp_path / "list")


def test_no_file_stays_open(tmp_path: Path, data: bytes) -> None:
    before = os.listdir("/proc/self/fd")
    with open_archive(store(tmp_path, data)) as file:
        file.read()
    assert os.listdir("/proc/self/fd") == before


def test_a_driver_imports_little_with_it() -> None:
    import subprocess

    code = (
        "import sys; from airflow_provider.runtime.agent.driver import archive; "
        "print(*sorted({'dataclasses', 'tarfile', 'grpc', 'logging', 'asyncio'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[3]
    found = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert found.stdout == "\n"
