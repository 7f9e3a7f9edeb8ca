"""What a decision is about, and what a draft of a plan is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hub.cache.keys import artifact_parts, available_cores, digest_of
from hub.cache.measurements import Measurements, Subject, machine_digest, modes_digest, versions_of
from hub.config.options import Options
from hub.discovery.registry import Registry
from hub.errors import WorkerError
from hub.partition.assignments import Assignment
from hub.partition.extract import extract
from hub.partition.group import EAGER, Group, is_trifle
from hub.partition.proposals import Offered, has_proposers, offered_by_plugins
from hub.partition.structure import structure_digest
from hub.partition.verdicts import Answers, answers
from hub.planning.decision import Decision
from hub.planning.schedule import reads
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
    """Everything that a decision about one graph can look at."""

    sample: Sample
    options: Options
    threads: int
    """Threads that one call may use."""
    registry: Registry
    artifacts: Path
    """Folder under which executables are saved: `BACKEND/KEY`."""
    measurements: Measurements
    progress: Progress
    session: Session
    """Worker processes; none is started before it is needed."""
    workers: Workers
    """Whoever asks plugins and tries what they compile: the session, or this process."""
    tell_better: Callable[[Decision], None] = lambda _: None
    """Hears of each plan that is a good deal faster than those before it, while others are still tried."""
    modes: Modes = field(default_factory=modes)
    """PyTorch's settings in the user's process, which workers take over."""
    demoted: Mapping[Group, str] = field(default_factory=dict[Group, str])
    """Candidates that failed in this process while they served this graph, and why."""
    digests: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    """Digests of weights that were read already: hashing half a gigabyte for each candidate would take seconds."""
    versions: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    """Of the software under each backend, as far as read: what packages say of themselves takes milliseconds each time."""
    structures: dict[tuple[str, ...], str] = field(default_factory=dict[tuple[str, ...], str], repr=False)
    """Structural digests of clusters, as far as asked for, by their nodes."""

    @property
    def graph(self) -> Graph:
        """The graph to decide about."""
        return self.sample.graph

    def settings(self, *, spin: bool, threads: int | None = None) -> CompileSettings:
        """Return what a cluster is compiled with; `threads` defaults to all that a call may use."""
        effort = "full" if self.options.tune == "full" else "fast"
        return CompileSettings(threads=threads or self.threads, spin=spin, accuracy=self.options.accuracy, effort=effort)

    def answers(self, backend: str) -> Answers:
        """Return what a backend says about the graph. Raise HubError where it cannot be loaded, or dies of the question.

        A graph that no worker can read, because it holds what only this process knows, is shown to it here. Raise
        WorkerError where no worker can be had: then nobody is asked.
        """
        try:
            return self.workers.answers(backend, self.options)
        except WorkerError:
            if not self.workers.is_unreadable:
                raise
        return answers(self.graph, self.registry, self.options, backend)

    def offered(self) -> tuple[Offered, ...]:
        """Return what plugins propose as clusters; where no worker can be had, nobody proposes anything."""
        if not has_proposers(self.registry):
            return ()
        try:
            return self.workers.offered()
        except WorkerError as error:
            if not self.workers.is_unreadable:
                return (Offered("unknown", fault=f"failed: {error.message}"),)
        return offered_by_plugins(self.graph, self.registry)

    def cluster(self, found: Group, name: str) -> Cluster:
        """Return a group as a program of its own, weights as constants."""
        return extract(self.graph, found.nodes, name, self.sample.weights)

    def candidate(
        self, name: str, found: Group, settings: CompileSettings, *, is_needed: bool = True, is_saved: bool = True
    ) -> Candidate:
        """Return a cluster for a backend to compile; with `is_saved` False, only to know its price."""
        folder = self.folder(found, settings) if is_saved else None
        return Candidate(name, found, settings, reads(self.graph, found), folder, is_needed)

    def structure(self, found: Group) -> str:
        """Return the structural digest of a cluster's nodes."""
        if found.nodes not in self.structures:
            self.structures[found.nodes] = structure_digest(self.graph, found.nodes)
        return self.structures[found.nodes]

    def subject(self, found: Group, settings: CompileSettings) -> Subject:
        """Return what measurements, and failures, of a cluster are kept under."""
        return Subject(
            structure=self.structure(found),
            backend=found.backend,
            versions=self._versions(found.backend),
            machine=machine_digest(),
            threads=settings.threads,
            spin=settings.spin,
            effort=settings.effort,
            accuracy=settings.accuracy,
            modes=modes_digest(self.modes),
        )

    def _versions(self, backend: str) -> str:
        if backend not in self.versions:
            self.versions[backend] = versions_of(None if backend == EAGER else self.registry.entries[backend])
        return self.versions[backend]

    def compile_workers(self, backend: str) -> int:
        """Return how many clusters of a backend are compiled at once."""
        own = self.registry.entries[backend].settings
        wanted = None if own is None else own.compile_workers
        return wanted or self.options.compile_workers or available_cores()

    def folder(self, found: Group, settings: CompileSettings) -> Path:
        """Return where a cluster's executable is, or would be, saved. Reads the weights to name it by content."""
        digest = self.cluster(found, "key").digest_with(self.digests)
        parts = artifact_parts(digest, self.registry.entries[found.backend], settings)
        return self.artifacts / found.backend / digest_of(parts)


def limits_of(options: Options) -> Limits:
    """Return what one worker process may use."""
    memory_bytes = default_memory_bytes() if options.memory_limit_gb is None else int(1e9 * options.memory_limit_gb)
    return Limits(options.compile_limit_s, memory_bytes, int(1e6 * options.output_limit_mb))


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan that is not proven yet: an assignment, with how its clusters use threads."""

    name: str
    assignment: Assignment
    settings: CompileSettings


def draft_of(context: PlanningContext, assignment: Assignment) -> Draft:
    """Return an assignment with the settings that fit it: all threads, spinning where it takes cores from nobody."""
    return Draft(assignment.name, assignment, context.settings(spin=may_spin(context.graph, assignment)))


def may_spin(graph: Graph, assignment: Assignment) -> bool:
    """Return whether one cluster is all that computes, so that its spinning threads take cores from nobody."""
    rest = (graph.by_name[name] for found in assignment.groups if found.backend == EAGER for name in found.nodes)
    return len(assignment.clusters) == 1 and all(is_trifle(node) or _is_size(graph, node.name) for node in rest)


def is_on_accelerators(graph: Graph) -> bool:
    """Return whether no result of a graph lies on the CPU, whose threads then compute nothing."""
    kinds = {device.type for node in graph.nodes for device in devices_of(node)}
    return bool(kinds) and "cpu" not in kinds


def _is_size(graph: Graph, name: str) -> bool:
    return graph.pinned.get(name) is Pin.SIZES
