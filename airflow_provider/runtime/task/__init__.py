"""Task definitions: YAML or Python dictionaries -> a validated chain of tasks."""

from airflow_provider.runtime.task.chain import (
    chain_from_definitions,
    load_chain_file,
    load_chain_text,
    task_from_definition,
)
from airflow_provider.runtime.task.errors import Problem, TaskValidationError
from airflow_provider.runtime.task.git import GitWorkdir
from airflow_provider.runtime.task.place import ChainPlace
from airflow_provider.runtime.task.spec import (
    Candidate,
    Chain,
    JobRecovery,
    Origin,
    Quantity,
    Resources,
    Strategy,
    TaskSpec,
)
from airflow_provider.runtime.task.task import is_name

__all__ = [
    "Candidate",
    "Chain",
    "ChainPlace",
    "GitWorkdir",
    "JobRecovery",
    "Origin",
    "Problem",
    "Quantity",
    "Resources",
    "Strategy",
    "TaskSpec",
    "TaskValidationError",
    "chain_from_definitions",
    "is_name",
    "load_chain_file",
    "load_chain_text",
    "task_from_definition",
]
