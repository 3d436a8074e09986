"""Drives an agent with SkyPilot's own client code, in SkyPilot's virtualenv; prints what that code makes of the answers.

Argument: the agent's socket. Each scenario's outcome is ``{"value": …}`` or ``{"error": [type, text]}``.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from types import SimpleNamespace

import grpc
from sky import clouds, core, exceptions, global_user_state
from sky.backends import backend_utils
from sky.backends.cloud_vm_ray_backend import CloudVmRayBackend, SkyletClient
from sky.jobs import utils as managed_job_utils
from sky.schemas.generated import jobsv1_pb2, managed_jobsv1_pb2, managed_jobsv1_pb2_grpc
from sky.serve import serve_rpc_utils, serve_utils
from sky.skylet import autostop_lib, job_lib
from sky.skylet import constants as skylet_constants
from sky.utils import common_utils

CHANNEL = grpc.insecure_channel(
    f"unix:{sys.argv[1]}",
    # As SkyPilot sets up a cluster's channel.
    options=[
        ("grpc.max_receive_message_length", -1),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ],
)
CLIENT = SkyletClient(CHANNEL)
BACKEND = CloudVmRayBackend()
ME = common_utils.get_user_hash()


def _by_ssh(*args: object, **kwargs: object) -> None:
    raise AssertionError("SkyPilot gave up on the agent and went on over SSH")


HANDLE = SimpleNamespace(
    cluster_name="test",
    head_ip="127.0.0.1",
    is_grpc_enabled_with_flag=True,
    get_grpc_channel=lambda: CHANNEL,
    get_command_runners=_by_ssh,
    launched_resources=SimpleNamespace(cloud=clouds.AWS()),
    provision_runtime_metadata=SimpleNamespace(has_skylet=True, has_job_queue=True),
)
BACKEND.run_on_head = _by_ssh
AUTOSTOPS: list[object] = []
global_user_state.set_cluster_autostop_value = lambda *setting: AUTOSTOPS.append(setting)
global_user_state.get_handle_from_cluster_name = lambda name: HANDLE


def call(method: object, request: object) -> object:
    """Make a call as SkyPilot does everywhere."""
    return backend_utils.invoke_skylet_with_retries(lambda: method(request))


def launch(program: str, resources: str = "1x[CPU:0.5]", name: str | None = "a job") -> int:
    """Add and queue a job as ``sky launch`` does."""
    BACKEND.run_timestamp = f"sky-{time.time_ns()}"
    job_id, log_dir = BACKEND._add_job(HANDLE, name, resources, '{"git_commit": "abc"}')
    BACKEND._exec_code_on_head(HANDLE, program, job_id, remote_log_dir=log_dir)
    return job_id


def status(job_id: int) -> str | None:
    (found,) = BACKEND.get_job_status(HANDLE, [job_id], stream_logs=False).values()
    return found and found.value


def until(job_id: int, *wanted: str) -> str | None:
    deadline = time.monotonic() + 30
    while (now := status(job_id)) not in wanted:
        assert time.monotonic() < deadline, f"job {job_id} is {now}, not {wanted}"
        time.sleep(0.02)
    return now


def tail(
    job_id: int | None, *, follow: bool = True, lines: int = 0, offset: int | None = None
) -> list[object]:
    """Return what ``sky logs`` prints and the code with which it exits."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = BACKEND.tail_logs(HANDLE, job_id, follow=follow, tail=lines, tail_offset=offset)
    return [printed.getvalue(), int(code)]


def ended(job_id: int) -> str | None:
    return until(job_id, *(one.value for one in job_lib.JobStatus if one.is_terminal()))


def of_job(job_id: int) -> dict[str, object]:
    (found,) = [job for job in core._get_job_queue(HANDLE, BACKEND, None, True) if job["job_id"] == job_id]
    return {**found, "status": found["status"].value}


# ---- jobs


def nothing_yet() -> object:
    return [
        BACKEND.get_job_status(HANDLE, None, stream_logs=False),
        core._get_job_queue(HANDLE, BACKEND, None, True),
        BACKEND.sync_down_logs(HANDLE, []),
        tail(None),
    ]


def good() -> object:
    job_id = launch("print('one'); print('two'); print('three', end='')")
    text, code = tail(job_id)
    return {
        "text": text,
        "code": code,
        "status": ended(job_id),
        "end of log": tail(job_id, follow=False, lines=1),
        "middle of log": tail(job_id, follow=False, lines=1, offset=1),
        "latest": tail(None),
        "job": of_job(job_id),
        "metadata": BACKEND.get_job_metadata(HANDLE, [job_id]),
    }


