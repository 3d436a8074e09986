"""A Git repository as the working directory of a job. Real drivers, real git, real servers; no agent."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.driver.delivered import remove_delivered
from airflow_provider.runtime.agent.jobs.jobdir import GitOrder
from airflow_provider.runtime.agent.process import cgroup
from tests.unit.agent.conftest import StartJob
from tests.unit.agent.deliveries import packed
from tests.unit.agent.git.conftest import Run, Serve, said
from tests.unit.agent.git.servers import Repository, git


def content(workdir: Path) -> dict[str, str]:
    """The files of a working directory but those of git."""
    return {
        str(path.relative_to(workdir)): f"-> {os.readlink(path)}" if path.is_symlink() else path.read_text()  # noqa: PTH115
        for path in sorted(workdir.rglob("*"))
        if ".git" not in path.relative_to(workdir).parts and (path.is_symlink() or not path.is_dir())
    }


# ---- what is wanted


def test_the_default_branch_is_cloned_before_setup(run: Run, repository: Repository, url: str) -> None:
    commit = repository.commit({"a.py": "a", "d/b.py": "b", "link": "-> a.py", "ü b": "c"})
    job = run(
        url, "git rev-parse HEAD; git branch --show-current; pwd", setup="cat a.py d/b.py link 'ü b'; echo"
    )
    assert said(job).splitlines() == [
        "abac",
        commit,
        "main",
        str(job.directory.order().home) + "/sky_workdir",
    ]
    assert f"[managed job] workdir: {url}, branch main, commit {commit}\n" in job.log
    assert git(Path(job.directory.order().home) / "sky_workdir", "status", "--porcelain") == ""


def test_a_home_that_goes_with_the_job_needs_no_record(
    start_job: StartJob, repository: Repository, url: str
) -> None:
    repository.commit({"a": "1"})
    job = start_job("cat a", git=GitOrder(url)).wait()
    assert said(job) == "1"


def test_branches_tags_and_commits(run: Run, repository: Repository, url: str) -> None:
    first = repository.commit({"a": "1"}, tag="v1")
    second = repository.commit({"a": "2"})
    feature = repository.commit({"a": "3"}, branch="feature/x")
    repository.commit({"a": "4"})
    git(repository.path, "update-ref", "refs/pull/7/head", first)
    show = 'echo "$(cat a) ${GIT_BRANCH-} ${GIT_TAG-} ${GIT_COMMIT_HASH-} $GIT_URL"'
    for ref, shown in (
        ("", "4   "),
        ("v1", "1  v1 "),
        ("feature/x", "3 feature/x  "),
        (second, f"2   {second}"),
        (first[:8].upper(), f"1   {first[:8].upper()}"),
        ("refs/pull/7/head", "1   "),
        (feature, f"3   {feature}"),
        ("main", "4 main  "),
    ):
        job = run(url, show, ref=ref)
        assert said(job) == f"{shown} {url}\n", ref


def test_branches_and_tags_come_without_their_history(run: Run, repository: Repository, url: str) -> None:
    for number in range(5):
        repository.commit({"a": str(number)}, tag=f"v{number}")
    assert said(run(url, "git rev-list --all --count")) == "1\n"


def test_a_branch_goes_before_a_tag_of_the_same_name(run: Run, repository: Repository, url: str) -> None:
    repository.commit({"a": "tag"}, tag="same")
    repository.commit({"a": "branch"}, branch="same")
    repository.commit({"a": "main"})
    assert said(run(url, "cat a; git branch --show-current", ref="same")) == "branchsame\n"


@pytest.mark.parametrize("ref", ["none", "0123abcd", "0" * 40])
def test_a_ref_that_is_not_there_fails_the_setup(
    start: Run, repository: Repository, url: str, ref: str
) -> None:
    repository.commit({"a": "1"})
    job = start(url, "echo run", ref=ref).wait()
    assert job.report.status == "FAILED_SETUP"
    assert job.report.reason == f"{url} has no branch, tag or commit {ref!r}: correct the ref"


def test_a_commit_that_a_server_does_not_give_alone_is_found_in_the_history(
    run: Run, repository: Repository, url: str
) -> None:
    first = repository.commit({"a": "1"})
    repository.commit({"a": "2"})
    old = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "protocol.version", "GIT_CONFIG_VALUE_0": "0"}
    job = run(url, "cat a", ref=first, variables=old)
    assert said(job).endswith("1")
    assert "the server does not give the commit alone" in job.log


def test_a_server_without_any_program_will_do(run: Run, repository: Repository, serve: Serve) -> None:
    repository.commit({"a": "1"})
    commit = repository.commit({"a": "2"}, tag="v2")
    server = serve(dumb=True)
    for ref in ("", "v2", commit[:10]):
        job = run(server.url(), "cat a", ref=ref)
        assert said(job).endswith("2"), job.log


def test_an_empty_repository_is_told(start: Run, repository: Repository, url: str) -> None:
    job = start(url).wait()
    assert job.report.status == "FAILED_SETUP"
    assert "is empty" in job.report.reason


# ---- the next job


def test_k87_the_next_job_gets_changes_only_and_deletions_too(
    run: Run, repository: Repository, url: str, home: Path
) -> None:
    repository.commit({"same": "1", "changed": "1", "old": "1", "d/old": "1", "kept/old": "1"})
    run(url, "echo mine > mine; echo mine > kept/mine; echo spoilt > changed")
    before = (home / "sky_workdir/same").stat()
    repository.commit({"same": "1", "changed": "2", "new": "2"})
    run(url)
    assert content(home / "sky_workdir") == {
        "same": "1",
        "changed": "2",
        "new": "2",
        "mine": "mine\n",
        "kept/mine": "mine\n",
    }
    after = (home / "sky_workdir/same").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert not (home / "sky_workdir/d").exists()


def test_what_a_job_changed_is_as_the_repository_has_it_again(
    run: Run, repository: Repository, url: str, home: Path
) -> None:
    repository.commit({"a": "1", "b": "1", "d/c": "1"})
    for mess in (
        "echo x > a; rm b; rm -r d; echo file > d",
        "git checkout -b other; git rm -r .; git commit -m x; true",
    ):
        run(url, mess, variables={"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a",
                                  "GIT_COMMITTER_EMAIL": "a@b"})  # fmt: skip
        assert said(run(url, "git status --porcelain; git branch --show-current")) == "main\n"
        assert content(home / "sky_workdir") == {"a": "1", "b": "1", "d/c": "1"}


def test_another_repository_takes_its_place(
    run: Run, repository: Repository, serve: Serve, tmp_path: Path, home: Path
) -> None:
    repository.commit({"a": "1", "old": "1"})
    Repository(tmp_path / "served" / "other").commit({"a": "2", "new": "2"})
    server = serve()
    run(server.url("repo"))
    run(server.url("other"))
    assert content(home / "sky_workdir") == {"a": "2", "new": "2"}
    assert git(home / "sky_workdir", "remote", "get-url", "origin") == server.url("other")


def test_folders_and_repositories_take_each_others_place(
    run: Run, start_job: StartJob, repository: Repository, url: str, tmp_path: Path, home: Path, root: Path
) -> None:
    (tmp_path / "folder" / "d").mkdir(parents=True)
    (tmp_path / "folder" / "d" / "local").write_text("folder")
    (tmp_path / "folder" / "both").write_text("folder")
    repository.commit({"both": "git", "d": "git", "remote": "git"})
    folder = {
        "files": [packed(tmp_path / "folder", tmp_path, "~/sky_workdir")],
        "home": home,
        "root": str(root),
    }
    for _ in range(2):
        job = start_job("true", **folder).wait()
        assert job.report.status == "SUCCEEDED", job.report.reason
        assert content(home / "sky_workdir") == {"both": "folder", "d/local": "folder"}
        assert not (home / "sky_workdir" / ".git").exists()
        run(url)
        assert content(home / "sky_workdir") == {"both": "git", "d": "git", "remote": "git"}


def test_files_may_be_mounted_into_it(run: Run, repository: Repository, url: str, tmp_path: Path) -> None:
    repository.commit({"a": "1"})
    (tmp_path / "config").write_text("mounted")
    files = [packed(tmp_path / "config", tmp_path, "~/sky_workdir/conf/config")]
    for _ in range(2):
        assert said(run(url, "cat a conf/config", files=files)) == "1mounted"


@pytest.mark.parametrize("damage", ["index.lock", "shallow.lock", "HEAD", "objects", "config"])
def test_a_clone_that_was_damaged_is_made_afresh(
    run: Run, repository: Repository, url: str, home: Path, damage: str
) -> None:
    repository.commit({"a": "1", "old": "1"})
    run(url)
    target = home / "sky_workdir" / ".git" / damage
    if target.is_dir():
        for path in (target / "pack", *target.glob("??")):
            shutil.rmtree(path, ignore_errors=True)
    else:
        target.write_text("\0damaged\n")
    repository.commit({"a": "2"})
    run(url)
    assert content(home / "sky_workdir") == {"a": "2"}


@pytest.mark.parametrize("moment", ["_resolve", "_make_clone", "_fetch"])
def test_after_a_crash_the_next_job_has_all_of_it(
    run: Run,
    start: Run,
    repository: Repository,
    url: str,
    home: Path,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    monkeypatch.setenv(cgroup.SWITCH, "off")
    repository.commit({"a": "1"})
    crash = (
        "import os, signal; from airflow_provider.runtime.agent.driver.checkout import Checkout; "
        f"real = Checkout.{moment}; "
        f"Checkout.{moment} = lambda *a, **k: (real(*a, **k), os.kill(os.getpid(), signal.SIGKILL)); "
    )
    start(url, before=crash).wait()
    assert said(run(url, "cat a; ls -A | sort | tr '\\n' ' '")) == "1.git a "
    assert remove_delivered(root) == []
    assert list(home.iterdir()) == []


def test_a_repository_of_somebody_else_is_left_alone(
    start: Run, repository: Repository, url: str, home: Path
) -> None:
    repository.commit({"a": "1"})
    Repository(home / "sky_workdir").commit({"precious": "mine"})
    job = start(url, "echo run").wait()
    assert job.report.status == "FAILED_SETUP"
    assert "move it away" in job.report.reason
    assert content(home / "sky_workdir") == {"precious": "mine"}


@pytest.mark.parametrize("there", [False, True])
def test_the_clusters_end_leaves_nothing_of_it(
    run: Run, repository: Repository, url: str, home: Path, root: Path, there: bool
) -> None:
    if there:
        (home / "sky_workdir").mkdir()
        (home / "sky_workdir" / "mine").write_text("mine")
    repository.commit({"a": "1", "d/b": "1", "l": "-> a"})
    run(url)
    assert remove_delivered(root) == []
    left = sorted(path.name for path in home.rglob("*"))
    assert left == (["mine", "sky_workdir"] if there else [])
