"""Groups nodes, given each node's backend, into convex clusters whose order is a schedule."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from hub.plugin.graph import Graph, is_view
from hub.plugin.table import Support, devices_of

EAGER = "eager"
"""Backend of the clusters that PyTorch runs itself."""


@dataclass(frozen=True, slots=True)
class Group:
    """A convex set of nodes and their intended backend."""

    backend: str
    nodes: tuple[str, ...]
    """Names in topological order."""


def group(graph: Graph, backend_of: Mapping[str, str]) -> tuple[Group, ...]:
    """Return few and large clusters in an executable order; every node is in exactly one.

    `backend_of` names a backend for each node of `graph.nodes`; a tuple's elements (`getitem`) follow their producer
    regardless. A cluster's results are on one device. The number of groups depends on which backend starts, so each start
    is tried and the fewest groups win; ties go to the first in order of use. Results are cached per graph: the pairs of
    many backends mostly repeat the same query, and so does planning again after a failure.
    """
    backends = tuple(backend_of[node.name] for node in graph.nodes)
    if backends not in graph.groupings:
        graph.groupings[backends] = _fewest_groups(graph, backend_of)
    return graph.groupings[backends]


def _fewest_groups(graph: Graph, backend_of: Mapping[str, str]) -> tuple[Group, ...]:
    home_of = {node: _home(node, backend_of[node.name]) for node in graph.nodes}
    homes = tuple(dict.fromkeys(home_of.values()))
    starts = ((), *((home,) for home in homes), *itertools.permutations(homes, 2))
    return min((_grouped(graph, home_of, start) for start in starts), key=_fragmentation)


_Home = tuple[str, tuple[torch.device, ...]]
"""A backend, and the devices of its results, which nodes of one cluster have in common."""


def _home(node: fx.Node, backend: str) -> _Home:
    """Return a node's home. Eager has one home for all devices, because its groups are not compiled."""
    return backend, () if backend == EAGER else devices_of(node)


def group_alone(
    graph: Graph, name: str, supports: Callable[[fx.Node], Support]
) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """Return the clusters that one backend alone would get, with eager's, in order, and the reasons for refusals."""
    found: dict[str, Support] = {}
    for node in graph.nodes:
        if node.name in graph.pinned:
            continue
        source = node.args[0] if node.target is operator.getitem else None
        if not isinstance(source, fx.Node):
            found[node.name] = supports(node)
        elif source.name in found:
            found[node.name] = found[source.name]
    backend_of = {node.name: EAGER for node in graph.nodes}
    backend_of |= {node: name for node, verdict in found.items() if verdict.accepted}
    refusals = dict.fromkeys(verdict.reason for verdict in found.values() if not verdict.accepted)
    return group(graph, backend_of), tuple(refusals)


def _fragmentation(groups: Sequence[Group]) -> tuple[int, int]:
    return sum(found.backend != EAGER for found in groups), len(groups)


def _grouped(graph: Graph, home_of: Mapping[fx.Node, _Home], start: Sequence[_Home]) -> tuple[Group, ...]:
    """Walk the nodes once: each joins the first group of its home at or after every group that it reads from.

    If there is none, it opens one at the end. Edges therefore only point forwards, which makes each group convex and the
    groups acyclic by construction. Nodes with effects keep their order.
    """
    groups: list[tuple[str, list[str]]] = []
    last_of: dict[_Home, list[int]] = {}
    for home in start:
        _open(home, groups, last_of)
    place: dict[fx.Node, int] = {}
    last_effect = 0
    for node in graph.nodes:
        if node.target is operator.getitem and node.args[0] in place:
            position = place[node.args[0]]
        else:
            earliest = max((place[source] for source in node.all_input_nodes if source in place), default=0)
            has_effect = has_order(graph, node)
            position = _join(home_of[node], max(earliest, last_effect) if has_effect else earliest, groups, last_of)
            last_effect = position if has_effect else last_effect
        place[node] = position
        groups[position][1].append(node.name)
    return tuple(Group(backend, tuple(names)) for backend, names in groups if names)


def has_order(graph: Graph, node: fx.Node) -> bool:
    """Return whether a node's effect (random numbers, assertions) must keep its order among such nodes."""
    pin = graph.pinned.get(node.name)
    return pin is not None and pin.is_ordered


def _join(home: _Home, earliest: int, groups: list[tuple[str, list[str]]], last_of: dict[_Home, list[int]]) -> int:
    for position in last_of.get(home, ()):
        if position >= earliest:
            return position
    return _open(home, groups, last_of)


def _open(home: _Home, groups: list[tuple[str, list[str]]], last_of: dict[_Home, list[int]]) -> int:
    groups.append((home[0], []))
    last_of.setdefault(home, []).append(len(groups) - 1)
    return len(groups) - 1


def without_trivial_groups(graph: Graph, backend_of: Mapping[str, str]) -> Mapping[str, str]:
    """Move groups that only rearrange memory back to eager, in which a view costs microseconds and no boundary."""
    result = dict(backend_of)
    for found in group(graph, backend_of):
        if found.backend != EAGER and all(is_trivial(graph.by_name[name]) for name in found.nodes):
            result.update(dict.fromkeys(found.nodes, EAGER))
    return result


def is_trivial(node: fx.Node) -> bool:
    """Return True for trivial nodes, which compute nothing: views and tuple elements."""
    return node.target is operator.getitem or is_view(node)
