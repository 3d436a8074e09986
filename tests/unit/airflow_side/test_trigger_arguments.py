"""The arguments of a trigger survive the database (K51)."""

from __future__ import annotations

import json

from airflow.serialization.decoders import smart_decode_trigger_kwargs
from airflow.serialization.encoders import encode_trigger
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.triggers.managed_task import ManagedTaskTrigger


@given(task=st.integers(1, 2**63 - 1), owner=st.text(max_size=64), resume=st.booleans())
def test_k51_a_trigger_is_the_same_after_it_was_stored(task: int, owner: str, resume: bool) -> None:
    trigger = ManagedTaskTrigger(task=task, owner=owner, resume=resume)

    stored = json.loads(json.dumps(encode_trigger(trigger)["kwargs"]))
    restored = ManagedTaskTrigger(**smart_decode_trigger_kwargs(stored))

    assert restored.serialize() == trigger.serialize()


def test_k51_arguments_are_small_and_say_their_version() -> None:
    path, arguments = ManagedTaskTrigger(task=1, owner="o").serialize()

    assert path == "airflow_provider.triggers.managed_task.ManagedTaskTrigger"
    assert arguments == {"task": 1, "owner": "o", "resume": True, "v": 1}
    assert len(json.dumps(arguments)) < 4096


def test_k51_arguments_of_another_version_are_taken() -> None:
    newer = ManagedTaskTrigger(task=1, owner="o", resume=False, v=2, invented_later="x")
    older = ManagedTaskTrigger(task=1, owner="o")

    assert newer.managed_task == older.managed_task == 1
