"""The exact cover agrees with trying everything."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import networkx
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.assign.cover import Priced, cheapest_cover
from hub.assign.problem import CLUSTER_TIE_S
from hub.errors import PlanError
from hub.graph import Graph
from hub.partition.extract import check_convex
from hub.partition.group import Group
from hub.testing import random_graphs


def is_convex(graph: Graph, names: Sequence[str]) -> bool:
    """True where no path leaves the set and comes back."""
    try:
        check_convex(tuple(graph.by_name[name] for name in names), "g")
    except PlanError:
        return False
    return True


@st.composite
def markets(draw: st.DrawFn) -> tuple[Graph, list[Priced], dict[str, float]]:
    """Draws a graph, up to 7 convex candidates of three backends, and eager's prices."""
    graph = draw(random_graphs.graphs(8))
    names = [node.name for node in graph.nodes]
    sets = draw(st.lists(st.sets(st.sampled_from(names), min_size=1), max_size=7))
    kept = [[name for name in names if name in found] for found in sets]
    prices = st.integers(1, 100).map(lambda value: value * 1e-4)
    candidates = [
        Priced(Group(draw(st.sampled_from("abc")), tuple(found)), draw(prices)) for found in kept if is_convex(graph, found)
    ]
    return graph, candidates, {name: draw(prices) for name in names}


def can_run(graph: Graph, chosen: Sequence[Priced]) -> bool:
    """True where the chosen clusters and the remaining single nodes need each other in no circle."""
    place = {name: index for index, item in enumerate(chosen) for name in item.group.nodes}
    edges = [
        (place.get(source.name, source.name), place.get(node.name, node.name))
        for node in graph.nodes
        for source in node.all_input_nodes
    ]
    return networkx.is_directed_acyclic_graph(networkx.DiGraph(edge for edge in edges if edge[0] != edge[1]))


def cost(chosen: Sequence[Priced], eager_s: dict[str, float]) -> float:
    """Seconds of a choice, nodes that none covers in eager."""
    covered = {name for item in chosen for name in item.group.nodes}
    return sum(item.cost_s + CLUSTER_TIE_S for item in chosen) + sum(
        seconds for name, seconds in eager_s.items() if name not in covered
    )


@settings(deadline=None, max_examples=150)
@given(markets())
def test_no_choice_is_cheaper(market: tuple[Graph, list[Priced], dict[str, float]]) -> None:
    """The chosen candidates are disjoint, can run, and cost no more than any other such choice."""
    graph, candidates, eager_s = market
    chosen = cheapest_cover(graph, candidates, eager_s)
    assert chosen is not None
    assert can_run(graph, chosen)
    names = [name for item in chosen for name in item.group.nodes]
    assert len(names) == len(set(names))
    every = itertools.chain.from_iterable(itertools.combinations(candidates, size) for size in range(len(candidates) + 1))
    possible = [
        choice
        for choice in every
        if len(found := [name for item in choice for name in item.group.nodes]) == len(set(found))
        and can_run(graph, choice)
    ]
    assert cost(chosen, eager_s) <= min(cost(choice, eager_s) for choice in possible) + 1e-9
