"""The clusters of one account on one host: making, finding, probing and removing them.

A cluster is a directory, named after a digest of the cluster's name as a socket's path must be short. Who makes or
removes it holds its lock. It has the whole host, by the host's lease, for as long as it lives.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider.runtime.agent import node
from airflow_provider.runtime.agent.host import agents, logind, relay, removal
from airflow_provider.runtime.agent.host.hostlease import Claim, HostLease
from airflow_provider.runtime.agent.host.locks import lock_file
from airflow_provider.runtime.agent.host.problem import HostProblem
from airflow_provider.runtime.agent.host.runtimes import remove_old_runtimes, runtime_directory
from airflow_provider.runtime.agent.jobs.jobdir import read_file, write_private

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from airflow_provider.runtime.agent.host.hostlease import Held

log = logging.getLogger(__name__)

RECORD_NAME = "cluster.json"

RELAY_NAME = "relay.py"
"""In the cluster's directory: the program that leads to its agent's socket where sshd does not."""

_LONGEST_SOCKET = 107
_LOCK_SECONDS = 90.0
"""How long another operation on the same cluster may take."""
_GRACE_SECONDS = 2.0
_RECORD_BYTES = 64 * 1024


class Record(NamedTuple):
    """What the directory of a cluster says of it; ``created`` in seconds since the epoch, for people."""

    name: str
    instance: str
    boot_id: str
    hostname: str
    lease_directory: str
    runtime: str
    site: str
    created: float


class Wish(NamedTuple):
    """What kind of cluster is wanted; see ``operations.UpArguments``."""

    name: str
    instance: str
    site: str
    lease_seconds: float
    runtime: str
    python: str
    start_seconds: float


class Cluster(NamedTuple):
    """A cluster whose agent serves; ``adopted``: it was there before."""

    record: Record
    root: Path
    adopted: bool


class ClusterGone(Exception):
    """The cluster that is meant is not there any more."""


class State(NamedTuple):
    """What is left of a cluster. ``reason``: why it does not count as there; empty when it does."""

    reason: str
    record: Record | None
    held: Held | None
    ours: bool
    agent: bool
    pid: int | None


class Clusters:
    """All clusters of this account. Its methods block.

    Args:
        base: The directory of everything of ours in the account.
        lease: The host's lease.

    Raises:
        HostProblem: (every method) the host is not as it has to be.
        OSError: (every method) a file cannot be read or written.
    """

    def __init__(self, base: Path, lease: HostLease) -> None:
        # The directory is what its processes are known by: one spelling of it.
        self._base = Path(os.path.realpath(base))
        self._lease = lease

    def root(self, name: str) -> Path:
        """Return the directory of the cluster of that name, whether it is there or not."""
        return self._base / "clusters" / hashlib.sha256(name.encode()).hexdigest()[:12]

    def up(self, wish: Wish) -> Cluster | Held:
        """Return the cluster of that name, made when there is none, with an agent that serves; or who has the host."""
        return self._with_agent(wish, make=True)

    def restart(self, wish: Wish) -> Cluster | Held:
        """Do the same for a cluster that is there.

        Raises:
            ClusterGone: the one that is meant is not there; the text says how that shows.
        """
        self._expect(self.root(wish.name), wish.instance)
        return self._with_agent(wish, make=False)

    def find(self, name: str) -> Record | None:
        """Return the record of the cluster of that name, None when it is not there or of an earlier boot."""
        root = self.root(name)
        return None if self._why_gone(root, None) else read_record(root)

    def probe(self, name: str, instance: str | None) -> State:
        """Return what is left of a cluster; the instance None: of whichever lies under the name."""
        root = self.root(name)
        record, held = read_record(root), self._lease.read()
        meant = instance or (record.instance if record else None)
        agent = agents.runs(root)
        return State(
            reason=self._why_gone(root, instance),
            record=record,
            held=held,
            ours=held is not None and held.claim.root == str(root) and held.claim.instance == meant,
            agent=agent,
            pid=agents.agent_pid(root) if agent else None,
        )

    def down(self, name: str, instance: str | None) -> tuple[bool, list[str]]:
        """Remove a cluster and let the host go; one that is not there is no error.

        Args:
            name: The cluster's name.
            instance: Its identity: another one under the name is left alone. None: whichever is there.

        Returns:
            Whether anything of it was there; and what of the files that were brought to the home directory could not
            be removed, each with the reason.
        """
        root = self.root(name)
        if not root.parent.is_dir():
            return self._lease.release(str(root), instance), []
        with self._locked(root):
            record = read_record(root)
            if record is not None and instance not in (None, record.instance):
                return False, []
            found = root.exists() or removal.removing(root)
            kept = removal.remove_cluster(root, grace=_GRACE_SECONDS)
            released = self._lease.release(str(root), instance)
        return found or released, kept

    def _with_agent(self, wish: Wish, *, make: bool) -> Cluster | Held:
        """Return the cluster with an agent that serves, or who has the host."""
        prefix = logind.command_that_stays()
        root = self.root(wish.name)
        if len(os.fsencode(root / agents.SOCKET)) > _LONGEST_SOCKET:
            raise HostProblem(
                f"{root / agents.SOCKET} is too long for a socket's path",
                f"set `base` to a shorter directory than {self._base}",
            )
        for directory in (self._base, root.parent):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        runtime = runtime_directory(self._base, wish.runtime)
        deadline = time.monotonic() + wish.start_seconds
        with self._locked(root):
            while True:
                if not make:
                    self._expect(root, wish.instance)
                cluster = self._adopt(root, wish)
                if cluster is None:
                    if not make:
                        continue  # it ended by itself in this very moment
                    cluster = self._make(root, wish)
                if not isinstance(cluster, Cluster):
                    return cluster
                try:
                    self._start_agent(cluster, wish, runtime, prefix)
                    break
                except (HostProblem, FileNotFoundError):
                    if cluster.adopted and not root.exists() and time.monotonic() < deadline:
                        continue  # it was about to end by itself
                    if not cluster.adopted:
                        # As if nobody had been here: a host that starts no agent is not to be taken by it.
                        removal.remove_cluster(root, grace=0.0)
                        self._lease.release(str(root), cluster.record.instance)
                    raise
        used = {record.runtime for record in map(read_record, _directories(root.parent)) if record}
        remove_old_runtimes(self._base, used | {wish.runtime})
        return cluster

    def _adopt(self, root: Path, wish: Wish) -> Cluster | Held | None:
        """Return the cluster that is there, with the host's lease, or who has the host; None when there is none."""
        record = read_record(root)
        if record is None or self._why_gone(root, None):
            return None
        if record.instance != wish.instance:
            # Another site's, which uses the same names. Without the host's lease it is only what is left of one.
            held = self._lease.read()
            return held if held is not None and held.claim.instance == record.instance else None
        held = self._lease.take(Claim(wish.name, record.instance, wish.site, str(root)), wish.lease_seconds)
        if held is not None:
            return held
        if record.site != wish.site:
            record = record._replace(site=wish.site)
            try:
                _write(root, record)
            except FileNotFoundError:
                return None  # it ended by itself in this very moment
        return Cluster(record, root, adopted=True)

    def _make(self, root: Path, wish: Wish) -> Cluster | Held:
        """Make the cluster, or return who has the host."""
        # Its name's last cluster: of an earlier boot, removing itself, removed by hand, or with a damaged record.
        removal.remove_cluster(root, grace=0.0)
        self._lease.release(str(root))
        last = self._lease.last()
        held = self._lease.take(Claim(wish.name, wish.instance, wish.site, str(root)), wish.lease_seconds)
        if held is not None:
            return held
        record = Record(
            name=wish.name,
            instance=wish.instance,
            boot_id=node.boot_id(),
            hostname=socket.gethostname(),
            lease_directory=str(self._lease.directory),
            runtime=wish.runtime,
            site=wish.site,
            created=time.time(),
        )
        try:
            self._clear_leftovers(root, [] if last is None else [Path(last.root)])
            root.mkdir(mode=0o700)
            _write(root, record)
        except (HostProblem, OSError):
            self._lease.release(str(root), wish.instance)
            raise
        return Cluster(record, root, adopted=False)

    def _start_agent(self, cluster: Cluster, wish: Wish, runtime: Path, prefix: list[str]) -> None:
        root, record = cluster.root, cluster.record
        wanted = record._replace(runtime=wish.runtime, lease_directory=str(self._lease.directory))
        if record != wanted:
            agents.stop_agent(root)
            if record.lease_directory != wanted.lease_directory:
                with suppress(HostProblem, OSError):  # it ends by itself
                    HostLease(Path(record.lease_directory)).release(str(root), record.instance)
            _write(root, wanted)
        elif agents.runs(root) and agents.answers(root):
            return
        # Beside the socket: runtimes come and go, and who reaches the agent knows only where the cluster is.
        shutil.copyfile(relay.__file__, root / RELAY_NAME)
        agents.start_agent(
            agents.AgentStart(
                root=root,
                instance=record.instance,
                runtime=runtime,
                python=wish.python,
                lease_seconds=wish.lease_seconds,
                lease_directory=self._lease.directory,
                chunks=self._base / "chunks",
                seconds=wish.start_seconds,
                prefix=prefix,
            )
        )

    def _clear_leftovers(self, root: Path, more: list[Path]) -> None:
        """Remove what lost this host without noticing: the host is ours now, and so no other cluster lives on it.

        Args:
            root: The cluster that has the host.
            more: Directories of clusters to look at beside those of this base.
        """
        # The home directory may be another host's as well, whose clusters are none of our business.
        hostname = socket.gethostname()
        for other in {*_directories(root.parent), *more} - {root}:
            record = read_record(other)
            if (
                record is not None
                and record.hostname == hostname
                and record.lease_directory == str(self._lease.directory)
            ):
                with self._locked(other):
                    removal.remove_cluster(other, grace=_GRACE_SECONDS)
        for remains, other in removal.unfinished(root.parent):
            record = read_record(remains)
            if record is None or record.hostname == hostname:
                with self._locked(other):
                    removal.finish_removals(other)

    def _expect(self, root: Path, instance: str) -> None:
        reason = self._why_gone(root, instance)
        if reason:
            raise ClusterGone(reason)

    def _why_gone(self, root: Path, instance: str | None) -> str:
        """Return why the cluster that is meant is not there, nothing when it is; None means any instance."""
        record = read_record(root)
        if record is None:
            return "the cluster's directory or its record is gone"
        if record.boot_id != node.boot_id():
            return "the host was booted since the cluster was made"
        if instance not in (None, record.instance):
            return "another cluster lies under this name"
        return ""

    def _locked(self, root: Path) -> AbstractContextManager[None]:
        return lock_file(root.with_suffix(".lock"), seconds=_LOCK_SECONDS)


