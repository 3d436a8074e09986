"""Settings for the whole suite. Runs before any test module, and so before Airflow is imported."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

pytest_plugins = ["tests.hosts.fixtures"]

# Importing Airflow reads its configuration and writes into its home: keep away from the user's own.
_AIRFLOW_HOME = tempfile.mkdtemp(prefix="airflow-tests-")
os.environ["AIRFLOW_HOME"] = _AIRFLOW_HOME
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__USAGE_DATA_COLLECTION__ENABLED"] = "False"
# Every process that a test starts would compile all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A busy machine is no reason to fail, and the same examples every time make a failure repeatable.
# HYPOTHESIS_PROFILE=search looks for new ones.
settings.register_profile("default", deadline=None, derandomize=True, max_examples=100)
settings.register_profile("search", deadline=None, max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session", autouse=True)
def _remove_airflow_home() -> Iterator[None]:
    yield
    shutil.rmtree(_AIRFLOW_HOME, ignore_errors=True)
