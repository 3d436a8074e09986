"""The hook behind the connection type ``managed_cluster``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

from airflow_provider.hooks.connection import ClusterSettings

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider.runtime.client.base import ClusterClient
    from airflow_provider.runtime.infra.base import ClusterHandle, Infra


class ClusterHook(BaseHook):
    """Clusters of one Airflow connection.

    Without a connection of the default id, clusters come from this machine.

    Args:
        managed_cluster_conn_id: Id of a connection of type ``managed_cluster``.
    """

    conn_name_attr = "managed_cluster_conn_id"
    default_conn_name = "managed_cluster_default"
    conn_type = "managed_cluster"
    hook_name = "Managed cluster"

    def __init__(self, managed_cluster_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.managed_cluster_conn_id = managed_cluster_conn_id
        self._settings: ClusterSettings | None = None

    def get_conn(self) -> Infra:
        """Return the infra of the connection."""
        return self.settings().make_infra()

    def settings(self) -> ClusterSettings:
        """Return what the connection says. Blocking.

        Raises:
            AirflowNotFoundException: there is no such connection (the default one may be missing).
            ValueError: the connection says something that is not acceptable.
        """
        if self._settings is None:
            try:
                connection = self.get_connection(self.managed_cluster_conn_id)
            except Exception as error:
                self._settings = self._without_connection(error)
            else:
                self._settings = self._read(connection)
        return self._settings

    async def asettings(self) -> ClusterSettings:
        """Return what the connection says; for the triggerer's event loop. Raises as ``settings`` does."""
        if self._settings is None:
            try:
                connection = await self.aget_connection(self.managed_cluster_conn_id)
            except Exception as error:
                self._settings = self._without_connection(error)
            else:
                self._settings = self._read(connection)
        return self._settings

    async def client(self, handle: ClusterHandle) -> ClusterClient:
        """Return a client of a cluster's agent; close it after use."""
        return await (await self.asettings()).make_infra().connect(handle)

    def test_connection(self) -> tuple[bool, str]:
        """Check the connection's settings, for the button in Airflow's UI."""
        try:
            checked = self.settings()
        except Exception as error:  # the button shows whatever is wrong
            return False, str(error)
        return True, f"clusters of infra {checked.infra} below {checked.root}"

    def _read(self, connection: Connection) -> ClusterSettings:
        return ClusterSettings.from_extra(self.managed_cluster_conn_id, connection.extra_dejson)

    def _without_connection(self, error: Exception) -> ClusterSettings:
        from airflow.sdk.exceptions import AirflowNotFoundException

        if (
            isinstance(error, AirflowNotFoundException)
            and self.managed_cluster_conn_id == self.default_conn_name
        ):
            return ClusterSettings.from_extra(self.managed_cluster_conn_id, {})
        raise error
