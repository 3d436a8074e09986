"""Brings what a job needs before its first command: the working directory, a repository, files.

Jobs of one cluster share a home where the account's own is used, so deliveries are made one after the other, and what
they bring is on record (see ``delivered``). A home that belongs to one job goes with it, and needs neither.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.driver.archive import open_archive
from airflow_provider.runtime.agent.driver.delivered import Account, make_whole, one_at_a_time
from airflow_provider.runtime.agent.driver.outcome import JobFailed
from airflow_provider.runtime.agent.process import children

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from airflow_provider.runtime.agent.driver.stages import Stages
    from airflow_provider.runtime.agent.jobs.jobdir import FileOrder, JobDirectory, Order


class Delivery:
    """All that is delivered for one job.

    Args:
        directory: The job's directory.
        order: The job.
        stages: Runs programs in the job's environment.
    """

    def __init__(self, *, directory: JobDirectory, order: Order, stages: Stages) -> None:
        self._directory = directory
        self._order = order
        self._stages = stages
        self._root = Path(order.root) if order.root else None
        self._home = Path(order.home)
        self._workdir = self._home / "sky_workdir"

    def run(self) -> None:
        """Deliver everything, the repository first: files may lie in it.

        Raises:
            JobFailed: something cannot be brought.
            Cancelled: the agent asked for the job's end.
        """
        if self._order.git is None and not self._order.files and self._workdir.is_dir():
            return
        try:
            with self._alone():
                if self._root is not None:
                    make_whole(self._root, self._workdir)
                if self._order.git is not None:
                    self._stages.clone(self._order.git, self._account(self._workdir))
                for file in self._order.files:
                    children.check_cancel()
                    self._unpack(file)
        except OSError as error:
            raise JobFailed("FAILED_SETUP", f"the job's files cannot be brought: {error}") from error

    def _alone(self) -> AbstractContextManager[None]:
        if self._root is None:
            return nullcontext()
        return one_at_a_time(
            self._root,
            pause=children.pause,
            waiting=lambda: self._stages.say("waiting: the files of another job are being brought"),
        )

    def _account(self, place: Path) -> Account | None:
        if self._root is None:
            return None
        return Account(root=self._root, place=place, job=self._directory.path, say=self._stages.say)

    def _unpack(self, file: FileOrder) -> None:
        from airflow_provider.runtime.agent.driver.unpack import (  # tarfile is slow to import
            UnpackError,
            unpack,
        )

        place = self._place(file.destination)
        try:
            with open_archive(Path(file.archive)) as archive:
                unpack(archive, place, kind=file.kind, account=self._account(place))
        except (OSError, UnpackError) as error:
            raise JobFailed("FAILED_SETUP", f"cannot unpack {file.destination}: {error}") from error

    def _place(self, destination: str) -> Path:
        if destination == "~" or destination.startswith("~/"):
            return self._home / destination[2:]
        return Path(destination)
