"""Choosing among a task's candidates: what this machine has, and words for each that it has not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.jobs.placement import Device, Node
from airflow_provider.runtime.infra import this_machine
from airflow_provider.runtime.infra.base import NotFeasible
from airflow_provider.runtime.infra.this_machine import choose_candidate
from airflow_provider.runtime.task import TaskSpec, load_chain_file


def task(tmp_path: Path, text: str) -> TaskSpec:
    path = tmp_path / "task.yaml"
    path.write_text(f"name: t\nrun: hostname\n{text}")
    return load_chain_file(path).tasks[0]


def refusal(task: TaskSpec) -> str:
    with pytest.raises(NotFeasible) as caught:
        choose_candidate(task)
    return str(caught.value)


def test_a_task_without_wishes_fits(tmp_path: Path) -> None:
    assert choose_candidate(task(tmp_path, "")).candidate.infra is None


def test_a_task_for_this_machine_fits(tmp_path: Path) -> None:
    assert (
        choose_candidate(task(tmp_path, "resources: {infra: local, cpus: 1+, memory: 0.1+}")).candidate.infra
        == "local"
    )


def test_more_than_this_machine_has_is_told_with_what_it_has(tmp_path: Path) -> None:
    cpus = len(os.sched_getaffinity(0))
    assert refusal(task(tmp_path, "resources: {cpus: 4096}")) == f"cpus: 4096 wanted, this machine has {cpus}"
    assert "memory: 1e+06 GiB wanted" in refusal(task(tmp_path, "resources: {memory: 1000000}"))


def test_several_nodes_are_refused_with_a_remedy(tmp_path: Path) -> None:
    assert "Set num_nodes to 1" in refusal(task(tmp_path, "num_nodes: 2"))


def test_files_outside_of_the_jobs_home_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    assert "file_mounts: /etc/x" in refusal(task(tmp_path, "file_mounts: {/etc/x: ./f}"))


def test_the_first_candidate_that_fits_is_taken_and_the_base_belongs_to_it(tmp_path: Path) -> None:
    text = (
        "resources:\n  cpus: 1+\n  any_of:\n    - {infra: slurm/fakeA}\n    - {infra: local, memory: 0.1+}\n"
    )
    found = choose_candidate(task(tmp_path, text)).candidate
    assert found.infra == "local"
    assert found.cpus is not None
    assert found.cpus.amount == 1


def test_when_none_fits_each_is_named(tmp_path: Path) -> None:
    text = """
resources:
  cpus: 1+
  job_recovery: {strategy: FAILOVER}
  any_of:
    - {use_spot: true, infra: slurm/fakeA}
    - {use_spot: false, infra: slurm/fakeB}
    - {infra: local, cpus: 4096}
"""
    words = refusal(task(tmp_path, text)).split("; ")
    assert "infra slurm/fakeA is not supported yet" in words[0]
    assert "infra slurm/fakeB is not supported yet" in words[1]
    assert words[2].startswith("cpus: 4096 wanted")


def test_accelerators_are_counted_by_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = Node(8, 64, (Device("0", "NVIDIA A100-SXM4-80GB"), Device("1", "NVIDIA A100-SXM4-80GB")))
    monkeypatch.setattr(this_machine, "detect", lambda: two)
    assert choose_candidate(task(tmp_path, "resources: {accelerators: 'A100:2'}"))
    assert "A100:4 wanted" in refusal(task(tmp_path, "resources: {accelerators: 'A100:4'}"))
    assert "H100:1 wanted" in refusal(task(tmp_path, "resources: {accelerators: H100}"))
    monkeypatch.setattr(this_machine, "detect", lambda: Node(8, 64))
    assert "no NVIDIA GPU" in refusal(task(tmp_path, "resources: {accelerators: H100}"))
