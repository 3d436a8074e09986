"""Runs git for a job: with its credentials, asking nobody, patient with the network, and clear about what went wrong.

Credentials come from the job's secrets: ``GIT_TOKEN`` for https, ``GIT_SSH_KEY`` (the text of a private key) for ssh.
The token is in the environment alone and given only to the repository's own host; the key is in a file of the job's
private directory, to be removed by whoever made this object. Neither is in an argument or stays in the clone. Without
them the account's own keys and credential helpers are used.

A server's key that was never seen is accepted and kept in the account's ``known_hosts`` (in the job's directory where
the home goes with the job), and a changed one is refused. ``GIT_SSH_KNOWN_HOSTS`` (lines of such a file) pins it, and
``GIT_SSH_COMMAND`` replaces all of this where neither of the two is given.
"""

from __future__ import annotations

import binascii
import os
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.driver import outcome
from airflow_provider.runtime.agent.driver.outcome import JobFailed
from airflow_provider.runtime.agent.jobs.jobdir import write_private
from airflow_provider.runtime.agent.process import children

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.runtime.agent.jobs.jobdir import JobDirectory

_PROTOCOLS = "https:http:ssh"
_TRIES = 3
_PAUSE_SECONDS = 2.0
_TAIL_BYTES = 16 * 1024
_USER = "x-access-token"
"""Goes with a token where ``GIT_USERNAME`` says nothing else. GitHub's name; GitLab, Gitea and others take any."""

# A connection on which nothing comes any more ends, whatever the protocol.
_OPTIONS = (
    *("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60"),
    *("-c", "advice.detachedHead=false"),
)
_SSH = "ssh -o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=15 -o ServerAliveCountMax=4"

# Only for the URL's own host: a server that redirects elsewhere does not get the token. Reads git's environment.
_HELPER = (
    '!f() { test "$1" = get || exit 0; '
    'printf "username=%s\\npassword=%s\\n" "${GIT_USERNAME:-' + _USER + '}" "$GIT_TOKEN"; }; f'
)

_OPENSSH_PLAIN = b"openssh-key-v1\0\0\0\0\4none"
"""What a key in OpenSSH's own format begins with when it has no passphrase."""

_NOT_FOR_GIT = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"),
    *("GIT_SSH_KEY", "GIT_SSH_KNOWN_HOSTS"),
)
"""What would lead it to another repository, and what it has no use for."""

_TOKEN_REMEDY = "for a private repository give the secret GIT_TOKEN"  # noqa: S105 - words for people
_HOST_KEY_REMEDY = "the server's key is not the one that is known for it"
_REMEDIES = (
    (r"could not read (Username|Password)", _TOKEN_REMEDY),
    (r"Authentication failed", "GIT_TOKEN is wrong, has expired, or may not read the repository"),
    (r"returned error: 403", "GIT_TOKEN may not read the repository"),
    (
        r"Permission denied \(",
        "give the secret GIT_SSH_KEY (a private key that may read it), or an https URL",
    ),
    (r"IDENTIFICATION HAS CHANGED|Host key verification failed", _HOST_KEY_REMEDY),
    (
        r"[Rr]epository( '[^']*')? not found",
        f"correct the URL; {_TOKEN_REMEDY}, or GIT_SSH_KEY and an ssh URL",
    ),
    (r"does not appear to be a git repository", "correct the URL"),
    (
        r"error in libcrypto|invalid format",
        "GIT_SSH_KEY is not the text of a private key without a passphrase",
    ),
    (r"transport '[^']*' not allowed", "only https, http and ssh are allowed"),
)
"""Problems that trying again does not solve, by what git says of them."""