def leave_host(root: Path, instance: str, lease: HostLease) -> None:
    """Remove the cluster of the calling agent, which has ended its jobs, and let the host go.

    Raises:
        HostProblem: something of it is left.
    """
    record = read_record(root)
    if record is not None and record.instance != instance:
        return  # another one is there by now: the home directory may be several hosts'
    for kept in removal.remove_cluster(root, grace=0.0):
        log.warning("left in the home directory: %s", kept)
    lease.release(str(root), instance)


def read_record(root: Path) -> Record | None:
    """Return the record of the cluster at ``root``, None when there is none that makes sense."""
    try:
        said = json.loads(read_file(root / RECORD_NAME, limit=_RECORD_BYTES))
        return Record(
            name=str(said["name"]),
            instance=str(said["instance"]),
            boot_id=str(said["boot_id"]),
            hostname=str(said["hostname"]),
            lease_directory=str(said["lease_directory"]),
            runtime=str(said["runtime"]),
            site=str(said["site"]),
            created=float(said["created"]),
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(root: Path, record: Record) -> None:
    write_private(root / RECORD_NAME, json.dumps(record._asdict()))


def _directories(clusters: Path) -> list[Path]:
    return sorted(path for path in clusters.iterdir() if not path.name.startswith(".") and path.is_dir())
