"""Two tasks on hosts that are reached by SSH; the chain is in the YAML beside this.

It needs a connection ``gpu-pool`` of type *Managed cluster* with the hosts (``user@host:port``, one a line), a private
key that opens them and their host keys, and a Variable ``signing_key``.
"""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG

from airflow_provider import managed_job

with DAG("ssh_chain", schedule=None, params={"rounds": 10}, tags=["example"]):
    managed_job(Path(__file__).with_name("ssh_chain.yaml"), envs={"ROUNDS": "{{ params.rounds }}"})
