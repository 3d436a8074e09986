"""A repository as ``workdir``: which URLs and refs may be written.

The forms are SkyPilot's (``{url, ref}``; https, ssh and ``user@host:path``). Where SkyPilot takes a token inside the URL,
it is refused here: the URL shows in logs, in the UI and in the state store, and a secret belongs in none of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import ConfigDict

TOKEN = "GIT_TOKEN"  # noqa: S105 - the name of a secret
"""Secret that authenticates https URLs."""

SSH_KEY = "GIT_SSH_KEY"
"""Secret that authenticates ssh URLs: the text of a private key."""

_HOST = r"(?P<host>\[[0-9a-fA-F:.]+\]|[^/:@\[\]-][^/:@\[\]]*)"
_HTTP = re.compile(rf"https?://(?:(?P<user>[^/]*)@)?{_HOST}(?::\d+)?/(?P<path>[^/].*)")
_SSH = re.compile(rf"ssh://(?:(?P<user>[^/]*)@)?{_HOST}(?::\d+)?/(?P<path>.+)")
_LIKE_SCP = re.compile(rf"(?:(?P<user>[^/:@-][^/:@]*)@)?{_HOST}:(?P<path>(?!//)[^:-].*)")
_UNSAFE = re.compile(r"[\x00-\x20\x7f]")
_NO_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^[-/.]|/\.|[/.]$|\.lock(/|$)|^@$")
_LOCAL = "Give a local folder, or https://host/owner/repo, ssh://user@host/owner/repo, user@host:owner/repo"


@dataclass(frozen=True)
class GitWorkdir:
    """A repository that the nodes clone to ``~/sky_workdir``.

    Attributes:
        url: where it is, without credentials.
        ref: branch, tag or commit; None for the repository's default branch.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    url: str
    ref: str | None = None


def unsuitable_url(url: str) -> tuple[str, str] | None:
    """What is wrong with the URL of a repository and what to do; None for a good one."""
    if _UNSAFE.search(url):
        return "a URL holds no spaces or control characters", "Write %20 for a space"
    match = _HTTP.fullmatch(url) or _SSH.fullmatch(url) or _LIKE_SCP.fullmatch(url)
    if match is None:
        return "is not a URL of a Git repository that can be cloned", _LOCAL
    return None


def holds_credentials(url: str) -> bool:
    """Whether a user or a token is written into an http(s) URL, or a password into any other."""
    scheme, separator, rest = url.partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    return bool(separator and at) and (scheme.lower() in ("http", "https") or ":" in user)


def unsuitable_ref(ref: str) -> tuple[str, str] | None:
    """What is wrong with a ref and what to do; None for a good one."""
    if _NO_REF.search(ref):
        return "is no name that Git allows", "Give a branch, a tag or a commit id"
    return None
