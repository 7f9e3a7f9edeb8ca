"""Detection of clusters that depend on each other, described by the nodes where the cycle enters and leaves them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy

Edges = Mapping[int, Mapping[int, tuple[int, int]]]
"""For each cluster or eager node, its readers, each with one pair of nodes (read, reading)."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A cluster on a cycle: its node `entry` reads from the previous cluster, and its node `exit` is read by the next."""

    cluster: int
    entry: int
    exit: int


def cycles(reads: Sequence[Sequence[int]], clusters: Sequence[Sequence[int]]) -> tuple[tuple[Stop, ...], ...]:
    """Return cycles among disjoint clusters and the single nodes outside them; empty if and only if the clusters can run.

    Each cycle has as few stops as its nodes allow: single nodes, and clusters that the data flow crosses anyway, are left
    out. Every strongly connected component contributes at least one cycle. A single stop means that its cluster is not
    convex.
    """
    place = list(range(len(clusters), len(clusters) + len(reads)))
    for index, nodes in enumerate(clusters):
        for node in nodes:
            place[node] = index
    knots = _knots(reads, place, len(clusters) + len(reads))
    found: list[tuple[Stop, ...]] = []
    for edges in knots:
        seen: set[int] = set()
        for start in sorted(edges):
            if start < len(clusters) and start not in seen:
                stops = _needed(reads, [stop for stop in _shortest(edges, start) if stop.cluster < len(clusters)])
                seen |= {start, *(stop.cluster for stop in stops)}
                found.append(stops)
    return tuple(found)


def _knots(reads: Sequence[Sequence[int]], place: Sequence[int], size: int) -> list[dict[int, dict[int, tuple[int, int]]]]:
    """Return the strongly connected components of more than one cluster or node, as edges within each."""
    pairs = [(source, node) for node, sources in enumerate(reads) for source in sources if place[source] != place[node]]
    if not pairs:
        return []
    from scipy.sparse import csr_array  # late import: most plans have no clusters to check
    from scipy.sparse.csgraph import connected_components  # pyright: ignore[reportUnknownVariableType] - untyped

    ends = numpy.array([(place[source], place[node]) for source, node in pairs])
    flow = csr_array((numpy.ones(len(pairs)), (ends[:, 0], ends[:, 1])), shape=(size, size))
    _, components = cast("tuple[int, Any]", connected_components(flow, directed=True, connection="strong"))
    labels: Sequence[int] = components.tolist()
    knots: dict[int, dict[int, dict[int, tuple[int, int]]]] = {}
    for source, node in pairs:
        start, end = place[source], place[node]
        if labels[start] == labels[end]:
            knots.setdefault(labels[start], {}).setdefault(start, {}).setdefault(end, (source, node))
    return list(knots.values())


def _shortest(edges: Edges, start: int) -> list[Stop]:
    """Return a shortest cycle through a member of a component, as stops from `start` on."""
    came: dict[int, int] = {}
    waiting = deque([start])
    while start not in came:
        here = waiting.popleft()
        for there in edges[here]:
            if there not in came:
                came[there] = here
                waiting.append(there)
    circle = [start, came[start]]
    while circle[-1] != start:
        circle.append(came[circle[-1]])
    onward = circle[::-1]
    before = [onward[-2], *onward[:-2]]
    return [
        Stop(here, entry=edges[last][here][1], exit=edges[here][following][0])
        for last, here, following in zip(before, onward[:-1], onward[1:], strict=True)
    ]


def _needed(reads: Sequence[Sequence[int]], stops: Sequence[Stop]) -> tuple[Stop, ...]:
    """Drop stops whose entry leads to their exit: the cycle closes regardless of which clusters hold these nodes."""
    return tuple(stop for stop in stops if not _leads(reads, stop.entry, stop.exit))


def _leads(reads: Sequence[Sequence[int]], start: int, end: int) -> bool:
    """Return whether the result of `end` depends on that of `start`, or they are the same node."""
    waiting, seen = [end], {end}
    while waiting:
        here = waiting.pop()
        if here == start:
            return True
        fresh = [source for source in reads[here] if source >= start and source not in seen]
        seen.update(fresh)
        waiting += fresh
    return False
