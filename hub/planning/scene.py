"""What a decision is about, and what a draft of a plan is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hub.backend import CompileSettings
from hub.cache.keys import artifact_parts, digest_of
from hub.cache.measurements import Measurements
from hub.compilation.transfer import Sample
from hub.graph import Graph
from hub.options import Options
from hub.partition.assignments import Assignment
from hub.partition.extract import extract
from hub.partition.group import EAGER, Group, is_trifle
from hub.registry import Registry
from hub.report.progress import Progress


@dataclass(frozen=True, slots=True)
class Scene:
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
    digests: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    """Digests of weights that were read already: hashing half a gigabyte for each candidate would take seconds."""

    @property
    def graph(self) -> Graph:
        """The graph to decide about."""
        return self.sample.graph

    def settings(self, *, spin: bool, threads: int | None = None) -> CompileSettings:
        """Gives what a cluster is compiled with; `threads` defaults to all that a call may use."""
        effort = "full" if self.options.tune == "full" else "fast"
        return CompileSettings(threads=threads or self.threads, spin=spin, accuracy=self.options.accuracy, effort=effort)

    def folder(self, found: Group, settings: CompileSettings) -> Path:
        """Gives where a cluster's executable is, or would be, saved. Reads the weights to name it by content."""
        weights = {name: self.sample.by_name[name] for name in self.graph.weights}
        cluster = extract(self.graph, found.nodes, "key", weights)
        digest = cluster.digest_with(self.digests)
        parts = artifact_parts(digest, self.registry.entries[found.backend], settings)
        return self.artifacts / found.backend / digest_of(parts)


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan that is not proven yet: an assignment, with how its clusters use threads."""

    name: str
    assignment: Assignment
    settings: CompileSettings


def draft_of(scene: Scene, assignment: Assignment) -> Draft:
    """Gives an assignment with the settings that fit it: all threads, spinning where it takes cores from nobody."""
    return Draft(assignment.name, assignment, scene.settings(spin=may_spin(scene.graph, assignment)))


def may_spin(graph: Graph, assignment: Assignment) -> bool:
    """True where one cluster is all that computes, so that its spinning threads take cores from nobody."""
    rest = (graph.by_name[name] for found in assignment.groups if found.backend == EAGER for name in found.nodes)
    return len(assignment.clusters) == 1 and all(is_trifle(node) or _is_size(graph, node.name) for node in rest)


def _is_size(graph: Graph, name: str) -> bool:
    return "sizes" in graph.pinned.get(name, "")
