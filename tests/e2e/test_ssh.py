"""Tasks of a real Airflow on real SSH hosts: given by connections, rebooted, taken back, shared."""

from __future__ import annotations

import hashlib
import hmac
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from harness import AirflowInstance
from harness.managed import ManagedJobs
from harness.waiting import poll
from tests.e2e.conftest import Run
from tests.e2e.ssh_pool import await_nothing_left, databases, fingerprint, logins, logs, pool_of
from tests.hosts.host import Host
from tests.hosts.keys import ClientKeys

StartDag = Callable[..., Run]
Hosts = Callable[[int], list[Host]]

EXAMPLES = Path(__file__).parents[2] / "example_dags"


@pytest.fixture
def run_example(airflow: AirflowInstance) -> Iterator[Callable[[str, Mapping[str, object]], Run]]:
    """A function that puts an example into Airflow as it is and starts a run of it with these params."""
    folder = airflow.dags_folder / "examples"
    runs: list[Run] = []

    def start(name: str, params: Mapping[str, object]) -> Run:
        for file in EXAMPLES.rglob("*"):
            inside = file.relative_to(EXAMPLES)
            if file.is_file() and inside.parts[0] in (name, f"{name}.py", f"{name}.yaml"):
                (folder / inside).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, folder / inside)
        poll(
            lambda: airflow.api.dag_exists(name),
            timeout=60,
            what=lambda: f"Airflow to read the DAG {name}; {airflow.api.import_errors()}",
        )
        runs.append(Run(airflow, name, airflow.api.trigger(name, conf=params)))
        return runs[-1]

    yield start
    for run in runs:
        if not run.state().ended:
            run.mark_run("failed")
    shutil.rmtree(folder)


def test_the_example_runs_on_a_pool_and_its_secrets_are_nowhere(
    hosts: Hosts,
    client_keys: ClientKeys,
    airflow: AirflowInstance,
    run_example: Callable[[str, Mapping[str, object]], Run],
    managed_jobs: ManagedJobs,
) -> None:
    pool = hosts(2)
    signing_key = "sesame-0f2a9c41"
    airflow.api.set_variable("signing_key", signing_key)
    airflow.api.add_connection("gpu-pool", "managed_cluster", extra=pool_of(client_keys, *pool))

    run = run_example("ssh_chain", {"rounds": 6})
    run.wait_for_log("ssh-chain.estimate", "round 1 of 6")
    shown = airflow.api.task_text(run.dag_id, run.run_id, "ssh-chain.estimate")
    stored = databases(airflow)
    run.succeed()

    assert '"rendered_fields":{"envs":{"ROUNDS":"6"}' in shown
    assert re.search(r"ManagedTaskTrigger.*\"owner\"", stored), (
        "Airflow keeps the trigger's arguments in plain text"
    )
    result = run.xcom("ssh-chain.estimate")
    signature = hmac.new(signing_key.encode(), result["pi"].encode(), hashlib.sha256)
    assert result["signature"] == signature.hexdigest(), "the job really had the secret"
    look = run.log_text("ssh-chain.look")
    assert re.search(
        rf"this is ({'|'.join(host.name for host in pool)}), and these files came along: estimate.py", look
    )
    assert "round 6 of 6" in run.log_text("ssh-chain.estimate")
    private = client_keys.ed25519.path.read_text().splitlines()[1:-1]
    assert private
    for place in (shown, stored, databases(airflow), logs(airflow)):
        assert [secret for secret in (signing_key, *private) if secret in place] == []
    assert managed_jobs.wait_until_clean(5) == []
    await_nothing_left(pool, timeout=5)


def test_k05_a_host_that_is_rebooted_under_its_job_runs_it_again_and_one_log_tells(
    host: Host,
    client_keys: ClientKeys,
    airflow: AirflowInstance,
    run_dag: StartDag,
) -> None:
    airflow.api.add_connection("rebooted", "managed_cluster", extra=pool_of(client_keys, host))
    run = run_dag(
        """
        managed_job(tasks=[{"name": "train", "run": '''
            echo "attempt $TASK_ATTEMPT of $SKYPILOT_TASK_ID on $(hostname)"
            [ "$TASK_ATTEMPT" = 2 ] || sleep 600
        '''}], name="survivor", conn_id="rebooted")
        """
    )
    run.wait_for_log("survivor.train", "attempt 1 of")

    host.reboot()
    run.succeed()

    log = run.log_text("survivor.train")
    found = re.findall(r"attempt (\d) of (\S+) on (\S+)", log)
    assert [attempt for attempt, _, _ in found] == ["1", "2"]
    assert len({(task_id, name) for _, task_id, name in found}) == 1
    assert "was booted since the cluster was made" in log
    await_nothing_left([host], timeout=5)


