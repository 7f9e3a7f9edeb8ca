"""Groups nodes, given each node's backend, into convex clusters whose order is a schedule."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from hub.partition.order import Place, has_order, needs, ordered
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


def group(graph: Graph, backend_of: Mapping[str, str], whole: Iterable[Group] = ()) -> tuple[Group, ...]:
    """Return few and large clusters in an executable order; every node is in exactly one.

    `backend_of` names a backend for each node of `graph.nodes`; a tuple's elements (`getitem`) follow their producer
    regardless. A cluster's results are on one device. Those groups of `whole` whose nodes are on their backend come out as
    they are; they must not form a cycle. The number of groups depends on which backend starts, so each start is tried and
    the fewest groups win; ties go to the first in order of use. Results are cached per graph: the pairs of many backends
    mostly repeat the same query, and so does planning again after a failure.
    """
    kept = tuple(found for found in whole if all(backend_of[name] == found.backend for name in found.nodes))
    query = (kept, *(backend_of[node.name] for node in graph.nodes))
    if query not in graph.groupings:
        graph.groupings[query] = _fewest_groups(graph, backend_of, kept)
    return graph.groupings[query]


def _fewest_groups(graph: Graph, backend_of: Mapping[str, str], kept: Sequence[Group]) -> tuple[Group, ...]:
    home_of = {node: _home(node, backend_of[node.name]) for node in graph.nodes}
    homes = tuple(dict.fromkeys(home_of.values()))  # a group that is kept starts nothing: nothing else may join it
    home_of |= {graph.by_name[name]: (found.backend, found.nodes) for found in kept for name in found.nodes}
    starts = ((), *((home,) for home in homes), *itertools.permutations(homes, 2))
    units = _units(graph, kept)
    best = min((_grouped(graph, units, home_of, start) for start in starts), key=_fragmentation)
    return tuple(Group(backend, tuple(node.name for node in sorted(nodes))) for backend, nodes in best)


_Home = tuple[str, tuple[torch.device, ...] | tuple[str, ...]]
"""A backend, and what nodes of one cluster have in common: the devices of their results, or a group that is kept."""


_Nodes = tuple[str, list[fx.Node]]
"""A backend with the nodes of one of its groups."""


def _home(node: fx.Node, backend: str) -> _Home:
    """Return a node's home. Eager has one home for all devices, because its groups are not compiled."""
    return backend, () if backend == EAGER else devices_of(node)


def _units(graph: Graph, kept: Sequence[Group]) -> Sequence[Sequence[fx.Node]]:
    """Return the nodes, those of each group that is kept together, in an order in which they can run."""
    if not kept:
        return [(node,) for node in graph.nodes]
    place = {node.name: (position, 0) for position, node in enumerate(graph.nodes)}
    place |= {name: place[found.nodes[0]] for found in kept for name in found.nodes}
    members: dict[Place, list[fx.Node]] = {}
    for node in graph.nodes:
        members.setdefault(place[node.name], []).append(node)
    return [members[unit] for unit in ordered(needs(graph, place))]


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


def _fragmentation(groups: Sequence[_Nodes]) -> tuple[int, int]:
    return sum(backend != EAGER for backend, _ in groups), len(groups)


def _grouped(
    graph: Graph, units: Sequence[Sequence[fx.Node]], home_of: Mapping[fx.Node, _Home], start: Sequence[_Home]
) -> Sequence[_Nodes]:
    """Walk the units once: each joins the first group of its home at or after every group that it reads from.

    If there is none, it opens one at the end. Edges therefore only point forwards, which makes each group convex and the
    groups acyclic by construction. Nodes with effects keep their order.
    """
    groups: list[_Nodes] = []
    last_of: dict[_Home, list[int]] = {}
    for home in start:
        _open(home, groups, last_of)
    place: dict[fx.Node, int] = {}
    last_effect = 0
    for unit in units:
        node = unit[0]
        if node.target is operator.getitem and node.args[0] in place:
            position = place[node.args[0]]
        else:
            reads = (place[source] for member in unit for source in member.all_input_nodes if source in place)
            earliest = max(reads, default=0)
            has_effect = has_order(graph, node)
            position = _join(home_of[node], max(earliest, last_effect) if has_effect else earliest, groups, last_of)
            last_effect = position if has_effect else last_effect
        for member in unit:
            place[member] = position
            groups[position][1].append(member)
    return [(backend, nodes) for backend, nodes in groups if nodes]


def _join(home: _Home, earliest: int, groups: list[_Nodes], last_of: dict[_Home, list[int]]) -> int:
    for position in last_of.get(home, ()):
        if position >= earliest:
            return position
    return _open(home, groups, last_of)


def _open(home: _Home, groups: list[_Nodes], last_of: dict[_Home, list[int]]) -> int:
    groups.append((home[0], []))
    last_of.setdefault(home, []).append(len(groups) - 1)
    return len(groups) - 1


def without_trivial_groups(graph: Graph, backend_of: Mapping[str, str], whole: Collection[Group] = ()) -> Mapping[str, str]:
    """Move groups that only rearrange memory back to eager, in which a view costs microseconds and no boundary.

    Groups of `whole` stay where they are.
    """
    result = dict(backend_of)
    for found in group(graph, backend_of, whole):
        if found.backend != EAGER and found not in whole and all(is_trivial(graph.by_name[name]) for name in found.nodes):
            result.update(dict.fromkeys(found.nodes, EAGER))
    return result


def is_trivial(node: fx.Node) -> bool:
    """Return True for trivial nodes, which compute nothing: views and tuple elements."""
    return node.target is operator.getitem or is_view(node)
