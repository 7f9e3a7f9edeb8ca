"""Solver of assignment problems: split them into independent pieces, and use the simplest exact method for each piece."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from hub.planning.assign.binary import Programme, cheapest_choice, least_objective_s
from hub.planning.assign.chain import Interval, cheapest_walk
from hub.planning.assign.cycles import Stop
from hub.planning.assign.mixing import cheapest_mix
from hub.planning.assign.problem import CLUSTER_TIE_S, Part, Problem, Solution

LIMIT_S = 60.0
"""Seconds after which the best known choice is returned with its gap."""
_MIN_COLUMNS = 500
"""Minimum number of candidates per piece: setting up a program costs milliseconds, however small."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Nodes from `start` to `stop` (exclusive) that share no candidate with any other piece."""

    start: int
    stop: int
    columns: tuple[int, ...]
    """Indexes into the problem's candidates."""
    backends: frozenset[str]
    is_chain: bool
    """True if every candidate is an interval."""


def solve(problem: Problem, *, limit_s: float = LIMIT_S) -> Solution | None:
    """Return the cheapest solution; None if required nodes cannot be covered.

    A chain (every candidate an interval of the order) is always solved to optimality. Otherwise a gap above 0 means that
    `limit_s` ended the search. Raises PlanError if no solution was known by then.
    """
    deadline = time.monotonic() + limit_s
    size = len(problem.reads)
    wholes = tuple(index for index, found in enumerate(problem.candidates) if len(found.nodes) == size)
    parts = pieces(problem)

    circles = [list[tuple[Stop, ...]]() for _ in parts]

    @cache
    def programme_of(number: int, allowed: frozenset[str]) -> Programme:
        piece = parts[number]
        return Programme(problem, piece.start, piece.stop, _worth(problem, piece.columns, allowed), circles[number])

    @cache
    def part_of(number: int, allowed: frozenset[str]) -> Part | None:
        programme = programme_of(number, allowed)
        return _walked(programme) if parts[number].is_chain else cheapest_choice(programme, deadline)

    @cache
    def floor_of(number: int, allowed: frozenset[str]) -> float:
        if parts[number].is_chain:
            part = part_of(number, allowed)
            return math.inf if part is None else part.objective_s
        return least_objective_s(programme_of(number, allowed))

    def alone(allowed: frozenset[str]) -> list[Part]:
        return [_alone(problem, index) for index in wholes if problem.candidates[index].backend in allowed]

    def best(allowed: frozenset[str]) -> Part | None:
        split = [part_of(number, allowed & piece.backends) for number, piece in enumerate(parts)]
        known = [part for part in split if part is not None]
        return _cheapest([*alone(allowed), *([_joined(known)] if len(known) == len(split) else [])])

    def floor(allowed: frozenset[str]) -> float:
        split_s = sum(floor_of(number, allowed & piece.backends) for number, piece in enumerate(parts))
        return min(split_s, *(part.objective_s for part in alone(allowed)), math.inf)

    part = cheapest_mix([found.backend for found in problem.candidates], problem.mix_s, best, floor)
    return None if part is None else _solution(problem, part, is_chain=all(piece.is_chain for piece in parts))


def pieces(problem: Problem) -> tuple[Piece, ...]:
    """Split the nodes at positions that no candidate spans, ignoring candidates that cover everything.

    Data flows only forwards between pieces, so no cycle crosses from one to another.
    """
    size = len(problem.reads)
    order = [index for index, found in enumerate(problem.candidates) if len(found.nodes) < size]
    order.sort(key=lambda index: problem.candidates[index].nodes[0])
    found: list[Piece] = []
    start, reach, columns = 0, 0, list[int]()
    for index in order:
        nodes = problem.candidates[index].nodes
        if nodes[0] >= reach and len(columns) >= _MIN_COLUMNS:
            found.append(_piece(problem, start, nodes[0], columns))
            start, columns = nodes[0], []
        reach = max(reach, nodes[-1] + 1)
        columns.append(index)
    return (*found, _piece(problem, start, size, columns))


def _piece(problem: Problem, start: int, stop: int, columns: Sequence[int]) -> Piece:
    is_chain = all(problem.candidates[index].is_interval for index in columns)
    backends = frozenset(problem.candidates[index].backend for index in columns)
    return Piece(start, stop, tuple(sorted(columns)), backends, is_chain)


def _worth(problem: Problem, columns: Sequence[int], allowed: frozenset[str]) -> tuple[int, ...]:
    """Return the cheapest allowed candidate of each set of nodes, without those that eager beats.

    Exact: candidates of one set differ in nothing else, and splitting a cluster into eager nodes closes no cycle.
    """
    cheapest: dict[tuple[int, ...], int] = {}
    for index in columns:
        found = problem.candidates[index]
        if found.backend in allowed:
            rival = cheapest.setdefault(found.nodes, index)
            if found.cost_s < problem.candidates[rival].cost_s:
                cheapest[found.nodes] = index
    return tuple(index for nodes, index in cheapest.items() if _beats_eager(problem, nodes, index))


def _beats_eager(problem: Problem, nodes: Sequence[int], index: int) -> bool:
    if any(node in problem.required for node in nodes):
        return True
    return problem.candidates[index].cost_s + CLUSTER_TIE_S < sum(problem.eager_s[node] for node in nodes)


def _walked(programme: Programme) -> Part | None:
    candidates = programme.problem.candidates
    steps = [
        Interval(nodes[0], nodes[-1] + 1, candidates[index].cost_s + CLUSTER_TIE_S)
        for index, nodes in zip(programme.columns, programme.sets, strict=True)
    ]
    eager_s = programme.problem.eager_s[programme.start : programme.stop]
    alone_s = [math.inf if needed else cost_s for needed, cost_s in zip(programme.is_required, eager_s, strict=True)]
    walk = cheapest_walk(alone_s, steps)
    return None if walk is None else programme.part(walk.picked)


def _alone(problem: Problem, index: int) -> Part:
    objective_s = problem.candidates[index].cost_s + CLUSTER_TIE_S
    return Part((index,), objective_s, objective_s)


def _joined(parts: Sequence[Part]) -> Part:
    picked = tuple(itertools.chain.from_iterable(part.picked for part in parts))
    return Part(picked, sum(part.objective_s for part in parts), sum(part.bound_s for part in parts))


def _cheapest(rivals: Sequence[Part]) -> Part | None:
    if not rivals:
        return None
    best = min(rivals, key=lambda part: part.objective_s)
    return replace(best, bound_s=min(part.bound_s for part in rivals))


def _solution(problem: Problem, part: Part, *, is_chain: bool) -> Solution:
    chosen = tuple(sorted((problem.candidates[index] for index in part.picked), key=lambda found: found.nodes))
    covered = {node for found in chosen for node in found.nodes}
    eager_s = sum(seconds for node, seconds in enumerate(problem.eager_s) if node not in covered)
    mixing_s = problem.mix_s * max(len({found.backend for found in chosen}) - 1, 0)
    cost_s = sum(found.cost_s for found in chosen) + eager_s + mixing_s
    open_s = max(part.objective_s - part.bound_s, 0.0)
    gap = open_s / max(abs(cost_s), CLUSTER_TIE_S)
    return Solution(chosen, cost_s, cost_s - open_s, gap, "chain" if is_chain else "milp")
