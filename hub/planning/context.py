"""Input of a decision, and the candidate plans that it compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hub.cache.keys import artifact_parts, available_cores, digest_of
from hub.cache.measurements import Measurements, Subject, machine_digest, modes_digest, versions_of
from hub.config.options import Options
from hub.config.tables import WorkerSettings
from hub.discovery.registry import Registry
from hub.errors import WorkerError
from hub.partition.assignments import Assignment
from hub.partition.extract import extract
from hub.partition.group import EAGER, Group, is_trivial
from hub.partition.proposals import Offered, has_proposers, offered_by_plugins
from hub.partition.structure import structure_digest
from hub.partition.verdicts import Answers, answers
from hub.planning.decision import Decision
from hub.planning.steps import reads
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster, Graph, Pin
from hub.plugin.table import devices_of
from hub.process.modes import Modes, modes
from hub.report.progress import Progress
from hub.workers.candidate import Candidate
from hub.workers.limits import Limits, default_memory_bytes
from hub.workers.protocol import Workers
from hub.workers.session import Session
from hub.workers.transfer import Sample


@dataclass(frozen=True, slots=True)
class PlanningContext:
    """Everything that a decision about one graph depends on."""

    sample: Sample
    options: Options
    threads: int
    """Number of threads that one call may use."""
    registry: Registry
    artifacts: Path
    """Folder under which executables are saved: `BACKEND/KEY`."""
    measurements: Measurements
    progress: Progress
    session: Session
    """Worker processes; none is started before it is needed."""
    workers: Workers
    """Executor that queries plugins and tries what they compile: the session, or this process."""
    tell_better: Callable[[Decision], None] = lambda _: None
    """Callback for each plan that is clearly faster than the ones before, while others are still being tried."""
    modes: Modes = field(default_factory=modes)
    """PyTorch settings of the user's process, which workers adopt."""
    demoted: Mapping[Group, str] = field(default_factory=dict[Group, str])
    """Candidates that failed in this process while they served this graph, with the reason."""
    digests: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    """Digests of the weights read so far: hashing half a gigabyte for each candidate would take seconds."""
    versions: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    """Versions of the software under each backend read so far: reading package metadata takes milliseconds each time."""
    structures: dict[tuple[str, ...], str] = field(default_factory=dict[tuple[str, ...], str], repr=False)
    """Structural digests of clusters computed so far, by their nodes."""

    @property
    def graph(self) -> Graph:
        """Return the graph to decide about."""
        return self.sample.graph

    def settings(self, *, busy_wait: bool, threads: int | None = None) -> CompileSettings:
        """Return the settings to compile a cluster with; `threads` defaults to all that a call may use."""
        effort = "full" if self.options.tune == "full" else "fast"
        return CompileSettings(
            threads=threads or self.threads, busy_wait=busy_wait, accuracy=self.options.accuracy, effort=effort
        )

    def answers(self, backend: str) -> Answers:
        """Return a backend's support for the graph. Raise HubError if it cannot be loaded, or crashes when queried.

        A graph that no worker can read, because it holds something only this process knows, is queried in this process.
        Raise WorkerError if no worker is available; then the backend is not queried.
        """
        try:
            return self.workers.answers(backend, self.options)
        except WorkerError:
            if not self.workers.is_unreadable:
                raise
        return answers(self.graph, self.registry, self.options, backend)

    def offered(self) -> tuple[Offered, ...]:
        """Return the clusters that plugins propose; if no worker is available, a single entry with the fault."""
        if not has_proposers(self.registry):
            return ()
        try:
            return self.workers.offered()
        except WorkerError as error:
            if not self.workers.is_unreadable:
                return (Offered("unknown", fault=f"failed: {error.message}"),)
        return offered_by_plugins(self.graph, self.registry)

    def cluster(self, found: Group, name: str) -> Cluster:
        """Return a group as a program of its own, with weights as constants."""
        return extract(self.graph, found.nodes, name, self.sample.weights)

    def candidate(
        self, name: str, found: Group, settings: CompileSettings, *, is_needed: bool = True, is_saved: bool = True
    ) -> Candidate:
        """Return a cluster for a backend to compile; if `is_saved` is False, only its cost is wanted."""
        folder = self.folder(found, settings) if is_saved else None
        return Candidate(name, found, settings, reads(self.graph, found), folder, is_needed)

    def structure(self, found: Group) -> str:
        """Return the structural digest of a cluster's nodes."""
        if found.nodes not in self.structures:
            self.structures[found.nodes] = structure_digest(self.graph, found.nodes)
        return self.structures[found.nodes]

    def subject(self, found: Group, settings: CompileSettings) -> Subject:
        """Return the key under which measurements of a cluster are stored."""
        return Subject(
            structure=self.structure(found),
            backend=found.backend,
            versions=self._versions(found.backend),
            machine=machine_digest(),
            threads=settings.threads,
            busy_wait=settings.busy_wait,
            effort=settings.effort,
            accuracy=settings.accuracy,
            modes=modes_digest(self.modes),
        )

    def failure_subject(self, found: Group, settings: CompileSettings) -> Subject:
        """Return the key under which failures of a cluster are stored, without the modes that change times alone."""
        return replace(self.subject(found, settings), modes=digest_of(self.modes.numeric_parts))

    def _versions(self, backend: str) -> str:
        if backend not in self.versions:
            self.versions[backend] = versions_of(None if backend == EAGER else self.registry.entries[backend])
        return self.versions[backend]

    def compile_workers(self, backend: str) -> int:
        """Return how many clusters of a backend compile at once."""
        own = self.registry.entries[backend].settings
        wanted = None if own is None else own.compile_workers
        return wanted or self.options.workers.count or available_cores()

    def folder(self, found: Group, settings: CompileSettings) -> Path:
        """Return the folder of a cluster's executable, saved or not. Reads the weights: the name is a content digest."""
        digest = self.cluster(found, "key").digest_with(self.digests)
        parts = artifact_parts(digest, self.registry.entries[found.backend], settings)
        return self.artifacts / found.backend / digest_of(parts)


