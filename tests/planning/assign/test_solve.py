"""Exact assignment agrees with trying everything, and says what it proved."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.errors import PlanError
from hub.planning.assign.problem import CLUSTER_TIE_S, Candidate, Problem, Solution
from hub.planning.assign.solve import solve

BACKENDS = ("a", "b", "c")
PRICES = st.integers(1, 60).map(lambda value: value * 1e-5)


def can_run(problem: Problem, chosen: Sequence[Candidate]) -> bool:
    """Return True if the chosen clusters and the remaining single nodes do not depend on each other in a cycle."""
    place = {node: ("cluster", index) for index, found in enumerate(chosen) for node in found.nodes}
    edges = [
        (place.get(source, ("node", source)), place.get(node, ("node", node)))
        for node, sources in enumerate(problem.reads)
        for source in sources
    ]
    return networkx.is_directed_acyclic_graph(networkx.DiGraph(edge for edge in edges if edge[0] != edge[1]))


def objective_s(problem: Problem, chosen: Sequence[Candidate]) -> float:
    """Return what the problem minimises: candidates, eager, mixing, and a tie per cluster."""
    covered = {node for found in chosen for node in found.nodes}
    eager_s = sum(seconds for node, seconds in enumerate(problem.eager_s) if node not in covered)
    mixing_s = problem.mix_s * max(len({found.backend for found in chosen}) - 1, 0)
    return eager_s + mixing_s + sum(found.cost_s + CLUSTER_TIE_S for found in chosen)


def possible(problem: Problem, node: int = 0, chosen: tuple[Candidate, ...] = ()) -> Iterator[tuple[Candidate, ...]]:
    """Yield every choice of disjoint candidates that covers what is required, including cyclic ones."""
    if node == len(problem.reads):
        yield chosen
        return
    covered = {other for found in chosen for other in found.nodes}
    if node in covered or node not in problem.required:
        yield from possible(problem, node + 1, chosen)
    for found in problem.candidates:
        if found.nodes[0] == node and covered.isdisjoint(found.nodes):
            yield from possible(problem, node + 1, (*chosen, found))


def cheapest_by_trying(problem: Problem) -> float | None:
    """Return the least objective of all choices that can run."""
    found = (objective_s(problem, chosen) for chosen in possible(problem) if can_run(problem, chosen))
    return min(found, default=None)


def check(problem: Problem, solution: Solution | None, expected_s: float | None) -> None:
    """Assert that a solution is possible, costs what it says, and as little as expected; None if none is expected."""
    assert (solution is None) == (expected_s is None)
    if solution is None:
        return
    assert can_run(problem, solution.chosen)
    covered = [node for found in solution.chosen for node in found.nodes]
    assert len(covered) == len(set(covered))
    assert problem.required <= set(covered)
    assert objective_s(problem, solution.chosen) == pytest.approx(expected_s, rel=1e-9, abs=1e-12)
    ties_s = CLUSTER_TIE_S * len(solution.chosen)
    assert solution.cost_s + ties_s == pytest.approx(expected_s, rel=1e-9, abs=1e-12)
    assert (solution.gap, solution.bound_s) == (0, solution.cost_s)


def is_convex(reads: Sequence[Sequence[int]], nodes: set[int]) -> bool:
    """Return True if no path leaves the set and comes back."""
    outside: set[int] = set()
    for node in range(min(nodes), max(nodes) + 1):
        after = any(source in nodes or source in outside for source in reads[node])
        if node in nodes and any(source in outside for source in reads[node]):
            return False
        if node not in nodes and after:
            outside.add(node)
    return True


@st.composite
def problems(
    draw: st.DrawFn, sizes: st.SearchStrategy[int], kinds: tuple[str, ...], most_sets: int = 8, most_span: int = 12
) -> Problem:
    """Draw a graph, node sets of the given kinds with one or more backends each, prices, required nodes, and mixing."""
    size = draw(sizes)
    reads = tuple(
        tuple(sorted(draw(st.sets(st.integers(0, node - 1), max_size=2)))) if node else () for node in range(size)
    )
    candidates: list[Candidate] = []
    for _ in range(draw(st.integers(0, most_sets))):
        start = draw(st.integers(0, size - 1))
        stop = draw(st.integers(start + 1, min(size, start + most_span)))
        nodes = set(range(start, stop))
        if draw(st.sampled_from(kinds)) == "set":
            nodes = draw(st.sets(st.sampled_from(sorted(nodes)), min_size=1))
        if is_convex(reads, nodes) or "any" in kinds:
            backends = draw(st.sets(st.sampled_from(BACKENDS), min_size=1))
            candidates += (Candidate(tuple(sorted(nodes)), name, draw(PRICES) * len(nodes)) for name in sorted(backends))
    required = draw(st.sets(st.integers(0, size - 1), max_size=2)) if draw(st.booleans()) else set[int]()
    eager_s = tuple(draw(PRICES) for _ in range(size))
    candidates.sort(key=lambda found: (found.nodes, found.backend))
    mix_s = draw(st.sampled_from((0.0, 5e-5, 5e-4)))
    return Problem(reads, eager_s, tuple(candidates), frozenset(required), mix_s)


SMALL = st.integers(1, 12)


@settings(deadline=None, max_examples=400)
@given(problems(SMALL, ("set", "interval")))
def test_no_choice_is_cheaper(problem: Problem) -> None:
    """On any small graph the solution costs as much as the best of all choices that can run."""
    check(problem, solve(problem), cheapest_by_trying(problem))


@settings(deadline=None, max_examples=100)
@given(problems(SMALL, ("set", "any")))
def test_sets_that_are_not_convex_are_never_chosen(problem: Problem) -> None:
    """A candidate that needs its own results through other nodes is left out, and the rest is still exact."""
    check(problem, solve(problem), cheapest_by_trying(problem))


@settings(deadline=None, max_examples=200)
@given(problems(SMALL, ("interval",)))
def test_no_choice_of_intervals_is_cheaper(problem: Problem) -> None:
    """Where every candidate is an interval the dynamic programme is used, and agrees with trying everything."""
    solution = solve(problem)
    check(problem, solution, cheapest_by_trying(problem))
    assert solution is None or solution.method == "chain"


def with_decoy(problem: Problem) -> Problem:
    """Return the problem with added nodes whose candidate is no interval, so that it needs the binary programme."""
    size = len(problem.reads)
    decoy = Candidate((size, size + 2), "a", 1.0)
    return replace(
        problem,
        reads=(*problem.reads, (), (), ()),
        eager_s=(*problem.eager_s, 0.0, 0.0, 2.0),
        candidates=(*problem.candidates, decoy, Candidate((size + 2,), "a", 0.0)),
    )


@settings(deadline=None, max_examples=40)
@given(problems(st.just(60), ("interval",), most_sets=40))
def test_both_methods_agree(problem: Problem) -> None:
    """On larger chains the dynamic programme and the binary programme find the same seconds."""
    chain, binary = solve(replace(problem, mix_s=0.0)), solve(with_decoy(replace(problem, mix_s=0.0)))
    assert (chain is None) == (binary is None)
    if chain is not None and binary is not None:
        assert (chain.method, binary.method) == ("chain", "milp")
        ties_s = CLUSTER_TIE_S * (len(binary.chosen) - len(chain.chosen) - 1)
        assert binary.cost_s + ties_s == pytest.approx(chain.cost_s, rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(problems(st.integers(8, 40), ("set", "interval"), most_sets=30))
def test_the_same_problem_has_the_same_solution(problem: Problem) -> None:
    """Solving twice gives the same value."""
    assert solve(problem) == solve(problem)


def test_long_graphs_are_solved_exactly() -> None:
    """Circles that are found in stretches of a long graph leave the answer what it is for each part of the graph alone."""
    block = crossing()
    count = 300
    reads = tuple(tuple(source + 4 * at for source in sources) for at in range(count) for sources in block.reads)
    pairs = [(tuple(node + 4 * at for node in found.nodes), found) for at in range(count) for found in block.candidates]
    across = tuple(Candidate((4 * at + 3, 4 * at + 4), "b", 9.9e-3) for at in range(count - 1))
    candidates = (*(Candidate(nodes, found.backend, found.cost_s) for nodes, found in pairs), *across)
    solution = solve(Problem(reads, block.eager_s * count, candidates))
    assert solution is not None
    assert (solution.method, solution.gap) == ("milp", 0)
    assert can_run(Problem(reads, block.eager_s * count, candidates), solution.chosen)
    saved_across_s = 10e-3 - 9.9e-3
    assert solution.cost_s == pytest.approx(11e-3 * count - saved_across_s * len(across), rel=1e-9)


# --- Cases made by hand -----------------------------------------------------------------------------------------------


def crossing(*more: Candidate, mix_s: float = 0.0) -> Problem:
    """Return two lines, 0 -> 2 and 1 -> 3, and two candidates, (0, 3) and (1, 2), that read from each other."""
    pairs = (Candidate((0, 3), "a", 1e-3), Candidate((1, 2), "a", 1e-3))
    return Problem(((), (), (0,), (1,)), (5e-3,) * 4, (*pairs, *more), mix_s=mix_s)


def test_two_clusters_that_need_each_other_are_not_both_chosen() -> None:
    """Of two convex clusters that each read from the other, one goes to eager."""
    solution = solve(crossing())
    assert solution is not None
    assert [found.nodes for found in solution.chosen] in ([(0, 3)], [(1, 2)])
    assert solution.cost_s == pytest.approx(11e-3)


def test_a_cluster_that_holds_a_circle_may_be_chosen() -> None:
    """Ruling out two clusters that need each other leaves one cluster of all their nodes possible."""
    both = Candidate((0, 1, 2, 3), "b", 2.5e-3)
    problem = crossing(both)
    problem = replace(problem, reads=(*problem.reads, ()), eager_s=(*problem.eager_s, 1e-3))
    solution = solve(problem)
    assert solution is not None
    assert solution.chosen == (both,)


def test_three_clusters_in_a_circle_are_not_all_chosen() -> None:
    """Of three clusters of which each reads from the next, two are chosen."""
    reads = ((), (), (), (1,), (2,), (0,))
    candidates = tuple(Candidate((node, node + 3), "a", 1e-3) for node in range(3))
    solution = solve(Problem(reads, (5e-3,) * 6, candidates))
    assert solution is not None
    assert len(solution.chosen) == 2
    assert solution.cost_s == pytest.approx(12e-3)


def test_a_circle_through_an_eager_node_is_a_circle() -> None:
    """Two clusters that depend on each other through a node that stays in eager are not both chosen."""
    reads = ((), (), (0,), (2,), (1,))
    candidates = (Candidate((0, 4), "a", 1e-3), Candidate((1, 3), "b", 1e-3))
    problem = Problem(reads, (5e-3,) * 5, candidates)
    assert not can_run(problem, candidates)
    check(problem, solve(problem), cheapest_by_trying(problem))


def test_independent_eager_nodes_are_no_circle() -> None:
    """Nodes that no candidate tells apart may run at different times, and close no circle between clusters."""
    reads = ((), (), (0,), (1,), (2,), (3,))
    candidates = (Candidate((0, 5), "a", 1e-3), Candidate((1, 4), "b", 1e-3))
    problem = Problem(((), (), (0,), (), (), (3,)), (5e-3,) * 6, candidates)
    solution = solve(problem)
    assert solution is not None
    assert len(solution.chosen) == 2
    assert not can_run(replace(problem, reads=reads), candidates)


def test_fewer_clusters_win_ties() -> None:
    """Of choices that cost the same the one with the fewest clusters is taken."""
    halves = (Candidate((0, 1), "a", 1e-3), Candidate((2, 3), "a", 1e-3))
    whole = Candidate((0, 1, 2, 3), "a", 2e-3)
    for candidates in itertools.permutations((*halves, whole)):
        solution = solve(Problem(((), (0,), (1,), (2,)), (1e-2,) * 4, candidates))
        assert solution is not None
        assert solution.chosen == (whole,)


def test_eager_wins_a_tie_with_a_cluster() -> None:
    """A cluster that costs as much as eager is not worth having."""
    solution = solve(Problem(((),), (1e-3,), (Candidate((0,), "a", 1e-3),)))
    assert solution is not None
    assert solution.chosen == ()


@pytest.mark.parametrize(("mix_s", "backends"), [(0.0, ["a", "b"]), (2e-3, ["a", "a"])])
def test_mixing_can_cost_more_than_it_saves(mix_s: float, backends: list[str]) -> None:
    """A second backend is used only where it saves more than mixing costs."""
    prices_s = {("a", 0): 1e-3, ("a", 1): 2e-3, ("b", 0): 3e-3, ("b", 1): 1e-3}
    candidates = tuple(Candidate((node,), backend, cost_s) for (backend, node), cost_s in prices_s.items())
    solution = solve(Problem(((), (0,)), (9e-3,) * 2, candidates, mix_s=mix_s))
    assert solution is not None
    assert [found.backend for found in solution.chosen] == backends


def test_a_required_node_that_nothing_covers_has_no_solution() -> None:
    """There is no solution where a node may not stay in eager and no candidate has it."""
    assert solve(Problem(((), (0,)), (1e-3,) * 2, (Candidate((0,), "a", 1e-4),), required=frozenset({1}))) is None


def test_required_nodes_in_a_circle_have_no_solution() -> None:
    """There is no solution where every cover of the required nodes is a circle."""
    assert solve(replace(crossing(), required=frozenset(range(4)))) is None


def test_a_problem_without_nodes_costs_nothing() -> None:
    """No nodes, no clusters, no seconds."""
    solution = solve(Problem((), (), ()))
    assert solution is not None
    assert (solution.chosen, solution.cost_s, solution.gap) == ((), 0.0, 0.0)


def test_without_time_the_gap_is_told() -> None:
    """A solution that could not be proven in time says how much might still be saved."""
    solution = solve(crossing(), limit_s=0.0)
    assert solution is not None
    assert solution.gap > 0
    assert solution.bound_s <= 11e-3 < solution.cost_s


def test_without_time_for_required_nodes_it_says_so() -> None:
    """Where not even one solution is known in time, an error says what to do."""
    with pytest.raises(PlanError, match="time allowed"):
        solve(replace(crossing(Candidate((0, 2), "a", 1e-3)), required=frozenset({3})), limit_s=0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"eager_s": (1.0,)},
        {"eager_s": (1.0, float("nan"))},
        {"mix_s": -1.0},
        {"required": frozenset({2})},
        {"reads": ((1,), ())},
        {"candidates": (Candidate((1, 0), "a", 1.0),)},
        {"candidates": (Candidate((), "a", 1.0),)},
        {"candidates": (Candidate((0,), "a", float("inf")),)},
    ],
)
def test_a_problem_that_contradicts_itself_is_refused(wrong: dict[str, object]) -> None:
    """Prices that are no numbers, nodes that do not exist and reads that point forwards raise PlanError."""
    right = Problem(((), (0,)), (1.0, 1.0), ())
    with pytest.raises(PlanError, match="assignment problem"):
        replace(right, **wrong)
