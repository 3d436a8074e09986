"""Our messages against the descriptors that SkyPilot generates: number for number."""

from __future__ import annotations

import base64
import json

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto

from airflow_provider.runtime.wire import autostop_pb2, jobs_pb2, managed_jobs_pb2, rpcs, serve_pb2
from tests.interop.peer import run_in_peer

MODULES = {
    "autostopv1_pb2": autostop_pb2,
    "jobsv1_pb2": jobs_pb2,
    "managed_jobsv1_pb2": managed_jobs_pb2,
    "servev1_pb2": serve_pb2,
}
SERVICES = {
    "autostop.v1.AutostopService": rpcs.AUTOSTOP_RPCS,
    "jobs.v1.JobsService": rpcs.JOBS_RPCS,
    "managed_jobs.v1.ManagedJobsService": rpcs.MANAGED_JOBS_RPCS,
    "serve.v1.ServeService": rpcs.SERVE_RPCS,
}
OURS_ALONE = {
    "GetJobSubmittedTimestampResponse.exact_timestamp",
    "GetJobEndedTimestampResponse.exact_timestamp",
}
"""Fields that SkyPilot does not have; it skips them."""

# The generated modules alone: importing the whole of SkyPilot takes seconds.
DUMP = """
import base64, importlib.util, json, pathlib, sys, types
folder = pathlib.Path(importlib.util.find_spec("sky").submodule_search_locations[0]) / "schemas" / "generated"
for name in ("sky", "sky.schemas", "sky.schemas.generated"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [str(folder)]
found = {}
for name in sys.argv[1:]:
    module = __import__("sky.schemas.generated." + name, fromlist=["DESCRIPTOR"])
    found[name] = base64.b64encode(module.DESCRIPTOR.serialized_pb).decode()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def theirs() -> dict[str, FileDescriptorProto]:
    found = json.loads(run_in_peer(DUMP, list(MODULES)))
    return {name: FileDescriptorProto.FromString(base64.b64decode(text)) for name, text in found.items()}


def short(name: str) -> str:
    """Return a type's name without its package, whose name is ours here and theirs there."""
    return name.split(".v1.")[-1]


def fields_of(file: FileDescriptorProto) -> dict[str, object]:
    """Return all that travels, or decides what travels, of a file's messages and enumerations."""
    found: dict[str, object] = {}

    def message(prefix: str, one: DescriptorProto) -> None:
        name = prefix + one.name
        oneofs = [oneof.name for oneof in one.oneof_decl]
        found[name] = sorted(
            (
                field.number,
                field.name,
                field.type,
                field.label,
                short(field.type_name),
                field.proto3_optional,
                oneofs[field.oneof_index] if field.HasField("oneof_index") else None,
            )
            for field in one.field
            if f"{name}.{field.name}" not in OURS_ALONE
        )
        found[name + " options"] = one.options.map_entry
        for nested in one.nested_type:
            message(f"{name}.", nested)
        for nested_enum in one.enum_type:
            enumeration(f"{name}.", nested_enum)

    def enumeration(prefix: str, one: EnumDescriptorProto) -> None:
        values = one.value
        found[prefix + one.name] = sorted((value.number, value.name) for value in values)

    for each in file.message_type:
        message("", each)
    for each_enum in file.enum_type:
        enumeration("", each_enum)
    return found


def test_fields_of_ours_alone_keep_away_from_the_numbers_that_skypilot_will_give() -> None:
    for name in OURS_ALONE:
        message, field = name.split(".")
        assert jobs_pb2.DESCRIPTOR.message_types_by_name[message].fields_by_name[field].number >= 100


@pytest.mark.parametrize("name", MODULES)
def test_every_message_and_enumeration_is_the_same_on_the_wire(
    theirs: dict[str, FileDescriptorProto], name: str
) -> None:
    ours = FileDescriptorProto.FromString(MODULES[name].DESCRIPTOR.serialized_pb)
    assert fields_of(ours) == fields_of(theirs[name])
    assert (ours.syntax, ours.options.features) == (theirs[name].syntax, theirs[name].options.features)


def test_every_call_is_in_our_table_with_its_path_its_messages_and_its_streams(
    theirs: dict[str, FileDescriptorProto],
) -> None:
    expected = {
        f"/{file.package}.{service.name}/{method.name}": (
            short(method.input_type),
            short(method.output_type),
            method.client_streaming,
            method.server_streaming,
        )
        for file in theirs.values()
        for service in file.service
        for method in service.method
    }
    ours = {
        rpc.path: (
            rpc.request.DESCRIPTOR.name,
            rpc.response.DESCRIPTOR.name,
            rpc.client_streams,
            rpc.server_streams,
        )
        for table in SERVICES.values()
        for rpc in table
    }
    assert ours == expected
    assert {rpc.service for table in SERVICES.values() for rpc in table} == set(SERVICES)