class GitFailed(Exception):
    """A command failed.

    Attributes:
        code: its wait code.
        said: what it printed, the end of it where that was much.
        remedy: what to do; None where trying again may help.
    """

    def __init__(self, code: int, said: str) -> None:
        super().__init__(said)
        self.code = code
        self.said = said
        self.remedy = next((remedy for words, remedy in _REMEDIES if re.search(words, said)), None)

    @property
    def reason(self) -> str:
        """What git said of the problem itself, and the remedy."""
        said = _problem(self.said) or f"git ended with code {self.code}"
        return f"{said.rstrip('.')}: {self.remedy}" if self.remedy else said


class Git:
    """Runs commands of git in one directory, for one repository.

    Args:
        url: The repository.
        directory: The job's.
        environment: Of the job's setup.
        private_home: Whether the job's home directory goes with the job.
        start: Starts a program with an environment, its output going to a descriptor or, for None, to the job's log.
        say: Takes a line for the log.

    Raises:
        JobFailed: there is no git.
        OSError: the key cannot be written.
    """

    def __init__(
        self,
        *,
        url: str,
        directory: JobDirectory,
        environment: dict[str, str],
        private_home: bool,
        start: Callable[[list[str], dict[str, str], int | None], int],
        say: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._start = start
        self._say = say
        self._program = _find(environment)
        self._options = list(_OPTIONS)
        self._environment = {
            **{name: value for name, value in environment.items() if name not in _NOT_FOR_GIT},
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": environment.get("GIT_ASKPASS", ""),
            "GIT_ALLOW_PROTOCOL": environment.get("GIT_ALLOW_PROTOCOL", _PROTOCOLS),
            # Problems are told apart by their words.
            "LC_ALL": "C",
            "LANGUAGE": "C",
        }
        self._use_token(url, environment.get("GIT_TOKEN", "").strip())
        if not url.startswith(("https://", "http://")):
            self._use_ssh(
                environment.get("GIT_SSH_KEY", ""), environment.get("GIT_SSH_KNOWN_HOSTS", ""), private_home
            )

    def do(self, *arguments: str) -> None:
        """Run a command; what it prints goes to the log.

        Raises:
            GitFailed: it failed.
            JobFailed: it did not start.
            Cancelled: the agent asked for the job's end.
        """
        log = self._directory.log
        begin = _size(log)
        code = self._run(arguments, None)
        if code != 0:
            raise GitFailed(code, _end_of(log, begin))

    def ask(self, *arguments: str) -> str:
        """Run a command and return what it printed, its warnings among that. Raises as ``do``."""
        kept = os.memfd_create("git", os.MFD_CLOEXEC)
        try:
            code = self._run(arguments, kept)
            text = os.pread(kept, os.fstat(kept).st_size, 0).decode("utf-8", "surrogateescape")
        finally:
            os.close(kept)
        if code != 0:
            raise GitFailed(code, text)
        return text

    def patiently(self, *arguments: str, ask: bool = False) -> str:
        """Run a command that needs the network; what may be over in a moment is tried again.

        Args:
            arguments: The command.
            ask: Return what it printed, in place of its going to the log.

        Raises:
            GitFailed: it failed each time, or in a way that stays.
            JobFailed: it did not start.
            Cancelled: the agent asked for the job's end.
        """
        tries = 0
        while True:
            tries += 1
            try:
                if ask:
                    return self.ask(*arguments)
                self.do(*arguments)
                return ""
            except GitFailed as failure:
                # Servers that cannot leave out the history will not learn it.
                if failure.remedy or tries == _TRIES or "shallow" in failure.said:
                    raise
                self._say(f"workdir: {failure.reason}; trying again")
            children.pause(_PAUSE_SECONDS * tries)

    def _run(self, arguments: tuple[str, ...], output: int | None) -> int:
        try:
            pid = self._start([self._program, *self._options, *arguments], self._environment, output)
        except OSError as error:
            raise JobFailed("FAILED_SETUP", outcome.cannot_start("git", error, self._environment)) from error
        code = children.wait(pid)
        if code is None:
            raise AssertionError("a wait without a limit ends with a code")
        return code

    def _use_token(self, url: str, token: str) -> None:
        host = re.match(r"https://[^/]+", url)
        if not token:
            return
        if host is None:
            self._say("workdir: GIT_TOKEN is not used, as the URL does not begin with https://")
            return
        self._environment["GIT_TOKEN"] = token
        self._options += ["-c", "credential.helper=", "-c", f"credential.{host[0]}.helper={_HELPER}"]

    def _use_ssh(self, key: str, known: str, private_home: bool) -> None:
        if not key and not known and "GIT_SSH_COMMAND" in self._environment:
            return
        options = []
        if key:
            write_private(self._directory.git_key_file, _usable_key(_lines(key)))
            options += ["-i", str(self._directory.git_key_file), "-o", "IdentitiesOnly=yes"]
        hosts = self._directory.path / "git.known_hosts"
        if known:
            write_private(hosts, _lines(known))
            options += ["-o", "StrictHostKeyChecking=yes", "-o", f'UserKnownHostsFile="{hosts}"']
        else:
            options += ["-o", "StrictHostKeyChecking=accept-new"]
            if private_home:  # which ssh does not look at: it goes by the account
                options += ["-o", f'UserKnownHostsFile="{hosts}" ~/.ssh/known_hosts']
        command = " ".join([_SSH, *(shlex.quote(option) for option in options)])
        self._environment.update({"GIT_SSH_COMMAND": command, "GIT_SSH_VARIANT": "ssh"})


def _find(environment: dict[str, str]) -> str:
    for directory in environment.get("PATH", os.defpath).split(os.pathsep):
        path = Path(directory, "git")
        if path.is_absolute() and path.is_file() and os.access(path, os.X_OK):
            return str(path)
    raise JobFailed(
        "FAILED_SETUP",
        "workdir is a Git repository, and there is no git on the node: install it there (for example with apt-get "
        "install git), or give a local folder as workdir",
    )


def _lines(text: str) -> str:
    r"""Return a secret of several lines as it was meant: a pasted one lacks its last newline, or has ``\n`` for all."""
    text = text.replace("\r\n", "\n").strip()
    return (text if "\n" in text else text.replace("\\n", "\n").strip()) + "\n"


def _usable_key(key: str) -> str:
    """Return a private key; ssh says nothing of one that it cannot use.

    Raises:
        JobFailed: it is none, or has a passphrase.
    """
    lines = key.splitlines()
    if not re.fullmatch(r"-----BEGIN [A-Z ]*PRIVATE KEY-----", lines[0]):
        raise JobFailed("FAILED_SETUP", "the secret GIT_SSH_KEY is not the text of a private key")
    encrypted = any("ENCRYPTED" in line for line in lines[:3])
    if "OPENSSH" in lines[0]:
        with suppress(ValueError):  # what is damaged, ssh does not take either
            encrypted = not binascii.a2b_base64("".join(lines[1:-1])).startswith(_OPENSSH_PLAIN)
    if encrypted:
        raise JobFailed(
            "FAILED_SETUP",
            "the private key in the secret GIT_SSH_KEY has a passphrase: give one that has none",
        )
    return key


def _problem(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for line in lines:
        # What follows "Could not read from remote repository" repeats what came before.
        if line.startswith(("fatal: ", "error: ")) and "Could not read from remote" not in line:
            return line.partition(": ")[2]
    denied = [line for line in lines if "Permission denied" in line or "verification failed" in line]
    return (denied or lines[-1:] or [""])[0]


def _size(log: Path) -> int:
    with suppress(OSError):
        return log.stat().st_size
    return 0


def _end_of(log: Path, begin: int) -> str:
    """Return the end of what was added to the log; nothing where the job removed it."""
    with suppress(OSError), open(log, "rb") as file:
        file.seek(max(begin, _size(log) - _TAIL_BYTES))
        return file.read(_TAIL_BYTES).decode("utf-8", "replace")
    return ""
