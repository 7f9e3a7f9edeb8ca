"""What the making of a plan took, stretch by stretch: written down always, in whichever process, and never acted on."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

MAX_PHASES = 10_000
"""Phases that are kept for one graph: whoever rebuilds its plan for ever must not fill the memory."""


class Work(StrEnum):
    """What went on, in words that a table shows. The order says whose a moment is in which several went on."""

    COMPILE = "compile"
    """A backend's `compile`: its compiler's own work."""
    CAPTURE = "AOTAutograd"
    """PyTorch's functional form of a program."""
    LOAD = "load"
    """A backend's `load` of what was saved."""
    VERIFY = "verify"
    SAMPLE = "inputs of clusters"
    """The graph in eager, for what its clusters are given."""
    SAVE = "save"
    CHECK = "checks around it"
    """Cutting a cluster out, and what a plugin changes or leaves behind."""
    START = "start of workers"
    """Waiting for a worker: forked, or started anew, with PyTorch imported and the graph read."""
    ASK = "import, what it takes"
    """A backend's library is imported, and it is asked about each node."""
    WAIT = "wait for a core"
    TIME = "time alone"
    RACE = "race"
    PROPOSE = "proposals"
    KEEP = "keep the plan"
    DECIDE = "decide"
    """What else a decision takes."""
    BUILD = "build the plan"
    ANSWER = "first run"
    """The call that a new binding is made for: in eager where planning goes on meanwhile."""
    GRAPH = "work on the graph"
    """Simplifying, pins, weights, options, plugins, digests, what is kept in the cache."""
    DYNAMO = "Dynamo"
    """What a call takes that is captured, beside the hub."""
    PROCESS = "start of planning"
    """The planning process starts, imports PyTorch, and reads the graph."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One stretch of time."""

    work: Work
    began_s: float
    """Seconds of the monotonic clock, which all processes of a machine share since it was started."""
    ended_s: float
    who: str = ""
    """The backend, or the plan, that it was for; "" is the hub."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended_s - self.began_s


class Phases:
    """The record of one graph. Any thread may add to it."""

    def __init__(self) -> None:
        self._found: list[Phase] = []

    @property
    def found(self) -> tuple[Phase, ...]:
        """All phases so far, in the order in which they ended."""
        return tuple(self._found)

    def add(self, phases: Iterable[Phase]) -> None:
        """Add phases that others wrote down."""
        self._found += list(phases)[: max(0, MAX_PHASES - len(self._found))]

    @contextmanager
    def during(self, work: Work, who: str = "") -> Generator[None]:
        """Write down what goes on within, also where it fails."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.add([Phase(work, began_s, time.monotonic(), who)])
