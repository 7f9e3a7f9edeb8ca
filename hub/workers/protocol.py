"""What planning asks of whoever runs plugins: worker processes, or the user's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from hub.config.options import Options
from hub.partition.group import Group
from hub.partition.proposals import Offered
from hub.partition.verdicts import Answers
from hub.plugin.backend import CompileSettings
from hub.process.state import Said
from hub.workers.candidate import Candidate, Done


class Workers(Protocol):
    """Runs plugins: asks them about a graph, and has them compile clusters. `Session` does so in worker processes."""

    @property
    def is_apart(self) -> bool:
        """Return whether plugins run outside the user's process, which then loads what was compiled and tried there."""
        ...

    @property
    def is_unreadable(self) -> bool:
        """Return whether no worker process can have this graph: it holds what only this process knows."""
        ...

    def ask_early(self, backends: Iterable[str], options: Options) -> None:
        """Begin to ask several backends at once. Raise WorkerError where nobody can be asked."""
        ...

    def answers(self, backend: str, options: Options) -> Answers:
        """Return what a backend says about the graph's nodes. Raise HubError where it cannot be loaded, or dies of it."""
        ...

    def offered(self) -> tuple[Offered, ...]:
        """Return what plugins propose as clusters. Raise WorkerError where nobody can be asked."""
        ...

    def estimate(self, found: Group, settings: CompileSettings) -> Said:
        """Return what a backend predicts of a cluster, None where it predicts nothing. Raise whatever it raises."""
        ...

    def explain(self, found: Group, name: str, settings: CompileSettings) -> Said:
        """Return what a backend tells of a cluster on the sample. Raise whatever it raises."""
        ...

    def eager_prices(self) -> Mapping[str, float]:
        """Return seconds of each node in eager, where they can be measured without a trace. Raise PluginError."""
        ...

    def tried(self, candidate: Candidate) -> Candidate | None:
        """Return the same, where it was compiled and verified before the user's process has it; else None."""
        ...

    def try_out(self, candidate: Candidate, meanwhile: Callable[[], None]) -> Candidate:
        """Compile, run, verify and, where possible, save one cluster. Raise WorkerError."""
        ...

    def try_out_all(
        self, candidates: Sequence[Candidate], most: Mapping[str, int], done: Done, meanwhile: Callable[[], None]
    ) -> Sequence[Candidate]:
        """Do for several clusters at once what `try_out` does for one; what was not started is left out."""
        ...
