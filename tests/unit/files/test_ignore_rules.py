"""What is left out when a directory is packed; git itself is the judge where it can be."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_provider.runtime.files.archive import pack

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is the judge")


def packed_names(source: Path, into: Path) -> set[str]:
    with tarfile.open(pack(source, into).path, "r:", encoding="utf-8", errors="surrogateescape") as tar:
        return {member.name for member in tar}


def git_keeps(source: Path, home: Path) -> set[str]:
    """Return what git does not ignore: every entry that neither matches nor lies in a directory that does."""
    environment = {**os.environ, "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1", "XDG_CONFIG_HOME": str(home)}
    if not (source / ".git" / "HEAD").exists():
        subprocess.run(["git", "init", "-q", source], check=True, env=environment)
    entries = []
    for folder, folders, files in os.walk(source):
        if ".git" in folders:
            folders.remove(".git")
        entries += [os.path.relpath(os.path.join(folder, name), source) for name in folders + files]  # noqa: PTH118
    answer = subprocess.run(
        ["git", "-C", source, "check-ignore", "-z", "--stdin", "--no-index"],
        input=b"\0".join(map(os.fsencode, entries)),
        capture_output=True,
        check=False,
        env=environment,
    )
    assert answer.returncode in (0, 1), answer.stderr
    return set(entries) - {os.fsdecode(name) for name in answer.stdout.split(b"\0")}


VARIED_TREE = {
    ".gitignore": "\n".join(
        [
            "# comment",
            "data/*",
            "!data/keep",
            "*.log",
            "!important.log",
            "build/",
            "/only-here",
            "docs/**/*.tmp",
            "**/cache",
            "inner/**",
            "foo",
            "!/foo",
            "a?c[0-9]",
            r"\#hash",
            r"\!bang",
            "trailing   ",
            r"kept\ ",
            "\\",
            "!",
            "/",
            "mixed/*/x",
            "*.d",
            "with space/",
            "it's",
            "café",
            "linkdir/",
        ]
    ),
    ".git/info/exclude": "excluded-by-info\n!never\n*.info\n",
    "data/drop": "",
    "data/keep": "",
    "data/sub/x": "",
    "src/data/stays": "",
    "x.log": "",
    "important.log": "",
    "sub/x.log": "",
    "sub/important.log": "",
    "build/out": "",
    "src/build/out": "",
    "other/build": "",
    "only-here": "",
    "sub/only-here": "",
    "docs/a.tmp": "",
    "docs/x/y/b.tmp": "",
    "docs/x/y/b.txt": "",
    "x/cache/y": "",
    "cache": "",
    "inner/x/y": "",
    "foo/foo": "",
    "foo/bar/foo/x": "",
    "abc1": "",
    "abcx": "",
    "#hash": "",
    "!bang": "",
    "trailing": "",
    "kept ": "",
    "kept": "",
    "\\": "",
    "!": "",
    "mixed/1/x": "",
    "mixed/1/2/x": "",
    "with space/x": "",
    "with space too/x": "",
    "it's": "",
    "café": "",
    "real/x": "",
    "linkdir": "-> real",
    "excluded-by-info": "",
    "a.info": "",
    "nested/.gitignore": "!b.d\n!*.info\n*.txt\n/top\n!x.log\n",
    "nested/b.d/x.log": "",
    "nested/b.d/y.log": "",
    "nested/b.d/z.d": "",
    "nested/a.info": "",
    "nested/a.txt": "",
    "nested/top": "",
    "nested/deeper/top": "",
    "nested/deeper/.gitignore": "\ufeff!a.txt\r\n",
    "nested/deeper/a.txt": "",
    "nested/deeper/b.txt": "",
    "empty": None,
}


@needs_git
def test_k87_git_agrees_on_a_varied_tree(tmp_path, plant):
    src = plant(tmp_path / "src", VARIED_TREE)
    git = subprocess.run(["git", "init", "-q", src], check=False)
    assert git.returncode == 0
    assert packed_names(src, tmp_path / "out") == git_keeps(src, tmp_path)


NAMES = ["a", "b", "ab", "a.b", "foo", "é", "it's x", "#a", "!b", "b ", "\\"]
SEGMENTS = [
    *NAMES,
    "*",
    "**",
    "?",
    "??",
    "a*",
    "*b",
    "**b",
    "*.b",
    "[ab]",
    "[!a]",
    "[^b]*",
    "[a-b]?",
    r"\#a",
    r"\!b",
    r"b\ ",
]
LINES = st.builds(
    lambda bang, slash, segments, end: bang + slash + "/".join(segments) + end,
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "", "/"]),
    st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=3),
    st.sampled_from(["", "", "/", " ", "/ "]),
)
IGNORE_FILES = st.lists(LINES, max_size=5).map("\n".join)
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)


@needs_git
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.sets(PATHS, max_size=12), ignores=st.lists(IGNORE_FILES, min_size=1, max_size=4))
@example(files={"foo/foo", "foo/a"}, ignores=["foo\n!/foo"])
@example(files={"a/b/a/b"}, ignores=["a/**/b\n!a/b", "!b/"])
def test_k87_git_agrees_on_any_tree(plant, files, ignores):
    with tempfile.TemporaryDirectory() as folder:
        src = plant(Path(folder, "src"), {})
        for name in sorted(files):
            if not any(path.is_file() for path in (src / name).parents) and not (src / name).exists():
                plant(src, {name: ""})
        directories = [src, *sorted(path for path in src.rglob("*") if path.is_dir())]
        for directory, content in zip(directories, ignores, strict=False):
            (directory / ".gitignore").write_text(content)
        expected = git_keeps(src, Path(folder))
        assert packed_names(src, Path(folder, "out")) == expected


class TestGitIgnore:
    def test_files_at_every_level_count_and_the_deeper_one_wins(self, tmp_path, plant):
        src = plant(
            tmp_path / "src",
            {
                ".gitignore": "*.bin\n",
                "a.bin": "",
                "models/.gitignore": "!*.bin\n",
                "models/b.bin": "",
                "x.py": "",
            },
        )
        assert packed_names(src, tmp_path / "out") == {
            ".gitignore", "models", "models/.gitignore", "models/b.bin", "x.py",
        }  # fmt: skip

    def test_nothing_inside_an_ignored_directory_comes_back(self, tmp_path, plant):
        src = plant(
            tmp_path / "src", {".gitignore": "venv/\n!venv/keep\n", "venv/keep": "", "venv/.gitignore": "!*"}
        )
        assert packed_names(src, tmp_path / "out") == {".gitignore"}

    def test_an_ignored_directory_is_not_even_looked_into(self, tmp_path, plant, monkeypatch):
        src = plant(tmp_path / "src", {".gitignore": "venv/", "venv/a/b": ""})
        listed = []
        real = os.listdir
        monkeypatch.setattr(os, "listdir", lambda path: listed.append(Path(path).name) or real(path))
        pack(src, tmp_path / "out")
        assert listed == ["src"]

    def test_a_directory_whose_files_are_all_ignored_is_kept_empty(self, tmp_path, plant):
        src = plant(tmp_path / "src", {".gitignore": "logs/*", "logs/a": ""})
        assert packed_names(src, tmp_path / "out") == {".gitignore", "logs"}

    def test_info_exclude_counts_too(self, tmp_path, plant):
        src = plant(tmp_path / "src", {".git/info/exclude": "notes", "notes": "", "a": ""})
        assert packed_names(src, tmp_path / "out") == {"a"}

    def test_is_not_followed_when_it_is_a_link(self, tmp_path, plant):
        src = plant(tmp_path / "src", {"rules": "a", ".gitignore": "-> rules", "a": ""})
        assert "a" in packed_names(src, tmp_path / "out")

    def test_above_the_source_does_not_count(self, tmp_path, plant):
        plant(tmp_path, {".gitignore": "*"})
        src = plant(tmp_path / "src", {"a": ""})
        assert packed_names(src, tmp_path / "out") == {"a"}


class TestTheGitDirectory:
    def test_is_always_left_out(self, tmp_path, plant):
        src = plant(
            tmp_path / "src",
            {
                ".git/config": "",
                "vendor/lib/.git": "gitdir: x",
                "vendor/lib/a": "",
                ".gitmodules": "",
                "x.git/y": "",
            },
        )
        assert packed_names(src, tmp_path / "out") == {
            "vendor", "vendor/lib", "vendor/lib/a", ".gitmodules", "x.git", "x.git/y",
        }  # fmt: skip

    def test_is_left_out_even_when_a_rule_asks_for_it(self, tmp_path, plant):
        src = plant(tmp_path / "src", {".git/config": "", ".skyignore": "!.git"})
        assert packed_names(src, tmp_path / "out") == {".skyignore"}


class TestSkyIgnore:
    def test_decides_alone(self, tmp_path, plant):
        src = plant(
            tmp_path / "src",
            {
                ".skyignore": "*.csv\n",
                ".gitignore": "*.py\n",
                "sub/.gitignore": "*",
                ".git/info/exclude": "*",
                "a.py": "",
                "a.csv": "",
                "sub/b.py": "",
                "sub/b.csv": "",
            },
        )
        assert packed_names(src, tmp_path / "out") == {
            ".skyignore", ".gitignore", "a.py", "sub", "sub/.gitignore", "sub/b.py",
        }  # fmt: skip

    def test_that_is_empty_lets_everything_through(self, tmp_path, plant):
        src = plant(tmp_path / "src", {".skyignore": "", ".gitignore": "*", "a": ""})
        assert packed_names(src, tmp_path / "out") == {".skyignore", ".gitignore", "a"}

    def test_counts_only_at_the_top(self, tmp_path, plant):
        src = plant(tmp_path / "src", {"sub/.skyignore": "*", "sub/a": ""})
        assert "sub/a" in packed_names(src, tmp_path / "out")

    def test_may_be_a_link(self, tmp_path, plant):
        src = plant(tmp_path / "src", {".dockerignore": "a", ".skyignore": "-> .dockerignore", "a": ""})
        assert "a" not in packed_names(src, tmp_path / "out")
