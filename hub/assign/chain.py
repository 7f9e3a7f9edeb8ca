"""Exact assignment along a chain by dynamic programming, over intervals with costs or over regions and their backends."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from hub.assign.problem import CLUSTER_TIE_S
from hub.errors import PlanError

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
class WholePrice:
    """Measured cost of a cluster of exactly the regions from `start` to `stop` (exclusive)."""

    start: int
    stop: int
    backend: str
    cost_s: float
    """Seconds per call, with call overhead and boundary copies."""


@dataclass(frozen=True)
class RegionChain:
    """Regions that run one after the other; each goes to one backend or to eager.

    Adjacent regions of one backend form one cluster. It costs `enter_s` of its first region plus `inside_s` of all, or, if
    `whole` has exactly these regions, that cost instead. Raises PlanError if the values contradict each other.
    """

    backends: tuple[str, ...]
    inside_s: tuple[tuple[float | None, ...], ...]
    """Seconds of each region in each backend; None if the backend cannot run it."""
    enter_s: tuple[tuple[float, ...], ...]
    """Extra seconds for a cluster of each backend that begins at the region: call overhead, boundary copies."""
    eager_s: tuple[float | None, ...]
    """Seconds of each region in eager; None if it must not stay there."""
    whole: tuple[WholePrice, ...] = ()
    mix_s: float = 0.0
    """Seconds added once for each distinct backend beyond the first; eager does not count."""
    switch_s: tuple[tuple[float, ...], ...] = ()
    """Seconds added if a region's backend (row) is followed by another one (column); eager is the last of both.

    Empty if switching is free.
    """
    eager: str = "eager"
    """Name of eager among a route's backends."""

    def __post_init__(self) -> None:
        size, width = len(self.eager_s), len(self.backends)
        _insist(len(self.inside_s) == len(self.enter_s) == size, "inside_s, enter_s and eager_s differ in length")
        _insist(all(len(row) == width for row in (*self.inside_s, *self.enter_s)), f"a region has not {width} prices")
        _insist(len({*self.backends, self.eager}) == width + 1, f"backends {self.backends} are not distinct")
        _insist(0 <= self.mix_s < math.inf, f"mix_s is {self.mix_s}, expected finite and not negative")
        _insist(
            not self.switch_s or [len(row) for row in self.switch_s] == [width + 1] * (width + 1),
            "switch_s has not a row and a column for each backend and eager",
        )
        _insist(all(map(math.isfinite, itertools.chain(*self.switch_s))), "a price of switching is not finite")
        known = [value for row in (*self.inside_s, self.eager_s) for value in row if value is not None]
        paid = [*itertools.chain.from_iterable(self.enter_s), *(price.cost_s for price in self.whole)]
        _insist(all(map(math.isfinite, (*known, *paid))), "a price is not finite")
        for price in self.whole:
            _insist(price.backend in self.backends, f"{price.backend} has a whole price and is no backend")
            _insist(0 <= price.start < price.stop <= size, f"a whole price is for regions {price.start} to {price.stop}")
            column = self.backends.index(price.backend)
            rows = self.inside_s[price.start : price.stop]
            _insist(all(row[column] is not None for row in rows), f"{price.backend} cannot run all of {price}")


class Route(NamedTuple):
    """One assignment of every region of a chain."""

    cost_s: float
    """Seconds per call, without tie-breaking terms."""
    n_clusters: int
    backends: tuple[str, ...]
    """Backend of each region, or the name of eager."""


def k_best(chain: RegionChain, k: int) -> tuple[Route, ...]:
    """Return the `k` cheapest distinct assignments, cheapest first, fewer if there are no more. Exact.

    A cluster costs `CLUSTER_TIE_S` extra, so fewer clusters win ties. The cost of the rest from each state is computed
    backwards once, in time linear in regions (and, if mixing costs, in the sets of backends). The cheapest routes are then
    expanded forwards, best first, without visiting others.
    """
    return tuple(itertools.islice(_routes(_Steps(chain)), k))


class _State(NamedTuple):
    """State on which the rest of a route depends, once a region has its backend."""

    backend: int
    """Index of the backend; -1 for eager."""
    origin: int
    """First region of the cluster while a whole cost from there may still apply; else -1."""
    used: int
    """Backends used so far, one bit each; 0 if mixing is free."""


_START = _State(-1, -1, 0)


