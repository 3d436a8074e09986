"""What the agent takes its node for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.jobs.placement import Device
from airflow_provider.runtime.agent.node import BadNodeFile, detect, load


@pytest.fixture
def gpus(tmp_path: Path) -> Path:
    """What the NVIDIA driver shows of three GPUs."""
    for number in range(3):
        card = tmp_path / f"0000:0{number}:00.0"
        card.mkdir()
        (card / "information").write_text(f"Model: \t\t Tesla V100\nIRQ:   {number}\n")
    return tmp_path


def test_cpus_are_those_that_this_process_may_use() -> None:
    assert detect().cpus == len(os.sched_getaffinity(0))


def test_gpus_are_found_where_the_driver_shows_them(gpus: Path) -> None:
    node = detect({}, gpus)
    assert node.devices == tuple(Device(str(index), "Tesla V100") for index in range(3))


@pytest.mark.parametrize(("visible", "names"), [("0,2", ["0", "2"]), ("", []), ("-1", [])])
def test_gpus_that_the_agent_may_not_see_are_not_handed_out(
    gpus: Path, visible: str, names: list[str]
) -> None:
    assert [device.name for device in detect({"CUDA_VISIBLE_DEVICES": visible}, gpus).devices] == names


def test_a_file_names_the_part_of_the_node_that_the_agent_has(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text('{"cpus": 1.5, "accelerators": {"V100": 2}}')
    node = load(tmp_path)
    assert node.cpus == 1.5
    assert node.memory == detect().memory
    assert [device.model for device in node.devices] == ["V100", "V100"]


@pytest.mark.parametrize("text", ["", "[]", '{"cpus": "many"}', '{"accelerators": 4}'])
def test_a_file_that_makes_no_sense_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "node.json").write_text(text)
    with pytest.raises(BadNodeFile, match=r"node\.json"):
        load(tmp_path)