def bad() -> object:
    job_id = launch("import sys; print('oh'); sys.exit(3)")
    text, code = tail(job_id)
    request = jobsv1_pb2.GetJobExitCodesRequest(job_id=job_id)
    codes = list(call(CLIENT.get_job_exit_codes, request).exit_codes)
    return {"text": text, "code": code, "status": ended(job_id), "exit codes": codes}


def times() -> object:
    before = time.time()
    job_id = launch("import time; time.sleep(0.2)")
    ended(job_id)
    job = of_job(job_id)
    rounded = [
        managed_job_utils.get_job_timestamp(BACKEND, "test", job_id, get_end_time=end)
        for end in (False, True)
    ]
    return {
        "in order": before <= job["submitted_at"] <= job["start_at"] <= job["end_at"] <= time.time(),
        "near": [abs(rounded[0] - job["submitted_at"]) < 128, abs(rounded[1] - job["end_at"]) < 128],
    }


def cancel() -> object:
    jobs = [launch("import time; print('up', flush=True); time.sleep(600)") for _ in range(2)]
    for job_id in jobs:
        until(job_id, "RUNNING")
    following = tail(jobs[1], follow=False)
    BACKEND.cancel_jobs(HANDLE, None, user_hash=ME)  # the newest
    after_newest = [status(job_id) for job_id in jobs]
    BACKEND.cancel_jobs(HANDLE, [jobs[0], 987_654])
    after_both = [status(job_id) for job_id in jobs]
    return {
        "while it runs": following,
        "after the newest": after_newest,
        "after both": after_both,
        "log": tail(jobs[0]),
        "queue": [job["job_id"] for job in core._get_job_queue(HANDLE, BACKEND, None, False)],
    }


def cancel_all() -> object:
    jobs = [launch("import time; time.sleep(600)") for _ in range(3)]
    queue = [job["job_id"] for job in core._get_job_queue(HANDLE, BACKEND, ME, False)]
    BACKEND.cancel_jobs(HANDLE, None, cancel_all=True)
    return {"queue": queue == jobs[::-1], "statuses": [status(job_id) for job_id in jobs]}


def restart_of_a_stopped_cluster() -> object:
    job_id = launch("import time; time.sleep(600)")
    until(job_id, "RUNNING")
    call(CLIENT.update_status, jobsv1_pb2.UpdateStatusRequest())
    before = status(job_id)
    call(CLIENT.fail_all_in_progress_jobs, jobsv1_pb2.FailAllInProgressJobsRequest())
    return [before, status(job_id), of_job(job_id)["end_at"] is not None, tail(job_id)[1]]


def logs_to_download() -> object:
    job_id = launch("print('x')")
    ended(job_id)
    request = jobsv1_pb2.GetLogDirsForJobsRequest(job_ids=[job_id, 987_654])
    found = dict(call(CLIENT.get_log_dirs_for_jobs, request).job_log_dirs)
    return {"only": list(found) == [job_id], "directory": found[job_id]}


def unknown() -> object:
    return {"status": status(987_654), "log": tail(987_654)}


def queued_twice() -> object:
    job_id = launch("print('once')")
    ended(job_id)
    request = jobsv1_pb2.QueueJobRequest(job_id=job_id, codegen="print('twice')")
    call(CLIENT.queue_job, request)
    return [status(job_id), tail(job_id)]


def not_found() -> object:
    request = jobsv1_pb2.GetJobSubmittedTimestampRequest(job_id=987_654)
    try:
        call(CLIENT.get_job_submitted_timestamp, request)
    except grpc.RpcError as error:  # neither "not implemented" nor an internal error: no fall-back, no repeat
        return [error.code().name, error.details()]
    return None


# ---- autostop


def autostop() -> object:
    hook = {"run": "echo bye", "events": ["stop"], "timeout": 5}
    BACKEND.set_autostop(HANDLE, 60, autostop_lib.AutostopWaitFor.JOBS, hooks=[hook])
    BACKEND.set_autostop(HANDLE, 30, None, down=True, hook="true", hook_timeout=3)
    before = BACKEND.is_definitely_autostopping(HANDLE)
    BACKEND.set_autostop(HANDLE, -1, autostop_lib.AutostopWaitFor.NONE, hooks=[])
    return {"stored": [list(setting) for setting in AUTOSTOPS], "autostopping": before}


def autostopping() -> object:
    hook = {"run": "sleep 600", "events": ["stop"], "timeout": 600}
    BACKEND.set_autostop(HANDLE, 0, autostop_lib.AutostopWaitFor.NONE, hooks=[hook])
    deadline = time.monotonic() + 20
    while not BACKEND.is_definitely_autostopping(HANDLE):
        assert time.monotonic() < deadline, "the cluster does not stop"
        time.sleep(0.05)
    return True


# ---- managed jobs


