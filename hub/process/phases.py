"""Phases of planning and their times: always recorded, in every process, and never acted on."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

MAX_PHASES = 10_000
"""Most phases to keep for one graph: a program whose plan is rebuilt endlessly must not fill the memory."""


class Work(StrEnum):
    """Kind of work, as shown in a table. If several go on at once, the first in this order counts."""

    COMPILE = "compile"
    """A backend's `compile`: its compiler's own work."""
    CAPTURE = "AOTAutograd"
    """PyTorch's functional form of a program."""
    LOAD = "load"
    """A backend's `load` of a saved executable."""
    VERIFY = "verify"
    SAMPLE = "inputs of clusters"
    """A run of the graph in eager, to get the clusters' inputs."""
    SAVE = "save"
    CHECK = "checks around it"
    """Extraction of a cluster, and checks of what a plugin changes or leaves behind."""
    START = "start of workers"
    """Wait for a worker: forked, or started anew, with PyTorch imported and the graph read."""
    ASK = "import, what it takes"
    """Import of a backend's library, and its verdict on each node."""
    WAIT = "wait for a core"
    TIME = "time alone"
    RACE = "race"
    PROPOSE = "proposals"
    KEEP = "keep the plan"
    DECIDE = "decide"
    """All other work for a decision."""
    BUILD = "build the plan"
    ANSWER = "first run"
    """The call that a new binding is made for, in eager if planning continues meanwhile."""
    GRAPH = "work on the graph"
    """Simplification, pins, weights, options, plugins, digests, cached plans."""
    DYNAMO = "Dynamo"
    """The part of a captured call that is not the hub's."""
    PROCESS = "start of planning"
    """Start of the planning process, which imports PyTorch and reads the graph."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One stretch of time."""

    work: Work
    began_s: float
    """Seconds on the monotonic clock, which all processes of a machine share."""
    ended_s: float
    who: str = ""
    """The backend or plan that it was for; "" is the hub."""

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.ended_s - self.began_s


class Phases:
    """The record of one graph. Thread-safe."""

    def __init__(self) -> None:
        self._found: list[Phase] = []

    @property
    def found(self) -> tuple[Phase, ...]:
        """All phases so far, in the order in which they ended."""
        return tuple(self._found)

    def add(self, phases: Iterable[Phase]) -> None:
        """Add phases that other processes recorded."""
        self._found += list(phases)[: max(0, MAX_PHASES - len(self._found))]

    @contextmanager
    def during(self, work: Work, who: str = "") -> Generator[None]:
        """Record the phase within the block, even if it fails."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.add([Phase(work, began_s, time.monotonic(), who)])
