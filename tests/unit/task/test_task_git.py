"""A repository as ``workdir``: what may be written, what becomes of it, and that no secret travels in a URL."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.task import GitWorkdir, TaskSpec, TaskValidationError, task_from_definition

URL = "https://git.example.org/team/repo.git"


@pytest.mark.parametrize(
    "url",
    [
        URL,
        "https://git.example.org:8443/repo",
        "http://git.example.org/a/b/c",
        "ssh://git@git.example.org/team/repo.git",
        "ssh://git.example.org:2222/repo",
        "git@git.example.org:team/repo.git",
        "git.example.org:repo",
        "https://[::1]:8443/repo",
    ],
)
@pytest.mark.parametrize("ref", [None, "main", "feature/one", "v1.0", "0123abc", "refs/pull/12/head"])
def test_urls_and_refs_as_skypilot_takes_them(task, url: str, ref: str | None) -> None:
    found = task(f"workdir: {{url: '{url}'{f', ref: {ref!r}' if ref else ''}}}")
    assert found.git == GitWorkdir(url, ref)
    assert found.workdir is None
    assert found.resolve().git == GitWorkdir(url, ref)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("/srv/repo.git", "not a URL of a Git repository"),
        ("file:///srv/repo.git", "not a URL of a Git repository"),
        ("ext::sh -c id", "spaces"),
        ("ext::sh", "not a URL of a Git repository"),
        ("--upload-pack=id", "not a URL of a Git repository"),
        ("ssh://-oProxyCommand=id/x", "not a URL of a Git repository"),
        ("-oProxyCommand=id:x", "not a URL of a Git repository"),
        ("git@host:-x", "not a URL of a Git repository"),
        ("https://host", "not a URL of a Git repository"),
        ("https://host/a b", "spaces"),
        ("s3://bucket/x", "not a URL of a Git repository"),
    ],
)
def test_other_urls_are_refused(problem, url: str, word: str) -> None:
    found = problem(f"workdir:\n  url: '{url}'\n")
    assert (found.path, found.line) == ("workdir.url", 2)
    assert word in found.message
    assert found.remedy


@pytest.mark.parametrize(
    "ref",
    [
        "-x",
        "--upload-pack=id",
        "a b",
        "a..b",
        "a~1",
        "a^",
        "a:b",
        "x*",
        "a/",
        "/a",
        ".a",
        "a.lock",
        "@",
        "a@{1}",
    ],
)
def test_refs_that_git_does_not_know_are_refused(problem, ref: str) -> None:
    found = problem(f"workdir:\n  url: {URL}\n  ref: '{ref}'\n")
    assert (found.path, found.line) == ("workdir.ref", 3)


@pytest.mark.parametrize(
    "url",
    [
        "https://hunter2@git.example.org/repo",
        "https://ada:hunter2@git.example.org/repo",
        "http://:hunter2@git.example.org/repo",
        "HTTPS://hunter2@git.example.org/repo",
        "ssh://git:hunter2@git.example.org/repo",
        "https://a@hunter2@git.example.org/repo",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_shown(url: str) -> None:
    for definition in ({"workdir": {"url": url}}, {"workdir": url}):
        with pytest.raises(TaskValidationError) as caught:
            task_from_definition(definition)
        assert "GIT_TOKEN" in str(caught.value)
        assert "hunter2" not in str(caught.value)
    late = task_from_definition({"workdir": {"url": "$U"}, "envs": {"U": None}})
    with pytest.raises(TaskValidationError) as caught:
        late.resolve(envs={"U": url})
    assert "GIT_TOKEN" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "path", "word"),
    [
        ("{ref: main}", "workdir", "needs a url"),
        ("{url: , ref: main}", "workdir", "needs a url"),
        ("{url: ''}", "workdir.url", "empty"),
        ("{url: [a]}", "workdir.url", "must be text"),
        (f"{{url: '{URL}', ref: 1234567}}", "workdir.ref", "must be text"),
        (f"{{url: '{URL}', ref: 1.0}}", "workdir.ref", "must be text"),
        (f"{{url: '{URL}', branch: main}}", "workdir.branch", "unknown field"),
    ],
)
def test_what_is_no_repository(problem, text: str, path: str, word: str) -> None:
    found = problem(f"workdir: {text}")
    assert found.path == path
    assert word in found.message


@pytest.mark.parametrize("workdir", ["https://x/y.git", "'git@x:y'", "s3://b/x"])
def test_a_url_as_text_is_told_how_to_write_it(problem, workdir: str) -> None:
    found = problem(f"workdir: {workdir}")
    assert (found.path, found.line) == ("workdir", 1)
    assert "{url: ..., ref: ...}" in found.remedy


def test_an_empty_ref_is_the_default_branch(task) -> None:
    assert task(f"workdir: {{url: '{URL}', ref: }}").git == GitWorkdir(URL)


def test_variables_are_replaced_in_url_and_ref(task) -> None:
    spec = task("envs: {R: repo, B: }\nworkdir: {url: 'https://h/${R}.git', ref: $B}")
    assert spec.git == GitWorkdir("https://h/${R}.git", "$B")
    assert spec.resolve(envs={"B": "dev"}).git == GitWorkdir("https://h/repo.git", "dev")
    with pytest.raises(TaskValidationError, match=r"workdir\.ref"):
        spec.resolve(envs={"B": "--x"})
    with pytest.raises(TaskValidationError, match=r"line 2: workdir\.url"):
        spec.resolve(envs={"B": "x", "R": "a b"})


def test_secrets_are_not_replaced_in_it(problem) -> None:
    found = problem("secrets: {TOKEN: }\nworkdir: {url: 'https://h/$TOKEN'}")
    assert found.path == "workdir.url"
    assert "a secret" in found.message


def test_nothing_is_mounted_over_it(problem, tmp_path) -> None:
    text = f"workdir: {{url: '{URL}'}}\nfile_mounts: {{~/sky_workdir: .}}"
    assert "workdir" in problem(text).message


def test_a_folder_given_in_python_takes_its_place(tmp_path) -> None:
    spec = task_from_definition({"workdir": {"url": URL}}).resolve(workdir=str(tmp_path))
    assert (spec.workdir, spec.git) == (str(tmp_path), None)


def test_a_record_from_before_there_were_repositories_can_be_read() -> None:
    stored = TaskSpec("a").to_json()
    del stored["git"]
    assert TaskSpec.from_json(stored) == TaskSpec("a")
