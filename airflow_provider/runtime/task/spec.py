"""What a validated definition is: frozen, comparable records that survive JSON unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError

from airflow_provider.runtime.task import environment, files, secret_references
from airflow_provider.runtime.task.errors import Report
from airflow_provider.runtime.task.git import GitWorkdir

Strategy = Literal["FAILOVER", "EAGER_NEXT_REGION", "NONE"]
"""Where a recovery looks for a new cluster; ``NONE`` never recovers."""

SpecT = TypeVar("SpecT", bound="_JsonRecord")


_adapters: dict[type, TypeAdapter[Any]] = {}


def _adapter(record: type[SpecT]) -> TypeAdapter[SpecT]:
    if record not in _adapters:
        _adapters[record] = TypeAdapter(record)
    return _adapters[record]


class _JsonRecord:
    """Conversion to and from plain JSON values."""

    # A stored field that this version does not know must not be dropped without a word.
    __pydantic_config__ = ConfigDict(extra="forbid")

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values: text, numbers, booleans, None, lists, dictionaries with text keys."""
        dumped: dict[str, Any] = _adapter(type(self)).dump_python(self, mode="json")
        return dumped

    @classmethod
    def from_json(cls: type[SpecT], data: Mapping[str, Any]) -> SpecT:
        """The record that ``to_json`` made ``data`` from.

        Raises:
            ValueError: ``data`` lacks a field, has an unknown one, or one of the wrong type.
        """
        try:
            return _adapter(cls).validate_python(data)
        except ValidationError as error:
            # Without the stored values, which pydantic's own message would show.
            details = [
                f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"
                for detail in error.errors(include_input=False, include_context=False, include_url=False)
            ]
        raise ValueError(f"not a stored {cls.__name__}: {'; '.join(details)}")


@dataclass(frozen=True)
class Quantity(_JsonRecord):
    """An amount that must be met exactly, or at least where ``at_least`` is set (written ``4+``)."""

    amount: float
    at_least: bool = False


@dataclass(frozen=True)
class JobRecovery(_JsonRecord):
    """What happens when a task's cluster is lost or its commands fail.

    Attributes:
        strategy: how a new cluster is found after the old one is lost.
        max_restarts_on_errors: how often commands that failed are started again.
        recover_on_exit_codes: exit codes (0 to 255) after which commands are always started again,
            without counting against ``max_restarts_on_errors``.
    """

    strategy: Strategy = "EAGER_NEXT_REGION"
    max_restarts_on_errors: int = 0
    recover_on_exit_codes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Candidate(_JsonRecord):
    """One kind of node that a task may run on.

    Attributes:
        infra: where nodes come from, for example ``local``, ``ssh/pool``, ``aws/us-east-1``,
            ``*/us-east-1`` (any infra that has the region); None for any.
        cpus: virtual CPUs of each node; None for any number.
        memory_gb: memory of each node in units of 2**30 bytes; None for any size.
        accelerators: at most one name with its count per node. The name may be a memory size such as
            ``80GB``, ``80GB+`` or ``nvidia:80GB``, which any accelerator of that size satisfies.
        use_spot: whether the nodes may be taken away at any time for a lower price.
        carried: valid fields that have no effect by themselves, for infras that know what to do with
            them: disk_size (GB), disk_tier, network_tier, labels, max_hourly_cost, priority_class.
    """

    infra: str | None = None
    cpus: Quantity | None = None
    memory_gb: Quantity | None = None
    accelerators: dict[str, float] = field(default_factory=dict)
    use_spot: bool = False
    carried: dict[str, JsonValue] = field(default_factory=dict)

    def describe(self, infra: str) -> str:
        """Say it in a line; ``infra`` is where it was found, for a candidate that takes any."""
        parts = [f"infra {self.infra or infra}"]
        for name, quantity, unit in (("cpus", self.cpus, ""), ("memory", self.memory_gb, " GiB")):
            if quantity is not None:
                parts.append(f"{name} {quantity.amount:g}{'+' if quantity.at_least else ''}{unit}")
        parts += [f"{name}:{count:g}" for name, count in self.accelerators.items()]
        return ", ".join([*parts, "spot"] if self.use_spot else parts)


@dataclass(frozen=True)
class Resources(_JsonRecord):
    """What a task asks for.

    Attributes:
        candidates: the kinds of node that will do; never empty.
        ordered: whether candidates are tried strictly in order; otherwise the cheapest or first
            available one wins.
        job_recovery: the same for all candidates.
        priority: from -1000 to 1000, higher first; 0 unless set.
    """

    candidates: tuple[Candidate, ...] = (Candidate(),)
    ordered: bool = False
    job_recovery: JobRecovery = JobRecovery()
    priority: int = 0


@dataclass(frozen=True)
class Origin(_JsonRecord):
    """Where a task was defined, for messages and for relative paths.

    Attributes:
        source: file, or the name that the caller gave to the text or the dictionaries.
        document: position of the task's document in the source, from 1.
        base_dir: absolute folder that relative local paths start from; None when there is none.
        lines: line of each field that ``TaskSpec.resolve`` checks, by path.
    """

    source: str = "<definition>"
    document: int = 1
    base_dir: str | None = None
    lines: dict[str, int] = field(default_factory=dict)

    def report(self) -> Report:
        """A new, empty list of problems of this task."""
        return Report(self.source, self.document)


