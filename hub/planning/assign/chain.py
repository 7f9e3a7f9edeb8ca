"""Exact assignment along a chain by dynamic programming, over intervals with costs or over regions and their backends."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hub.errors import PlanError
from hub.planning.assign.problem import CLUSTER_TIE_S

# --- Intervals with costs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interval:
    """Positions from `start` to `stop` (exclusive) at one cost."""

    start: int
    stop: int
    cost_s: float


@dataclass(frozen=True, slots=True)
class Walk:
    """Consecutive intervals, with every position between them in eager."""

    picked: tuple[int, ...]
    """Indexes of the intervals, in order."""
    cost_s: float


def cheapest_walk(eager_s: Sequence[float], intervals: Sequence[Interval]) -> Walk | None:
    """Return the cheapest walk from the first position past the last one. Exact, linear in positions and intervals.

    `eager_s` is the cost of each position in eager, infinite if it is not allowed; None if no walk is finite.
    """
    starting: list[list[int]] = [[] for _ in eager_s]
    for index, interval in enumerate(intervals):
        starting[interval.start].append(index)
    best_s = [0.0, *(math.inf for _ in eager_s)]
    came: list[int | None] = [None for _ in best_s]
    for position, alone_s in enumerate(eager_s):
        here_s = best_s[position]
        if here_s + alone_s < best_s[position + 1]:
            best_s[position + 1], came[position + 1] = here_s + alone_s, None
        for index in starting[position]:
            stop, total_s = intervals[index].stop, here_s + intervals[index].cost_s
            if total_s < best_s[stop]:
                best_s[stop], came[stop] = total_s, index
    return Walk(_picked(came, intervals), best_s[-1]) if best_s[-1] < math.inf else None


def _picked(came: Sequence[int | None], intervals: Sequence[Interval]) -> tuple[int, ...]:
    found: list[int] = []
    position = len(came) - 1
    while position > 0:
        index = came[position]
        if index is None:
            position -= 1
        else:
            found.append(index)
            position = intervals[index].start
    return tuple(reversed(found))


# --- Regions and backends ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegionChain:
    """Regions that run one after the other; each goes to one backend, of which eager is the last.

    Adjacent regions of one backend form one cluster, which costs `enter_s` of its first region plus `inside_s` of all.
    Raises PlanError if the values contradict each other.
    """

    backends: tuple[str, ...]
    inside_s: tuple[tuple[float | None, ...], ...]
    """Seconds of each region in each backend; None if the backend cannot run it."""
    enter_s: tuple[tuple[float, ...], ...]
    """Extra seconds for a cluster of each backend that begins at the region: call overhead, boundary copies."""
    whole_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """Measured seconds of backends that run all regions as one cluster; they replace the sum."""
    switch_s: tuple[tuple[float, ...], ...] = ()
    """Seconds added if a region's backend (row) is followed by another one (column); empty if switching is free."""

    def __post_init__(self) -> None:
        width = len(self.backends)
        _insist(len(set(self.backends)) == width > 0, f"backends {self.backends} are not distinct")
        _insist(len(self.inside_s) == len(self.enter_s), "inside_s and enter_s differ in length")
        _insist(all(len(row) == width for row in (*self.inside_s, *self.enter_s)), f"a region has not {width} costs")
        _insist([len(row) for row in self.switch_s] in ([], [width] * width), "switch_s is not a square of all backends")
        known = (cost_s for row in self.inside_s for cost_s in row if cost_s is not None)
        costs_s = (*known, *itertools.chain(*self.enter_s), *itertools.chain(*self.switch_s), *self.whole_s.values())
        _insist(all(map(math.isfinite, costs_s)), "a cost is not finite")
        for name in self.whole_s:
            _insist(name in self.backends[:-1], f"{name} has a cost of the whole, but is no backend")
            column = self.backends.index(name)
            _insist(all(row[column] is not None for row in self.inside_s), f"{name} cannot run every region")


class Route(NamedTuple):
    """One assignment of every region of a chain."""

    cost_s: float
    """Seconds per call, without tie-breaking terms."""
    n_clusters: int
    backends: tuple[str, ...]
    """Backend of each region."""


