"""What a job attempt is started with."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_provider.runtime.client.base import GitSource
from airflow_provider.runtime.control.machine import State
from airflow_provider.runtime.control.request import job_request, submission_key
from airflow_provider.runtime.state import FileTreeRef
from airflow_provider.runtime.task import GitWorkdir
from airflow_provider.runtime.task.spec import Candidate
from tests.unit.state.orders import order, record

STAGES = ("prepare", "train", "evaluate")
RECORD = record(
    order=order("echo hi", stages=STAGES, setup="pip list", envs={"EPOCHS": "3", "NOTHING": None}),
    cluster={"infra": "local", "name": "train-5"},
    state=State(attempt=4),
)


def test_the_task_comes_with_its_commands_and_files() -> None:
    tree = FileTreeRef("d" * 64, 10, "directory", "~/sky_workdir")
    task = order("echo hi", files=(tree,), setup="pip list", grace_seconds=7.0)
    request = job_request(record(order=task), Candidate(), {})
    assert (request.name, request.run, request.setup) == ("train", "echo hi", "pip list")
    assert request.grace_seconds == 7.0
    assert [(file.digest, file.kind, file.destination) for file in request.files] == [
        ("d" * 64, "directory", "~/sky_workdir")
    ]


def test_a_task_without_commands_is_no_special_case() -> None:
    spec = replace(order().task, run=None)
    request = job_request(record(order=replace(order(), task=spec)), Candidate(), {})
    assert (request.run, request.setup) == ("", "")


def test_the_variables_that_skypilot_sets_are_there() -> None:
    envs = job_request(RECORD, Candidate(), {}).envs
    ids = [f"sky-managed-2023-11-14-22-13-20-250000_digits_{name}_3-{n}" for n, name in enumerate(STAGES)]
    assert envs["SKYPILOT_TASK_ID"] == ids[1]
    assert envs["SKYPILOT_TASK_IDS"].split("\n") == ids
    assert envs["SKYPILOT_MANAGED_JOB_ID"] == "3"
    assert envs["SKYPILOT_JOB_RANK"] == "0"
    assert envs["SKYPILOT_USER"] == "ada"
    assert envs["TASK_ATTEMPT"] == "4"
    assert json.loads(envs["SKYPILOT_CLUSTER_INFO"]) == {
        "cluster_name": "train-5",
        "cloud": "local",
        "region": None,
        "zone": None,
    }


def test_a_task_alone_has_no_task_part_in_its_id() -> None:
    assert record().task_ids() == ["sky-managed-2023-11-14-22-13-20-250000_digits_3-0"]


def test_the_task_id_stays_the_same_over_recoveries_and_tries() -> None:
    later = replace(
        RECORD, state=State(attempt=9, recoveries=4), owner="try-7", generation=12, updated_at=1e9
    )
    ids = {job_request(each, Candidate(), {}).envs["SKYPILOT_TASK_ID"] for each in (RECORD, later)}
    assert len(ids) == 1


def test_a_repository_goes_to_the_node_as_it_is_named() -> None:
    for ref, sent in (("v1", "v1"), (None, "")):
        task = order(git=GitWorkdir("https://h/repo", ref))
        assert job_request(record(order=task), Candidate(), {}).git == GitSource("https://h/repo", sent)
    assert job_request(RECORD, Candidate(), {}).git is None


@pytest.mark.parametrize(
    ("cluster", "addresses"),
    [
        ({"infra": "ssh", "address": {"node_ip": "10.0.0.7"}}, ("10.0.0.7",)),
        ({"infra": "ssh", "address": {"node_ip": "fd00::7"}}, ("fd00::7",)),
        ({"infra": "ssh", "address": {"node_ip": ""}}, ()),
        ({"infra": "ssh", "address": {"node_ip": None}}, ()),
        ({"infra": "local", "address": {}}, ()),
        ({"infra": "local"}, ()),
        (None, ()),
    ],
)
def test_k68_the_node_is_told_how_others_reach_it(
    cluster: dict[str, object] | None, addresses: tuple[str, ...]
) -> None:
    assert job_request(record(cluster=cluster), Candidate(), {}).node_ips == addresses


def test_each_attempt_has_its_own_submission_key() -> None:
    assert submission_key(RECORD) == "5:4"
    assert submission_key(replace(RECORD, generation=99)) == "5:4"
    assert submission_key(replace(RECORD, state=State(attempt=5))) == "5:5"


def test_users_variables_come_after_ours_of_the_same_name() -> None:
    task = order(envs={"SKYPILOT_TASK_ID": "mine", "SKYPILOT_NODE_IPS": "10.0.0.1", "EPOCHS": "3"})
    secrets = {"SKYPILOT_USER": "mallory", "TOKEN": "s3cret"}
    request = job_request(record(order=task), Candidate(), secrets)
    assert request.envs["SKYPILOT_TASK_ID"].startswith("sky-managed-")
    assert request.envs["SKYPILOT_NODE_IPS"] == "10.0.0.1"
    assert request.envs["EPOCHS"] == "3"
    assert request.secrets == {"TOKEN": "s3cret"}
    assert secrets == {"SKYPILOT_USER": "mallory", "TOKEN": "s3cret"}, "the caller's own stay as they were"


def test_secrets_are_neither_among_the_plain_variables_nor_in_the_repr() -> None:
    request = job_request(RECORD, Candidate(), {"TOKEN": "s3cret"})
    assert "TOKEN" not in request.envs
    assert "s3cret" not in repr(request)


@pytest.mark.parametrize(
    ("accelerators", "gpus"),
    [({}, "0"), ({"A100": 8.0}, "8"), ({"A100": 0.5}, "1"), ({"L4": 2.5}, "3"), ({"tpu-v5e-8": 1.0}, "0")],
)
def test_gpus_are_rounded_up_and_other_accelerators_are_none(
    accelerators: dict[str, float], gpus: str
) -> None:
    envs = job_request(RECORD, Candidate(accelerators=accelerators), {}).envs
    assert envs["SKYPILOT_NUM_GPUS_PER_NODE"] == gpus
    assert envs["SKYPILOT_SETUP_NUM_GPUS_PER_NODE"] == gpus
