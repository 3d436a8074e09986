"""What `unpack` writes, and what it refuses to write."""

from __future__ import annotations

import ast
import io
import os
import random
import stat
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider.runtime.agent.driver import unpack as unpack_module
from airflow_provider.runtime.agent.driver.unpack import UnpackError
from airflow_provider.runtime.files.archive import pack
from tests.unit.agent.deliveries import as_nobody


def unpack(archive: Path, destination: Path, *, kind: str) -> None:
    with open(archive, "rb") as stream:
        unpack_module.unpack(stream, destination, kind=kind)


def crafted(path: Path, *members: tarfile.TarInfo | tuple[str, bytes]) -> Path:
    """Write an archive that `pack` would never write."""
    with tarfile.open(path, "w") as tar:
        for member in members:
            if isinstance(member, tuple):
                entry = tarfile.TarInfo(member[0])
                entry.size = len(member[1])
                tar.addfile(entry, io.BytesIO(member[1]))
            else:
                tar.addfile(member)
    return path


def entry(name: str, kind: bytes, target: str = "", mode: int = 0o755) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    return info


@pytest.fixture
def umask():
    """Restore the umask after a test that sets it."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


class TestADirectory:
    def test_comes_out_as_it_went_in(self, tmp_path, plant, look):
        src = plant(
            tmp_path / "src dir's",
            {
                "it's.txt": "1",
                "a b/ü/数据": "2",
                os.fsdecode(b"caf\xe9"): "3",
                "/".join(["long directory name"] * 40) + "/file": "4",
                "empty": None,
                "link": "-> it's.txt",
                "outside": "-> /etc/passwd",
                "dangling": "-> nowhere/",
                "directory": "-> a b",
                "run.sh": "#!/bin/sh\n",
            },
        )
        (src / "run.sh").chmod(0o755)
        (src / "empty").chmod(0o700)
        unpack(pack(src, tmp_path / "out").path, tmp_path / "it's here", kind="directory")
        assert look(tmp_path / "it's here") == look(src)

    @pytest.mark.parametrize("mask", [0o000, 0o077])
    def test_has_the_modes_of_the_archive_whatever_the_umask(self, tmp_path, plant, look, umask, mask):
        src = plant(tmp_path / "src", {"a": "", "d/b": ""})
        (src / "a").chmod(0o666)
        (src / "d").chmod(0o777)
        archive = pack(src, tmp_path / "out").path
        (tmp_path / "there").mkdir()
        umask(mask)
        unpack(archive, tmp_path / "there", kind="directory")
        umask(0o022)
        assert look(tmp_path / "there") == look(src)

    def test_with_read_only_directories_is_restored_and_can_be_unpacked_again(self, tmp_path, plant, look):
        src = plant(tmp_path / "src", {"ro/deeper/f": "1", "none/g": "2"})
        (src / "ro/deeper/f").chmod(0o444)
        for name in ("ro/deeper", "ro"):
            (src / name).chmod(0o555)
        archive = pack(src, tmp_path / "out").path
        for _ in range(2):
            unpack(archive, tmp_path / "there", kind="directory")
            assert look(tmp_path / "there") == look(src)

    def test_sets_modes_deepest_first_and_only_when_everything_is_in_place(
        self, tmp_path, plant, monkeypatch
    ):
        src = plant(tmp_path / "src", {"a/b/c/f": ""})
        archive = pack(src, tmp_path / "out").path
        done = []
        real = Path.chmod

        def spy(path, mode):
            assert (tmp_path / "there/a/b/c/f").exists()
            done.append(path.name)
            real(path, mode)

        monkeypatch.setattr(Path, "chmod", spy)
        unpack(archive, tmp_path / "there", kind="directory")
        assert done == ["c", "b", "a"]

    @pytest.mark.parametrize("before", ["absent", "absent parents", "empty", "link"])
    def test_may_be_absent_or_empty_or_behind_a_link(self, tmp_path, plant, before):
        archive = pack(plant(tmp_path / "src", {"a": "1"}), tmp_path / "out").path
        there = tmp_path / "there"
        if before == "absent parents":
            there = tmp_path / "x" / "y" / "there"
        elif before == "empty":
            there.mkdir()
        elif before == "link":
            (tmp_path / "volume").mkdir()
            there.symlink_to("volume")
        unpack(archive, there, kind="directory")
        assert (there / "a").read_text() == "1"
        assert there.is_symlink() == (before == "link")
        assert [path.name for path in there.iterdir()] == ["a"]
        assert not list(tmp_path.rglob(".managed-jobs-*"))

    def test_with_an_ordinary_mode_when_it_was_absent(self, tmp_path, plant, umask):
        archive = pack(plant(tmp_path / "src", {"a": "1"}), tmp_path / "out").path
        umask(0o027)
        unpack(archive, tmp_path / "there", kind="directory")
        assert stat.S_IMODE((tmp_path / "there").stat().st_mode) == 0o750

    def test_that_has_content_keeps_what_the_archive_does_not_replace(self, tmp_path, plant, look):
        archive = pack(
            plant(tmp_path / "src", {"d/new": "1", "d/old": "2", "l": "-> d"}), tmp_path / "out"
        ).path
        there = plant(tmp_path / "there", {"d/old": "0", "d/kept": "0", "other": "0", "l": "-> elsewhere"})
        unpack(archive, there, kind="directory")
        assert {name: content for name, (_, _, content) in look(there).items()} == {
            "d": b"", "d/new": b"1", "d/old": b"2", "d/kept": b"0", "other": b"0", "l": b"d",
        }  # fmt: skip

    def test_replaces_a_link_instead_of_writing_through_it(self, tmp_path, plant):
        archive = pack(plant(tmp_path / "src", {"a": "new"}), tmp_path / "out").path
        plant(tmp_path, {"precious": "old", "there/a": "-> ../precious"})
        unpack(archive, tmp_path / "there", kind="directory")
        assert (tmp_path / "precious").read_text() == "old"
        assert (tmp_path / "there/a").read_text() == "new"

    @pytest.mark.parametrize(
        ("packed", "there", "names"),
        [
            ({"d/a": ""}, {"d": "-> elsewhere"}, "there/d' is in the way.*symbolic link"),
            ({"d/a": ""}, {"d": "a file"}, "there/d' is in the way: it is not a directory"),
            ({"d": ""}, {"d/a": ""}, "there/d' is in the way: it is a directory"),
            ({"d": "-> x"}, {"d/a": ""}, "there/d' is in the way: it is a directory"),
        ],
    )
    def test_refuses_to_replace_a_directory_or_to_go_through_a_link(
        self, tmp_path, plant, packed, there, names
    ):
        archive = pack(plant(tmp_path / "src", packed), tmp_path / "out").path
        (tmp_path / "elsewhere").mkdir()
        plant(tmp_path / "there", there)
        with pytest.raises(UnpackError, match=names):
            unpack(archive, tmp_path / "there", kind="directory")
        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_cannot_take_the_place_of_a_file(self, tmp_path, plant):
        archive = pack(plant(tmp_path / "src", {"a": "1"}), tmp_path / "out").path
        plant(tmp_path, {"there": "a file", "dangling": "-> nowhere"})
        for name in ("there", "dangling"):
            with pytest.raises(UnpackError, match=f"{name}' is in the way"):
                unpack(archive, tmp_path / name, kind="directory")

    def test_that_cannot_be_written_is_named(self, tmp_path, plant):
        archive = pack(plant(tmp_path / "src", {"a": "1"}), tmp_path / "out").path
        with pytest.raises(UnpackError, match="/proc/managed-jobs: No such file or directory"):
            unpack(archive, Path("/proc/managed-jobs/in"), kind="directory")

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
    @pytest.mark.parametrize("kind", ["directory", "file"])
    def test_that_may_not_be_written_is_told_with_account_and_remedy(self, plant, kind):
        with tempfile.TemporaryDirectory() as temporary:
            top = Path(temporary)
            top.chmod(0o755)
            src = plant(top / "src", {"a": "1"})
            archive = pack(src if kind == "directory" else src / "a", top / "out").path
            archive.chmod(0o644)

            def refused() -> list[str]:
                try:
                    unpack(archive, top / "abs" / "in", kind=kind)
                except UnpackError as error:
                    return [str(error)]
                return []

            (message,) = as_nobody(refused)
        assert message.startswith(f"{top}/abs: Permission denied for user nobody: ")
        assert "choose a destination below ~/" in message


class TestAFile:
    def test_is_put_at_the_destination_with_its_mode(self, tmp_path, plant):
        src = plant(tmp_path / "src", {"run.sh": "echo\n"})
        (src / "run.sh").chmod(0o751)
        unpack(pack(src / "run.sh", tmp_path / "out").path, tmp_path / "new dir" / "it's run", kind="file")
        there = tmp_path / "new dir" / "it's run"
        assert there.read_text() == "echo\n"
        assert stat.S_IMODE(there.stat().st_mode) == 0o751
        assert list(there.parent.iterdir()) == [there]

    def test_replaces_a_file_or_a_link_of_that_name(self, tmp_path, plant):
        plant(tmp_path, {"src": "new", "precious": "old", "link": "-> precious", "file": "old"})
        archive = pack(tmp_path / "src", tmp_path / "out").path
        for name in ("link", "file"):
            unpack(archive, tmp_path / name, kind="file")
            assert (tmp_path / name).read_text() == "new"
        assert (tmp_path / "precious").read_text() == "old"

    def test_does_not_take_the_place_of_a_directory(self, tmp_path, plant):
        plant(tmp_path, {"src": "new", "there/a": ""})
        with pytest.raises(UnpackError, match="there' is in the way: it is a directory"):
            unpack(pack(tmp_path / "src", tmp_path / "out").path, tmp_path / "there", kind="file")

    def test_is_the_only_member_of_its_archive(self, tmp_path):
        for members in (
            [],
            [("a", b""), ("b", b"")],
            [entry("d", tarfile.DIRTYPE)],
            [entry("l", tarfile.SYMTYPE, "/")],
        ):
            archive = crafted(tmp_path / "x.tar", *members)
            with pytest.raises(UnpackError, match="should hold one file, but holds"):
                unpack(archive, tmp_path / "there", kind="file")
        assert [path.name for path in tmp_path.iterdir()] == ["x.tar"]


def test_an_unknown_kind_is_refused(tmp_path):
    with pytest.raises(UnpackError, match="kind is 'zip': expected 'directory' or 'file'"):
        unpack(crafted(tmp_path / "x.tar", ("a", b"")), tmp_path / "there", kind="zip")


MALICIOUS = {
    "absolute": ([("/tmp/evil", b"")], "'/tmp/evil' is refused: its name is absolute"),
    "parent": ([("../evil", b"")], "'../evil' is refused: its name leads out"),
    "parent inside": ([("a/../../evil", b"")], "'a/../../evil' is refused: its name leads out"),
    "parent as directory": ([entry("..", tarfile.DIRTYPE)], "'..' is refused"),
    "through a link": (
        [entry("out", tarfile.SYMTYPE, ".."), ("out/evil", b"")],
        "'out/evil' is refused: it lies behind the symbolic link 'out'",
    ),
    "through a link to an absolute path": (
        [entry("d", tarfile.DIRTYPE), entry("d/out", tarfile.SYMTYPE, "/tmp"), ("d/out/x/evil", b"")],
        "'d/out/x/evil' is refused: it lies behind the symbolic link 'out'",
    ),
    "over a link": ([entry("a", tarfile.SYMTYPE, "../evil"), ("a", b"pwned")], "'a' appears twice"),
    "directory over a link": (
        [entry("a", tarfile.SYMTYPE, ".."), entry("a", tarfile.DIRTYPE), ("a/evil", b"")],
        "'a' appears twice",
    ),
    "link over a directory": (
        [entry("a", tarfile.DIRTYPE), entry("a", tarfile.SYMTYPE, ".."), ("a/evil", b"")],
        "'a' appears twice",
    ),
    "link over an unlisted directory": (
        [("a/b", b""), entry("a", tarfile.SYMTYPE, ".."), ("a/evil", b"")],
        "'a' appears twice",
    ),
    "twice": ([("a", b"1"), ("a", b"2")], "'a' appears twice"),
    "under a file": ([("a", b"1"), ("a/b", b"2")], "'a/b' is refused: 'a' is not a directory"),
    "hard link": ([entry("a", tarfile.LNKTYPE, "/etc/passwd")], "'a' is refused: it is neither"),
    "hard link inside": ([("b", b""), entry("a", tarfile.LNKTYPE, "b")], "'a' is refused: it is neither"),
    "character device": ([entry("null", tarfile.CHRTYPE)], "'null' is refused: it is neither"),
    "block device": ([entry("sda", tarfile.BLKTYPE)], "'sda' is refused: it is neither"),
    "FIFO": ([entry("pipe", tarfile.FIFOTYPE)], "'pipe' is refused: it is neither"),
    "unknown type": ([entry("odd", b"Z")], "'odd' is refused: it is neither"),
    "no name": ([("", b"")], "has no name"),
    "dot": ([entry(".", tarfile.SYMTYPE, "/")], "has no name"),
}  # fmt: skip


class TestAMaliciousArchive:
    @pytest.mark.parametrize("case", MALICIOUS)
    @pytest.mark.parametrize("exists", [True, False])
    def test_is_refused_naming_the_member_and_nothing_is_written(self, tmp_path, case, exists):
        members, message = MALICIOUS[case]
        archive = crafted(tmp_path / "x.tar", *members)
        there = tmp_path / "home" / "there"
        (there if exists else there.parent).mkdir(parents=True)
        with pytest.raises(UnpackError, match=message):
            unpack(archive, there, kind="directory")
        left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
        assert left == {"x.tar", "home"} | ({"home/there"} if exists else set())

    def test_cannot_set_more_than_permission_bits(self, tmp_path):
        member = entry("suid", tarfile.REGTYPE, mode=0o7755)
        folder = entry("d", tarfile.DIRTYPE, mode=0o7777)
        unpack(crafted(tmp_path / "x.tar", member, folder), tmp_path / "there", kind="directory")
        assert stat.S_IMODE((tmp_path / "there/suid").stat().st_mode) == 0o755
        assert stat.S_IMODE((tmp_path / "there/d").stat().st_mode) == 0o777

    def test_cannot_choose_the_owner(self, tmp_path):
        member = entry("a", tarfile.REGTYPE)
        member.uid = member.gid = 12345
        unpack(crafted(tmp_path / "x.tar", member), tmp_path / "there", kind="directory")
        assert (tmp_path / "there/a").stat().st_uid == os.getuid()

    def test_cannot_send_python_in_circles_with_a_negative_size(self, tmp_path):
        member = tarfile.TarInfo("a")
        header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
        header[124:136] = (-1024).to_bytes(12, "big", signed=True)
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        (tmp_path / "x.tar").write_bytes(bytes(header) * 3 + bytes(1024))
        with pytest.raises(UnpackError, match="damaged"):
            unpack(tmp_path / "x.tar", tmp_path / "there", kind="directory")


class TestADamagedArchive:
    @pytest.fixture
    def archive(self, tmp_path, plant):
        return pack(
            plant(tmp_path / "src", {"a": b"x" * 5000, "d/b": b"y" * 700, "é": ""}), tmp_path / "out"
        ).path

    def test_is_refused_wherever_it_is_cut(self, tmp_path, archive):
        data = archive.read_bytes()
        for length in range(0, len(data) - 512, 256):
            (tmp_path / "cut.tar").write_bytes(data[:length])
            with pytest.raises(UnpackError, match=r"damaged or cut short after|should hold"):
                unpack(tmp_path / "cut.tar", tmp_path / "there", kind="directory")
            assert not (tmp_path / "there").exists()

    def test_never_writes_elsewhere_nor_fails_in_another_way_whatever_byte_is_wrong(self, tmp_path, archive):
        data = archive.read_bytes()
        dice = random.Random(1)
        for number in range(200):
            broken = bytearray(data)
            for _ in range(dice.choice([1, 1, 3])):
                broken[dice.randrange(len(data))] = dice.randrange(256)
            (tmp_path / "broken.tar").write_bytes(broken)
            with_destination = tmp_path / "cage" / f"t{number}"
            try:
                unpack(tmp_path / "broken.tar", with_destination, kind="directory")
            except UnpackError:
                assert not with_destination.exists()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.tar", "cage", "out", "src"]

    def test_is_refused_when_it_is_empty_or_compressed(self, tmp_path, archive):
        (tmp_path / "empty.tar").write_bytes(b"")
        with tarfile.open(tmp_path / "zipped.tar", "w:gz") as tar:
            tar.addfile(tarfile.TarInfo("a"))
        for name in ("empty.tar", "zipped.tar"):
            with pytest.raises(UnpackError, match="damaged or cut short after its start"):
                unpack(tmp_path / name, tmp_path / "there", kind="directory")


class TestLeftovers:
    def test_of_a_process_that_was_killed_long_ago_are_removed(self, tmp_path, plant):
        archive = pack(plant(tmp_path / "src", {"a": "1"}), tmp_path / "out").path
        old = plant(tmp_path / "there/.managed-jobs-unpack-old", {"content/a": ""})
        young = plant(tmp_path / "there/.managed-jobs-unpack-young", {"content/a": ""})
        os.utime(old, (time.time() - 90_000,) * 2)
        unpack(archive, tmp_path / "there", kind="directory")
        assert (old.exists(), young.exists()) == (False, True)

    def test_do_not_remain_when_extraction_fails_halfway(self, tmp_path, plant, monkeypatch):
        archive = pack(plant(tmp_path / "src", {"a": "1", "b": "2"}), tmp_path / "out").path
        there = plant(tmp_path / "there", {"a": "0"})

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(unpack_module.shutil, "copyfileobj", full)
        with pytest.raises(UnpackError, match="No space left on device: make room"):
            unpack(archive, there, kind="directory")
        assert [path.name for path in there.iterdir()] == ["a"]
        assert (there / "a").read_text() == "0"


NAMES = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12
).filter(lambda name: name not in (".", "..", ".git", ".gitignore", ".skyignore"))
FILES = st.tuples(st.binary(max_size=1500), st.integers(0, 0o777))


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tree=st.recursive(
        st.dictionaries(NAMES, FILES, max_size=4),
        lambda inner: st.dictionaries(NAMES, inner | FILES, max_size=4),
        max_leaves=6,
    )
)
def test_any_tree_survives_the_round_trip_and_packs_to_the_same_digest_again(look, tree):
    def plant(folder: Path, content: dict) -> None:
        folder.mkdir()
        for name, value in content.items():
            if isinstance(value, dict):
                plant(folder / name, value)
            else:
                (folder / name).write_bytes(value[0])
                (folder / name).chmod(value[1] | 0o400)

    with tempfile.TemporaryDirectory() as temporary:
        plant(Path(temporary, "src"), tree)
        packed = pack(Path(temporary, "src"), Path(temporary, "out"))
        unpack(packed.path, Path(temporary, "there"), kind=packed.kind)
        assert look(Path(temporary, "there")) == look(Path(temporary, "src"))
        assert pack(Path(temporary, "there"), Path(temporary, "out")).digest == packed.digest


class TestOnANode:
    SOURCE = Path(unpack_module.__file__).read_text()

    def test_it_needs_little_but_the_standard_library(self):
        imported = {
            (node.module if isinstance(node, ast.ImportFrom) else name.name)
            for node in ast.walk(ast.parse(self.SOURCE))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in node.names
        }
        others = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
        assert others == {"airflow_provider.runtime.agent.driver.delivered"}

    def test_it_is_written_in_the_syntax_of_python_3_8(self):
        ast.parse(self.SOURCE, feature_version=(3, 8))
