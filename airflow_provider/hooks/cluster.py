"""The hook behind the connection type ``managed_cluster``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

from airflow_provider.hooks.connection import ClusterSettings, local_settings, read_connection
from airflow_provider.hooks.running import run_on_own_loop
from airflow_provider.runtime.blocking import run_slowly

if TYPE_CHECKING:
    from airflow_provider.hooks.named_cluster import NamedCluster
    from airflow_provider.runtime.client.base import ClusterClient
    from airflow_provider.runtime.infra.base import ClusterHandle, Infra


class ClusterHook(BaseHook):
    """Clusters of one Airflow connection.

    Without a connection of the default id, clusters come from this machine.

    Args:
        managed_cluster_conn_id: Id of a connection of type ``managed_cluster``, or of one of type ``ssh``, which then
            is a pool of one host.
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
            BadConnection: the connection says something that is not acceptable.
        """
        if self._settings is None:
            self._settings = self._read()
        return self._settings

    async def asettings(self) -> ClusterSettings:
        """Return what the connection says, for an event loop. Raises as ``settings`` does."""
        # In a thread, where Airflow's blocking calls work in triggerer and worker alike: one way for both sides.
        return await run_slowly(self._prepared)

    def _prepared(self) -> ClusterSettings:
        """Return the settings, and import what works with them: that takes long enough to hold an event loop up."""
        checked = self.settings()
        checked.make_infra()
        import_module("airflow_provider.runtime.client.agent")
        return checked

    def cluster(self, name: str) -> NamedCluster:
        """Return the cluster of that name, which is made with its first job where there is none.

        .. code-block:: python

            ClusterHook("gpus").cluster("digits").run("nvidia-smi")
        """
        from airflow_provider.hooks.named_cluster import NamedCluster

        return NamedCluster(self, name)

    async def client(self, handle: ClusterHandle) -> ClusterClient:
        """Return a client of a cluster's agent; close it after use."""
        return await (await self.asettings()).make_infra().connect(handle)

    def test_connection(self) -> tuple[bool, str]:
        """Check the connection's settings, for the button in Airflow's UI."""
        try:
            checked = self.settings()
        except Exception as error:  # the button shows whatever is wrong
            return False, str(error)
        if checked.pool is None:
            return True, f"clusters of infra local below {checked.root}"
        return _check(checked)

    def _read(self) -> ClusterSettings:
        from airflow.sdk.exceptions import AirflowNotFoundException
        from airflow.sdk.log import mask_secret

        try:
            connection = self.get_connection(self.managed_cluster_conn_id)
        except AirflowNotFoundException:
            if self.managed_cluster_conn_id != self.default_conn_name:
                raise
            return local_settings()
        checked = read_connection(connection, self.get_connection)
        for secret in checked.secrets():
            mask_secret(secret)
        return checked


def _check(checked: ClusterSettings) -> tuple[bool, str]:
    """Try every host of a pool; one that works is enough, and what is wrong with the others is told."""
    from airflow_provider.runtime.infra.ssh.infra import SshInfra

    infra = checked.make_infra()
    if not isinstance(infra, SshInfra):
        raise AssertionError("a pool belongs to infra ssh")
    reports = run_on_own_loop(infra.check())
    lines = [f"{report.host}: {'ok, ' if report.ok else 'FAILED, '}{report.text}" for report in reports]
    working = sum(report.ok for report in reports)
    return working > 0, "\n".join([f"{working} of {len(reports)} hosts can be used", *lines])
