"""Trains a small model in three tasks, each on a cluster that may vanish; the chain is in the YAML beside this."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider import managed_job

# Any storage that outlives a cluster and that all of them see: NFS, a mounted bucket. For clusters on this
# machine a folder will do.
RUNS = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "train_digits"

with DAG("train_digits", schedule=None, tags=["example"]):
    # Jinja is rendered in these arguments, never in the YAML.
    managed_job(
        Path(__file__).with_name("train_digits.yaml"),
        envs={"RUN_DIR": f"{RUNS}/{{{{ run_id }}}}"},
    )
