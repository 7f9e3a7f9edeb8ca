"""Choice of the cheapest disjoint candidates by a binary program for HiGHS; cycles are ruled out as they appear.

Two convex clusters can still depend on each other. An order variable for each node would forbid that from the start, but
makes the relaxation weak; so the program starts without, and each cycle in its answer becomes a constraint.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy

from hub.errors import PlanError
from hub.planning.assign.cycles import Stop, cycles
from hub.planning.assign.problem import CLUSTER_TIE_S, Part, Problem

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint
    from scipy.sparse import csr_array

# SciPy's optimizers are imported on first use: most plans are chains, which do not need them, and a cold start would wait.

_UNIT_S = 1e-6
"""Seconds that the program counts as 1: HiGHS ignores differences below 1e-7."""

_STRETCH = 500
"""Number of nodes of a stretch that is solved separately to find cycles early."""


@dataclass(frozen=True)
class Programme:
    """Binary program over the nodes from `start` to `stop` (exclusive) and the candidates that lie within."""

    problem: Problem
    start: int
    stop: int
    columns: tuple[int, ...]
    """Indexes into the problem's candidates."""
    circles: list[tuple[Stop, ...]] = field(default_factory=list[tuple[Stop, ...]])
    """Cycles of two stops or more found so far, with nodes by their position in the problem.

    Programs may share them: cycles are a property of the data flow and do not depend on the candidates.
    """

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """Return the nodes that each node reads within the range, counted from its start."""
        rows = self.problem.reads[self.start : self.stop]
        return tuple(tuple(source - self.start for source in row if source >= self.start) for row in rows)

    @cached_property
    def sets(self) -> tuple[tuple[int, ...], ...]:
        """Return each column's nodes, counted from the start of the range."""
        found = (self.problem.candidates[index].nodes for index in self.columns)
        return tuple(tuple(node - self.start for node in nodes) for nodes in found)

    @cached_property
    def saved_s(self) -> tuple[float, ...]:
        """Return the seconds that each column saves compared to eager, cluster ties included."""
        eager_s = self.problem.eager_s[self.start : self.stop]
        return tuple(
            sum(eager_s[node] for node in nodes) - self.problem.candidates[index].cost_s - CLUSTER_TIE_S
            for index, nodes in zip(self.columns, self.sets, strict=True)
        )

    @cached_property
    def covering(self) -> tuple[tuple[int, ...], ...]:
        """Return the columns that cover each node."""
        found: list[list[int]] = [[] for _ in range(self.start, self.stop)]
        for column, nodes in enumerate(self.sets):
            for node in nodes:
                found[node].append(column)
        return tuple(map(tuple, found))

    @cached_property
    def is_required(self) -> tuple[bool, ...]:
        """Return for each node whether it must not stay in eager."""
        return tuple(node in self.problem.required for node in range(self.start, self.stop))

    def placed(self, circle: Sequence[Stop]) -> tuple[Stop, ...]:
        """Return a cycle with its nodes counted from the start of the problem."""
        return tuple(replace(stop, entry=stop.entry + self.start, exit=stop.exit + self.start) for stop in circle)

    def holds(self, circle: Sequence[Stop]) -> bool:
        """Return whether every stop of a cycle is within the range."""
        return all(node in range(self.start, self.stop) for stop in circle for node in (stop.entry, stop.exit))

    def part(self, picked: Sequence[int], open_s: float = 0.0) -> Part:
        """Return a choice of columns as a part; `open_s` seconds may still be saved."""
        objective_s = sum(self.problem.eager_s[self.start : self.stop]) - sum(self.saved_s[column] for column in picked)
        return Part(tuple(self.columns[column] for column in picked), objective_s, objective_s - open_s)


Row = Counter[int]
"""Coefficients of one constraint, by column."""


def cheapest_choice(programme: Programme, deadline: float) -> Part | None:
    """Return the cheapest choice without cycles, or the best one known at `deadline` with its bound; None if there is none.

    `deadline` is a reading of `time.monotonic`. Raises PlanError if no choice is known by then.
    """
    if not programme.columns:
        return None if any(programme.is_required) else programme.part(())
    apart = _disjoint(programme)
    not_convex: list[Row] = []
    _foresee_circles(programme, deadline)
    most_saved_s = sum(value for value in programme.saved_s if value > 0)
    picked: list[int] = []
    while (left_s := deadline - time.monotonic()) > 0:
        answer = _solved(programme, [apart, *_cuts(programme, not_convex)], left_s)
        if answer.status == 2:
            return None
        if answer.mip_dual_bound is not None:
            most_saved_s = min(most_saved_s, -answer.mip_dual_bound * _UNIT_S)
        if answer.x is None:
            break
        picked = numpy.flatnonzero(answer.x > 0.5).tolist()
        circles = cycles(programme.reads, [programme.sets[column] for column in picked])
        if not circles:
            saved_s = sum(programme.saved_s[column] for column in picked)
            return programme.part(picked, 0.0 if answer.status == 0 else max(most_saved_s - saved_s, 0.0))
        not_convex += (Counter({picked[circle[0].cluster]: 1}) for circle in circles if len(circle) == 1)
        programme.circles.extend(programme.placed(circle) for circle in circles if len(circle) > 1)
    mended = _mended(programme, picked)
    return programme.part(mended, max(most_saved_s - sum(programme.saved_s[column] for column in mended), 0.0))


