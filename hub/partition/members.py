"""Sets of nodes that are asked for as one cluster: what makes one unusable."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError

import torch
from torch import fx

from hub.errors import PlanError
from hub.partition.extract import check_convex
from hub.partition.group import Group
from hub.partition.order import needs, ordered
from hub.plugin.graph import Graph
from hub.plugin.table import Support, devices_of


class Unusable(Exception):  # noqa: N818 - a signal inside this package
    """Reason, in words, why a set of nodes cannot be a cluster."""


def usable(graph: Graph, backend: str, nodes: Sequence[str], answers: Mapping[str, Support]) -> Group:
    """Return nodes as a group in topological order, with the elements of the tuples that they make. Raises Unusable.

    `answers` are the backend's verdicts on each node of the graph.
    """
    if not nodes:
        raise Unusable("it names no node")
    known = {node.name for node in graph.nodes}
    if unknown := [name for name in nodes if name not in known]:
        raise Unusable(f"no call nodes of {graph.name}: {', '.join(unknown)}")
    members = tuple(sorted(_with_elements(graph.by_name[name] for name in nodes)))
    names = tuple(node.name for node in members)
    if refusals := dict.fromkeys(answers[name].reason for name in names if not answers[name].accepted):
        raise Unusable(f"{backend} does not take it: {'; '.join(refusals)}")
    _check_whole(members)
    devices = dict.fromkeys(str(device) for node in members for device in devices_of(node))
    if len(devices) > 1:
        raise Unusable(f"its results lie on {' and '.join(devices)}, those of a cluster on one device")
    try:
        check_convex(members, backend)
    except PlanError as error:
        raise Unusable(error.message) from error
    return Group(backend, names)


def conflict(graph: Graph, found: Group, earlier: Sequence[Group]) -> str:
    """Return why a group cannot run alongside earlier ones, if each of them is kept whole; "" if it can."""
    taken = {name for other in earlier for name in other.nodes}
    if shared := [name for name in found.nodes if name in taken]:
        return f"an earlier cluster has {', '.join(shared)}"
    place = {node.name: (position, 0) for position, node in enumerate(graph.nodes)}
    for number, other in enumerate((*earlier, found), start=len(graph.nodes)):
        place |= dict.fromkeys(other.nodes, (number, 0))
    try:
        ordered(needs(graph, place))
    except CycleError:
        return "it and earlier clusters need each other's results in a circle"
    return ""


def _with_elements(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Return the nodes with the elements of the tuples that some of them make."""
    found = set(nodes)
    for node in tuple(found):
        found.update(user for user in node.users if user.target is operator.getitem and not _is_tensor(node))
    return found


def _check_whole(members: Sequence[fx.Node]) -> None:
    """Raise Unusable for an element of a tuple that is made elsewhere: tuples cannot cross a cluster's boundary."""
    inside = set(members)
    for node in members:
        for source in node.all_input_nodes:
            if node.target is operator.getitem and not _is_tensor(source) and source not in inside:
                raise Unusable(f"{node.name} is an element of {source.name}, which is not in it")


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
