"""Plugins in the user's own process, for `isolate=False`: nothing is tried before it is used."""

# ruff: noqa: ARG002 - the protocol defines the arguments

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hub.config.options import Options
from hub.discovery.registry import Registry
from hub.errors import WorkerError
from hub.partition.extract import extract
from hub.partition.group import Group
from hub.partition.proposals import Offered, offered_by_plugins
from hub.partition.verdicts import Answers, answers
from hub.plugin.backend import CompileSettings, overrides
from hub.process.state import HERE, Said, kept_state, told_changes
from hub.workers.candidate import Candidate, Done
from hub.workers.compilation.values import values_at
from hub.workers.transfer import Sample


class InProcess:
    """Implementation of `Workers` that calls plugins in this process, and restores its state after each call."""

    is_apart = False
    is_unreadable = False

    def __init__(self, sample: Sample, registry: Registry) -> None:
        self._sample = sample
        self._registry = registry
        self._abilities: dict[str, frozenset[str]] = {}
        """Optional methods of the backends that were asked."""

    def ask_early(self, backends: Iterable[str], options: Options) -> None:
        """Do nothing: in this process, backends are asked one after the other."""

    def answers(self, backend: str, options: Options) -> Answers:
        """Return a backend's verdicts on the graph's nodes. Raise HubError if it cannot be loaded."""
        found = answers(self._sample.graph, self._registry, options, backend)
        self._abilities[backend] = found.abilities
        return found

    def overrides(self, backend: str, method: str) -> bool:
        """Return whether a backend that was asked about the graph has an optional method of its own."""
        return method in self._abilities.get(backend, ())

    def offered(self) -> tuple[Offered, ...]:
        """Return the clusters that plugins propose."""
        return offered_by_plugins(self._sample.graph, self._registry)

    def estimate(self, found: Group, settings: CompileSettings) -> Said:
        """Return a backend's estimate for a cluster. Raise the same errors as the backend."""
        if not self.overrides(found.backend, "estimate"):
            return Said(None)
        cluster = extract(self._sample.graph, found.nodes, "estimate", self._sample.weights)
        with kept_state() as changed:
            answer = self._registry.backend(found.backend).estimate(cluster, settings)
        return Said(answer, told_changes(changed, HERE))

    def explain(self, found: Group, name: str, settings: CompileSettings) -> Said:
        """Return a backend's explanation of a cluster on the sample. Raise the same errors as the backend."""
        if not overrides(self._registry.backend(found.backend), "explain"):
            return Said("")
        cluster = extract(self._sample.graph, found.nodes, name, self._sample.weights)
        values = values_at(self._sample.graph, self._sample.values, cluster.input_names)
        inputs = [values[node] for node in cluster.input_names]
        with kept_state() as changed:
            answer = self._registry.backend(found.backend).explain(cluster, settings, inputs)
        return Said(answer, told_changes(changed, HERE))

    def values(self, names: Iterable[str]) -> Mapping[str, Any]:
        """Return the named values of one run of the graph in eager."""
        return values_at(self._sample.graph, self._sample.values, names)

    def eager_prices(self) -> Mapping[str, float]:
        """Return no prices: running the graph here would advance the user's random number generator."""
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
        """Return no candidates: no cluster is compiled ahead of its turn."""
        return ()
