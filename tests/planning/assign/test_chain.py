"""Assignments along a chain of regions: the cheapest ones, exactly, in order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.errors import PlanError
from hub.planning.assign.chain import RegionChain, Route, k_best, route_of
from hub.planning.assign.problem import CLUSTER_TIE_S, Candidate, Problem
from hub.planning.assign.solve import solve

PRICES = st.integers(1, 60).map(lambda value: value * 1e-5)


@st.composite
def chains(draw: st.DrawFn, most_regions: int = 5, *, is_plain: bool = False) -> RegionChain:
    """Draw a chain with up to three backends and eager, some of which cannot run some regions.

    Unless it is plain, switching costs something, and backends that run every region may have a cost of the whole.
    """
    size = draw(st.integers(1, most_regions))
    backends = ("a", "b", "c")[: draw(st.integers(1, 3))]
    maybe = st.one_of(PRICES, PRICES, PRICES, st.none())
    eager = st.one_of(PRICES.map(lambda value: 2 * value), st.none())
    inside_s = tuple((*(draw(maybe) for _ in backends), draw(eager)) for _ in range(size))
    enter_s = tuple((*(draw(PRICES) for _ in backends), 0.0) for _ in range(size))
    able = [name for column, name in enumerate(backends) if all(row[column] is not None for row in inside_s)]
    whole = [] if is_plain or not able else draw(st.lists(st.sampled_from(able), unique=True))
    whole_s = {name: draw(PRICES) * size for name in whole}
    width = 0 if is_plain or not draw(st.booleans()) else len(backends) + 1
    switch_s = tuple(tuple(draw(PRICES) for _ in range(width)) for _ in range(width))
    return RegionChain((*backends, "eager"), inside_s, enter_s, whole_s, switch_s)


def cheapest(chain: RegionChain) -> Route | None:
    """Return the first of the best assignments, or None if there is none."""
    return next(iter(k_best(chain, 1)), None)


def possible(chain: RegionChain) -> Iterator[Route]:
    """Return every assignment that can run, with its price."""
    choices = [
        [name for name, cost_s in zip(chain.backends, inside_s, strict=True) if cost_s is not None]
        for inside_s in chain.inside_s
    ]
    return (route_of(chain, backends) for backends in itertools.product(*choices))


def objective_s(route: Route) -> float:
    """Return the seconds of a route, including the ties."""
    return route.cost_s + CLUSTER_TIE_S * route.n_clusters


@settings(deadline=None, max_examples=300)
@given(chains(), st.integers(1, 12))
def test_the_best_few_are_the_first_of_all(chain: RegionChain, k: int) -> None:
    """The k best assignments are distinct and cost what the first k of all assignments cost, in order."""
    found = k_best(chain, k)
    expected = sorted(map(objective_s, possible(chain)))[:k]
    assert [objective_s(route) for route in found] == pytest.approx(expected, rel=1e-9)
    assert len({route.backends for route in found}) == len(found)
    assert all(route == route_of(chain, route.backends) for route in found)


def as_intervals(chain: RegionChain) -> Problem:
    """Return the same choice with every interval of every backend as a candidate."""
    size = len(chain.inside_s)
    candidates = [
        Candidate(tuple(range(start, stop)), name, chain.enter_s[start][column] + sum(prices))
        for start in range(size)
        for stop in range(start + 1, size + 1)
        for column, name in enumerate(chain.backends[:-1])
        if None not in (prices := [row[column] for row in chain.inside_s[start:stop]])
    ]
    eager_s = tuple(row[-1] or 0.0 for row in chain.inside_s)
    required = frozenset(region for region, row in enumerate(chain.inside_s) if row[-1] is None)
    return Problem(((), *((region,) for region in range(size - 1))), eager_s, tuple(candidates), required)


@settings(deadline=None, max_examples=150)
@given(chains(16, is_plain=True))
def test_regions_agree_with_intervals(chain: RegionChain) -> None:
    """Without costs of wholes, the cheapest assignment costs what the best choice of all intervals costs."""
    route, solution = cheapest(chain), solve(as_intervals(chain))
    assert (route is None) == (solution is None)
    if route is not None and solution is not None:
        assert route.cost_s + CLUSTER_TIE_S * route.n_clusters == pytest.approx(
            solution.cost_s + CLUSTER_TIE_S * len(solution.chosen), rel=1e-9
        )


@settings(deadline=None, max_examples=50)
@given(chains())
def test_switching_is_paid_at_every_change(chain: RegionChain) -> None:
    """An assignment costs each change of backend as its row and column say, and the first region changes from nothing."""
    names = chain.backends
    width = len(names)
    dear = replace(chain, switch_s=tuple(tuple(1.0 + row + column for column in range(width)) for row in range(width)))
    free = replace(chain, switch_s=())
    for route in itertools.islice(possible(dear), 20):
        paid = sum(
            1.0 + names.index(one) + names.index(other) for one, other in itertools.pairwise(route.backends) if one != other
        )
        assert route.cost_s == pytest.approx(route_of(free, route.backends).cost_s + paid)


PLAIN = RegionChain(
    backends=("a", "b", "eager"),
    inside_s=((1e-3, 2e-3, 9e-3), (2e-3, 1e-3, 9e-3)),
    enter_s=((1e-4, 1e-4, 0.0), (1e-4, 1e-4, 0.0)),
)
DEAR = ((0.0, 5e-3, 5e-3), (5e-3, 0.0, 5e-3), (5e-3, 5e-3, 0.0))
"""Seconds of switching that no choice of regions saves."""


def test_each_region_goes_where_it_is_cheapest() -> None:
    """Where entering costs less than it saves, neighbours go to different backends."""
    assert cheapest(PLAIN) == (pytest.approx(2.2e-3), 2, ("a", "b"))


def test_switching_can_cost_more_than_it_saves() -> None:
    """Where a second backend costs more than it saves, one backend takes all."""
    best = cheapest(replace(PLAIN, switch_s=DEAR))
    assert best is not None
    assert best.backends == ("a", "a")


def test_a_cost_of_the_whole_replaces_the_sum() -> None:
    """A cluster that was measured in one piece costs what was measured, cheaper or dearer than its regions' sum."""
    cheap, dear = (replace(PLAIN, whole_s={"b": cost_s}, switch_s=DEAR) for cost_s in (1e-3, 8e-3))
    assert k_best(cheap, 1)[0] == (1e-3, 1, ("b", "b"))
    assert {route.backends: route.cost_s for route in k_best(dear, 9)}["b", "b"] == 8e-3