@dataclass(frozen=True)
class _Steps:
    """Transitions through a chain, one region per step, and the least cost left from each state."""

    chain: RegionChain
    _opened: dict[tuple[int, int], tuple[tuple[float, _State], ...]] = field(default_factory=dict[Any, Any])
    """Cache of `opened`, whose result is the same for every state that used the same backends."""

    @cached_property
    def wholes(self) -> Mapping[tuple[int, int], Mapping[int, float]]:
        """Return, by first region and backend, the seconds by which whole costs differ from the sum, by end."""
        found: dict[tuple[int, int], dict[int, float]] = {}
        for price in self.chain.whole:
            backend = self.chain.backends.index(price.backend)
            inside_s = (row[backend] or 0.0 for row in self.chain.inside_s[price.start : price.stop])
            sum_s = self.chain.enter_s[price.start][backend] + math.fsum(inside_s)
            found.setdefault((price.start, backend), {})[price.stop] = price.cost_s - sum_s
        return found

    def ended_s(self, region: int, state: _State) -> float:
        """Return the seconds to add if the state's cluster ends before `region`."""
        return self.wholes[state.origin, state.backend].get(region, 0.0) if state.origin >= 0 else 0.0

    def after(self, region: int, state: _State) -> Iterator[tuple[float, _State]]:
        """Yield every choice for `region`, with its seconds."""
        ended_s = self.ended_s(region, state)
        for cost_s, opened in self.opened(region, state.used):
            if opened.backend != state.backend or opened.backend < 0:
                yield ended_s + cost_s + self.switched_s(region, state.backend, opened.backend), opened
        if (kept := self.going_on(region, state)) is not None:
            yield kept

    def switched_s(self, region: int, before: int, after: int) -> float:
        """Return the seconds to switch backends before `region`; 0 before the first one."""
        return self.chain.switch_s[before][after] if self.chain.switch_s and region and before != after else 0.0

    def going_on(self, region: int, state: _State) -> tuple[float, _State] | None:
        """Return the choice to stay in the state's cluster; None in eager, or if the backend cannot run the region."""
        inside_s = self.chain.inside_s[region][state.backend] if state.backend >= 0 else None
        return None if inside_s is None else (inside_s, self._kept(region, state))

    def opened(self, region: int, used: int) -> Sequence[tuple[float, _State]]:
        """Return eager and a new cluster of each backend at `region`, with the region's seconds."""
        if (region, used) not in self._opened:
            self._opened[region, used] = tuple(self._open(region, used))
        return self._opened[region, used]

    def _open(self, region: int, used: int) -> Iterator[tuple[float, _State]]:
        alone_s = self.chain.eager_s[region]
        if alone_s is not None:
            yield alone_s, _State(-1, -1, used)
        for backend, inside_s in enumerate(self.chain.inside_s[region]):
            if inside_s is not None:
                now_used, mixing_s = self._entered(used, backend)
                state = _State(backend, region if (region, backend) in self.wholes else -1, now_used)
                begun_s = self.chain.enter_s[region][backend] + CLUSTER_TIE_S + mixing_s
                yield begun_s + inside_s, self._kept(region, state)

    def _kept(self, region: int, state: _State) -> _State:
        """Drop the cluster's origin once the cluster is longer than every whole cost from there."""
        if state.origin < 0 or max(self.wholes[state.origin, state.backend]) > region:
            return state
        return state._replace(origin=-1)

    def _entered(self, used: int, backend: int) -> tuple[int, float]:
        if self.chain.mix_s == 0:
            return 0, 0.0
        bit = 1 << backend
        return used | bit, self.chain.mix_s if used and not used & bit else 0.0

    @cached_property
    def reached(self) -> Sequence[Sequence[_State]]:
        """Return the states reachable before each region, and past the last one."""
        found: list[tuple[_State, ...]] = [(_START,)]
        for region in range(len(self.chain.eager_s)):
            opened = (self.opened(region, used) for used in dict.fromkeys(state.used for state in found[-1]))
            kept = (self.going_on(region, state) for state in found[-1])
            choices = (*itertools.chain.from_iterable(opened), *filter(None, kept))
            found.append(tuple(dict.fromkeys(state for _, state in choices)))
        return found

    @cached_property
    def left_s(self) -> Sequence[Mapping[_State, float]]:
        """Return the least seconds to the end from each state before each region, and past the last one."""
        size = len(self.chain.eager_s)
        left_s = [{state: self.ended_s(size, state) for state in self.reached[size]}]
        for region in reversed(range(size)):
            left_s.append(self._left_s(region, left_s[-1]))
        return left_s[::-1]

    def _left_s(self, region: int, further_s: Mapping[_State, float]) -> dict[_State, float]:
        """Return the least seconds from each state before `region`.

        New clusters are evaluated once for all states with the same current backend and the same used backends.
        """
        opening_s: dict[tuple[int, int], float] = {}
        totals: dict[int, list[tuple[float, int]]] = {}
        found: dict[_State, float] = {}
        for before in self.reached[region]:
            key = (before.used, before.backend)
            if before.used not in totals:
                opened = self.opened(region, before.used)
                totals[before.used] = sorted((cost_s + further_s[state], state.backend) for cost_s, state in opened)
            if key not in opening_s:
                opening_s[key] = self._opening_s(region, before.backend, totals[before.used])
            rivals = [self.ended_s(region, before) + opening_s[key]]
            if (kept := self.going_on(region, before)) is not None:
                rivals.append(kept[0] + further_s[kept[1]])
            found[before] = min(rivals, default=math.inf)
        return found

    def _opening_s(self, region: int, before: int, totals: Sequence[tuple[float, int]]) -> float:
        """Return the least seconds to the end if `region` leaves the cluster before it.

        `totals` are the seconds to the end by backend, without switching, in ascending order.
        """
        elsewhere = ((total_s, backend) for total_s, backend in totals if backend < 0 or backend != before)
        if not self.chain.switch_s:
            return next(elsewhere, (math.inf, -1))[0]
        return min((total_s + self.switched_s(region, before, to) for total_s, to in elsewhere), default=math.inf)


