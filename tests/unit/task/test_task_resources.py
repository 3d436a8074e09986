"""What a task asks for: single values, alternatives, recovery."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider.runtime.task import Candidate, JobRecovery, Quantity, Resources, task_from_definition


@pytest.fixture
def resources(task) -> Callable[[str], Resources]:
    return lambda text: task(f"resources:\n  {text}\n").resources


@pytest.fixture
def candidate(resources) -> Callable[[str], Candidate]:
    def only(text: str) -> Candidate:
        (found,) = resources(text).candidates
        return found

    return only


@pytest.fixture
def refused(problem) -> Callable[[str], str]:
    return lambda text: problem(f"resources:\n  {text}\n").message


K78 = """\
name: k78
resources:
  cpus: 2+
  job_recovery: {strategy: FAILOVER}
  any_of:
    - {use_spot: true, infra: slurm/fakeA}
    - {use_spot: false, infra: slurm/fakeB}
run: hostname
"""


def test_k78_candidates_are_the_base_merged_with_each_entry(task) -> None:
    assert task(K78).resources == Resources(
        candidates=(
            Candidate(infra="slurm/fakeA", cpus=Quantity(2, True), use_spot=True),
            Candidate(infra="slurm/fakeB", cpus=Quantity(2, True)),
        ),
        ordered=False,
        job_recovery=JobRecovery("FAILOVER"),
    )


def test_k78_ordered_keeps_the_order(task) -> None:
    found = task(K78.replace("any_of", "ordered")).resources
    assert found.ordered
    assert [c.infra for c in found.candidates] == ["slurm/fakeA", "slurm/fakeB"]


def test_k78_a_candidate_wins_over_the_base(resources) -> None:
    found = resources("{cpus: 2, memory: 8, any_of: [{cpus: 4+}, {memory: null}, {}]}").candidates
    assert [(c.cpus, c.memory_gb) for c in found] == [
        (Quantity(4, True), Quantity(8)),
        (Quantity(2), None),
        (Quantity(2), Quantity(8)),
    ]


def test_k78_null_in_a_candidate_undoes_the_base(resources) -> None:
    found = resources("{infra: aws, use_spot: true, any_of: [{infra: null, use_spot: null}, {infra: '*'}]}")
    assert [(c.infra, c.use_spot) for c in found.candidates] == [(None, False), (None, True)]


def test_k78_labels_do_not_leak_from_one_candidate_to_the_next(resources) -> None:
    found = resources(
        "{labels: {a: '1'}, any_of: [{labels: {b: '2'}}, {}, {labels: {a: null}}, {labels: null}]}"
    )
    labels = [c.carried.get("labels") for c in found.candidates]
    assert labels == [{"a": "1", "b": "2"}, {"a": "1"}, None, None]


@pytest.mark.parametrize(
    ("text", "path", "word"),
    [
        ("{any_of: [{cpus: 1}], ordered: [{cpus: 1}]}", "resources.ordered", "exclude"),
        ("{any_of: []}", "resources.any_of", "empty"),
        ("{ordered: []}", "resources.ordered", "empty"),
        ("{any_of: {cpus: 1}}", "resources.any_of", "must be a list"),
        ("{ordered: {cpus: 1}}", "resources.ordered", "must be a list"),
        ("{any_of: [null]}", "resources.any_of[0]", "must be a mapping"),
        ("{any_of: [A100]}", "resources.any_of[0]", "must be a mapping"),
        ("{any_of: [{any_of: [{cpus: 1}]}]}", "resources.any_of[0].any_of", "nested"),
        ("{any_of: [{ordered: [{cpus: 1}]}]}", "resources.any_of[0].ordered", "nested"),
        ("{any_of: [{cpus: 1}, {cpus: x}]}", "resources.any_of[1].cpus", "CPUs"),
        ("{ordered: [{accelerators: {A100: 1, L4: 1}}]}", "resources.ordered[0].accelerators", "ordered"),
        ("{any_of: [{accelerators: [A100, L4]}]}", "resources.any_of[0].accelerators", "order"),
        ("{accelerators: [A100, L4], any_of: [{cpus: 1}]}", "resources.accelerators", "order"),
        ("{any_of: [{job_recovery: FAILOVER}, {}]}", "resources.any_of", "job_recovery"),
        ("{any_of: [{priority: 1}, {priority: 2}]}", "resources.any_of", "priority"),
        ("{any_of: [{priority_class: a}, {}]}", "resources.any_of", "priority_class"),
        ("{infra: aws, any_of: [{region: us-east-1}]}", "resources.any_of[0].region", "combined"),
    ],
)
def test_k78_combinations_that_make_no_sense_are_refused(problem, text: str, path: str, word: str) -> None:
    found = problem(f"resources: {text}")
    assert found.path == path
    assert word in found.message
    assert found.remedy


def test_k78_a_single_mapping_is_told_to_be_a_list(problem) -> None:
    assert "list" in problem("resources: {any_of: {cpus: 1}}").remedy


def test_k78_each_candidate_expands_by_its_accelerators(resources) -> None:
    found = resources("{any_of: [{accelerators: {A100: 1, L4: 2}}, {cpus: 4}]}")
    assert [c.accelerators for c in found.candidates] == [{"A100": 1}, {"L4": 2}, {}]
    assert not found.ordered


def test_no_resources_are_one_candidate_that_asks_for_nothing(task) -> None:
    assert task("run: x").resources == Resources((Candidate(),), False, JobRecovery(), 0)


@pytest.mark.parametrize(
    ("text", "amount", "at_least"),
    [("4", 4, False), ("0.5", 0.5, False), ("'4'", 4, False), ("4+", 4, True), ("'0.5+'", 0.5, True)],
)
def test_cpus(candidate, text: str, amount: float, at_least: bool) -> None:
    assert candidate(f"cpus: {text}").cpus == Quantity(amount, at_least)


@pytest.mark.parametrize(
    "text", ["0", "-1", "four", "4++", "'+4'", "true", "[4]", "4GB", "1e3", ".inf", "''", "012x"]
)
def test_wrong_cpus(refused, text: str) -> None:
    assert "CPUs" in refused(f"cpus: {text}")


@pytest.mark.parametrize(
    ("text", "amount", "at_least"),
    [
        ("16", 16, False),
        ("16+", 16, True),
        ("'1.5'", 1.5, False),
        ("32GB", 32, False),
        ("32gb+", 32, True),
        ("512MB", 0.5, False),
        ("512MiB", 0.5, False),
        ("1Ti", 1024, False),
        ("2 TB", 2048, False),
        ("1048576k", 1, False),
    ],
)
def test_memory_is_in_binary_gigabytes(candidate, text: str, amount: float, at_least: bool) -> None:
    assert candidate(f"memory: {text}").memory_gb == Quantity(amount, at_least)


@pytest.mark.parametrize("text", ["0", "-1", "4x", "much", "10XB", "false", "{a: 1}"])
def test_wrong_memory(refused, text: str) -> None:
    assert "memory" in refused(f"memory: {text}")


def test_no_memory_may_be_asked_for_on_slurm_only(candidate, refused) -> None:
    assert candidate("{memory: 0, infra: slurm/a}").memory_gb == Quantity(0)
    assert "above 0" in refused("{memory: 0, infra: local}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("V100", {"V100": 1}),
        ("V100:2", {"V100": 2}),
        ("V100:0.5", {"V100": 0.5}),
        ("tpu-v3-8", {"tpu-v3-8": 1}),
        ("A100-80GB:8", {"A100-80GB": 8}),
        ("80GB+", {"80GB+": 1}),
        ("80GB:2", {"80GB": 2}),
        ("'nvidia:80GB:2'", {"nvidia:80GB": 2}),
        ("{A100: 8}", {"A100": 8}),
        ("{A100: 0.5}", {"A100": 0.5}),
        ("{A100:8}", {"A100": 8}),
        ("{A100}", {"A100": 1}),
        ("[A100:2]", {"A100": 2}),
    ],
)
def test_one_accelerator(candidate, text: str, expected: dict[str, float]) -> None:
    assert candidate(f"accelerators: {text}").accelerators == expected
    assert candidate(f"gpus: {text}").accelerators == expected


@pytest.mark.parametrize(
    ("text", "expected", "ordered"),
    [
        ("{L4, A100:8}", [{"L4": 1}, {"A100": 8}], False),
        ("{A100:1, A100:8}", [{"A100": 1}, {"A100": 8}], False),
        ("{L4: 1, A100: 8}", [{"L4": 1}, {"A100": 8}], False),
        ("[L4, A100:8]", [{"L4": 1}, {"A100": 8}], True),
        ("[A100:8, A100:4]", [{"A100": 8}, {"A100": 4}], True),
    ],
)
def test_several_accelerators_are_several_candidates(
    resources, text: str, expected: list[object], ordered: bool
) -> None:
    found = resources(f"accelerators: {text}")
    assert [c.accelerators for c in found.candidates] == expected
    assert found.ordered is ordered


@pytest.mark.parametrize(
    "text",
    [
        "A100:0",
        "A100:-1",
        "A100:x",
        "'A100, L4'",
        "''",
        "{}",
        "[]",
        "8",
        "{A100: 0}",
        "{A100: '8'}",
        "{A100:2: 8}",
        "[1]",
    ],
)
def test_wrong_accelerators(problem, text: str) -> None:
    found = problem(f"resources: {{accelerators: {text}}}")
    assert found.path.startswith("resources.accelerators")
    assert found.remedy


def test_a_field_and_its_other_name_exclude_each_other(refused) -> None:
    assert "another name" in refused("{accelerators: A100, gpus: A100}")
    assert "another name" in refused("{job_recovery: none, spot_recovery: none}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("local", "local"),
        ("LOCAL", "local"),
        ("ssh/My_pool", "ssh/My_pool"),
        ("ssh/my-pool/zone-1", "ssh/my-pool/zone-1"),
        ("ssh", "ssh"),
        ("slurm/a/gpu", "slurm/a/gpu"),
        ("k8s/ctx", "kubernetes/ctx"),
        ("kubernetes/arn:aws:eks:us-east-1:1:cluster/x", "kubernetes/arn:aws:eks:us-east-1:1:cluster/x"),
        ("AWS/us-east-1/us-east-1a", "aws/us-east-1/us-east-1a"),
        ("aws/*", "aws"),
        ("aws/*/us-east-1a", "aws/*/us-east-1a"),
        ("'*/us-east-1'", "*/us-east-1"),
        ("'*'", None),
    ],
)
def test_infra_has_one_spelling(candidate, text: str, expected: str | None) -> None:
    assert candidate(f"infra: {text}").infra == expected


@pytest.mark.parametrize(
    "text", ["lcoal", "aws/", "aws/a/b/c", "local/x", "ssh/a/b/c", "aws/a b", "''", "[aws]", "/x"]
)
def test_wrong_infra(problem, text: str) -> None:
    found = problem(f"resources: {{infra: {text}}}")
    assert (found.path, found.line) == ("resources.infra", 1)


def test_a_misspelt_infra_comes_with_a_close_match(problem) -> None:
    assert problem("resources: {infra: lcoal}").remedy == "Did you mean local?"


def test_the_old_fields_of_a_place_become_infra(candidate) -> None:
    whole = "{cloud: gcp, region: us-central1, zone: us-central1-a}"
    assert candidate(whole).infra == "gcp/us-central1/us-central1-a"
    assert candidate("{cloud: AWS}").infra == "aws"
    assert candidate("{region: us-east-1}").infra == "*/us-east-1"
    assert candidate("{cloud: aws, zone: us-east-1a}").infra == "aws/*/us-east-1a"


@pytest.mark.parametrize("old", ["cloud: aws", "region: us-east-1", "zone: a"])
def test_infra_excludes_the_old_fields(refused, old: str) -> None:
    assert "cannot be combined" in refused(f"{{infra: aws, {old}}}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FAILOVER", JobRecovery("FAILOVER")),
        ("failover", JobRecovery("FAILOVER")),
        ("Eager_Next_Region", JobRecovery("EAGER_NEXT_REGION")),
        ("none", JobRecovery("NONE")),
        ("null", JobRecovery("EAGER_NEXT_REGION")),
        ("{}", JobRecovery("EAGER_NEXT_REGION")),
        ("{strategy: null, max_restarts_on_errors: 3}", JobRecovery("EAGER_NEXT_REGION", 3)),
        ("{strategy: none, max_restarts_on_errors: 3}", JobRecovery("NONE", 3)),
        ("{recover_on_exit_codes: 33}", JobRecovery(recover_on_exit_codes=(33,))),
        ("{recover_on_exit_codes: [0, 255]}", JobRecovery(recover_on_exit_codes=(0, 255))),
    ],
)
def test_job_recovery(resources, text: str, expected: JobRecovery) -> None:
    assert resources(f"job_recovery: {text}").job_recovery == expected
    assert resources(f"spot_recovery: {text}").job_recovery == expected


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("sometimes", ""),
        ("[FAILOVER]", ""),
        ("true", ""),
        ("{strategy: x}", ".strategy"),
        ("{max_restarts_on_errors: -1}", ".max_restarts_on_errors"),
        ("{max_restarts_on_errors: '1'}", ".max_restarts_on_errors"),
        ("{recover_on_exit_codes: 256}", ".recover_on_exit_codes"),
        ("{recover_on_exit_codes: -1}", ".recover_on_exit_codes"),
        ("{recover_on_exit_codes: [1, 1]}", ".recover_on_exit_codes"),
        ("{recover_on_exit_codes: [1, true]}", ".recover_on_exit_codes[1]"),
        ("{restarts: 2}", ".restarts"),
    ],
)
def test_wrong_job_recovery(problem, text: str, path: str) -> None:
    assert problem(f"resources: {{job_recovery: {text}}}").path == f"resources.job_recovery{path}"


def test_priority(resources, refused) -> None:
    assert resources("priority: -1000").priority == -1000
    assert resources("{priority: 7, any_of: [{cpus: 1}, {cpus: 2}]}").priority == 7
    for wrong in ("1001", "-1001", "'1'", "1.5", "true"):
        assert "from -1000 to 1000" in refused(f"priority: {wrong}")


def test_fields_without_effect_of_their_own_are_carried(task) -> None:
    found = task(
        """\
