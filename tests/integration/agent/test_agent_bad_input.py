"""Whatever is sent to the agent, it answers with a status that says whose fault it is, and goes on."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from airflow_provider.runtime.wire import rpcs
from airflow_provider.runtime.wire.rpcs import Rpc
from tests.integration.agents import Agent, refused

ALL = (
    *rpcs.AGENT_RPCS,
    *rpcs.JOBS_RPCS,
    *rpcs.AUTOSTOP_RPCS,
    *rpcs.MANAGED_JOBS_RPCS,
    *rpcs.SERVE_RPCS,
)
ROUNDS = 25
"""Requests of each call; each has other fields set to other odd values."""

_NUMBERS = {
    FieldDescriptor.TYPE_INT32: (0, 1, -1, (1 << 31) - 1, -(1 << 31)),
    FieldDescriptor.TYPE_INT64: (0, 1, -1, 2, 1 << 53, (1 << 63) - 1, -(1 << 63)),
    FieldDescriptor.TYPE_DOUBLE: (0.0, -1.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan")),
    FieldDescriptor.TYPE_ENUM: (0, 1, 2, 99, -1),
    FieldDescriptor.TYPE_BOOL: (False, True),
}
_TEXTS = (
    "",
    "x",
    "\0",
    "a\0b",
    "../../../../etc/passwd",
    "{",
    "null",
    '{"a": null}',
    "\ud7ff\ue000\ufffe\uffff",
    "\U0010ffff" * 300,
    "\u202e%s%n{0}$(false)`false`';--",
    "x" * 300_000,
    "1x[CPU:nan]",
    "1x[V100:1e999]",
    "NaN",
    "-1",
    "9" * 5000,
    "[" * 200_000,
    "-",
    "/" * 5000,
)
_EXPECTED = {
    "OK",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "FAILED_PRECONDITION",
    "PERMISSION_DENIED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "DEADLINE_EXCEEDED",  # a stream that waits for what may still come
}
_SEALED = {
    # What would end the agent, as it should.
    "HandshakeRequest.lease_seconds": (0.0, -1.0, float("nan"), 1e308),
    "SetAutostopRequest.idle_minutes": (-1, 1000, (1 << 31) - 1, -(1 << 31)),
}


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    root = tmp_path / "cluster"
    root.mkdir()
    made = await Agent(root).start()
    try:
        yield made
    finally:
        await made.close()
        made.end()


def fill(message: Message, odd: random.Random) -> Message:
    """Set some fields to values that nobody means."""
    for field in message.DESCRIPTOR.fields:
        if odd.random() < 0.4 and f"{message.DESCRIPTOR.name}.{field.name}" not in _SEALED:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), field, odd)
        elif field.is_repeated:
            _fill_list(getattr(message, field.name), field, odd)
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            fill(getattr(message, field.name), odd)
        else:
            setattr(message, field.name, _value(field, odd))
    return message


def _fill_list(values: Any, field: FieldDescriptor, odd: random.Random) -> None:
    for _ in range(odd.choice((0, 1, 3, 700))):
        if field.message_type is not None:
            fill(values.add(), odd)
        else:
            value = _value(field, odd)
            values.append(value[:100] if isinstance(value, (str, bytes)) else value)


def _fill_map(values: Any, field: FieldDescriptor, odd: random.Random) -> None:
    key, value = field.message_type.fields
    for _ in range(odd.choice((0, 1, 3))):
        values[_value(key, odd)] = _value(value, odd)


def _value(field: FieldDescriptor, odd: random.Random) -> Any:
    sealed = _SEALED.get(f"{field.containing_type.name}.{field.name}")
    if sealed is not None:
        return odd.choice(sealed)
    if field.type == FieldDescriptor.TYPE_STRING:
        return odd.choice(_TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return odd.choice((b"", b"\0\xff", b"x" * 300_000))
    return odd.choice(_NUMBERS[field.type])


async def answer(channel: grpc.aio.Channel, rpc: Rpc[Any, Any], message: bytes, seconds: float = 2) -> str:
    """Make a call with a message as it is, and return the name of its status. Of streams, a bit is read."""
    call: Any
    if rpc.client_streams:
        kind = channel.stream_stream if rpc.server_streams else channel.stream_unary
        call = kind(rpc.path)(timeout=seconds)
    else:
        call = (channel.unary_stream if rpc.server_streams else channel.unary_unary)(rpc.path)(
            message, timeout=seconds
        )
    try:
        if rpc.client_streams:
            await call.write(message)
        if not rpc.server_streams:
            await call
        elif await call.read() is not grpc.aio.EOF:
            call.cancel()
            return "OK"
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return str((await call.code()).name)


async def test_i1_20_no_request_is_an_unknown_or_internal_error(agent: Agent) -> None:
    odd = random.Random(20)
    pid = agent.pid
    answers: dict[str, set[str]] = {}
    for rpc in ALL:
        codes = answers.setdefault(rpc.path, set())
        for _ in range(ROUNDS):
            streams = rpc.client_streams or rpc.server_streams
            message = fill(rpc.request(), odd).SerializeToString()
            codes.add(await answer(agent.channel, rpc, message, 0.5 if streams else 30))
    others = {path: codes - _EXPECTED for path, codes in answers.items()}
    assert {path: codes for path, codes in others.items() if codes} == {}, agent.log[-5000:]
    # The requests reach what they are meant to reach.
    assert answers[rpcs.ADD_JOB.path] >= {"OK", "INVALID_ARGUMENT"}
    assert answers[rpcs.SUBMIT.path] >= {"OK", "INVALID_ARGUMENT"}
    assert answers[rpcs.TAIL_LOGS.path] >= {"OK"}
    assert answers[rpcs.CANCEL.path] >= {"INVALID_ARGUMENT", "NOT_FOUND"}
    assert answers[rpcs.ADD_VERSION.path] == {"UNIMPLEMENTED"}
    # And all goes on.
    assert agent.pid == pid
    job_id = await agent.submit("true")
    await agent.until_status(job_id, 6)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x00"])
async def test_i1_20_bytes_that_are_no_message_are_invalid(agent: Agent, data: bytes) -> None:
    answers = {rpc.path: await answer(agent.channel, rpc, data) for rpc in ALL}
    serve = {rpc.path for rpc in rpcs.SERVE_RPCS}
    assert {path: code for path, code in answers.items() if path not in serve} == {
        rpc.path: "INVALID_ARGUMENT" for rpc in ALL if rpc.path not in serve
    }
    assert {answers[path] for path in serve} <= {"INVALID_ARGUMENT", "UNIMPLEMENTED"}


async def test_i1_20_text_that_is_no_unicode_is_invalid(agent: Agent) -> None:
    for surrogate in (b"\xed\xa0\x80", b"\xff\xfe"):
        data = b"\x0a" + bytes([len(surrogate)]) + surrogate
        assert await answer(agent.channel, rpcs.ADD_JOB, data) == "INVALID_ARGUMENT"


async def test_k84_a_message_that_is_too_large_is_refused_and_the_next_one_is_not(agent: Agent) -> None:
    large = rpcs.ADD_JOB.request(job_name="x" * (65 << 20)).SerializeToString()
    assert await answer(agent.channel, rpcs.ADD_JOB, large, 30) == "RESOURCE_EXHAUSTED"
    some = rpcs.ADD_JOB.request(job_name="x" * (5 << 20), run_timestamp="t").SerializeToString()
    assert await answer(agent.channel, rpcs.ADD_JOB, some, 30) == "OK"


async def test_words_of_a_refusal_are_short_enough_to_travel(agent: Agent) -> None:
    for character in ("x", "\U0010ffff", "\0"):
        for size in (500, 600, 4000, 300_000):
            request = rpcs.STAT_BLOB.request(digest=character * size)
            refusal = await refused(rpcs.STAT_BLOB.unary(agent.channel)(request, timeout=30))
            assert refusal.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert len(refusal.details() or "") < 1000
