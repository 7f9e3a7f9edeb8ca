"""The outcome of a decision: the winning assignment, with everything learned on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hub.partition.assignments import Assignment
from hub.partition.group import Group
from hub.partition.verdicts import Verdicts
from hub.plan import DecidedBy, Event, Plan, Search
from hub.planning.race import Proof
from hub.plugin.backend import CompileSettings
from hub.plugin.cost import Cost


@dataclass(frozen=True, slots=True)
class Decision:
    """What won, and the evidence."""

    assignment: Assignment
    decided_by: DecidedBy
    settings: CompileSettings
    """Threads and spinning of its clusters."""
    costs: Mapping[Group, Cost] = field(default_factory=dict[Group, Cost])
    """Best known price of every cluster that was looked at."""
    predicted_s: float | None = None
    """Seconds of one call, as predicted before it was timed."""
    failures: Mapping[Group, str] = field(default_factory=dict[Group, str])
    """Why a cluster could not be had, in one line."""
    eager_s: Mapping[str, float] = field(default_factory=dict[str, float])
    proof: Proof | None = None
    search: Search | None = None
    events: tuple[Event, ...] = ()
    verdicts: Verdicts | None = None
    """What the backends that were asked take, after some of them failed; None where nobody was asked."""
    kept: Plan | None = None
    """The plan that is replayed, if one is."""
