"""Plugins in the user's own process, where `isolate=False` asks for that: nothing is tried before it is used."""

# ruff: noqa: ARG002 - methods have the arguments of the protocol

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from hub.compilation.values import values_at
from hub.config.options import Options
from hub.discovery.registry import Registry
from hub.errors import WorkerError
from hub.partition.extract import extract
from hub.partition.group import Group
from hub.partition.proposals import Offered, offered_by_plugins
from hub.partition.verdicts import Answers, answers
from hub.plugin.backend import CompileSettings
from hub.process.state import HERE, Said, kept_state, told_changes
from hub.workers.candidate import Candidate, Done
from hub.workers.transfer import Sample


class InProcess:
    """Asks plugins in this process, whose state is put back after each of them. See `Workers` for what each method does."""

    is_apart = False
    is_unreadable = False

    def __init__(self, sample: Sample, registry: Registry) -> None:
        self._sample = sample
        self._registry = registry
        self._estimating: set[str] = set()
        """Backends that predict prices of their own."""

    def ask_early(self, backends: Iterable[str], options: Options) -> None:
        """Do nothing: here, backends are asked one after the other."""

    def answers(self, backend: str, options: Options) -> Answers:
        """Return what a backend says about the graph's nodes. Raise HubError where it cannot be loaded."""
        found = answers(self._sample.graph, self._registry, options, backend)
        if found.estimates:
            self._estimating.add(backend)
        return found

    def offered(self) -> tuple[Offered, ...]:
        """Return what plugins propose as clusters."""
        return offered_by_plugins(self._sample.graph, self._registry)

    def estimate(self, found: Group, settings: CompileSettings) -> Said:
        """Return what a backend predicts of a cluster. Raise whatever it raises."""
        if found.backend not in self._estimating:
            return Said(None)
        cluster = extract(self._sample.graph, found.nodes, "estimate", self._sample.weights)
        with kept_state() as changed:
            answer = self._registry.backend(found.backend).estimate(cluster, settings)
        return Said(answer, told_changes(changed, HERE))

    def explain(self, found: Group, name: str, settings: CompileSettings) -> Said:
        """Return what a backend tells of a cluster on the sample. Raise whatever it raises."""
        cluster = extract(self._sample.graph, found.nodes, name, self._sample.weights)
        values = values_at(self._sample.graph, self._sample.values, cluster.input_names)
        inputs = [values[node] for node in cluster.input_names]
        with kept_state() as changed:
            answer = self._registry.backend(found.backend).explain(cluster, settings, inputs)
        return Said(answer, told_changes(changed, HERE))

    def eager_prices(self) -> Mapping[str, float]:
        """Return nothing: a run of the graph here would draw the user's random numbers."""
        return {}

    def tried(self, candidate: Candidate) -> Candidate | None:
        """Return None: nothing is tried before it is used."""
        return None

    def try_out(self, candidate: Candidate, meanwhile: Callable[[], None]) -> Candidate:
        """Raise WorkerError: there is no worker."""
        raise WorkerError("no worker process compiles here")

    def try_out_all(
        self, candidates: Sequence[Candidate], most: Mapping[str, int], done: Done, meanwhile: Callable[[], None]
    ) -> Sequence[Candidate]:
        """Return nothing: no cluster is compiled ahead of its turn."""
        return ()
