"""The order in which the parts of a graph can run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from heapq import heappop, heappush

from torch import fx

from hub.plugin.graph import Graph

Place = tuple[int, int]
"""A part of a graph: its number, and a position in it if it may be split."""


def has_order(graph: Graph, node: fx.Node) -> bool:
    """Return whether a node's effect (random numbers, assertions) must keep its order among such nodes."""
    pin = graph.pinned.get(node.name)
    return pin is not None and pin.is_ordered


def needs(graph: Graph, place: Mapping[str, Place]) -> dict[Place, dict[Place, tuple[str, str]]]:
    """Return, for each place, the places that it depends on, each with the node there and the node that reads it."""
    found: dict[Place, dict[Place, tuple[str, str]]] = {part: {} for part in place.values()}
    last_effect: str | None = None
    for node in graph.nodes:
        sources = [source.name for source in node.all_input_nodes if source.name in place]
        if has_order(graph, node):
            sources += [last_effect] if last_effect else []
            last_effect = node.name
        for source in sources:
            if place[source] != place[node.name]:
                found[place[node.name]].setdefault(place[source], (source, node.name))
    return found


def ordered(needed: Mapping[Place, Iterable[Place]]) -> list[Place]:
    """Return the places in a topological order, lowest first. Raises CycleError if there is none."""
    sorter = TopologicalSorter(needed)
    sorter.prepare()
    ready: list[Place] = []
    order: list[Place] = []
    while sorter.is_active():
        for place in sorter.get_ready():
            heappush(ready, place)
        order.append(heappop(ready))
        sorter.done(order[-1])
    return order
