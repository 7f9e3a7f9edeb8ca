"""The outcome of a decision: the winning assignment, with its evidence."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from hub.partition.assignments import Assignment
from hub.partition.group import Group
from hub.partition.verdicts import Verdicts
from hub.plan import DecidedBy, Event, Plan, Search
from hub.planning.race import Proof
from hub.plugin.backend import CompileSettings
from hub.plugin.cost import Cost


@dataclass(frozen=True, slots=True)
class Decision:
    """Winning assignment and its evidence."""

    assignment: Assignment
    decided_by: DecidedBy
    settings: CompileSettings
    """Threads and busy-wait of its clusters."""
    costs: Mapping[Group, Cost] = field(default_factory=dict[Group, Cost])
    """Best known cost of every cluster that was considered."""
    predicted_s: float | None = None
    """Predicted seconds of one call, before it was timed."""
    failures: Mapping[Group, str] = field(default_factory=dict[Group, str])
    """Reason why a cluster is unavailable, in one line."""
    eager_s: Mapping[str, float] = field(default_factory=dict[str, float])
    proof: Proof | None = None
    search: Search | None = None
    events: tuple[Event, ...] = ()
    others: tuple[Decision, ...] = ()
    """Decisions for the other plans that were timed as a whole, fastest first."""
    is_provisional: bool = False
    """True if too many timings were taken while other work used the cores."""
    verdicts: Verdicts | None = None
    """Support of the queried backends, minus what failed; None if no backend was queried."""
    kept: Plan | None = None
    """The plan that is replayed, if any."""

    def without(self, backend: str, nodes: Collection[str]) -> Decision | None:
        """Return the decision for the fastest other plan in which `backend` runs none of these nodes, if there is one."""
        fit = [one for one in self.others if not any(_runs(found, backend, nodes) for found in one.assignment.groups)]
        return replace(fit[0], others=tuple(fit[1:])) if fit else None


def _runs(found: Group, backend: str, nodes: Collection[str]) -> bool:
    return found.backend == backend and not set(nodes).isdisjoint(found.nodes)