def limits_of(settings: WorkerSettings) -> Limits:
    """Return the resource limits of one worker process."""
    memory_bytes = default_memory_bytes() if settings.memory_limit_gb is None else int(1e9 * settings.memory_limit_gb)
    return Limits(settings.compile_limit_s, memory_bytes, int(1e6 * settings.output_limit_mb))


@dataclass(frozen=True, slots=True)
class CandidatePlan:
    """Candidate plan, not proven yet: an assignment, and how its clusters use threads."""

    name: str
    assignment: Assignment
    settings: CompileSettings


def candidate_plan(context: PlanningContext, assignment: Assignment) -> CandidatePlan:
    """Return an assignment with fitting settings: all threads, and busy-wait if it takes cores from no other code."""
    return CandidatePlan(assignment.name, assignment, context.settings(busy_wait=may_busy_wait(context.graph, assignment)))


def may_busy_wait(graph: Graph, assignment: Assignment) -> bool:
    """Return whether one cluster does all the computing, so that its busy-waiting threads take cores from no other code."""
    if graph.is_part:
        return False
    rest = (graph.by_name[name] for found in assignment.groups if found.backend == EAGER for name in found.nodes)
    return len(assignment.clusters) == 1 and all(is_trivial(node) or is_size(graph, node.name) for node in rest)


def is_on_accelerators(graph: Graph) -> bool:
    """Return whether no result of a graph is on the CPU, whose threads then compute nothing."""
    kinds = {device.type for node in graph.nodes for device in devices_of(node)}
    return bool(kinds) and "cpu" not in kinds


def is_size(graph: Graph, name: str) -> bool:
    """Return True for arithmetic on sizes: graphs with dynamic shapes have more of it, and only eager runs it."""
    return graph.pinned.get(name) is Pin.SIZES