@dataclass(frozen=True, slots=True)
class _Way:
    """Route through the first regions, as a list linked backwards."""

    state: _State
    before: _Way | None = None


def _routes(steps: _Steps) -> Iterator[Route]:
    """Yield assignments, cheapest first: best-first search whose estimate of the rest is exact."""
    size = len(steps.chain.eager_s)
    numbers = itertools.count()
    waiting = [(steps.left_s[0][_START], 0, next(numbers), 0.0, _Way(_START))]
    while waiting and waiting[0][0] < math.inf:
        _, minus_region, _, paid_s, way = heapq.heappop(waiting)
        if minus_region == -size:
            yield _route(steps.chain, way)
            continue
        for cost_s, state in steps.after(-minus_region, way.state):
            so_far_s = paid_s + cost_s
            total_s = so_far_s + steps.left_s[1 - minus_region][state]
            # Among equal costs the longest route goes first, so that ties do not widen the search.
            heapq.heappush(waiting, (total_s, minus_region - 1, next(numbers), so_far_s, _Way(state, way)))


def _route(chain: RegionChain, way: _Way) -> Route:
    backends: list[str] = []
    while way.before is not None:
        backends.append(chain.eager if way.state.backend < 0 else chain.backends[way.state.backend])
        way = way.before
    return route_of(chain, backends[::-1])


def route_of(chain: RegionChain, backends: Sequence[str]) -> Route:
    """Return one assignment with its cost. Raises PlanError if a backend cannot run its region."""
    whole_s = {(price.start, price.stop, price.backend): price.cost_s for price in chain.whole}
    costs_s: list[float] = []
    used: set[str] = set()
    n_clusters, start = 0, 0
    names = (*chain.backends, chain.eager)
    for backend, run in itertools.groupby(backends):
        stop = start + sum(1 for _ in run)
        if start and chain.switch_s:
            costs_s.append(chain.switch_s[names.index(backends[start - 1])][names.index(backend)])
        if backend == chain.eager:
            costs_s += (_allowed(chain.eager_s[region], region, backend) for region in range(start, stop))
        else:
            column = chain.backends.index(backend)
            inside = [_allowed(chain.inside_s[region][column], region, backend) for region in range(start, stop)]
            sum_s = chain.enter_s[start][column] + math.fsum(inside)
            costs_s.append(whole_s.get((start, stop, backend), sum_s))
            used.add(backend)
            n_clusters += 1
        start = stop
    mixing_s = chain.mix_s * max(len(used) - 1, 0)
    return Route(math.fsum(costs_s) + mixing_s, n_clusters, tuple(backends))


def _allowed(cost_s: float | None, region: int, backend: str) -> float:
    if cost_s is None:
        raise PlanError(f"region {region} cannot run there", backend=backend, hint="choose another backend for it")
    return cost_s


def _insist(holds: bool, message: str) -> None:
    if not holds:
        raise PlanError(f"region chain: {message}", hint="check what the chain was built from")
