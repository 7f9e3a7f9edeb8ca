"""The pluggy hooks. Registration happens once a process; observers run while planning, never on the inference path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from hub.plan import Plan
    from hub.plugin.backend import BackendInfo, Proposal
    from hub.plugin.graph import Graph

PROJECT = "hub"
"""Name of the pluggy project and of the entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a plugin's function as the implementation of the hook of its name."""


@hookspec
def hub_backends() -> Iterable[BackendInfo]:
    """Register backends. Called once, when backends are first listed or wanted.

    Must be cheap: no import of torch or of the library under the backend. An empty result registers nothing.
    """
    return ()


@hookspec
def hub_candidates(graph: Graph) -> Iterable[Proposal]:  # noqa: ARG001 - implementations read it
    """Contributes sets of nodes that are worth a cluster of their own. Called once a plan, after every backend's verdicts.

    `graph` must not be changed, and no device touched. A proposal competes with other candidates by its price. One that
    cannot be used is dropped, with the reason in the plan's events. An empty result proposes nothing. A plugin that raises
    loses all its proposals; others lose nothing.
    """
    return ()


@hookspec
def hub_plan_made(plan: Plan) -> None:
    """Observe a plan that was just decided, before it runs for the first time. What it raises is reported and ignored."""


@hookspec
def hub_cluster_compiled(backend: str, cluster: str, compile_s: float) -> None:
    """Observe one cluster that was compiled, in seconds of wall time. What it raises is reported and ignored."""


@hookspec
def hub_fallback(backend: str, cluster: str, reason: str) -> None:
    """Observe a cluster that left `backend` for another one or for eager, with the reason. What it raises is ignored."""