def test_k01_marking_a_task_as_failed_ends_its_job_and_frees_the_host(
    hosts: Hosts,
    client_keys: ClientKeys,
    airflow: AirflowInstance,
    run_dag: StartDag,
    managed_jobs: ManagedJobs,
) -> None:
    pool = hosts(1)
    airflow.api.add_connection("marked", "managed_cluster", extra=pool_of(client_keys, *pool))
    run = run_dag(
        """
        managed_job(tasks=[{"name": "beat", "run": '''
            trap "" TERM
            setsid sleep 98765 &
            echo beating
            while :; do sleep 0.2; done
        '''}], name="beats", conn_id="marked", grace_seconds=1)
        """
    )
    run.wait_for_log("beats.beat", "beating")
    assert "sleep 98765" in _running_on(pool[0])

    run.mark("beats.beat", "failed")

    await_nothing_left(pool, timeout=15)
    assert "sleep 98765" not in _running_on(pool[0])
    (record,) = managed_jobs.store().find(dag_id=run.dag_id, run_id=run.run_id)
    poll(
        lambda: managed_jobs.store().get(record.id).status.value,
        lambda status: status == "CANCELLED",
        timeout=10,
        what="the record to say that it was cancelled",
    )


def test_k17_what_the_triggerer_cannot_log_in_with_fails_the_task_and_says_how_to_mend_it(
    hosts: Hosts, client_keys: ClientKeys, airflow: AirflowInstance, run_dag: StartDag
) -> None:
    (host,) = hosts(1)
    place = {"host": host.address, "port": host.port, "login": "worker"}
    key = client_keys.ed25519.path.read_text()
    airflow.api.add_connection("stranger", "ssh", **place, extra={"private_key": key})
    airflow.api.add_connection("strangers", "managed_cluster", extra={"ssh_conn_ids": "stranger"})
    on_worker = "/worker/only/id_ed25519"
    airflow.api.add_connection("keyless", "ssh", **place, extra={"key_file": on_worker})
    run = run_dag(
        """
        from airflow_provider import ManagedTaskOperator
        for conn_id in ("strangers", "keyless"):
            ManagedTaskOperator(task_id=conn_id, definition={"run": "echo never"}, conn_id=conn_id)
        """
    )

    assert run.wait(timeout=60).state == "failed"

    assert [task.state for task in run.tasks()] == ["failed", "failed"]
    unknown, missing = run.log_text("strangers"), run.log_text("keyless")
    assert fingerprint(host) in unknown
    assert "or set host_key_policy: trust_first" in unknown
    assert f"key_file {on_worker} does not exist" in missing
    assert "paste the key as private_key" in missing
    await_nothing_left([host], timeout=5)


def test_mapped_tasks_share_hosts_and_wait_for_them_over_few_connections(
    hosts: Hosts, client_keys: ClientKeys, airflow: AirflowInstance, run_dag: StartDag
) -> None:
    pool = hosts(2)
    before = {host.name: logins(host) for host in pool}
    airflow.api.add_connection("shared", "managed_cluster", extra=pool_of(client_keys, *pool))
    run = run_dag(
        """
        from airflow_provider import ManagedTaskOperator
        ManagedTaskOperator.partial(
            task_id="part",
            definition={"run": '''
                echo "part $PART on $(hostname)"
                until [ -e /tmp/go-on ]; do sleep 0.1; done
            '''},
            conn_id="shared",
        ).expand(envs=[{"PART": str(number)} for number in range(4)])
        """
    )

    def texts() -> list[str]:
        return [airflow.api.log_text(run.dag_id, run.run_id, "part", map_index=index) for index in range(4)]

    def who_waits() -> int:
        return sum(
            "waiting: no host of pool shared is free: " in text and " on h" not in text for text in texts()
        )

    poll(who_waits, lambda waiting: waiting == 2, timeout=60, what="two of four to wait for two hosts")
    for host in pool:
        host.run("touch /tmp/go-on")
    run.succeed()

    for host in pool:
        host.run("rm /tmp/go-on")
    ran = [re.findall(r"part (\d) on (\S+)", text) for text in texts()]
    assert [number for ((number, _),) in ran] == ["0", "1", "2", "3"]
    assert {name for ((_, name),) in ran} == {host.name for host in pool}
    # Only the triggerer speaks to the hosts, over one connection to each that stays a while when nobody uses it; another
    # one in case that this machine is so slow that it does not.
    assert max(logins(host) - before[host.name] for host in pool) <= 2
    await_nothing_left(pool, timeout=5)


def test_the_button_in_the_form_of_a_connection_tells_of_each_host(
    hosts: Hosts, client_keys: ClientKeys, airflow: AirflowInstance
) -> None:
    first, second = hosts(2)
    key = client_keys.ed25519.path.read_text()
    airflow.api.add_connection(
        "second_host",
        "ssh",
        host=second.address,
        login="worker",
        extra={"private_key": key, "host_key": second.disk.host_keys[0]},
    )
    extra = pool_of(client_keys, first, ssh_conn_ids="second_host")

    works, told = airflow.api.check_connection("not_saved_yet", "managed_cluster", extra=extra)
    assert works, told
    assert told.splitlines()[0] == "2 of 2 hosts can be used"
    assert key.splitlines()[1] not in told

    works, told = airflow.api.check_connection(
        "wrong", "managed_cluster", extra={**extra, "host": first.name}
    )
    assert not works
    assert "unknown key 'host'" in told


def _running_on(host: Host) -> str:
    return host.run("ps -eo args").stdout
