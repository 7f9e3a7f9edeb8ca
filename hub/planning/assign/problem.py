"""Assignment problem and its solution as frozen values, independent of models: nodes are positions in topological order."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

from hub.errors import PlanError

CLUSTER_TIE_S = 1e-6
"""Extra seconds per cluster while choosing, so that fewer clusters win ties."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A set of nodes that one backend offers to run."""

    nodes: tuple[int, ...]
    """Positions, ascending."""
    backend: str
    cost_s: float
    """Seconds per call, with the candidate's own call overhead and boundary copies."""

    @property
    def is_interval(self) -> bool:
        """Return whether no position between the first and the last is left out."""
        return self.nodes[-1] - self.nodes[0] + 1 == len(self.nodes)


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem of choosing disjoint candidates, with every other node in eager, such that the clusters form no cycle.

    It minimizes the sum of seconds of the chosen candidates and the eager nodes, plus `mix_s` for each distinct backend
    after the first and `CLUSTER_TIE_S` for each cluster. A candidate that is not convex is never chosen. Raises PlanError
    if the values contradict each other.
    """

    reads: tuple[tuple[int, ...], ...]
    """For each node, the earlier nodes whose results it reads."""
    eager_s: tuple[float, ...]
    """Seconds of each node in eager; meaningless for required nodes."""
    candidates: tuple[Candidate, ...]
    required: frozenset[int] = frozenset()
    """Nodes that must not stay in eager."""
    mix_s: float = 0.0
    """Seconds added once for each distinct backend beyond the first; eager does not count."""

    def __post_init__(self) -> None:
        size = len(self.reads)
        _insist(len(self.eager_s) == size, f"{size} nodes, but {len(self.eager_s)} eager prices")
        _insist(all(map(math.isfinite, self.eager_s)), "an eager price is not finite")
        _insist(0 <= self.mix_s < math.inf, f"mix_s is {self.mix_s}, expected finite and not negative")
        _insist(all(0 <= node < size for node in self.required), "a required node does not exist")
        for node, sources in enumerate(self.reads):
            _insist(all(0 <= source < node for source in sources), f"node {node} reads {sources}, expected earlier nodes")
        for found in self.candidates:
            _insist(_is_ascending(found.nodes, size), f"candidate nodes {found.nodes}: expected ascending, below {size}")
            _insist(math.isfinite(found.cost_s), f"a candidate of {found.backend} costs {found.cost_s} s")


@dataclass(frozen=True, slots=True)
class Solution:
    """The chosen candidates, by first node; every other node stays in eager."""

    chosen: tuple[Candidate, ...]
    cost_s: float
    """Seconds per call: candidates, eager nodes and mixing."""
    bound_s: float
    """Lower bound of the cost of any choice, ties counted as in the problem; equal to `cost_s` if the choice is optimal."""
    gap: float
    """Upper bound of what might still be saved, as a share of `cost_s`; 0 if the choice is proven optimal."""
    method: Literal["chain", "milp"]


@dataclass(frozen=True, slots=True)
class Part:
    """A choice for some or all of the nodes, as a step towards a solution."""

    picked: tuple[int, ...]
    """Indexes into the problem's candidates."""
    objective_s: float
    """Seconds, cluster ties included."""
    bound_s: float
    """Lower bound of the objective of any choice for these nodes."""


def _insist(holds: bool, message: str) -> None:
    if not holds:
        raise PlanError(f"assignment problem: {message}", hint="check what the problem was built from")


def _is_ascending(nodes: tuple[int, ...], size: int) -> bool:
    if not nodes or nodes[0] < 0 or nodes[-1] >= size:
        return False
    return all(left < right for left, right in itertools.pairwise(nodes))