def k_best(chain: RegionChain, k: int) -> tuple[Route, ...]:
    """Return the `k` cheapest distinct assignments, cheapest first, fewer if there are no more. Exact.

    A cluster costs `CLUSTER_TIE_S` extra, so fewer clusters win ties.
    """
    size = len(chain.inside_s)
    wholes = [Route(cost_s, 1, (name,) * size) for name, cost_s in chain.whole_s.items()]
    replaced = {route.backends for route in wholes}
    summed = (route_of(chain, [chain.backends[column] for column in columns]) for columns in _by_sum(chain))
    others = (route for route in summed if route.backends not in replaced)
    return tuple(itertools.islice(heapq.merge(others, sorted(wholes, key=_objective_s), key=_objective_s), k))


def route_of(chain: RegionChain, backends: Sequence[str]) -> Route:
    """Return one assignment with its cost. Raises PlanError if a backend cannot run its region."""
    columns = [chain.backends.index(name) for name in backends]
    steps_s = [
        _step_s(chain, region, before, column)
        for region, (before, column) in enumerate(zip([None, *columns], columns, strict=False))
    ]
    if None in steps_s:
        region = steps_s.index(None)
        raise PlanError(f"region {region} cannot run there", backend=backends[region], hint="choose another backend for it")
    n_clusters = sum(name != chain.backends[-1] for name, _ in itertools.groupby(backends))
    one = backends[0] if len(set(backends)) == 1 else None
    sum_s = math.fsum(step_s for step_s in steps_s if step_s is not None)
    return Route(chain.whole_s.get(one, sum_s) if one else sum_s, n_clusters, tuple(backends))


def _objective_s(route: Route) -> float:
    return route.cost_s + CLUSTER_TIE_S * route.n_clusters


def _step_s(chain: RegionChain, region: int, before: int | None, column: int) -> float | None:
    """Return the seconds that a region adds after the one before it, which is None at the first; None if impossible."""
    inside_s = chain.inside_s[region][column]
    if inside_s is None or before == column:
        return inside_s
    switched_s = chain.switch_s[before][column] if chain.switch_s and before is not None else 0.0
    return inside_s + chain.enter_s[region][column] + switched_s


def _by_sum(chain: RegionChain) -> Iterator[tuple[int, ...]]:
    """Yield the columns of each assignment, the cheapest first by sums of costs.

    The least cost of the rest is computed backwards once, for each backend of the region before: linear in regions, square
    in backends. Then the search goes forwards, best first, and visits nothing else.
    """
    eager = len(chain.backends) - 1

    def steps(region: int, before: int | None) -> Iterator[tuple[float, int]]:
        for column in range(len(chain.backends)):
            if (step_s := _step_s(chain, region, before, column)) is not None:
                is_cluster = column not in (before, eager)
                yield step_s + CLUSTER_TIE_S * is_cluster, column

    size = len(chain.inside_s)
    left_s = [[0.0] * len(chain.backends)]
    for region in reversed(range(size)):
        after_s = left_s[-1]
        rows = ([step_s + after_s[column] for step_s, column in steps(region, before)] for before in range(eager + 1))
        left_s.append([min(row, default=math.inf) for row in rows])
    left_s.reverse()
    numbers = itertools.count()
    waiting: list[tuple[float, int, int, float, tuple[Any, ...]]] = [(0.0, 0, next(numbers), 0.0, ())]
    while waiting:
        _, minus_region, _, paid_s, way = heapq.heappop(waiting)
        if minus_region == -size:
            yield _unlinked(way)
            continue
        for step_s, column in steps(-minus_region, way[1] if way else None):
            total_s = paid_s + step_s + left_s[1 - minus_region][column]
            if total_s < math.inf:
                # Among equal costs the longest way goes first, so that ties do not widen the search.
                heapq.heappush(waiting, (total_s, minus_region - 1, next(numbers), paid_s + step_s, (way, column)))


def _unlinked(way: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the columns of a way, a list linked backwards."""
    columns: list[int] = []
    while way:
        way, column = way
        columns.append(column)
    return tuple(reversed(columns))


def _insist(holds: bool, message: str) -> None:
    if not holds:
        raise PlanError(f"region chain: {message}", hint="check what the chain was built from")
