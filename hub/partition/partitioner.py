"""Asks a backend's own partitioner which clusters of a graph it would compile, and checks them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from hub.discovery.plugin_fault import is_plugins
from hub.errors import text_of, type_of
from hub.partition.group import Group
from hub.partition.members import Unusable, conflict, usable
from hub.partition.shown import Shown
from hub.plugin.backend import Backend, overrides
from hub.plugin.graph import Graph
from hub.plugin.table import Support


@dataclass(frozen=True, slots=True)
class Partition:
    """A partitioner's answer: names of nodes for each cluster, which may be anything."""

    clusters: tuple[tuple[str, ...], ...] = ()
    fault: str = ""
    """What went wrong when it was asked; "" if nothing did."""


def partition_of(backend: Backend, shown: Shown) -> Partition | None:
    """Return a backend's partition of a graph; None if it has no partitioner, or leaves this graph to `supports`."""
    if not overrides(backend, "partition"):
        return None
    try:
        graph = shown.graph()
        most = len(graph.nodes)
        answer = backend.partition(graph)
        return None if answer is None else Partition(_names(answer, most))
    except BaseException as error:
        if not is_plugins(error):
            raise
        return Partition(fault=f"partition() raised {text_of(error)}")


def _names(answer: Iterable[Any], most: int) -> tuple[tuple[str, ...], ...]:
    """Return what a partitioner returned as tuples. Raises TypeError if it is something else than names.

    There are no more than `most` disjoint clusters, and no more names in one: an endless answer is cut off after them.
    """
    clusters: list[tuple[str, ...]] = []
    for cluster in islice(answer, most):
        if isinstance(cluster, str):
            raise TypeError(f"{cluster!r} is a str, no sequence of names")
        names: tuple[Any, ...] = tuple(islice(cast("Iterable[Any]", cluster), most))
        if strangers := [name for name in names if type(name) is not str]:  # of a subclass, methods could raise later
            raise TypeError(f"{strangers[0]!r} is {type_of(strangers[0])}, no name of a node")
        clusters.append(names)
    return tuple(clusters)


def kept_clusters(
    graph: Graph, backend: str, partition: Partition, answers: Mapping[str, Support]
) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """Return the clusters that can be candidates, each once and in order, and the reasons why others cannot.

    `answers` are the verdicts on each node before the partitioner is asked.
    """
    kept: list[Group] = []
    reasons: list[str] = []
    for nodes in partition.clusters:
        try:
            found = usable(graph, backend, nodes, answers)
            reason = conflict(graph, found, kept)
        except Unusable as error:
            reason = str(error)
        else:
            kept += [] if reason else [found]
        if reason:
            reasons.append(f"partition() chose {', '.join(nodes[:3])}{', ...' if len(nodes) > 3 else ''}: {reason}")
    return tuple(kept), tuple(reasons)
