"""Chooses the cheapest set of groups that covers a model's graph: its assignment problem, set up and solved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hub.assign.problem import Candidate, Problem
from hub.assign.solve import solve
from hub.graph import Graph
from hub.partition.group import Group


@dataclass(frozen=True, slots=True)
class Priced:
    """A group with what it costs, in seconds a call, boundary included."""

    group: Group
    cost_s: float


def problem_of(
    graph: Graph,
    candidates: Sequence[Priced],
    eager_s: Mapping[str, float],
    required: frozenset[str] = frozenset(),
    mix_s: float = 0.0,
) -> Problem:
    """Gives the assignment problem of a graph: nodes by position, candidates in the given order."""
    position = {node.name: index for index, node in enumerate(graph.nodes)}
    return Problem(
        reads=tuple(
            tuple(position[source.name] for source in node.all_input_nodes if source.name in position)
            for node in graph.nodes
        ),
        eager_s=tuple(eager_s[node.name] for node in graph.nodes),
        candidates=tuple(
            Candidate(tuple(sorted(position[name] for name in item.group.nodes)), item.group.backend, item.cost_s)
            for item in candidates
        ),
        required=frozenset(position[name] for name in required),
        mix_s=mix_s,
    )


def cheapest_cover(
    graph: Graph,
    candidates: Sequence[Priced],
    eager_s: Mapping[str, float],
    required: frozenset[str] = frozenset(),
    mix_s: float = 0.0,
) -> tuple[Priced, ...] | None:
    """Gives the chosen candidates; nodes that none covers stay in eager. Exact, None if there is no cover.

    `eager_s` prices each node of the graph alone; nodes in `required` may not stay in eager; `mix_s` is added for each
    distinct backend after the first.
    """
    problem = problem_of(graph, candidates, eager_s, required, mix_s)
    solution = solve(problem)
    if solution is None:
        return None
    item_of = dict(zip(map(id, problem.candidates), candidates, strict=True))
    return tuple(item_of[id(found)] for found in solution.chosen)
