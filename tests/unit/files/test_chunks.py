"""How `cut` divides archives: nothing is lost, and a change of one file stays a change of few chunks."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import random
import tarfile
import tracemalloc
from collections.abc import Iterable
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider.runtime.files.archive import pack
from airflow_provider.runtime.files.chunks import LARGEST_CHUNK_BYTES, USUAL_CHUNK_BYTES, cut

KIB = 1 << 10
MIB = 1 << 20
Tree = dict[str, bytes]


def content(seed: object, size: int) -> bytes:
    """Return bytes that no other seed gives."""
    return (hashlib.sha256(repr(seed).encode()).digest() * (size // 32 + 1))[:size]


@functools.lru_cache(maxsize=5_000)
def member(name: str, data: bytes) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    head = entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return head + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def archive(tree: Tree) -> bytes:
    ordered = sorted(tree, key=os.fsencode)
    return b"".join(member(name, tree[name]) for name in ordered) + bytes(2 * tarfile.BLOCKSIZE)


def chunks(data: bytes) -> list[bytes]:
    return list(cut(io.BytesIO(data)))


def new_bytes(before: Iterable[bytes], after: Iterable[bytes]) -> int:
    """How much must be sent to somebody who has `before`."""
    return sum(map(len, set(after) - set(before)))


# Names of any characters and lengths, below each other or not: those over 100 bytes have pax headers.
names = st.lists(
    st.text(st.characters(exclude_characters="/\0", exclude_categories=()), min_size=1, max_size=60).map(
        # What no file system has: halves of pairs that are no undecodable byte.
        lambda text: text.encode("utf-8", "replace").decode()
    ),
    min_size=1,
    max_size=5,
).map("/".join)
sizes = st.one_of(st.integers(0, 2_000), st.integers(0, 300 * KIB), st.just(0))
trees = st.dictionaries(names, sizes, max_size=25).map(
    lambda found: {name: content(name, size) for name, size in found.items()}
)


class TestAnyArchive:
    @settings(deadline=None, max_examples=60)
    @given(trees, st.lists(st.integers(0, 9 * MIB), max_size=2))
    def test_is_the_same_when_its_chunks_are_joined(self, tree: Tree, large: list[int]) -> None:
        data = archive({**tree, **{f"large{size}": content(size, size) for size in large}})
        found = chunks(data)
        assert b"".join(found) == data
        assert all(0 < len(chunk) <= LARGEST_CHUNK_BYTES for chunk in found)

    @settings(deadline=None, max_examples=200)
    @given(st.binary(max_size=4_000))
    def test_need_not_be_one(self, data: bytes) -> None:
        assert b"".join(chunks(data)) == data

    @settings(deadline=None, max_examples=100)
    @given(trees, st.randoms(use_true_random=False))
    def test_may_be_damaged_or_cut_short_anywhere(self, tree: Tree, chance: random.Random) -> None:
        data = bytearray(archive(tree))
        for _ in range(3):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        del data[chance.randrange(len(data)) :]
        assert b"".join(chunks(bytes(data))) == bytes(data)

    @pytest.mark.parametrize(
        "size", [LARGEST_CHUNK_BYTES - 513, LARGEST_CHUNK_BYTES - 512, LARGEST_CHUNK_BYTES, 9 * MIB + 1]
    )
    def test_that_is_none_at_all_is_cut_by_its_length(self, size: int) -> None:
        data = random.Random(size).randbytes(size)
        found = chunks(data)
        assert b"".join(found) == data
        assert [len(chunk) for chunk in found[:-1]] == [LARGEST_CHUNK_BYTES] * (len(found) - 1)

    def test_of_nothing_has_no_chunks(self) -> None:
        assert chunks(b"") == []

    def test_may_come_in_any_portions(self) -> None:
        data = archive({f"{n}": content(n, n * 1000) for n in range(60)})

        class Dribbling(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                return super().read(min(777, size or 0))

        assert list(cut(Dribbling(data))) == chunks(data)

    def test_may_hold_a_file_too_large_for_its_header(self) -> None:
        # 8 GiB and more are told in a pax record; a stream of zeros stands for them.
        entry = tarfile.TarInfo("huge")
        entry.size = 9 << 30
        head = entry.tobuf(tarfile.PAX_FORMAT)
        assert b"size=9663676416" in head
        stream = Zeros(head, 30 * MIB)
        assert [len(chunk) for chunk in cut(stream)] == [4 * MIB] * 7 + [2 * MIB + len(head)]

    def test_is_never_held_in_memory(self) -> None:
        stream = Zeros(tarfile.TarInfo("x").tobuf() + member("y", b""), 300 * MIB)
        tracemalloc.start()
        try:
            total = sum(len(chunk) for chunk in cut(stream))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert total > 300 * MIB
        assert peak < 4 * LARGEST_CHUNK_BYTES


class Zeros(io.RawIOBase, BinaryIO):
    """A stream that begins with some bytes and goes on with zeros, in all ``size`` bytes more."""

    def __init__(self, begin: bytes, size: int) -> None:
        self._begin = io.BytesIO(begin)
        self._left = size

    def read(self, size: int = -1) -> bytes:
        data = self._begin.read(size)
        if data:
            return data
        count = min(size, self._left)
        self._left -= count
        return bytes(count)


@pytest.fixture(scope="module")
def tree() -> Tree:
    chance = random.Random(7)
    return {
        f"directory{n % 50:02}/file{n:05}": content(n, chance.choice([0, 100, 4_000, 20_000]))
        for n in range(2_000)
    }


class TestAChange:
    """Of one file in a tree, seen by somebody who has the chunks of the tree before."""

    def test_of_a_small_file_changes_one_chunk(self, tree: Tree) -> None:
        before = chunks(archive(tree))
        for name in random.Random(1).sample(sorted(tree), 10):
            after = chunks(archive({**tree, name: content(("other", name), len(tree[name]) + 1)}))
            # Two where its header stands before a boundary that its size moves.
            assert len(set(after) - set(before)) <= 2
            assert new_bytes(before, after) <= 2 * LARGEST_CHUNK_BYTES

    def test_that_adds_or_removes_a_file_changes_one_or_two_chunks(self, tree: Tree) -> None:
        before = chunks(archive(tree))
        for name in random.Random(2).sample(sorted(tree), 10):
            smaller = {other: tree[other] for other in tree if other != name}
            larger = {**tree, f"{name}-new": content("new", 5_000)}
            for changed in (smaller, larger):
                assert len(set(chunks(archive(changed))) - set(before)) <= 2

    def test_at_the_end_of_a_large_file_changes_its_last_chunk(self) -> None:
        large = random.Random(3).randbytes(20 * MIB)
        before = chunks(archive({"a": b"x", "large": large, "z": b"y"}))
        after = chunks(archive({"a": b"x", "large": large + b"more", "z": b"y"}))
        # The first has the header, which tells the size.
        assert len(set(after) - set(before)) == 2

    def test_of_a_file_leaves_a_large_file_behind_it_as_it_was(self) -> None:
        large = random.Random(4).randbytes(20 * MIB)
        before = chunks(archive({"a": b"x", "large": large, "z": b"y"}))
        after = chunks(archive({"a": b"something longer" * 100, "large": large, "z": b"y"}))
        assert new_bytes(before, after) < 10 * KIB

    @settings(deadline=None, max_examples=50)
    @given(trees, trees, trees)
    def test_never_reaches_beyond_a_large_file(self, before: Tree, changed: Tree, behind: Tree) -> None:
        def whole(front: Tree) -> list[bytes]:
            return chunks(
                b"".join(member(name, front[name]) for name in sorted(front))
                + member("large", content("large", USUAL_CHUNK_BYTES))
                + archive(behind)
            )

        one, other = whole(before), whole(changed)
        first = next(n for n, chunk in enumerate(one) if chunk.startswith(member("large", b"")[:100]))
        assert other[-len(one[first:]) :] == one[first:]

    def test_of_nothing_needs_nothing_even_from_other_directories(self, tmp_path, plant) -> None:
        entries = {f"{n}/file": content(n, 10_000) for n in range(200)}
        one = pack(plant(tmp_path / "one", entries), tmp_path / "out")
        other = pack(plant(tmp_path / "two", {**entries, "9/more": "x"}), tmp_path / "out")
        with one.path.open("rb") as first, other.path.open("rb") as second:
            before, after = list(cut(first)), list(cut(second))
        assert 0 < new_bytes(before, after) < one.size / 2


def test_chunks_of_small_files_are_of_a_useful_size() -> None:
    found = chunks(archive({f"file{n}": content(n, 4_000) for n in range(10_000)}))
    assert 50 < len(found) < 200
