"""OpenSSH's configuration files, evaluated for one host as ssh does it (ssh_config(5)).

Known keywords are collected, all others ignored. Not done: name resolution by CanonicalizeHostname, and the conditions
of Match that ask for this machine's networks or for what is run (localnetwork, command, sessiontype, version).
"""

from __future__ import annotations

import getpass
import glob
import hashlib
import os
import re
import socket
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.transport.ssh.errors import BadConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FIRST_COUNTS = frozenset(
    {
        "canonicalizehostname",
        "ciphers",
        "connecttimeout",
        "globalknownhostsfile",
        "hostkeyalgorithms",
        "hostkeyalias",
        "hostname",
        "identitiesonly",
        "identityagent",
        "kexalgorithms",
        "macs",
        "port",
        "pubkeyacceptedalgorithms",
        "stricthostkeychecking",
        "tag",
        "user",
        "userknownhostsfile",
    }
)
_ALL_COUNT = frozenset({"identityfile", "certificatefile"})
_ALIASES = {"pubkeyacceptedkeytypes": "pubkeyacceptedalgorithms"}
_PROXIES = frozenset({"proxyjump", "proxycommand"})
_DEEPEST = 16
_EXEC_SECONDS = 10.0
_WORDS = re.compile(r"""(?:[^\s"'\\]|\\.|\\$|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')+""")


