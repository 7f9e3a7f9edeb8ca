"""Conversion of groups into what workers and the dispatcher need: names, inputs, outputs, settings."""

from __future__ import annotations

from collections.abc import Sequence

from hub.dispatch.codegen import Step
from hub.partition.group import EAGER, Group
from hub.plugin.graph import Graph, edges_into, edges_out_of


def reads(graph: Graph, group: Group) -> tuple[str, ...]:
    """Return the names of a cluster's inputs: the values it reads from outside, without constants."""
    constants = frozenset(graph.weights)
    sources = edges_into(graph.by_name[name] for name in group.nodes)
    return tuple(node.name for node in sources if node.op != "get_attr" and node.name not in constants)


def writes(graph: Graph, group: Group) -> tuple[str, ...]:
    """Return the names of a cluster's values that are read outside it."""
    return tuple(node.name for node in edges_out_of([graph.by_name[name] for name in group.nodes]))


def steps_for(graph: Graph, groups: Sequence[Group], names: Sequence[str]) -> tuple[Step, ...]:
    """Return a schedule for the dispatcher; `names` has one name per group."""
    return tuple(
        Step(name, found.backend, found.nodes, is_eager=True)
        if found.backend == EAGER
        else Step(name, found.backend, found.nodes, reads(graph, found), writes(graph, found))
        for name, found in zip(names, groups, strict=True)
    )


def plain_names(groups: Sequence[Group]) -> tuple[str, ...]:
    """Name the steps of a plan in order: c0, c1 ... for clusters, e0, e1 ... for what runs in eager."""
    counts = {True: 0, False: 0}
    names: list[str] = []
    for found in groups:
        is_eager = found.backend == EAGER
        names.append(f"{'e' if is_eager else 'c'}{counts[is_eager]}")
        counts[is_eager] += 1
    return tuple(names)