def test_a_region_that_nothing_takes_leaves_no_assignment() -> None:
    """There is no assignment where a region has neither a backend nor eager."""
    stuck = replace(PLAIN, inside_s=((1e-3, 1e-3, 1e-3), (None, None, None)))
    assert cheapest(stuck) is None
    with pytest.raises(PlanError, match="region 1 cannot run there"):
        route_of(stuck, ("a", "a"))


def test_k_best_is_deterministic() -> None:
    """The same chain gives the same assignments in the same order, ties included."""
    even = RegionChain(("a", "b", "c", "eager"), ((1e-3,) * 4,) * 6, ((0.0,) * 4,) * 6)
    assert k_best(even, 50) == k_best(replace(even), 50)
    assert k_best(even, 1)[0].backends == ("eager",) * 6


def test_long_chains_are_unrolled() -> None:
    """A thousand regions and four backends give ten distinct assignments in order."""
    inside_s = tuple((*(1e-4 * (1 + (region * 7 + column * 3) % 5) for column in range(4)), 1e-3) for region in range(1000))
    chain = RegionChain((*"abcd", "eager"), inside_s, ((*(2e-4,) * 4, 0.0),) * 1000)
    found = k_best(chain, 10)
    assert len({route.backends for route in found}) == 10
    assert list(map(objective_s, found)) == pytest.approx(sorted(map(objective_s, found)), rel=1e-12)


@pytest.mark.parametrize(
    "wrong",
    [
        {"enter_s": ((1.0, 1.0, 1.0),)},
        {"backends": ("a", "a", "eager")},
        {"backends": ("a", "eager", "eager")},
        {"enter_s": ((1.0,), (1.0,))},
        {"enter_s": ((1.0, 1.0, float("inf")),) * 2},
        {"switch_s": ((0.0,) * 3,)},
        {"switch_s": ((0.0, float("nan"), 0.0),) * 3},
        {"whole_s": {"eager": 1.0}},
        {"whole_s": {"c": 1.0}},
        {"whole_s": {"b": float("nan")}},
        {"whole_s": {"b": 1.0}, "inside_s": ((1.0, 1.0, 1.0), (1.0, None, 1.0))},
    ],
)
def test_a_chain_that_contradicts_itself_is_refused(wrong: dict[str, object]) -> None:
    """Costs that are missing, no numbers, or for clusters that cannot run raise PlanError."""
    with pytest.raises(PlanError, match="region chain"):
        replace(PLAIN, **wrong)
