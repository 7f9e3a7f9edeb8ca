"""Turns groups into what workers and the dispatcher need: names, inputs, outputs, settings."""

from __future__ import annotations

from collections.abc import Sequence

from hub.backend import CompileSettings
from hub.dispatch.codegen import Step
from hub.graph import Graph, edges_into, edges_out_of
from hub.options import Options
from hub.partition.assignments import Assignment
from hub.partition.group import EAGER, Group, is_trifle


def reads(graph: Graph, group: Group) -> tuple[str, ...]:
    """Names of the values that a cluster is called with: what it reads from outside, constants left out."""
    constants = frozenset(graph.weights)
    sources = edges_into(graph.by_name[name] for name in group.nodes)
    return tuple(node.name for node in sources if node.op != "get_attr" and node.name not in constants)


def writes(graph: Graph, group: Group) -> tuple[str, ...]:
    """Names of a cluster's values that are read outside it."""
    return tuple(node.name for node in edges_out_of([graph.by_name[name] for name in group.nodes]))


def steps_for(graph: Graph, groups: Sequence[Group], names: Sequence[str]) -> tuple[Step, ...]:
    """Gives a schedule for the dispatcher; `names` has one name for each group."""
    return tuple(
        Step(name, found.backend, found.nodes, is_eager=True)
        if found.backend == EAGER
        else Step(name, found.backend, found.nodes, reads(graph, found), writes(graph, found))
        for name, found in zip(names, groups, strict=True)
    )


def plain_names(groups: Sequence[Group]) -> tuple[str, ...]:
    """Names the steps of a plan in order: c0, c1 ... for clusters, e0, e1 ... for what runs in eager."""
    counts = {True: 0, False: 0}
    names: list[str] = []
    for found in groups:
        is_eager = found.backend == EAGER
        names.append(f"{'e' if is_eager else 'c'}{counts[is_eager]}")
        counts[is_eager] += 1
    return tuple(names)


def may_spin(graph: Graph, assignment: Assignment) -> bool:
    """True where one cluster is all that computes, so that its spinning threads take cores from nobody."""
    rest = (graph.by_name[name] for found in assignment.groups if found.backend == EAGER for name in found.nodes)
    return len(assignment.clusters) == 1 and all(is_trifle(node) or _is_size(graph, node.name) for node in rest)


def settings_for(options: Options, threads: int, *, spin: bool) -> CompileSettings:
    """Gives what a cluster is compiled with."""
    effort = "full" if options.tune == "full" else "fast"
    return CompileSettings(threads=threads, spin=spin, accuracy=options.accuracy, effort=effort)


def _is_size(graph: Graph, name: str) -> bool:
    return "sizes" in graph.pinned.get(name, "")
