"""Plans of graphs that run in eager: while planning goes on, or because none could be made."""

from __future__ import annotations

import torch

from hub.plan import EAGER, DecidedBy, Event, EventKind, Plan, PlannedCluster, Stage
from hub.planning.evidence import Mode
from hub.plugin.graph import Graph


def pending_plan(graph: Graph, mode: Mode, threads: int) -> Plan:
    """Return the plan of a graph that runs in eager until planning is done."""
    nodes = tuple(node.name for node in graph.nodes)
    cluster = PlannedCluster(name="e0", backend=EAGER, nodes=nodes, reason="planning continues in the background")
    return Plan(
        graph=graph.name,
        graph_digest=graph.digest,
        mode=mode,
        clusters=(cluster,),
        threads=threads,
        decided_by=DecidedBy.PENDING,
    )


def eager_plan(name: str, reason: str, mode: Mode = "inference") -> Plan:
    """Return the plan of a program that could not be captured and runs in eager."""
    cluster = PlannedCluster(name="e0", backend=EAGER, nodes=(), reason=reason)
    event = Event(kind=EventKind.FALLBACK, stage=Stage.CAPTURE, message=reason)
    return Plan(
        graph=name,
        graph_digest="",
        mode=mode,
        clusters=(cluster,),
        threads=torch.get_num_threads(),
        decided_by=DecidedBy.NOT_CAPTURED,
        events=(event,),
    )
