"""Which files of a directory are left out when it is packed.

- A ``.skyignore`` at the top of the directory decides alone. It is written like a ``.gitignore``.
- Otherwise the ``.gitignore`` at every level decides, then ``.git/info/exclude``, as git does it: the deepest
  file wins, in one file the last line that matches wins, and nothing inside an ignored directory comes back.
- ``.git`` is always left out, at every level and also with a ``.skyignore``: it is large, it changes with every
  fetch (so equal content would not give an equal archive), and a remote address in it may carry a password.

Two differences from ``git status`` follow from looking at nothing but the directory itself: a tracked file that
matches a pattern is left out, and neither a ``.gitignore`` above the directory nor the user's global ignore file
counts. POSIX character classes such as ``[[:alpha:]]`` are not supported.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec
from pathspec.pattern import RegexPattern

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class IgnoreRules:
    """What is ignored in one directory of the tree; made with `at_top`, then `below` for each level further down.

    Paths are bytes relative to the top of the tree, without a slash at the end. They are bytes because git matches
    bytes: ``?`` stands for one of them, and a file name need not be valid text.
    """

    _layers: tuple[_Layer, ...] = ()
    _nested: bool = True

    @classmethod
    def at_top(cls, directory: Path) -> IgnoreRules:
        """Return the rules for the content of `directory`, the top of the tree.

        Raises:
            OSError: an ignore file cannot be read.
        """
        own = _lines(directory / ".skyignore")
        if own is not None:
            return cls((_Layer.of(b"", own),), _nested=False)
        exclude = _lines(directory / ".git" / "info" / "exclude")
        rules = cls((_Layer.of(b"", exclude),) if exclude else ())
        return rules.below(directory, b"")

    def below(self, directory: Path, path: bytes) -> IgnoreRules:
        """Return the rules for the content of `directory`, which lies at `path` in the tree.

        Raises:
            OSError: its ``.gitignore`` cannot be read.
        """
        # git does not follow a link in place of a .gitignore either: it could lead out of the tree.
        lines = _lines(directory / ".gitignore", follow=False) if self._nested else None
        if not lines:
            return self
        return IgnoreRules((*self._layers, _Layer.of(path, lines)))

    def ignores(self, path: bytes, *, is_directory: bool) -> bool:
        """Say whether the entry at `path` is left out; a symbolic link to a directory is not a directory."""
        if path.rpartition(b"/")[2] == b".git":
            return True
        for layer in reversed(self._layers):
            verdict = layer.verdict(path, is_directory=is_directory)
            if verdict is not None:
                return verdict
        return False


@dataclass(frozen=True)
class _Layer:
    """The patterns of one ignore file, the last line first."""

    prefix: int
    patterns: tuple[RegexPattern, ...]

    @classmethod
    def of(cls, path: bytes, lines: list[bytes]) -> _Layer:
        """Compile the `lines` of the ignore file in the directory at `path`."""
        patterns = [pattern for line in lines for pattern in _compile(line)]
        return cls(len(path) + 1 if path else 0, tuple(reversed(patterns)))

    def verdict(self, path: bytes, *, is_directory: bool) -> bool | None:
        """Return whether `path` is ignored, or None if this file does not say."""
        name = path[self.prefix :]
        subject = name + b"/" if is_directory else name
        for pattern in self.patterns:
            if _matches_itself(pattern, subject, len(name)):
                return bool(pattern.include)
        return None


def _matches_itself(pattern: RegexPattern, subject: bytes, length: int) -> bool:
    """Say whether `pattern` means this entry, not merely a directory above it.

    pathspec lets a pattern for a directory match everything inside. Here every directory on the way down has been
    asked about already and was not ignored; matching it again would undo what a later line or a deeper file said.
    """
    result = pattern.match_file(subject)
    if result is None:
        return False
    # "ps_d" marks the slash after the part that the pattern spells out.
    slash: int = result.match.start("ps_d")
    end: int = result.match.end()
    return (slash if slash >= 0 else end) == length


def _compile(line: bytes) -> Iterator[RegexPattern]:
    try:
        patterns = GitIgnoreSpec.from_lines([_rewrite(line)]).patterns
    except ValueError:
        return  # git, too, passes over a pattern that means nothing, such as a lone backslash
    for pattern in patterns:
        if pattern.include is not None:
            yield pattern


def _rewrite(line: bytes) -> bytes:
    r"""Spell a line so that pathspec builds an exact expression for it.

    pathspec shortens a last segment of ``*`` or ``**`` to "anything", which no longer tells an entry from what is
    above it: ``?*`` means the same as ``*``, and ``a/**`` the same as ``a/**/?*``. It also strips all the spaces
    at the end, where git keeps one after a backslash.
    """
    kept = line.rstrip(b" ")
    if len(kept) < len(line) and (len(kept) - len(kept.rstrip(b"\\"))) % 2:
        kept += b" "
    if kept.startswith(b"#"):
        return b""
    bang, kept = (b"!", kept[1:]) if kept.startswith(b"!") else (b"", kept)
    body, slash = (kept[:-1], b"/") if kept.endswith(b"/") else (kept, b"")
    head, separator, last = body.rpartition(b"/")
    if last == b"**":
        last = b"**/?*" if separator else b"?*"
    elif last == b"*":
        last = b"?*"
    return bang + head + separator + last + slash


def _lines(file: Path, *, follow: bool = True) -> list[bytes] | None:
    """Return the lines of an ignore file, or None if there is none."""
    try:
        status = file.stat() if follow else file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    content = file.read_bytes().removeprefix(_BYTE_ORDER_MARK)
    return [line.removesuffix(b"\r") for line in content.split(b"\n")]
