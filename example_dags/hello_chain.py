"""A chain without YAML: two tasks described in Python, the second of which returns a value to Airflow."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider import managed_job

with DAG("hello_chain", schedule=None, tags=["example"]):
    managed_job(
        name="hello",
        tasks=[
            {"name": "greet", "resources": {"infra": "local"}, "run": "echo Hello from $(hostname)"},
            {
                "name": "answer",
                "resources": {"infra": "local"},
                # What a task writes here as JSON becomes its return value (XCom).
                "run": """echo '{"answer": 42}' > "$TASK_OUTPUT_FILE" """,
            },
        ],
    )