def register(name: str = "chain", tasks: int = 2, num_jobs: int = 1, workspace: str = "default") -> list[int]:
    return BACKEND.set_job_info_without_job_id(
        HANDLE,
        name=name,
        workspace=workspace,
        entrypoint="sky jobs launch",
        pool=None,
        pool_hash=None,
        user_hash=ME,
        task_ids=list(range(tasks)),
        task_names=[f"task-{number}" for number in range(tasks)],
        resources_str="1x[CPU:1]",
        metadata_jsons=['{"key": "value"}'] * tasks,
        is_primary_in_job_groups=[True],
        num_jobs=num_jobs,
    )


def table(**fields: object) -> list[dict[str, object]]:
    request = managed_jobsv1_pb2.GetJobTableRequest(**fields)
    found = managed_job_utils.decode_managed_job_protos(call(CLIENT.get_managed_job_table, request).jobs)
    return [{**job, "status": job["status"].value} for job in found]


def managed_jobs() -> object:
    first, second = register("chain"), register("chain", tasks=1, num_jobs=2)
    named = managed_jobsv1_pb2.GetAllJobIdsByNameRequest(job_name="chain")
    rows = [row for row in table(skip_finished=True) if row["job_id"] in first]
    sorted_rows = table(
        job_ids=managed_jobsv1_pb2.JobIds(ids=first + second), sort_by="job_id", sort_order="asc"
    )
    cancelled = call(
        CLIENT.cancel_managed_jobs,
        managed_jobsv1_pb2.CancelJobsRequest(
            current_workspace="default", job_ids=managed_jobsv1_pb2.JobIds(ids=first), graceful=False
        ),
    ).message
    after = [row for row in table() if row["job_id"] in first]
    # Their client never asks for these logs; their stub can.
    stub = managed_jobsv1_pb2_grpc.ManagedJobsServiceStub(CHANNEL)
    logs = list(
        stub.StreamLogs(managed_jobsv1_pb2.StreamLogsRequest(job_id=first[0], follow=True), timeout=10)
    )
    infra = call(CLIENT.get_managed_job_table, managed_jobsv1_pb2.GetJobTableRequest(infra_match="aws"))
    return {
        "version": call(
            CLIENT.get_managed_job_controller_version, managed_jobsv1_pb2.GetVersionRequest()
        ).controller_version,
        "version wanted": skylet_constants.SKYLET_VERSION,
        "ids by name": list(call(CLIENT.get_all_managed_job_ids_by_name, named).job_ids)
        == [*second[::-1], *first],
        "rows": [
            [
                row["task_id"],
                row["task_name"],
                row["status"],
                row["metadata"],
                row["user_hash"] == ME,
                row["schedule_state"],
            ]
            for row in rows
        ],
        "in order": [row["job_id"] for row in sorted_rows] == [*first, *first, *second],
        "message": cancelled.replace(str(first[0]), "<id>"),
        "after": [[row["status"], row["end_at"] is not None, row["schedule_state"]] for row in after],
        "exit code of its log": logs[-1].exit_code,
        "infra_match_applied": infra.infra_match_applied,
    }


# ---- services


def services() -> object:
    runner = serve_rpc_utils.RpcRunner
    calls = {
        "GetServiceStatus": lambda: runner.get_service_status(HANDLE, None, pool=False),
        "AddVersion": lambda: runner.add_version(HANDLE, "s"),
        "TerminateServices": lambda: runner.terminate_services(HANDLE, None, purge=False, pool=False),
        "TerminateReplica": lambda: runner.terminate_replica(HANDLE, "s", 1, purge=False),
        "WaitServiceRegistration": lambda: runner.wait_service_registration(HANDLE, "s", 1, pool=False),
        "UpdateService": lambda: runner.update_service(
            HANDLE, "s", 1, serve_utils.UpdateMode.ROLLING, pool=False
        ),
    }
    outcomes = {}
    for name, made in calls.items():
        try:
            outcomes[name] = repr(made())
        except exceptions.SkyletMethodNotImplementedError as error:
            outcomes[name] = f"not implemented: {error}"
    return outcomes


SCENARIOS = (
    nothing_yet,
    good,
    bad,
    times,
    cancel,
    cancel_all,
    restart_of_a_stopped_cluster,
    logs_to_download,
    unknown,
    queued_twice,
    not_found,
    autostop,
    managed_jobs,
    services,
    autostopping,  # the last: the agent ends
)


def main() -> None:
    found: dict[str, object] = {}
    for scenario in SCENARIOS:
        try:
            found[scenario.__name__] = {"value": scenario()}
        except Exception as error:
            found[scenario.__name__] = {"error": [type(error).__name__, str(error)]}
    print("\n" + json.dumps(found))


main()
