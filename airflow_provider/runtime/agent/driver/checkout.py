"""Brings a Git repository to a job's working directory: cloned where there is nothing, else only what changed.

Branches and tags are fetched without their history, as SkyPilot does, and so are commits where the server allows it.
What the earlier repository or folder had there and this one has not is removed; files that jobs made stay. Submodules
are left to setup.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider.runtime.agent.driver import outcome
from airflow_provider.runtime.agent.driver.delivered import STAGING_PREFIX
from airflow_provider.runtime.agent.driver.git import Git, GitFailed
from airflow_provider.runtime.agent.driver.outcome import JobFailed
from airflow_provider.runtime.agent.jobs.jobdir import write_private
from airflow_provider.runtime.agent.trees import remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_provider.runtime.agent.driver.delivered import Account
    from airflow_provider.runtime.agent.jobs.jobdir import GitOrder

_MARK = "managed-jobs"
"""File in ``.git`` of a clone that is ours to change."""

_FULL_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_COMMIT = re.compile(r"[0-9a-f]{4,64}")
_LISTED = re.compile(r"^[0-9a-f]{40,64}\t(?P<name>\S+)$", re.MULTILINE)
_HEAD = re.compile(r"^ref: refs/heads/(?P<branch>\S+)\tHEAD$", re.MULTILINE)

_VARIABLES = {"branch": "GIT_BRANCH", "tag": "GIT_TAG", "commit": "GIT_COMMIT_HASH"}
"""Named as by SkyPilot."""


class _Wanted(NamedTuple):
    """What is fetched."""

    kind: str
    """``branch``, ``tag``, ``commit``, ``ref`` (any other) or ``HEAD``."""
    name: str


class Checkout:
    """One repository that is brought to one working directory.

    Args:
        source: The repository.
        workdir: Where to; exists.
        git: Runs commands there.
        account: Told what changes there; None where it goes with the job.
        say: Takes a line for the log.
    """

    def __init__(
        self,
        *,
        source: GitOrder,
        workdir: Path,
        git: Git,
        account: Account | None,
        say: Callable[[str], None],
    ) -> None:
        self._source = source
        self._workdir = workdir
        self._git = git
        self._account = account
        self._say = say

    def bring(self) -> dict[str, str]:
        """Bring it and return variables about it, for setup and run.

        Raises:
            JobFailed: it cannot be had; the reason names the remedy.
            OSError: the working directory cannot be written.
            Cancelled: the agent asked for the job's end.
        """
        mark = self._workdir / ".git" / _MARK
        if os.path.lexists(mark.parent) and not mark.exists():
            raise JobFailed(
                "FAILED_SETUP",
                f"{mark.parent} was not brought there by a task, and what it holds would be lost: move it away",
            )
        self._say(f"workdir: cloning {self._source.url}")
        try:
            wanted = self._resolve()
            commit = self._update(wanted, fresh=not mark.exists())
        except GitFailed as failure:
            reason = f"cannot clone {self._source.url}: {failure.reason}"
            raise JobFailed("FAILED_SETUP", reason, (outcome.shell_code(failure.code),)) from failure
        named = f"{wanted.kind} {wanted.name}, " if wanted.kind in ("branch", "tag", "ref") else ""
        self._say(f"workdir: {self._source.url}, {named}commit {commit}")
        variables = {"GIT_URL": self._source.url}
        if self._source.ref and wanted.kind in _VARIABLES:
            variables[_VARIABLES[wanted.kind]] = self._source.ref
        return variables

    def _resolve(self) -> _Wanted:
        """Ask the server what the ref is. A branch goes before a tag of the same name, as in SkyPilot and in git."""
        url, ref = self._source
        ask = partial(
            self._git.patiently, "-C", "/", "ls-remote", ask=True
        )  # away from a clone that may be damaged
        if not ref:
            text = ask("--symref", "--", url, "HEAD")
            if not _LISTED.search(text):
                raise JobFailed("FAILED_SETUP", f"{url} is empty, or has no default branch: give a ref")
            head = _HEAD.search(text)
            return _Wanted("branch", head["branch"]) if head else _Wanted("HEAD", "HEAD")
        candidates = {f"refs/heads/{ref}": "branch", f"refs/tags/{ref}": "tag"}
        if ref.startswith("refs/"):
            candidates[ref] = "ref"
        text = ask("--", url, *candidates)
        listed = {match["name"] for match in _LISTED.finditer(text)}
        for name, kind in candidates.items():
            if name in listed:
                return _Wanted(kind, ref)
        if _COMMIT.fullmatch(ref.lower()):
            return _Wanted("commit", ref.lower())
        raise self._unknown()

    def _update(self, wanted: _Wanted, *, fresh: bool) -> str:
        """Fetch and check out; a clone that cannot be used any more is made afresh. Return the commit."""
        try:
            return self._fetch_and_check_out(wanted, fresh=fresh)
        except GitFailed as failure:
            if fresh or failure.remedy:
                raise
        self._say("workdir: the clone of an earlier job cannot be updated, so it is made afresh")
        return self._fetch_and_check_out(wanted, fresh=True)

    def _fetch_and_check_out(self, wanted: _Wanted, *, fresh: bool) -> str:
        staging = self._workdir / f"{STAGING_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        if self._account is not None:
            self._account.begin(staging)
        if fresh:
            self._make_clone(staging)
        else:
            self._git.ask("remote", "set-url", "origin", self._source.url)
        name = self._fetch_commit(wanted.name) if wanted.kind == "commit" else self._fetch(wanted)
        commit = self._git.ask("rev-parse", "--verify", f"{name}^{{commit}}").strip()
        if self._account is not None:
            listing = self._git.ask("ls-tree", "-r", "-t", "-z", "--full-tree", commit)
            files, links, directories = _tracked(listing)
            self._account.replace(files=files, links=links, directories=directories, trees=[".git"])
        # By force: what is in the way is an earlier delivery, or a job's change to it.
        if wanted.kind == "branch":
            self._git.do("checkout", "--quiet", "--force", "--track", "-B", wanted.name, name)
        else:
            self._git.do("checkout", "--quiet", "--force", "--detach", commit)
        if self._account is not None:
            self._account.close()
        return commit

    def _make_clone(self, staging: Path) -> None:
        remove_tree(self._workdir / ".git")
        # Without templates, as those may hold hooks.
        self._git.ask("init", "--quiet", "--template=", str(staging))
        self._git.ask(f"--git-dir={staging / '.git'}", "remote", "add", "origin", self._source.url)
        write_private(staging / ".git" / _MARK, "")
        # Whole or not at all: without the mark it would be somebody else's.
        (staging / ".git").rename(self._workdir / ".git")
        staging.rmdir()

    def _fetch(self, wanted: _Wanted) -> str:
        """Fetch what the server has under a name, and return the name that it has here."""
        there, here = {
            "branch": (f"refs/heads/{wanted.name}", f"refs/remotes/origin/{wanted.name}"),
            "tag": (f"refs/tags/{wanted.name}", f"refs/tags/{wanted.name}"),
            "ref": (wanted.name, f"refs/managed-jobs/{wanted.name}"),
            "HEAD": ("HEAD", "refs/remotes/origin/HEAD"),
        }[wanted.kind]
        try:
            self._git.patiently("fetch", "--force", "--no-tags", "--depth=1", "origin", f"+{there}:{here}")
        except GitFailed as failure:
            if failure.remedy:
                raise
            self._say("workdir: fetching all of the history, as the server cannot leave it out")
            self._git.patiently("fetch", "--force", "--no-tags", "origin", f"+{there}:{here}")
        return here

    def _fetch_commit(self, commit: str) -> str:
        if self._has(commit):
            return commit
        if _FULL_COMMIT.fullmatch(commit):
            try:
                self._git.ask("fetch", "--no-tags", "--depth=1", "origin", commit)
            except GitFailed as failure:
                # Servers may refuse commits that no branch or tag is at.
                self._say(f"workdir: the server does not give the commit alone ({failure.reason})")
            if self._has(commit):
                return commit
        self._say("workdir: fetching all of the history, to find the commit")
        whole = ["--unshallow"] if (self._workdir / ".git" / "shallow").exists() else []
        branches = "+refs/heads/*:refs/remotes/origin/*"
        self._git.patiently("fetch", "--force", "--tags", *whole, "origin", branches)
        if self._has(commit):
            return commit
        raise self._unknown()

    def _has(self, commit: str) -> bool:
        try:
            self._git.ask("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
        except GitFailed:
            return False
        return True

    def _unknown(self) -> JobFailed:
        url, ref = self._source
        return JobFailed("FAILED_SETUP", f"{url} has no branch, tag or commit {ref!r}: correct the ref")


def _tracked(listing: str) -> tuple[list[str], list[str], list[str]]:
    """Return the files, links and directories of a commit."""
    files: list[str] = []
    links: list[str] = []
    directories: list[str] = []
    kinds = {"120000": links, "040000": directories, "160000": directories}
    for entry in listing.split("\0"):
        about, tab, name = entry.partition("\t")
        if tab:
            kinds.get(about.split(" ", 1)[0], files).append(name)
    return files, links, directories
