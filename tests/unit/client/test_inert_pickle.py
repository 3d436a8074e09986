"""Pickles of strangers: read, never run."""

from __future__ import annotations

import builtins
import enum
import os
import pickle
import pickletools
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.client.inert_pickle import InertPickleError, Record, Symbol, loads

keys = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 60), 1 << 60)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
plain = st.recursive(
    keys | st.integers(),
    lambda below: (
        st.lists(below)
        | st.lists(below).map(tuple)
        | st.dictionaries(keys, below)
        | st.sets(keys)
        | st.frozensets(keys)
    ),
    max_leaves=20,
)


class Status(enum.Enum):
    READY = "READY"


class Handle:
    def __init__(self) -> None:
        self.ips = ["10.0.0.1"]


class Call:
    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._call


@given(value=plain, protocol=st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_values_come_out_as_they_went_in(value: object, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    if protocol < 3 and (b"_codecs" in data or b"bytes" in data):
        return  # bytes of old protocols are made by a call, and stay records
    assert loads(data) == value


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_objects_become_records_of_what_they_are_made_of(protocol: int) -> None:
    found = loads(pickle.dumps({"status": Status.READY, "handle": Handle(), "all": [Status.READY]}, protocol))
    assert isinstance(found, dict)
    status, handle = found["status"], found["handle"]
    assert isinstance(status, Record)
    assert isinstance(handle, Record)
    assert (status.kind, status.arguments) == (Symbol(__name__, "Status"), ("READY",))
    assert handle.state == {"ips": ["10.0.0.1"]}
    assert found["all"] == [status]
    ordered = loads(pickle.dumps(OrderedDict(a=1), protocol))
    assert isinstance(ordered, Record)
    assert Symbol("collections", "OrderedDict") == ordered.kind


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_i1_21_calls_are_not_made(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "called"
    for call in (
        Call(os.system, f"touch {trace}"),
        Call(builtins.eval, f"open({str(trace)!r}, 'w')"),
        Call(builtins.exec, f"open({str(trace)!r}, 'w')"),
        Call(getattr, os, "system") if protocol > 9 else Call(__import__, "os"),
    ):
        found = loads(pickle.dumps([call], protocol))
        assert isinstance(found, list)
        assert isinstance(found[0], Record)
    assert not trace.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b".",
        b"(.",
        b"N",
        b"NN0",
        b"0.",
        b"g1\n.",
        b"Na.",
        b"Nb.",
        b"(dNs.",
        b"(NNNd.",
        b"NR.",
        b"NNR.",
        b"NNN\x92.",
        b"NN\x93.",
        b"e.",
        b"cos\nsystem\n(S'true'\ntRb.",
        b"I1\nP.",
        b"Ppersistent\n.",
        b"NQ.",
        b"\x82\x01.",
        b"\x97.",
        b"I" + b"9" * 5000 + b"\n.",
        pickle.dumps([1, 2, 3])[:-3],
    ],
)
def test_broken_pickles_and_those_of_no_plain_data_are_refused(data: bytes) -> None:
    with pytest.raises(InertPickleError):
        loads(data)


def self_containing() -> bytes:
    value: list[object] = []
    value.append(value)
    return pickle.dumps(value)


def laughing() -> bytes:
    value: list[object] = ["ha"]
    for _ in range(60):
        value = [value, value]
    return pickle.dumps(value)


BOMBS = {
    "contains itself": self_containing(),
    "a deep one": b"]" + b"]" * 5000 + b"a" * 5000 + b".",
    "shared parts without end": laughing(),
    "more steps than any status": b"(" + b"N" * 2_000_000 + b"t.",
    "more bytes than any status": b"B" + (20 << 20).to_bytes(4, "little") + b"x" * (20 << 20) + b".",
    "a size that is not there": b"\x8e" + (1 << 62).to_bytes(8, "little") + b"x.",
    "an integer that hashes slowly": b"}(\x8b"
    + (1 << 20).to_bytes(4, "little")
    + b"\x01" * (1 << 20)
    + b"Nu.",
    "equal hashes": b"}("
    + b"".join(pickle.dumps(n * ((1 << 61) - 1), 2)[2:-1] + b"N" for n in range(2, 9))
    + b"u.",
    "a long tuple as key": b"}((" + b"N" * 1000 + b"tNu.",
    "more keys than any status": pickle.dumps(dict.fromkeys(range(10_001))),
    "more members than any status": pickle.dumps(set(range(10_001))),
    "more members of an old protocol": pickle.dumps(set(range(10_001)), 2),
    "more frozen members": pickle.dumps(frozenset(range(10_001)), 4),
    "many containers of many keys": pickle.dumps([set(range(n, n + 9_000)) for n in range(3)]),
    "one list as many sets": b"(]\x94("
    + b"".join(b"M" + n.to_bytes(2, "little") for n in range(9_000))
    + b"e"
    b"c__builtin__\nset\n\x94" + b"h\x01h\x00\x85R" * 20 + b"t.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_in_a_moment(name: str) -> None:
    begun = time.process_time()
    with pytest.raises(InertPickleError):
        loads(BOMBS[name])
    assert time.process_time() - begun < 10


def test_a_refused_pickle_says_what_it_has_too_much_of() -> None:
    with pytest.raises(InertPickleError, match="a container of more than 10000 keys"):
        loads(BOMBS["more keys than any status"])
    with pytest.raises(InertPickleError, match="too many large containers"):
        loads(BOMBS["one list as many sets"])
    with pytest.raises(InertPickleError, match="more than 300000 steps"):
        loads(BOMBS["more steps than any status"])
    assert loads(pickle.dumps(dict.fromkeys(range(10_000)))) == dict.fromkeys(range(10_000))
    replicas = [dict.fromkeys("abcdefghijklmno", n) for n in range(3_000)]
    assert loads(pickle.dumps(replicas)) == replicas


def test_every_opcode_is_known_or_refused() -> None:
    """Also the ones of a later Python: nothing is skipped silently."""
    from airflow_provider.runtime.client import inert_pickle as module

    handled = module._VALUES | module._NOTHING | set(module._CONSTANTS) | set(module._ACTIONS)
    refused = {opcode.name for opcode in pickletools.opcodes} - handled
    assert refused == {
        "PERSID",
        "BINPERSID",
        "EXT1",
        "EXT2",
        "EXT4",
        "NEXT_BUFFER",
        "READONLY_BUFFER",
        "BYTEARRAY8",
    }
