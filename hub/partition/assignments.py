"""Assignments of a graph's nodes to backends that are worth pricing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hub.config.options import Options
from hub.partition.group import EAGER, Group, group, without_trivial_groups
from hub.partition.members import conflict
from hub.partition.verdicts import Verdicts
from hub.plugin.graph import Graph
from hub.plugin.table import operator_name


@dataclass(frozen=True, slots=True)
class Assignment:
    """A schedule of groups, named after its backends in order of first use: "onnxruntime + inductor"."""

    name: str
    groups: tuple[Group, ...]

    @property
    def clusters(self) -> tuple[Group, ...]:
        """Groups that need compiling."""
        return tuple(found for found in self.groups if found.backend != EAGER)

    @property
    def eager_nodes(self) -> tuple[str, ...]:
        """Names of the nodes that stay in eager."""
        return tuple(name for found in self.groups if found.backend == EAGER for name in found.nodes)

    @property
    def backends(self) -> tuple[str, ...]:
        """Backends in use, without eager, in order of first use."""
        return tuple(dict.fromkeys(found.backend for found in self.clusters))


def assignments(verdicts: Verdicts, options: Options) -> tuple[Assignment, ...]:
    """Return, without repeats: each backend with all it supports; each followed by another for the rest; and eager.

    Forced operators go to their backend in each of them. If the options ask for one backend, there is one assignment.
    """
    names = verdicts.backends
    orders: list[tuple[str, ...]] = [(name,) for name in names]
    orders += [(first, second) for first in names for second in names if first != second]
    found: dict[tuple[Group, ...], Assignment] = {}
    for order in (*orders, ()):
        made = assignment(verdicts, order, options)
        found.setdefault(made.groups, made)
    if options.backends is not None and len(options.backends) == 1 and names:
        return (next(iter(found.values())),)
    return tuple(found.values())


def assignment(verdicts: Verdicts, order: Sequence[str], options: Options) -> Assignment:
    """Return the assignment in which each node goes to the first backend in `order` that supports it, else to eager.

    Forced operators go to their backend, whatever the order, as long as it supports them.
    """
    return _assigned(verdicts, lambda _: order, options)


def assignment_by(verdicts: Verdicts, backend_of: Callable[[str], str], options: Options) -> Assignment:
    """Return the assignment in which each node goes to the backend named for it, if that supports it, else to eager.

    Forced operators go to their backend nevertheless.
    """
    return _assigned(verdicts, lambda name: (backend_of(name),), options)


def _assigned(verdicts: Verdicts, wishes: Callable[[str], Sequence[str]], options: Options) -> Assignment:
    graph = verdicts.graph
    backend_of: dict[str, str] = {}
    for node in graph.nodes:
        forced = options.forced(operator_name(node))
        wanted = wishes(node.name) if forced is None else (forced,)
        takers = (name for name in wanted if name in verdicts.by_backend and verdicts.takes(name, node.name))
        backend_of[node.name] = next(takers, EAGER)
    intact = _intact(verdicts, backend_of)
    backend_of |= _broken(verdicts, backend_of, intact)
    groups = group(graph, _keeping_forced(graph, backend_of, options, intact), intact)
    return Assignment(
        " + ".join(dict.fromkeys(found.backend for found in groups if found.backend != EAGER)) or EAGER, groups
    )


def _intact(verdicts: Verdicts, backend_of: Mapping[str, str]) -> tuple[Group, ...]:
    """Return the clusters of backends' partitioners that got all their nodes, and that can run alongside each other."""
    found: list[Group] = []
    for one in verdicts.clusters:
        if any(backend_of[name] != one.backend for name in one.nodes):
            continue
        # Those of one partitioner were compared with each other when it was asked.
        if all(other.backend == one.backend for other in found) or not conflict(verdicts.graph, one, found):
            found.append(one)
    return tuple(found)


def _broken(verdicts: Verdicts, backend_of: Mapping[str, str], intact: Sequence[Group]) -> Mapping[str, str]:
    """Return eager for the nodes of backends with partitioners that are in no intact cluster."""
    partitioning = {found.backend for found in verdicts.clusters}
    inside = {name for found in intact for name in found.nodes}
    return {name: EAGER for name, backend in backend_of.items() if backend in partitioning and name not in inside}


def _keeping_forced(
    graph: Graph, backend_of: Mapping[str, str], options: Options, whole: Sequence[Group]
) -> Mapping[str, str]:
    """Drop clusters of trivial nodes only, unless the user forced one of their operators."""
    lighter = without_trivial_groups(graph, backend_of, whole)
    return {
        node.name: backend_of[node.name] if options.forced(operator_name(node)) else lighter[node.name]
        for node in graph.nodes
    }
