"""What `pack` puts into an archive."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import socket
import subprocess
import tarfile
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider.runtime.files import archive as archive_module
from airflow_provider.runtime.files.archive import Archive, PackError, pack


def members(archive: Archive) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(archive.path, "r:", encoding="utf-8", errors="surrogateescape") as tar:
        return {member.name: member for member in tar}


def content(archive: Archive, name: str) -> bytes:
    with tarfile.open(archive.path, "r:", encoding="utf-8", errors="surrogateescape") as tar:
        stream = tar.extractfile(name)
        assert stream is not None
        return stream.read()


class TestAnArchive:
    def test_is_named_after_the_hash_of_its_bytes(self, tmp_path, plant):
        packed = pack(plant(tmp_path / "src", {"a": "1", "b/c": "2"}), tmp_path / "out")
        data = packed.path.read_bytes()
        assert packed.digest == hashlib.sha256(data).hexdigest()
        assert packed.path == tmp_path / "out" / f"{packed.digest}.tar"
        assert packed.size == len(data)
        assert (packed.files, packed.kind, packed.skipped) == (2, "directory", ())

    def test_is_the_only_thing_left_in_the_target_directory(self, tmp_path, plant):
        packed = pack(plant(tmp_path / "src", {"a": "1"}), tmp_path / "deep" / "out")
        assert list((tmp_path / "deep" / "out").iterdir()) == [packed.path]

    def test_can_be_listed_by_the_tar_command_without_complaint(self, tmp_path, plant):
        packed = pack(plant(tmp_path / "src", {"a": "1", "b/ü": "2"}), tmp_path / "out")
        listed = subprocess.run(["tar", "-tf", packed.path], capture_output=True, text=True, check=True)
        assert listed.stderr == ""
        assert len(listed.stdout.splitlines()) == 3

    def test_is_the_same_whatever_the_times_the_order_of_creation_and_the_name_of_the_source(
        self, tmp_path, plant
    ):
        entries = {"z": "1", "a/b": "2", "a-b": "3", "é": "4", "link": "-> a/b", "empty": None}
        one = plant(tmp_path / "one", entries)
        two = plant(tmp_path / "another name", dict(reversed(entries.items())))
        for path in two.rglob("*"):
            os.utime(path, (1, 4_000_000_000), follow_symlinks=False)
        first, second = pack(one, tmp_path / "out"), pack(two, tmp_path / "out")
        assert first.digest == second.digest
        assert first.path == second.path

    def test_differs_when_a_byte_a_mode_or_a_link_differs(self, tmp_path, plant):
        src = plant(tmp_path / "src", {"a": "1", "link": "-> a"})
        digests = [pack(src, tmp_path / "out").digest]
        (src / "a").write_text("2")
        digests.append(pack(src, tmp_path / "out").digest)
        (src / "a").chmod(0o755)
        digests.append(pack(src, tmp_path / "out").digest)
        (src / "link").unlink()
        (src / "link").symlink_to("b")
        digests.append(pack(src, tmp_path / "out").digest)
        assert len(set(digests)) == 4

    def test_has_a_digest_that_no_release_may_change_by_accident(self, tmp_path, plant):
        src = plant(tmp_path / "src", {"bin/run it's.sh": "echo hi\n", "é" * 80: b"\0\xff", "l": "-> bin"})
        (src / "bin").chmod(0o755)
        (src / "bin/run it's.sh").chmod(0o755)
        (src / ("é" * 80)).chmod(0o640)
        assert (
            pack(src, tmp_path / "out").digest
            == "62072b724014de40094ddfa212a6316639e91f2d6a30eae5eac7fc94d898c749"
        )

    def test_holds_no_owner_no_owner_name_and_a_fixed_time(self, tmp_path, plant):
        src = plant(tmp_path / "src", {"a": "1", "d/x": "", "l": "-> a"})
        (src / "a").chmod(0o7755)
        for member in members(pack(src, tmp_path / "out")).values():
            assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
            assert time.gmtime(member.mtime)[:6] == (2000, 1, 1, 0, 0, 0)
            assert member.mode <= 0o777

    def test_lists_parents_before_children_in_the_order_of_their_bytes(self, tmp_path, plant):
        src = plant(tmp_path / "src", {"b": "", "a/z": "", "a/b/c": "", "a-b": "", "B": "", "é": ""})
        assert list(members(pack(src, tmp_path / "out"))) == [
            "B",
            "a",
            "a/b",
            "a/b/c",
            "a/z",
            "a-b",
            "b",
            "é",
        ]

    def test_keeps_permission_bits_of_files_and_directories(self, tmp_path, plant):
        src = plant(tmp_path / "src", {"run": "", "data/x": ""})
        (src / "run").chmod(0o751)
        (src / "data").chmod(0o700)
        found = members(pack(src, tmp_path / "out"))
        assert (found["run"].mode, found["data"].mode) == (0o751, 0o700)

    @pytest.mark.parametrize(
        "name",
        [
            "my file.txt",
            "it's here/it's.txt",
            'say "hi" $HOME `id`.txt',
            "new\nline",
            "-rf",
            "Überraschung/数据/😀",
            os.fsdecode(b"caf\xe9/\xff\xfe"),
            "n" * 255,
            "/".join(["long directory name"] * 40) + "/file",
        ],
    )
    def test_keeps_any_name(self, tmp_path, plant, name):
        packed = pack(plant(tmp_path / "src dir's", {name: "content"}), tmp_path / "out")
        assert content(packed, name) == b"content"

    def test_stores_hard_links_as_files_so_that_they_do_not_change_the_digest(self, tmp_path, plant):
        linked = plant(tmp_path / "linked", {"a": "same"})
        os.link(linked / "a", linked / "b")
        copied = plant(tmp_path / "copied", {"a": "same", "b": "same"})
        packed = pack(linked, tmp_path / "out")
        assert all(member.isreg() for member in members(packed).values())
        assert packed.digest == pack(copied, tmp_path / "out").digest

    def test_stores_a_sparse_file_like_any_other(self, tmp_path, plant):
        src = plant(tmp_path / "src", {})
        with (src / "sparse").open("wb") as stream:
            stream.truncate(5_000_000)
        packed = pack(src, tmp_path / "out")
        assert content(packed, "sparse") == bytes(5_000_000)

    def test_keeps_empty_directories(self, tmp_path, plant):
        packed = pack(plant(tmp_path / "src", {"a/b": None}), tmp_path / "out")
        assert members(packed)["a/b"].isdir()
        assert packed.files == 0

    def test_of_an_empty_directory_is_empty(self, tmp_path, plant):
        packed = pack(plant(tmp_path / "src", {}), tmp_path / "out")
        assert members(packed) == {}
        assert packed.size == 1024


class TestSymbolicLinks:
    def test_are_kept_as_links_wherever_they_point(self, tmp_path, plant):
        plant(tmp_path / "outside", {"secret": "do not pack"})
        src = plant(
            tmp_path / "src",
            {
                "d/file": "1",
                "inside": "-> d/file",
                "directory": "-> d",
                "dangling": "-> nowhere",
                "outside": "-> ../outside",
                "absolute": "-> /etc",
                "loop": "-> loop",
                "up": "-> ..",
                "bytes": "-> " + os.fsdecode(b"\xff"),
                "far": "-> " + "x/" * 200,
            },
        )
        packed = pack(src, tmp_path / "out")
        found = members(packed)
        targets = {name: member.linkname for name, member in found.items() if member.issym()}
        assert targets == {p.name: os.readlink(p) for p in src.iterdir() if p.is_symlink()}  # noqa: PTH115
        assert set(found) - set(targets) == {"d", "d/file"}
        assert packed.files == 10

    def test_are_followed_when_the_source_itself_is_one(self, tmp_path, plant):
        src = plant(tmp_path / "src", {"a": "1"})
        (tmp_path / "link").symlink_to("src")
        (tmp_path / "file").symlink_to("src/a")
        assert pack(tmp_path / "link", tmp_path / "out").digest == pack(src, tmp_path / "out").digest
        assert pack(tmp_path / "file", tmp_path / "out").digest == pack(src / "a", tmp_path / "out").digest


class TestASingleFile:
    def test_is_packed_with_its_mode_under_a_fixed_name(self, tmp_path, plant):
        src = plant(tmp_path / "src", {"run me.sh": "echo\n"})
        (src / "run me.sh").chmod(0o750)
        packed = pack(src / "run me.sh", tmp_path / "out")
        assert (packed.kind, packed.files) == ("file", 1)
        assert {name: member.mode for name, member in members(packed).items()} == {"file": 0o750}
        assert content(packed, "file") == b"echo\n"

    def test_equal_files_of_different_names_are_one_archive(self, tmp_path, plant):
        src = plant(tmp_path / "src", {"a": "same", "b": "same"})
        assert pack(src / "a", tmp_path / "out").digest == pack(src / "b", tmp_path / "out").digest

    def test_is_packed_even_when_it_is_ignored_because_it_was_asked_for(self, tmp_path, plant):
        src = plant(tmp_path / "src", {".gitignore": "*.env", "prod.env": "A=1"})
        assert pack(src / "prod.env", tmp_path / "out").files == 1

    def test_may_lie_beside_the_archive(self, tmp_path, plant):
        plant(tmp_path, {"a": "1"})
        assert pack(tmp_path / "a", tmp_path).files == 1


class TestSpecialFiles:
    def test_are_left_out_and_reported(self, tmp_path, plant):
        src = plant(tmp_path / "src", {"run/a": "1"})
        os.mkfifo(src / "run" / "fifo")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(src / "socket"))
            packed = pack(src, tmp_path / "out")
        assert packed.skipped == ("run/fifo", "socket")
        assert set(members(packed)) == {"run", "run/a"}

    def test_are_not_reported_when_they_are_ignored_anyway(self, tmp_path, plant):
        src = plant(tmp_path / "src", {".gitignore": "*.sock"})
        os.mkfifo(src / "agent.sock")
        assert pack(src, tmp_path / "out").skipped == ()

    def test_as_the_source_are_refused(self, tmp_path):
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(PackError, match=r"fifo' is neither a directory nor a file"):
            pack(tmp_path / "fifo", tmp_path / "out")


class TestPackingFails:
    def failing(self, monkeypatch, name: str, number: int) -> None:
        """Let opening `name` fail as it does for a user who may not; these tests may run as root."""
        real = os.open

        def fake(path, *args, **kwargs):
            if Path(path).name == name:
                raise OSError(number, os.strerror(number), str(path))
            return real(path, *args, **kwargs)

        monkeypatch.setattr(os, "open", fake)

    def test_when_the_source_is_missing(self, tmp_path):
        with pytest.raises(PackError, match=r"no such' is missing"):
            pack(tmp_path / "no such", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_when_the_source_is_a_dangling_or_circular_link(self, tmp_path):
        (tmp_path / "dangling").symlink_to("nowhere")
        (tmp_path / "loop").symlink_to("loop")
        for name in ("dangling", "loop"):
            with pytest.raises(PackError, match=f"{name}' is missing"):
                pack(tmp_path / name, tmp_path / "out")

    def test_when_the_archive_would_be_written_into_the_source(self, tmp_path, plant):
        src = plant(tmp_path / "src", {"a": "1"})
        (tmp_path / "link").symlink_to("src")
        for source, into in [(src, src), (src, src / "out"), (tmp_path / "link", src / "out")]:
            with pytest.raises(PackError, match="packed into itself"):
                pack(source, into)
        assert [path.name for path in src.iterdir()] == ["a"]

    def test_when_a_file_cannot_be_read_naming_it_and_the_remedy(self, tmp_path, plant, monkeypatch):
        src = plant(tmp_path / "src", {"a": "1", "secret.key": "2"})
        self.failing(monkeypatch, "secret.key", errno.EACCES)
        with pytest.raises(
            PackError, match=r"src/secret.key' cannot be read \(Permission denied\).*\.gitignore"
        ):
            pack(src, tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []

    def test_when_a_directory_cannot_be_listed(self, tmp_path, plant, monkeypatch):
        src = plant(tmp_path / "src", {"locked/a": "1"})
        real = os.listdir

        def fake(path):
            if Path(path).name == "locked":
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return real(path)

        monkeypatch.setattr(os, "listdir", fake)
        with pytest.raises(PackError, match=r"src/locked' cannot be read"):
            pack(src, tmp_path / "out")

    def test_unless_what_cannot_be_read_is_ignored(self, tmp_path, plant, monkeypatch):
        src = plant(tmp_path / "src", {".gitignore": "*.key", "secret.key": "2"})
        self.failing(monkeypatch, "secret.key", errno.EACCES)
        assert pack(src, tmp_path / "out").files == 1

    def test_when_a_file_disappears_while_it_is_packed(self, tmp_path, plant, monkeypatch):
        src = plant(tmp_path / "src", {"a": "1"})
        self.failing(monkeypatch, "a", errno.ENOENT)
        with pytest.raises(PackError, match="disappeared while it was being packed"):
            pack(src, tmp_path / "out")

    @pytest.mark.parametrize("change", ["grow", "shrink", "rewrite"])
    def test_when_a_file_changes_while_it_is_packed(self, tmp_path, plant, monkeypatch, change):
        src = plant(tmp_path / "src", {"log.txt": b"x" * 3000})
        monkeypatch.setattr(archive_module, "_CHUNK", 1000)
        real, reads = os.read, []

        def fake(descriptor, length):
            data = real(descriptor, length)
            reads.append(length)
            if len(reads) == 1:
                path = src / "log.txt"
                if change == "grow":
                    path.write_bytes(b"x" * 4000)
                elif change == "shrink":
                    path.write_bytes(b"x" * 1500)
                else:
                    path.write_bytes(b"y" * 3000)
                    os.utime(path, ns=(1, 1))
            return data

        monkeypatch.setattr(os, "read", fake)
        with pytest.raises(PackError, match=r"log.txt' changed while it was being packed"):
            pack(src, tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []

    def test_when_a_file_is_swapped_for_a_link_or_a_fifo(self, tmp_path, plant, monkeypatch):
        src = plant(tmp_path / "src", {"a": "1"})
        real_lstat = (src / "a").lstat()
        (src / "a").unlink()
        monkeypatch.setattr(Path, "lstat", lambda path: real_lstat if path.name == "a" else os.lstat(path))
        (src / "a").symlink_to("/etc/passwd")
        with pytest.raises(PackError, match="src/a'"):
            pack(src, tmp_path / "out")
        (src / "a").unlink()
        os.mkfifo(src / "a")
        with pytest.raises(PackError, match="src/a' changed"):
            pack(src, tmp_path / "out")

    def test_when_the_disk_is_full_and_leaves_no_part(self, tmp_path, plant, monkeypatch):
        src = plant(tmp_path / "src", {"a": "1"})

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            pack(src, tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []

    def test_with_a_message_that_can_be_logged_and_sent_to_another_process(
        self, tmp_path, plant, monkeypatch
    ):
        name = os.fsdecode(b"\xff.bin")
        src = plant(tmp_path / "src", {name: "1"})
        self.failing(monkeypatch, name, errno.EACCES)
        with pytest.raises(PackError) as caught:
            pack(src, tmp_path / "out")
        str(caught.value).encode()
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301


class TestLargeSources:
    def test_each_of_ten_thousand_files_is_opened_once_and_each_directory_listed_once(
        self, tmp_path, monkeypatch
    ):
        for folder in range(100):
            directory = tmp_path / "src" / f"d{folder}"
            directory.mkdir(parents=True)
            for number in range(100):
                (directory / f"f{number}").write_bytes(b"x")
        (tmp_path / "src" / ".gitignore").write_text("*.pyc\n__pycache__/\n/build\n")
        asked: Counter[tuple[str, str]] = Counter()

        def counted(name):
            call = getattr(os, name)

            def count(path, *args, **kwargs):
                asked[name, os.fspath(path)] += 1
                return call(path, *args, **kwargs)

            return count

        for name in ("open", "listdir"):
            monkeypatch.setattr(archive_module.os, name, counted(name))
        packed = pack(tmp_path / "src", tmp_path / "out")
        monkeypatch.undo()
        assert packed.files == 10_001
        inside = {key: times for key, times in asked.items() if key[1].startswith(str(tmp_path / "src"))}
        assert len(inside) == 10_001 + 101
        assert set(inside.values()) == {1}

    def test_memory_does_not_grow_with_the_size_of_a_file(self, tmp_path, plant):
        src = plant(tmp_path / "src", {})
        with (src / "large").open("wb") as stream:
            stream.truncate(64 << 20)
        tracemalloc.start()
        try:
            pack(src, tmp_path / "out")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 8 << 20
