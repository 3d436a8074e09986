"""References to secrets and what they lead to."""

from __future__ import annotations

import pytest
from airflow.sdk.log import redact

from airflow_provider.hooks.secrets import resolve_secrets
from airflow_provider.runtime.control.controller import SecretMissing


@pytest.fixture(autouse=True)
def _stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_TOKEN", "from-variable")
    monkeypatch.setenv(
        "AIRFLOW_CONN_MY.CONN",
        '{"conn_type": "http", "login": "me", "password": "pw-1", "port": 8080, "extra": {"key": "from-extra"}}',
    )


async def test_references_lead_to_values() -> None:
    references = {
        "A": "variable:token",
        "B": "connection:my.conn",
        "C": "connection:my.conn.login",
        "D": "connection:my.conn.extra.key",
        "E": "connection:my.conn.port",
    }

    values = await resolve_secrets(references)

    assert values == {"A": "from-variable", "B": "pw-1", "C": "me", "D": "from-extra", "E": "8080"}


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("variable:absent", "secrets.X: the Airflow Variable 'absent' does not exist"),
        ("connection:absent", "secrets.X: the Airflow connection 'absent' does not exist"),
        ("connection:my.conn.schema", "secrets.X: the Airflow connection 'my.conn' has no schema"),
        ("connection:my.conn.extra.other", "secrets.X: the Airflow connection 'my.conn' has no extra.other"),
    ],
)
async def test_a_reference_that_leads_nowhere_is_named(reference: str, message: str) -> None:
    with pytest.raises(SecretMissing, match=message):
        await resolve_secrets({"X": reference})


async def test_values_are_masked_whatever_their_names() -> None:
    await resolve_secrets({"HARMLESS": "variable:token"})

    assert redact("it is from-variable") == "it is ***"
