"""Regions per backend: what each one would compile of a region, and what stays in eager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hub.partition.group import Group, is_trivial
from hub.partition.regions import Region
from hub.partition.verdicts import Verdicts
from hub.plugin.graph import Graph
from hub.plugin.table import devices_of


@dataclass(frozen=True, slots=True)
class Section:
    """A region with the clusters that each backend would make of it."""

    region: Region
    pieces: Mapping[str, tuple[Group, ...]]
    """Runs of supported nodes, by backend. A backend that supports nothing worth a call is left out."""

    def left_over(self, backend: str) -> tuple[str, ...]:
        """Return the nodes that stay in eager if the backend takes the rest."""
        taken = {name for piece in self.pieces[backend] for name in piece.nodes}
        return tuple(name for name in self.region.nodes if name not in taken)


def sections_of(graph: Graph, verdicts: Verdicts, found: Sequence[Region]) -> tuple[Section, ...]:
    """Return each region with what the backends would compile of it, in the order of the regions."""
    return tuple(Section(region, _pieces(graph, verdicts, region)) for region in found)


def _pieces(graph: Graph, verdicts: Verdicts, region: Region) -> Mapping[str, tuple[Group, ...]]:
    runs = {backend: _runs(graph, verdicts, region, backend) for backend in verdicts.backends}
    return {backend: pieces for backend, pieces in runs.items() if pieces}


def _runs(graph: Graph, verdicts: Verdicts, region: Region, backend: str) -> tuple[Group, ...]:
    """Return runs of consecutive supported nodes on one device, without runs of trivial nodes only.

    Consecutive nodes form a convex set. A backend with a partitioner gets its clusters that lie in the region.
    """
    if chosen := verdicts.chosen(backend):
        return tuple(found for found in chosen if set(found.nodes).issubset(region.nodes))
    runs: list[list[str]] = [[]]
    for name in region.nodes:
        if verdicts.takes(backend, name):
            if runs[-1] and devices_of(graph.by_name[runs[-1][-1]]) != devices_of(graph.by_name[name]):
                runs.append([])
            runs[-1].append(name)
        elif runs[-1]:
            runs.append([])
    worth = (run for run in runs if not all(is_trivial(graph.by_name[name]) for name in run))
    return tuple(Group(backend, tuple(run)) for run in worth)
