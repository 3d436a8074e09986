"""The connection form that Airflow's UI shows."""

from __future__ import annotations

from airflow.providers_manager import ProvidersManager
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

from airflow_provider.get_provider_info import get_provider_info
from airflow_provider.hooks.connection import CONN_TYPE, KEYS

PREFIX = f"extra__{CONN_TYPE}__"


def test_airflow_takes_every_field_of_the_form() -> None:
    (ours,) = get_provider_info()["connection-types"]
    manager = ProvidersManager()
    assert ProvidersManagerTaskRuntime().hooks[CONN_TYPE] is not None, "the hook can be imported"
    widgets = {
        name.removeprefix(PREFIX): widget
        for name, widget in manager.connection_form_widgets.items()
        if name.startswith(PREFIX)
    }
    assert set(widgets) == set(ours["conn-fields"])
    assert {name for name, widget in widgets.items() if widget.is_sensitive} == {
        "private_key",
        "private_key_passphrase",
    }
    assert widgets["hosts"].field["schema"]["format"] == "multiline"
    assert manager.field_behaviours[CONN_TYPE]["hidden_fields"] == ["schema"]


def test_every_field_of_the_form_is_a_key_that_is_read() -> None:
    (ours,) = get_provider_info()["connection-types"]
    assert set(ours["conn-fields"]) <= set(KEYS)
