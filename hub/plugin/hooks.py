"""The pluggy hooks. Registration happens once per process; observers run while planning, never on the inference path."""

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
"""Decorator that marks a plugin's function as the implementation of the hook of the same name."""


@hookspec
def hub_backends() -> Iterable[BackendInfo]:
    """Register backends. Called once, when backends are first listed or needed.

    Must be cheap: no import of torch or of the library under the backend. An empty result registers nothing.
    """
    return ()


@hookspec
def hub_candidates(graph: Graph) -> Iterable[Proposal]:  # noqa: ARG001 - implementations read it
    """Propose sets of nodes that are worth a cluster of their own. Called once per plan, after every backend's verdicts.

    Do not change `graph` or touch a device. A proposal competes with other candidates by its price. A proposal that cannot
    be used is dropped, with the reason in the plan's events. An empty result proposes nothing. A plugin that raises loses
    all its proposals; other plugins are not affected.
    """
    return ()


@hookspec
def hub_plan_made(plan: Plan) -> None:
    """Observe a plan that was just decided, before it runs for the first time. Exceptions are reported and ignored."""


@hookspec
def hub_cluster_compiled(backend: str, cluster: str, compile_s: float) -> None:
    """Observe a cluster that was compiled, and its wall time in seconds. Exceptions are reported and ignored."""


@hookspec
def hub_fallback(backend: str, cluster: str, reason: str) -> None:
    """Observe a cluster that moved from `backend` to another one or to eager, with the reason. Exceptions are ignored."""
