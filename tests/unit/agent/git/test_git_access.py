"""Who may read a job's repository, and what goes wrong on the way to it. Real drivers, git and servers; no agent."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import threading
from pathlib import Path

import pytest

from tests.unit.agent.git.conftest import Run, Serve, said
from tests.unit.agent.git.servers import GitServer, Repository, make_certificate

TOKEN = "s3cret-t0ken"


# ---- who may read it


@pytest.fixture
def private(serve: Serve, tmp_path: Path, repository: Repository) -> tuple[GitServer, dict[str, str]]:
    """A server that wants a token, and the variables with which its certificate is believed."""
    repository.commit({"a": "1"})
    make_certificate(tmp_path / "server.pem")
    server = serve(token=TOKEN, certificate=tmp_path / "server.pem")
    return server, {"GIT_SSL_CAINFO": str(tmp_path / "server.pem")}


def recording_git(directory: Path) -> str:
    """Put a git in front that notes its arguments; return the PATH."""
    directory.mkdir()
    real = shutil.which("git")
    (directory / "git").write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >> "{directory}/arguments"\nexec {real} "$@"\n'
    )
    (directory / "git").chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"


def test_a_token_opens_a_private_repository_and_is_nowhere_to_be_found(
    run: Run, private: tuple[GitServer, dict[str, str]], home: Path, tmp_path: Path
) -> None:
    server, trust = private
    path = recording_git(tmp_path / "bin")
    job = run(server.url(), "cat a", variables={**trust, "GIT_TOKEN": f"{TOKEN}\n", "PATH": path})
    assert said(job) == "1"
    assert any(server.authorizations)
    assert TOKEN not in job.log
    assert "credential" in (tmp_path / "bin" / "arguments").read_text()
    places = [path for top in (home, job.directory.path, tmp_path / "bin") for path in top.rglob("*")]
    assert [path for path in places if path.is_file() and TOKEN.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(
    ("token", "remedy"),
    [
        ("", "for a private repository give the secret GIT_TOKEN"),
        ("wrong", "GIT_TOKEN is wrong, has expired"),
    ],
)
def test_without_the_right_token_the_remedy_is_told(
    start: Run, private: tuple[GitServer, dict[str, str]], token: str, remedy: str
) -> None:
    server, trust = private
    job = start(server.url(), variables={**trust, "GIT_TOKEN": token}).wait()
    assert job.report.status == "FAILED_SETUP"
    assert job.report.reason.startswith(f"cannot clone {server.url()}: ")
    assert remedy in job.report.reason
    assert "trying again" not in job.log


def test_a_token_goes_to_no_other_server(
    start: Run, private: tuple[GitServer, dict[str, str]], serve: Serve, tmp_path: Path
) -> None:
    other, trust = private
    server = serve(certificate=tmp_path / "server.pem")
    server.answers.append(
        lambda handler: (
            handler.refuse(302, Location=other.url().removesuffix("/repo/.git") + handler.path) or True
        )
    )
    job = start(server.url(), variables={**trust, "GIT_TOKEN": TOKEN}).wait()
    assert job.report.status == "FAILED_SETUP"
    assert other.authorizations
    assert not any(other.authorizations)


def test_a_token_is_not_sent_without_encryption(run: Run, repository: Repository, serve: Serve) -> None:
    repository.commit({"a": "1"})
    server = serve()
    job = run(server.url(), variables={"GIT_TOKEN": TOKEN})
    assert not any(server.authorizations)
    assert "GIT_TOKEN is not used" in job.log


def fake_ssh(directory: Path) -> str:
    """Put an ssh in front that notes what it was given and runs the command here; return the PATH."""
    directory.mkdir()
    (directory / "ssh").write_text(
        "#!/bin/bash\n"
        f'printf "%s\\n" "$@" > "{directory}/arguments"\n'
        f'while [ $# -gt 1 ]; do [ "$1" = -i ] && cp -p "$2" "{directory}/key"; shift; done\n'
        'eval "$1"\n'
    )
    (directory / "ssh").chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"


KEY = "-----BEGIN EC PRIVATE KEY-----\nabc\ndef=\n-----END EC PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    "pasted",
    [KEY, KEY.strip(), KEY.replace("\n", "\\n"), KEY.replace("\n", "\r\n")],
    ids=["", "end", "one", "crlf"],
)
def test_a_key_is_in_a_private_file_as_long_as_it_is_needed(
    run: Run, repository: Repository, tmp_path: Path, pasted: str
) -> None:
    repository.commit({"a": "1"})
    path = fake_ssh(tmp_path / "a bin")
    job = run(
        f"git@git.example.org:{repository.path}/.git",
        "cat a",
        variables={"PATH": path, "GIT_SSH_KEY": pasted},
    )
    assert said(job) == "1"
    assert (tmp_path / "a bin" / "key").read_text() == KEY
    assert stat.S_IMODE((tmp_path / "a bin" / "key").stat().st_mode) == 0o600
    arguments = (tmp_path / "a bin" / "arguments").read_text().splitlines()
    for expected in (
        "BatchMode=yes",
        "IdentitiesOnly=yes",
        "StrictHostKeyChecking=accept-new",
        "git@git.example.org",
    ):
        assert expected in arguments
    assert not job.directory.git_key_file.exists()
    assert "abc" not in job.log


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("ssh-ed25519 AAAA", "is not the text of a private key"),
        ("/root/.ssh/id_ed25519", "is not the text of a private key"),
        (KEY.replace("EC PRIVATE", "ENCRYPTED PRIVATE"), "has a passphrase"),
        (KEY.replace("abc", "Proc-Type: 4,ENCRYPTED\nabc"), "has a passphrase"),
    ],
)
def test_a_key_that_cannot_be_used_is_told(start: Run, tmp_path: Path, key: str, reason: str) -> None:
    job = start("git@h:x", "echo run", variables={"GIT_SSH_KEY": key}).wait()
    assert (job.report.status, job.log) == ("FAILED_SETUP", "")
    assert reason in job.report.reason
    assert key not in job.report.reason


def test_a_servers_key_can_be_pinned(run: Run, repository: Repository, tmp_path: Path) -> None:
    repository.commit({"a": "1"})
    path = fake_ssh(tmp_path / "bin")
    pins = "git.example.org ssh-ed25519 AAAA"
    job = run(
        f"ssh://git@git.example.org{repository.path}/.git",
        variables={"PATH": path, "GIT_SSH_KNOWN_HOSTS": pins},
    )
    arguments = (tmp_path / "bin" / "arguments").read_text().splitlines()
    assert "StrictHostKeyChecking=yes" in arguments
    assert f'UserKnownHostsFile="{job.directory.path}/git.known_hosts"' in arguments
    assert (job.directory.path / "git.known_hosts").read_text() == pins + "\n"


# ---- what else goes wrong


def test_without_git_the_remedy_is_told(start: Run, url: str, tmp_path: Path) -> None:
    job = start(url, "echo run", variables={"PATH": str(tmp_path)}).wait()
    assert (job.report.status, job.log) == ("FAILED_SETUP", "")
    assert "apt-get install git" in job.report.reason


@pytest.mark.parametrize("bad", ["file:///etc", "/etc", "ext::sh -c 'touch /tmp/never-made-by-git'"])
def test_only_the_network_is_cloned_from(start: Run, bad: str) -> None:
    job = start(bad, "echo run").wait()
    assert job.report.status == "FAILED_SETUP"
    assert "only https, http and ssh are allowed" in job.report.reason
    assert not Path("/tmp/never-made-by-git").exists()


def test_a_server_that_is_not_there_is_told_after_some_tries(
    start: Run, serve: Serve, repository: Repository
) -> None:
    server = serve()
    url = server.url()
    server.close()
    job = start(url).wait()
    assert job.report.status == "FAILED_SETUP"
    assert "Failed to connect" in job.report.reason or "unable to access" in job.report.reason
    assert job.log.count("trying again") == 2


def test_a_server_that_stumbles_is_asked_again(run: Run, repository: Repository, serve: Serve) -> None:
    repository.commit({"a": "1"})
    server = serve()
    stumbles = iter([True, False, True])
    server.answers.append(lambda handler: next(stumbles, False) and (handler.refuse(503) or True))
    job = run(server.url(), "cat a")
    assert said(job).endswith("1")
    assert job.log.count("trying again") == 2


def test_a_cancel_ends_the_clone(start: Run, repository: Repository, serve: Serve) -> None:
    repository.commit({"a": "1"})
    server = serve()
    asked, over = threading.Event(), threading.Event()

    def hold(handler: object) -> bool:
        asked.set()
        over.wait(30)
        return False

    server.answers.append(hold)
    job = start(server.url(), "echo run")
    try:
        assert asked.wait(30)
        job.send(signal.SIGTERM)
        assert job.wait(10).report.status == "CANCELLED"
    finally:
        over.set()
    assert "run" not in said(job)


def test_while_it_is_cloned_the_job_is_being_set_up(start: Run, repository: Repository, serve: Serve) -> None:
    repository.commit({"a": "1"})
    server = serve()
    asked, over = threading.Event(), threading.Event()

    def hold(handler: object) -> bool:
        asked.set()
        over.wait(30)
        return False

    server.answers.append(hold)
    job = start(server.url(), "true")
    try:
        assert asked.wait(30)
        assert job.report.status == "SETTING_UP"
    finally:
        over.set()
    assert job.wait().report.status == "SUCCEEDED"