class Evaluation:
    """What configuration files say about one host.

    Attributes:
        alias: What the host is called on a command line.
        values: The words of each keyword, in lower case, that had any.
    """

    def __init__(self, alias: str, *, user: str | None, port: int | None) -> None:
        """Begin with what would be given on a command line, which counts before every file."""
        self.alias = alias
        self.values: dict[str, list[str]] = {}
        if user is not None:
            self.values["user"] = [user]
        if port is not None:
            self.values["port"] = [str(port)]
        self._name = alias
        self._is_final = False
        self._wants_final = False
        self._where = ""

    def read(self, files: Sequence[str]) -> None:
        """Read files in order, and once more if they have conditions on the final result.

        Raises:
            BadConfig: a file cannot be read, or a line cannot be understood; names both.
        """
        self._read_all(files)
        if self._wants_final or self.first("canonicalizehostname", "no").lower() in ("yes", "always", "true"):
            self._name = self.host
            self.values["hostname"] = [self._name]
            self._is_final = True
            self._read_all(files)

    def _read_all(self, files: Sequence[str]) -> None:
        for file in files:
            path = Path(file).expanduser()
            self._file(path, active=True, never=False, depth=0)

    def first(self, keyword: str, default: str) -> str:
        """Return the first word of a keyword."""
        return self.values.get(keyword, [default])[0]

    @property
    def host(self) -> str:
        """The address or name to connect to, as known so far."""
        name = self.values.get("hostname")
        return self._name if name is None else self._expand(name[0], {"h": self._name})

    # Files and lines.

    def _file(self, path: Path, *, active: bool, never: bool, depth: int) -> None:
        for number, line in enumerate(_lines(path), start=1):
            self._where = f"{path} line {number}"
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            keyword, rest = _split_keyword(line)
            if keyword == "host":
                active = not never and _matches_host(self._name, self._words(rest))
            elif keyword == "match":
                active = self._matches(self._words(rest), never)
            elif keyword == "include":
                for pattern in self._words(rest):
                    for found in self._included(pattern):
                        if depth >= _DEEPEST:
                            raise BadConfig(
                                f"{self._where}: too many Include inside each other (more than {_DEEPEST})"
                            )
                        self._file(found, active=active, never=never or not active, depth=depth + 1)
            elif active:
                self._keep(keyword, rest)

    def _included(self, pattern: str) -> Iterator[Path]:
        whole = os.path.expanduser(self._environment(pattern))  # noqa: PTH111 - a pattern, and `~user` counts too
        if not os.path.isabs(whole):  # noqa: PTH117 - as above
            whole = str(Path("~/.ssh").expanduser() / whole)
        where = self._where
        for name in sorted(glob.glob(whole)):  # noqa: PTH207 - an absolute pattern
            yield Path(name)
            self._where = where

    def _keep(self, keyword: str, rest: str) -> None:
        keyword = _ALIASES.get(keyword, keyword)
        if keyword == "proxycommand":
            # All that stands there is the command. The first of the two proxies counts, but `ProxyJump none` only ends
            # the search for a ProxyJump.
            if keyword not in self.values and self.first("proxyjump", "none").lower() == "none":
                self.values[keyword] = [rest]
            return
        if keyword == "proxyjump" and not _PROXIES & self.values.keys():
            self.values[keyword] = self._words(rest)
        if keyword in _FIRST_COUNTS and keyword not in self.values:
            self.values[keyword] = self._words(rest)
        elif keyword in _ALL_COUNT:
            known = self.values.setdefault(keyword, [])
            known.extend(word for word in self._words(rest) if word not in known)

    def _words(self, rest: str) -> list[str]:
        """Split as ssh does: quotes of both kinds, a backslash before one of them, and a comment at the end."""
        words = []
        at = 0
        while at < len(rest):
            if rest[at].isspace():
                at += 1
                continue
            if rest[at] == "#":
                break
            found = _WORDS.match(rest, at)
            if found is None or (found.end() < len(rest) and not rest[found.end()].isspace()):
                raise BadConfig(f"{self._where}: a quotation mark is missing")
            words.append(_unquoted(found[0]))
            at = found.end()
        if not words:
            raise BadConfig(f"{self._where}: a value is missing")
        return words

    # Conditions.

    def _matches(self, words: list[str], never: bool) -> bool:
        result = not never
        rest = iter(words)
        for word in rest:
            name, _, value = word.lstrip("!").partition("=")
            name = name.lower()
            if name in ("all", "canonical", "final"):
                met = name == "all" or self._is_final
                self._wants_final = self._wants_final or (name == "final" and not never)
            else:
                pattern = value or next(rest, None)
                if pattern is None:
                    raise BadConfig(f"{self._where}: Match {name} needs a value")
                met = self._condition(name, pattern, result)
            if met is word.startswith("!"):
                result = False
        return result

    def _condition(self, name: str, pattern: str, needed: bool) -> bool:
        if name == "exec":
            return needed and self._exec(pattern)
        subjects = {
            "host": self.host,
            "originalhost": self.alias,
            "user": self.first("user", getpass.getuser()),
            "localuser": getpass.getuser(),
            "tagged": self.first("tag", ""),
        }
        if name not in subjects:
            raise BadConfig(f"{self._where}: Match {name} is not supported")
        return matches_list(subjects[name], pattern)

    def _exec(self, command: str) -> bool:
        shell = os.environ.get("SHELL") or "/bin/sh"
        command = self.expand(command)
        try:
            done = subprocess.run(
                [shell, "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_EXEC_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BadConfig(f"{self._where}: Match exec failed: {error}") from error
        return done.returncode == 0

    # Values.

    def expand(self, text: str) -> str:
        """Replace tokens such as ``%h``.

        Raises:
            BadConfig: there is no such token.
        """
        local = socket.gethostname()
        host, port, user = self.host, self.first("port", "22"), self.first("user", getpass.getuser())
        jump = self.first("proxyjump", "")
        jump = "" if jump.lower() == "none" else jump
        tokens = {
            "C": hashlib.sha1(f"{local}{host}{port}{user}{jump}".encode(), usedforsecurity=False).hexdigest(),
            "d": str(Path.home()),
            "h": host,
            "i": str(os.getuid()),
            "j": jump,
            "k": self.first("hostkeyalias", self.alias),
            "L": local.partition(".")[0],
            "l": local,
            "n": self.alias,
            "p": port,
            "r": user,
            "u": getpass.getuser(),
        }
        return self._expand(text, tokens)

    def expand_path(self, text: str) -> str:
        """Replace tokens, ``${NAME}`` and a leading ``~``."""
        return os.path.expanduser(self.expand(self._environment(text)))  # noqa: PTH111 - `~user` counts too

    def _expand(self, text: str, tokens: dict[str, str]) -> str:
        def value(found: re.Match[str]) -> str:
            token = found[1]
            if token == "%":  # noqa: S105 - a percent sign
                return "%"
            if token not in tokens:
                raise BadConfig(f"{self.alias}: {text!r}: there is no token %{token} here")
            return tokens[token]

        return re.sub(r"%(.?)", value, text)

    def _environment(self, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            if found[1] not in os.environ:
                raise BadConfig(f"{self._where}: the environment variable {found[1]} is not set")
            return os.environ[found[1]]

        return re.sub(r"\$\{(\w+)\}", value, text)


def matches_list(subject: str, patterns: str) -> bool:
    """Return whether one of several patterns, with commas between, matches, and none that begins with ``!``."""
    matched = False
    for pattern in patterns.split(","):
        if _matches_pattern(subject, pattern.lstrip("!")):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched


def _matches_host(subject: str, patterns: list[str]) -> bool:
    return matches_list(subject, ",".join(patterns))


def _matches_pattern(subject: str, pattern: str) -> bool:
    parts = ["." if part == "?" else ".*" if part == "*" else re.escape(part) for part in pattern]
    return re.fullmatch("".join(parts), subject, re.DOTALL) is not None


def _split_keyword(line: str) -> tuple[str, str]:
    keyword, rest = re.match(r'"?([^\s="]*)"?(?:\s*=\s*|\s+)?(.*)', line, re.DOTALL).groups()  # type: ignore[union-attr]
    return keyword.lower(), rest


def _unquoted(word: str) -> str:
    parts = re.findall(r"""\\(["'\\ ])|"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|(.)""", word)
    return "".join(
        escaped or re.sub(r"\\([\"'\\])", r"\1", double or single) or plain
        for escaped, double, single, plain in parts
    )


def _lines(path: Path) -> list[str]:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            # As ssh: whoever may write it may have commands run as this user (ProxyCommand, Match exec).
            if status.st_uid not in (0, os.getuid()) or stat.S_IMODE(status.st_mode) & 0o022:
                raise BadConfig(
                    f"{path}: others may write it (mode {stat.S_IMODE(status.st_mode):04o}). chmod 600 it"
                )
            return file.read().decode(errors="surrogateescape").splitlines()
    except OSError as error:
        raise BadConfig(f"{path}: cannot be read: {error.strerror}") from error
