from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATUS_UNSPECIFIED: _ClassVar[JobStatus]
    INIT: _ClassVar[JobStatus]
    PENDING: _ClassVar[JobStatus]
    SETTING_UP: _ClassVar[JobStatus]
    RUNNING: _ClassVar[JobStatus]
    FAILED_DRIVER: _ClassVar[JobStatus]
    SUCCEEDED: _ClassVar[JobStatus]
    FAILED: _ClassVar[JobStatus]
    FAILED_SETUP: _ClassVar[JobStatus]
    CANCELLED: _ClassVar[JobStatus]
    CANCELLING: _ClassVar[JobStatus]
JOB_STATUS_UNSPECIFIED: JobStatus
INIT: JobStatus
PENDING: JobStatus
SETTING_UP: JobStatus
RUNNING: JobStatus
FAILED_DRIVER: JobStatus
SUCCEEDED: JobStatus
FAILED: JobStatus
FAILED_SETUP: JobStatus
CANCELLED: JobStatus
CANCELLING: JobStatus

class Owner(_message.Message):
    __slots__ = ("id", "generation")
    ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    id: str
    generation: int
    def __init__(self, id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class HandshakeRequest(_message.Message):
    __slots__ = ("lease_seconds",)
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    lease_seconds: float
    def __init__(self, lease_seconds: _Optional[float] = ...) -> None: ...

class HandshakeResponse(_message.Message):
    __slots__ = ("protocol_version", "agent_version", "features", "instance", "boot_id", "pid")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    agent_version: str
    features: _containers.RepeatedScalarFieldContainer[str]
    instance: str
    boot_id: str
    pid: int
    def __init__(self, protocol_version: _Optional[int] = ..., agent_version: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., instance: _Optional[str] = ..., boot_id: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class Files(_message.Message):
    __slots__ = ("digest", "kind", "destination")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Files.Kind]
        DIRECTORY: _ClassVar[Files.Kind]
        FILE: _ClassVar[Files.Kind]
    KIND_UNSPECIFIED: Files.Kind
    DIRECTORY: Files.Kind
    FILE: Files.Kind
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    digest: str
    kind: Files.Kind
    destination: str
    def __init__(self, digest: _Optional[str] = ..., kind: _Optional[_Union[Files.Kind, str]] = ..., destination: _Optional[str] = ...) -> None: ...

class GitSource(_message.Message):
    __slots__ = ("url", "ref")
    URL_FIELD_NUMBER: _ClassVar[int]
    REF_FIELD_NUMBER: _ClassVar[int]
    url: str
    ref: str
    def __init__(self, url: _Optional[str] = ..., ref: _Optional[str] = ...) -> None: ...

class Demand(_message.Message):
    __slots__ = ("cpus", "memory", "accelerators")
    class AcceleratorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    ACCELERATORS_FIELD_NUMBER: _ClassVar[int]
    cpus: float
    memory: float
    accelerators: _containers.ScalarMap[str, float]
    def __init__(self, cpus: _Optional[float] = ..., memory: _Optional[float] = ..., accelerators: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ManagedTask(_message.Message):
    __slots__ = ("job_id", "job_name", "task_id", "task_name", "user", "workspace", "attempt", "infra", "resources", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_NAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    INFRA_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    job_name: str
    task_id: int
    task_name: str
    user: str
    workspace: str
    attempt: int
    infra: str
    resources: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, job_id: _Optional[int] = ..., job_name: _Optional[str] = ..., task_id: _Optional[int] = ..., task_name: _Optional[str] = ..., user: _Optional[str] = ..., workspace: _Optional[str] = ..., attempt: _Optional[int] = ..., infra: _Optional[str] = ..., resources: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class JobSpec(_message.Message):
    __slots__ = ("name", "setup", "run", "envs", "secrets", "files", "grace_seconds", "demand", "managed", "flush_seconds", "git", "node_ips")
    class EnvsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETUP_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ENVS_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    MANAGED_FIELD_NUMBER: _ClassVar[int]
    FLUSH_SECONDS_FIELD_NUMBER: _ClassVar[int]
    GIT_FIELD_NUMBER: _ClassVar[int]
    NODE_IPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    setup: str
    run: str
    envs: _containers.ScalarMap[str, str]
    secrets: _containers.ScalarMap[str, str]
    files: _containers.RepeatedCompositeFieldContainer[Files]
    grace_seconds: float
    demand: Demand
    managed: ManagedTask
    flush_seconds: float
    git: GitSource
    node_ips: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., setup: _Optional[str] = ..., run: _Optional[str] = ..., envs: _Optional[_Mapping[str, str]] = ..., secrets: _Optional[_Mapping[str, str]] = ..., files: _Optional[_Iterable[_Union[Files, _Mapping]]] = ..., grace_seconds: _Optional[float] = ..., demand: _Optional[_Union[Demand, _Mapping]] = ..., managed: _Optional[_Union[ManagedTask, _Mapping]] = ..., flush_seconds: _Optional[float] = ..., git: _Optional[_Union[GitSource, _Mapping]] = ..., node_ips: _Optional[_Iterable[str]] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("key", "owner", "job")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    key: str
    owner: Owner
    job: JobSpec
    def __init__(self, key: _Optional[str] = ..., owner: _Optional[_Union[Owner, _Mapping]] = ..., job: _Optional[_Union[JobSpec, _Mapping]] = ...) -> None: ...

class SubmitResponse(_message.Message):
    __slots__ = ("job_id", "created")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    created: bool
    def __init__(self, job_id: _Optional[int] = ..., created: bool = ...) -> None: ...

class JobState(_message.Message):
    __slots__ = ("job_id", "status", "exit_codes", "reason", "output", "submitted_at", "started_at", "ended_at", "log_size", "name")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    LOG_SIZE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    status: JobStatus
    exit_codes: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    output: str
    submitted_at: float
    started_at: float
    ended_at: float
    log_size: int
    name: str
    def __init__(self, job_id: _Optional[int] = ..., status: _Optional[_Union[JobStatus, str]] = ..., exit_codes: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ..., output: _Optional[str] = ..., submitted_at: _Optional[float] = ..., started_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., log_size: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    def __init__(self, job_id: _Optional[int] = ...) -> None: ...

class FollowStart(_message.Message):
    __slots__ = ("job_id", "owner", "offset")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    owner: Owner
    offset: int
    def __init__(self, job_id: _Optional[int] = ..., owner: _Optional[_Union[Owner, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("start", "acknowledged")
    START_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    start: FollowStart
    acknowledged: int
    def __init__(self, start: _Optional[_Union[FollowStart, _Mapping]] = ..., acknowledged: _Optional[int] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FollowResponse(_message.Message):
    __slots__ = ("log", "state", "heartbeat")
    LOG_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    log: LogChunk
    state: JobState
    heartbeat: Heartbeat
    def __init__(self, log: _Optional[_Union[LogChunk, _Mapping]] = ..., state: _Optional[_Union[JobState, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("job_id", "owner", "grace_seconds")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    owner: Owner
    grace_seconds: float
    def __init__(self, job_id: _Optional[int] = ..., owner: _Optional[_Union[Owner, _Mapping]] = ..., grace_seconds: _Optional[float] = ...) -> None: ...

class StatBlobRequest(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: str
    def __init__(self, digest: _Optional[str] = ...) -> None: ...

class StatBlobResponse(_message.Message):
    __slots__ = ("complete",)
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    complete: bool
    def __init__(self, complete: bool = ...) -> None: ...

class MissingChunksRequest(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, digests: _Optional[_Iterable[bytes]] = ...) -> None: ...

class MissingChunksResponse(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, digests: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PutChunksRequest(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class PutChunksResponse(_message.Message):
    __slots__ = ("received",)
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    received: int
    def __init__(self, received: _Optional[int] = ...) -> None: ...

class PutBlobRequest(_message.Message):
    __slots__ = ("digest", "size", "chunks")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    digest: str
    size: int
    chunks: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, digest: _Optional[str] = ..., size: _Optional[int] = ..., chunks: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PutBlobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("holder", "seconds")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    holder: str
    seconds: float
    def __init__(self, holder: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class LeaseResponse(_message.Message):
    __slots__ = ("left",)
    LEFT_FIELD_NUMBER: _ClassVar[int]
    left: float
    def __init__(self, left: _Optional[float] = ...) -> None: ...

class NodeHealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Device(_message.Message):
    __slots__ = ("index", "model", "taken")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    index: int
    model: str
    taken: float
    def __init__(self, index: _Optional[int] = ..., model: _Optional[str] = ..., taken: _Optional[float] = ...) -> None: ...

class NodeHealth(_message.Message):
    __slots__ = ("rank", "alive", "boot_id", "uptime", "cpus", "cpus_taken", "memory", "memory_taken", "load", "disk_free", "devices")
    RANK_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    CPUS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TAKEN_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    alive: bool
    boot_id: str
    uptime: float
    cpus: float
    cpus_taken: float
    memory: float
    memory_taken: float
    load: float
    disk_free: int
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    def __init__(self, rank: _Optional[int] = ..., alive: bool = ..., boot_id: _Optional[str] = ..., uptime: _Optional[float] = ..., cpus: _Optional[float] = ..., cpus_taken: _Optional[float] = ..., memory: _Optional[float] = ..., memory_taken: _Optional[float] = ..., load: _Optional[float] = ..., disk_free: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ...) -> None: ...

class AutostopState(_message.Message):
    __slots__ = ("set", "idle_minutes", "down", "wait_for", "idle_seconds", "autostopping")
    SET_FIELD_NUMBER: _ClassVar[int]
    IDLE_MINUTES_FIELD_NUMBER: _ClassVar[int]
    DOWN_FIELD_NUMBER: _ClassVar[int]
    WAIT_FOR_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    AUTOSTOPPING_FIELD_NUMBER: _ClassVar[int]
    set: bool
    idle_minutes: int
    down: bool
    wait_for: str
    idle_seconds: float
    autostopping: bool
    def __init__(self, set: bool = ..., idle_minutes: _Optional[int] = ..., down: bool = ..., wait_for: _Optional[str] = ..., idle_seconds: _Optional[float] = ..., autostopping: bool = ...) -> None: ...

class NodeHealthResponse(_message.Message):
    __slots__ = ("nodes", "autostop", "lease_left")
    NODES_FIELD_NUMBER: _ClassVar[int]
    AUTOSTOP_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeHealth]
    autostop: AutostopState
    lease_left: float
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeHealth, _Mapping]]] = ..., autostop: _Optional[_Union[AutostopState, _Mapping]] = ..., lease_left: _Optional[float] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("all", "before", "limit")
    ALL_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    all: bool
    before: int
    limit: int
    def __init__(self, all: bool = ..., before: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs", "more")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobState]
    more: bool
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobState, _Mapping]]] = ..., more: bool = ...) -> None: ...