def _foresee_circles(programme: Programme, deadline: float) -> None:
    """Find most cycles in advance by solving stretches of the nodes separately.

    The time for a program grows faster than its nodes, and each cycle left for the whole program costs another solve.
    """
    size = programme.stop - programme.start
    bounds = [size * number // (size // _STRETCH) for number in range(size // _STRETCH + 1)] if size >= 2 * _STRETCH else []
    seams = [(bound - _STRETCH // 4, bound + _STRETCH // 4) for bound in bounds[1:-1]]
    for start, stop in (*itertools.pairwise(bounds), *seams):
        if not any(programme.is_required[start:stop]):
            cheapest_choice(_stretch(programme, start, stop), deadline)


def _stretch(programme: Programme, start: int, stop: int) -> Programme:
    """Return the program for some of the nodes, with the columns that lie within."""
    touching = sorted({column for columns in programme.covering[start:stop] for column in columns})
    within = [column for column in touching if start <= programme.sets[column][0] and programme.sets[column][-1] < stop]
    columns = tuple(programme.columns[column] for column in within)
    return replace(programme, start=programme.start + start, stop=programme.start + stop, columns=columns)


def least_objective_s(programme: Programme) -> float:
    """Return a quick lower bound of the objective in seconds: the optimum of the linear relaxation."""
    if not programme.columns:
        return programme.part(()).objective_s
    answer = _solved(programme, [_disjoint(programme), *_cuts(programme, ())], math.inf, integrality=0)
    nothing_s = programme.part(()).objective_s
    return math.inf if answer.status == 2 else -math.inf if answer.fun is None else nothing_s + answer.fun * _UNIT_S


def _disjoint(programme: Programme) -> LinearConstraint:
    """Return one row per set of nodes covered by the same columns: at most one, exactly one if a node is required."""
    from scipy.optimize import LinearConstraint

    least: dict[tuple[int, ...], bool] = {}
    for columns, is_required in zip(programme.covering, programme.is_required, strict=True):
        least[columns] = least.get(columns, False) or is_required
    matrix = _matrix([Counter(columns) for columns in least], len(programme.columns))
    low: Any = numpy.array(list(least.values()), dtype=float)
    return LinearConstraint(matrix, lb=low, ub=1)


def _cuts(programme: Programme, not_convex: Sequence[Row]) -> list[LinearConstraint]:
    """Return the constraint that excludes all known cycles and all columns known not to be convex."""
    from scipy.optimize import LinearConstraint

    circles = [circle for circle in programme.circles if programme.holds(circle)]
    rows = [*not_convex, *(_forbidden(programme, circle) for circle in circles)]
    most: Any = numpy.array([0.0] * len(not_convex) + [len(circle) - 1.0 for circle in circles])
    return [LinearConstraint(_matrix(rows, len(programme.columns)), ub=most)] if rows else []


def _matrix(rows: Sequence[Row], width: int) -> csr_array:
    from scipy.sparse import csr_array

    sizes = [len(row) for row in rows]
    values = [value for row in rows for value in row.values()]
    columns = [column for row in rows for column in row]
    return csr_array((numpy.array(values, dtype=float), columns, numpy.cumsum([0, *sizes])), shape=(len(rows), width))


def _solved(programme: Programme, rows: Sequence[LinearConstraint], limit_s: float, integrality: int = 1) -> Any:
    from scipy.optimize import Bounds, milp  # pyright: ignore[reportUnknownVariableType] - untyped

    costs = -numpy.array(programme.saved_s) / _UNIT_S
    options = {"mip_rel_gap": 0.0, "time_limit": limit_s}
    unit: Any = Bounds(0, 1)
    return milp(costs, integrality=integrality, bounds=unit, constraints=rows, options=options)


def _forbidden(programme: Programme, circle: Sequence[Stop]) -> Row:
    """Return the row that allows at most all but one stop of a cycle.

    All candidates that hold a stop's entry and exit close the same cycle, so all of them count. A candidate that holds
    every stop contains the cycle, which is harmless there; alone it counts as much as the row allows.
    """
    row: Row = Counter()
    for stop in circle:
        inside = set(programme.covering[stop.exit - programme.start])
        row.update(column for column in programme.covering[stop.entry - programme.start] if column in inside)
    return Counter({column: min(count, len(circle) - 1) for column, count in row.items()})


def _mended(programme: Programme, picked: Sequence[int]) -> list[int]:
    """Move the cluster that saves least of each cycle to eager until no cycle is left. Raises PlanError if that fails."""
    kept = list(picked)
    while circles := cycles(programme.reads, [programme.sets[column] for column in kept]):
        droppable = [
            [column for stop in circle if not _is_needed(programme, column := kept[stop.cluster])] for circle in circles
        ]
        if not all(droppable):
            break
        dropped = {min(columns, key=lambda column: programme.saved_s[column]) for columns in droppable}
        kept = [column for column in kept if column not in dropped]
    covered = {node for column in kept for node in programme.sets[column]}
    if circles or any(needed and node not in covered for node, needed in enumerate(programme.is_required)):
        raise PlanError("no assignment was found in the time allowed", hint="allow more time, or force fewer operators")
    return kept


def _is_needed(programme: Programme, column: int) -> bool:
    return any(programme.is_required[node] for node in programme.sets[column])