api_server_access: false
resources:
  use_spot: true
  disk_size: 1TB
  disk_tier: HIGH
  network_tier: best
  max_hourly_cost: 2.5
  labels: {team: ml}
  priority_class: batch
"""
    )
    assert found.resources.candidates[0].carried == {
        "disk_size": 1024,
        "disk_tier": "high",
        "network_tier": "best",
        "max_hourly_cost": 2.5,
        "labels": {"team": "ml"},
        "priority_class": "batch",
    }
    assert found.carried == {"api_server_access": False}
    assert found.carried_fields == (
        "api_server_access",
        "resources.disk_size",
        "resources.disk_tier",
        "resources.labels",
        "resources.max_hourly_cost",
        "resources.network_tier",
        "resources.priority_class",
        "resources.use_spot",
    )


@pytest.mark.parametrize(
    "text",
    [
        "disk_size: 0",
        "disk_size: big",
        "disk_size: 10+",
        "disk_tier: fast",
        "network_tier: low",
        "max_hourly_cost: 0",
        "max_hourly_cost: cheap",
        "labels: [a]",
        "labels: {a: 1}",
        "labels: {a: null}",
        "priority_class: 5",
        "region: a b",
        "cloud: awss",
        "zone: [a]",
    ],
)
def test_carried_fields_are_checked_all_the_same(problem, text: str) -> None:
    assert problem(f"resources: {{{text}}}").path.startswith(f"resources.{text.partition(':')[0]}")


def test_dictionaries_follow_the_same_rules(task) -> None:
    definition = {
        "resources": {
            "cpus": "4+",
            "memory": 16.0,
            "accelerators": ("A100:8", "L4"),
            "job_recovery": {"max_restarts_on_errors": 2},
        }
    }
    text = (
        "resources: {cpus: 4+, memory: 16, accelerators: [A100:8, L4], "
        "job_recovery: {max_restarts_on_errors: 2}}"
    )
    assert task(text) == task_from_definition(definition)
