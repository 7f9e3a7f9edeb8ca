"""The interface between planning and the process that runs plugins: worker processes, or the user's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from hub.config.options import Options
from hub.partition.group import Group
from hub.partition.proposals import Offered
from hub.partition.verdicts import Answers
from hub.plugin.backend import CompileSettings
from hub.process.state import Said
from hub.workers.candidate import Candidate, Done


class Workers(Protocol):
    """A runner of plugins: it asks them about a graph, and has them compile clusters. `Session` does so in workers."""

    @property
    def is_apart(self) -> bool:
        """Return whether plugins run outside the user's process, which then loads what they compiled and tried."""
        ...

    @property
    def is_unreadable(self) -> bool:
        """Return whether this graph cannot be sent to workers, because it holds objects that only this process knows."""
        ...

    def ask_early(self, backends: Iterable[str], options: Options) -> None:
        """Start requests to several backends at once. Raise WorkerError if no worker is available."""
        ...

    def answers(self, backend: str, options: Options) -> Answers:
        """Return a backend's verdicts on the graph's nodes. Raise HubError if it cannot be loaded, or dies."""
        ...

    def overrides(self, backend: str, method: str) -> bool:
        """Return whether a backend that was asked about the graph has an optional method of its own."""
        ...

    def offered(self) -> tuple[Offered, ...]:
        """Return the clusters that plugins propose. Raise WorkerError if no worker is available."""
        ...

    def estimate(self, found: Group, settings: CompileSettings) -> Said:
        """Return a backend's estimate for a cluster, None if it makes none. Raise the same errors as the backend."""
        ...

    def explain(self, found: Group, name: str, settings: CompileSettings) -> Said:
        """Return a backend's explanation of a cluster on the sample. Raise the same errors as the backend."""
        ...

    def values(self, names: Iterable[str]) -> Mapping[str, Any]:
        """Return the named values of one run of the graph in eager. Raise HubError if that fails."""
        ...

    def eager_prices(self) -> Mapping[str, float]:
        """Return seconds of each node in eager, if measurable without side effects. Raise PluginError on failure."""
        ...

    def tried(self, candidate: Candidate) -> Candidate | None:
        """Return the candidate with its results if it was compiled and verified outside the user's process; else None."""
        ...

    def try_out(self, candidate: Candidate, meanwhile: Callable[[], None]) -> Candidate:
        """Compile, run, verify and, if possible, save one cluster. Raise WorkerError if no worker is available."""
        ...

    def try_out_all(
        self, candidates: Sequence[Candidate], most: Mapping[str, int], done: Done, meanwhile: Callable[[], None]
    ) -> Sequence[Candidate]:
        """Do for several clusters at once what `try_out` does for one. Clusters that were not started are left out."""
        ...
