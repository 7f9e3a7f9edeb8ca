"""Chooses the cheapest set of candidates that covers every node once: a binary programme, solved exactly by HiGHS.

A candidate is a convex cluster with a backend and a price; eager is a candidate for every node alone. Two convex clusters
can still need each other; such cycles are cut off one by one until the cheapest cover has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import networkx
import numpy
from scipy.optimize import Bounds, LinearConstraint, milp  # pyright: ignore[reportUnknownVariableType] - untyped
from scipy.sparse import csr_array

from hub.graph import Graph
from hub.partition.group import Group

CLUSTER_TIE_S = 1e-6
"""Seconds by which each cluster is made dearer, so that fewer clusters win ties."""
_MOST_CUTS = 100


@dataclass(frozen=True, slots=True)
class Priced:
    """A group with what it costs, in seconds a call, boundary included."""

    group: Group
    cost_s: float


def cheapest_cover(
    graph: Graph,
    candidates: Sequence[Priced],
    eager_s: Mapping[str, float],
    required: frozenset[str] = frozenset(),
) -> tuple[Priced, ...] | None:
    """Gives the chosen candidates; nodes that none covers stay in eager. Exact.

    `eager_s` prices each node of the graph alone; nodes in `required` may not stay in eager. None if there is no cover, or
    if more than 100 cyclic combinations had to be ruled out.
    """
    atoms = _atoms(graph, candidates)
    costs = [item.cost_s + CLUSTER_TIE_S for item in candidates]
    eager = [sum(eager_s[name] for name in names) for _, names in atoms]
    most: Any = [*(1 for _ in candidates), *(int(required.isdisjoint(names)) for _, names in atoms)]
    matrix = _cover_matrix(atoms, len(candidates))
    width = len(candidates) + len(atoms)
    cuts: list[frozenset[int]] = []
    while len(cuts) <= _MOST_CUTS:
        constraints = [LinearConstraint(matrix, 1, 1), *(_cut(cut, width) for cut in cuts)]
        solved: Any = milp(numpy.array([*costs, *eager]), integrality=1, bounds=Bounds(0, most), constraints=constraints)
        if solved.x is None:
            return None
        chosen = [index for index in range(len(candidates)) if solved.x[index] > 0.5]
        cycle = _cycle(graph, candidates, chosen)
        if cycle is None:
            return tuple(candidates[index] for index in chosen)
        cuts.append(cycle)
    return None


def _atoms(graph: Graph, candidates: Sequence[Priced]) -> list[tuple[tuple[int, ...], list[str]]]:
    """Gathers nodes that the same candidates cover: they stand and fall together, so one row serves them all."""
    covering: dict[str, list[int]] = {node.name: [] for node in graph.nodes}
    for index, item in enumerate(candidates):
        for name in item.group.nodes:
            covering[name].append(index)
    gathered: dict[tuple[int, ...], list[str]] = {}
    for name, indexes in covering.items():
        gathered.setdefault(tuple(indexes), []).append(name)
    return list(gathered.items())


def _cover_matrix(atoms: Sequence[tuple[tuple[int, ...], list[str]]], n_candidates: int) -> csr_array:
    entries = [(row, column) for row, (indexes, _) in enumerate(atoms) for column in (*indexes, n_candidates + row)]
    rows, columns = zip(*entries, strict=True)
    return csr_array((numpy.ones(len(entries)), (rows, columns)), shape=(len(atoms), n_candidates + len(atoms)))


def _cut(cycle: frozenset[int], width: int) -> LinearConstraint:
    row = numpy.zeros((1, width))
    row[0, sorted(cycle)] = 1
    return LinearConstraint(row, 0, len(cycle) - 1)


def _cycle(graph: Graph, candidates: Sequence[Priced], chosen: Sequence[int]) -> frozenset[int] | None:
    """Gives chosen candidates that need each other's results, or None."""
    place: dict[str, object] = {name: index for index in chosen for name in candidates[index].group.nodes}
    flow: networkx.DiGraph[object] = networkx.DiGraph()
    for node in graph.nodes:
        here = place.get(node.name, node.name)
        for source in node.all_input_nodes:
            there = place.get(source.name, source.name)
            if there != here:
                flow.add_edge(there, here)
    try:
        found = networkx.find_cycle(flow)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - untyped
    except networkx.NetworkXNoCycle:
        return None
    edges = cast("Sequence[tuple[Any, ...]]", found)
    return frozenset(item for edge in edges for item in edge if isinstance(item, int))
