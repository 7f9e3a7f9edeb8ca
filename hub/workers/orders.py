"""What passes between planning and workers: a cluster to compile, what came of it, and whole plans that are timed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub.backend import CompileSettings
from hub.cost import Cost
from hub.dispatch.codegen import Step
from hub.errors import CompileError, PluginError
from hub.partition.group import Group
from hub.verification.fingerprint import Fingerprint
from hub.workers.channel import Worker

UNSAVED = "the executable could not be saved, so the next process compiles it again: {}"
"""A plan's note where a backend that saves did not."""


@dataclass(frozen=True, slots=True)
class Order:
    """One cluster to compile: for which backend, under which settings, and where to save it."""

    name: str
    group: Group
    settings: CompileSettings
    folder: Path | None
    """Where it is saved; None where only its price is wanted."""
    inputs: tuple[str, ...]
    """Names of the values it reads, weights left out."""
    is_needed: bool = True
    """False where it only helps to find a better plan, and so must not take time from those that are needed."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What came of an order: a price, or the reason why there is none."""

    order: Order
    cost: Cost | None = None
    compile_s: float = 0.0
    is_saved: bool = False
    failure: PluginError | None = None
    problem: str = ""
    """Why it could not be saved, where that was tried."""
    is_finite_only: bool = False
    """True where calls with infinities or NaN are left to eager."""
    notes: tuple[str, ...] = ()
    """What verification found out beside that it can be trusted."""
    changed: tuple[str, ...] = ()
    """What the plugin changed in its worker, and what was restored."""
    verify_s: float = 0.0
    """Seconds of `compile_s` in which it was compared with eager."""
    fingerprint: Fingerprint | None = None
    """What the saved executable gave on the real inputs."""
    untried: tuple[str, ...] = ()
    """Kinds of generated inputs for which no time was left."""
    differs: bool = False
    """True where something differs on unusual inputs."""
    is_remembered: bool = False
    """True where the failure is an earlier process's."""
    is_late: bool = False
    """True where the failure is only that the time for compiling was over: nothing is wrong with the candidate."""


@dataclass(frozen=True, slots=True)
class Block:
    """What some calls of a whole plan, one after the other, took."""

    seconds: float
    """Median of a call."""
    laps_s: tuple[float, ...]
    """Seconds of each step."""
    calls: int
    beside: int = 0
    """Of these, calls that ran beside those of the user's model, which left no gaps."""


@dataclass(slots=True)
class Lane:
    """A whole plan in a worker of its own."""

    name: str
    steps: tuple[Step, ...]
    offers: tuple[Offer, ...]
    """Its clusters, compiled."""
    spin: bool
    worker: Worker


def facts_of(order: Order) -> dict[str, Any]:
    """Return what a worker must know to compile or load a cluster."""
    return {"name": order.name, "backend": order.group.backend, "nodes": order.group.nodes, "settings": order.settings}


def late(order: Order) -> Offer:
    """Return what comes of an order for which the time was over."""
    error = CompileError(
        "not compiled within the budget",
        backend=order.group.backend,
        cluster=order.name,
        hint="raise `budget_s`, or run `hub tune`, which goes on where this stopped",
    )
    return Offer(order, failure=error, is_late=True)
