"""Which jobs fit on a node together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.agent.jobs.placement import (
    DEFAULT_CPUS,
    Demand,
    Device,
    Node,
    Share,
    demand_of_words,
    matches,
    misfit,
    place,
    unsound,
)

GPUS = Node(8, 64, tuple(Device(str(index), "NVIDIA A100-SXM4-80GB") for index in range(4)))


def gpu(count: float) -> Demand:
    return Demand(0.5, 0, {"A100": count})


def test_four_jobs_that_ask_for_nothing_share_two_cpus() -> None:
    node, taken = Node(2, 8), list[Share]()
    while (share := place(node, taken, Demand())) is not None:
        taken.append(share)
    assert len(taken) == 4


def test_memory_is_shared_out() -> None:
    assert place(Node(8, 16), [Share(1, 10)], Demand(1, 6)) == Share(1, 6)
    assert place(Node(8, 16), [Share(1, 10)], Demand(1, 6.1)) is None


def test_whole_devices_are_given_to_one_job_each() -> None:
    first = place(GPUS, [], gpu(2))
    assert first is not None
    second = place(GPUS, [first], gpu(2))
    assert second is not None
    assert set(first.devices) | set(second.devices) == {"0", "1", "2", "3"}
    assert place(GPUS, [first, second], gpu(1)) is None


def test_fractions_share_a_device_and_leave_the_others_whole() -> None:
    first = place(GPUS, [], gpu(0.5))
    assert first is not None
    second = place(GPUS, [first], gpu(0.5))
    assert second is not None
    assert first.devices == second.devices == {"0": 0.5}
    whole = place(GPUS, [first, second], gpu(3))
    assert whole is not None
    assert whole.devices == {"1": 1.0, "2": 1.0, "3": 1.0}
    assert place(GPUS, [first, second, whole], gpu(0.1)) is None


def test_tenths_add_up_to_a_whole_device() -> None:
    node, taken = Node(8, 64, GPUS.devices[:1]), list[Share]()
    while (share := place(node, taken, gpu(0.1))) is not None:
        taken.append(share)
    assert len(taken) == 10


def test_a_job_without_accelerators_gets_none() -> None:
    assert place(GPUS, [], Demand()) == Share(DEFAULT_CPUS, 0, {})


def test_devices_of_another_model_do_not_count() -> None:
    assert place(GPUS, [], Demand(1, 0, {"V100": 1})) is None


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        (Demand(9), "cpus: 9 wanted, the node has 8"),
        (Demand(1, 65), "memory: 65 GiB wanted, the node has 64.0 GiB"),
        (gpu(5), "accelerators: A100:5 wanted"),
        (Demand(1, 0, {"V100": 1}), "accelerators: V100:1 wanted"),
    ],
)
def test_what_never_fits_is_named(demand: Demand, words: str) -> None:
    assert words in str(misfit(GPUS, demand))


def test_what_fits_on_an_empty_node_is_no_misfit() -> None:
    assert misfit(GPUS, Demand(8, 64, {"A100": 4})) is None


@pytest.mark.parametrize(
    ("demand", "field"),
    [
        (Demand(-1), "cpus"),
        (Demand(float("nan")), "cpus"),
        (Demand(1, float("inf")), "memory"),
        (Demand(1, 0, {"A100": -0.5}), "accelerators['A100']"),
        (Demand(1, 0, {"A100": 1.5}), "accelerators['A100'] is 1.5: more than one device"),
    ],
)
def test_a_demand_that_means_nothing_is_named(demand: Demand, field: str) -> None:
    assert str(unsound(demand)).startswith(field)


@pytest.mark.parametrize(
    ("wanted", "model", "same"),
    [
        ("A100", "NVIDIA A100-SXM4-40GB", True),
        ("A100-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("A100-80GB", "NVIDIA A100-SXM4-40GB", False),
        ("V100", "Tesla V100-SXM2-16GB", True),
        ("RTX4090", "NVIDIA GeForce RTX 4090", True),
        ("H100", "NVIDIA A100-SXM4-40GB", False),
        ("", "NVIDIA A100-SXM4-40GB", False),
    ],
)
def test_names_of_models(wanted: str, model: str, same: bool) -> None:
    assert matches(wanted, model) is same


@pytest.mark.parametrize(
    ("words", "demand"),
    [
        ("1x[CPU:0.5]", Demand(0.5)),
        ("1x[CPU:2+]", Demand(2)),
        ("2x[A100-80GB:8][Spot]", Demand(0.5, 0, {"A100-80GB": 8})),
        ("1x[V100:0.5, CPU:1]", Demand(1, 0, {"V100": 0.5})),
        ("", Demand()),
        ("a laptop", Demand()),
        ("1x[V100:many]", Demand()),
    ],
)
def test_what_skypilot_writes_of_resources_is_understood(words: str, demand: Demand) -> None:
    assert demand_of_words(words) == demand


demands = st.builds(
    Demand,
    st.floats(0, 10),
    st.floats(0, 80),
    st.dictionaries(st.just("A100"), st.one_of(st.floats(0.01, 0.99), st.integers(1, 5)), max_size=1),
)


@given(st.lists(demands, max_size=30))
def test_no_more_is_given_than_there_is(wanted: list[Demand]) -> None:
    taken: list[Share] = []
    for demand in wanted:
        share = place(GPUS, taken, demand)
        if share is not None:
            taken.append(share)
    assert sum(share.cpus for share in taken) <= GPUS.cpus + 1e-3
    assert sum(share.memory for share in taken) <= GPUS.memory + 1e-3
    for device in GPUS.devices:
        assert sum(share.devices.get(device.name, 0) for share in taken) <= 1 + 1e-3