@dataclass(frozen=True)
class TaskSpec(_JsonRecord):
    """One task of a chain.

    A spec comes out of the loader *unresolved*: ``envs`` may hold None, and ``workdir``, ``git`` and
    ``file_mounts`` are as written. ``resolve`` makes it ready to run.

    Attributes:
        name: unique within the chain.
        num_nodes: nodes that ``setup`` and ``run`` are executed on; at least 1.
        resources: what each node must offer.
        envs: environment variables; None where a value must still be given.
        secrets: environment variables by reference: ``variable:<key>`` is an Airflow variable,
            ``connection:<id>`` or ``connection:<id>.<field>`` an Airflow connection. No value is a secret.
        workdir: local folder that is copied to the nodes, where commands then start; None for none.
        git: repository that the nodes clone in place of a local folder; never beside ``workdir``.
        file_mounts: path on the nodes -> local file or folder that is copied there.
        setup: shell commands that prepare a node; None for none.
        run: shell commands of the task; None for a task that succeeds at once.
        carried: valid fields of the task that have no effect by themselves (api_server_access).
        resolved: whether ``resolve`` has been done.
        origin: where the task was defined; two tasks that differ only in this are equal.
    """

    name: str
    num_nodes: int = 1
    resources: Resources = field(default_factory=Resources)
    envs: dict[str, str | None] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    workdir: str | None = None
    git: GitWorkdir | None = None
    file_mounts: dict[str, str] = field(default_factory=dict)
    setup: str | None = None
    run: str | None = None
    carried: dict[str, JsonValue] = field(default_factory=dict)
    resolved: bool = False
    origin: Origin = field(default_factory=Origin, compare=False, repr=False)

    @property
    def carried_fields(self) -> tuple[str, ...]:
        """Paths of the fields that have no effect by themselves, sorted; ``use_spot`` counts if true."""
        paths = set(self.carried)
        for candidate in self.resources.candidates:
            paths |= {f"resources.{name}" for name in candidate.carried}
            if candidate.use_spot:
                paths.add("resources.use_spot")
        if self.resources.priority:
            paths.add("resources.priority")
        return tuple(sorted(paths))

    def with_overrides(
        self,
        *,
        envs: Mapping[str, str | None] | None = None,
        secrets: Mapping[str, str | None] | None = None,
        workdir: str | None = None,
    ) -> TaskSpec:
        """This task with other values, still unresolved.

        Args:
            envs: replace or add environment variables.
            secrets: replace or add references to secrets (never values); None refers to the Airflow
                variable of the same name.
            workdir: replaces the folder or the repository; relative to the folder of the definition. None
                keeps what there is.

        Raises:
            TaskValidationError: a name or value is not acceptable.
            ValueError: the task is resolved already.
        """
        if not envs and not secrets and workdir is None:
            return self
        if self.resolved:
            raise ValueError(f"task {self.name} is resolved already; give overrides before or to resolve()")
        report = self.origin.report()
        new_envs = environment.overrides(envs, report)
        new_secrets = secret_references.overrides(secrets, report)
        new_workdir = files.workdir_override(workdir, report)
        merged = replace(
            self,
            envs={**self.envs, **new_envs},
            secrets={**self.secrets, **new_secrets},
            workdir=new_workdir or self.workdir,
            git=None if new_workdir else self.git,
            origin=self._origin_without(
                [*(f"envs.{name}" for name in new_envs), *(["workdir"] if new_workdir else [])]
            ),
        )
        environment.check_names_together(merged.envs, merged.secrets, report)
        report.raise_if_any()
        return merged

    def resolve(
        self,
        *,
        envs: Mapping[str, str | None] | None = None,
        secrets: Mapping[str, str | None] | None = None,
        workdir: str | None = None,
    ) -> TaskSpec:
        """This task, ready to run on the machine that holds its files.

        Applies the overrides (see ``with_overrides``), requires a value for every environment variable,
        replaces ``$NAME`` and ``${NAME}`` in ``workdir``, ``git`` and ``file_mounts``, and makes local paths
        absolute. Resolving a resolved task without overrides changes nothing.

        Raises:
            TaskValidationError: listing all problems: an environment variable without a value, a local
                path that does not exist, a path that is not acceptable after substitution.
            ValueError: overrides for a task that is resolved already.
        """
        spec = self.with_overrides(envs=envs, secrets=secrets, workdir=workdir)
        if spec.resolved:
            return spec
        report = spec.origin.report()
        environment.check_values_present(spec.envs, report, spec.origin.lines)
        context = files.Context(
            envs=spec.envs,
            secrets=spec.secrets,
            base_dir=spec.origin.base_dir,
            report=report,
            lines=spec.origin.lines,
        )
        files.check_secret_paths(spec.workdir, spec.git, spec.file_mounts, context)
        resolved_workdir = files.resolve_workdir(spec.workdir, context)
        resolved_git = files.resolve_git(spec.git, context)
        resolved_mounts = files.resolve_mounts(
            spec.file_mounts, context, has_workdir=spec.workdir is not None or spec.git is not None
        )
        report.raise_if_any()
        return replace(
            spec, workdir=resolved_workdir, git=resolved_git, file_mounts=resolved_mounts, resolved=True
        )

    def _origin_without(self, paths: list[str]) -> Origin:
        # The line of a value that has been replaced would send the reader to the wrong place.
        lines = {path: line for path, line in self.origin.lines.items() if path not in paths}
        return replace(self.origin, lines=lines)


@dataclass(frozen=True)
class Chain(_JsonRecord):
    """Tasks that run one after the other, each when the one before has succeeded."""

    name: str
    tasks: tuple[TaskSpec, ...]
