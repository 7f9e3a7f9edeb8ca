"""Search for one segment of the graph that another backend is expected to run faster than the best plan's backend does.

A model may have parts of several kinds, a convolutional encoder before a mixture of experts for instance, and the
best backend for one is not the best for the other. Pricing each region in each backend (`mixes.py`) takes a
compilation for each. What a plan of two or three clusters would save is estimated instead: from the measured costs of
whole plans, of which estimates of the regions say only how they are spread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

from hub.partition.assignments import assignment_by
from hub.partition.group import is_trivial
from hub.partition.verdicts import Verdicts
from hub.planning.attempt_order import MIN_SECONDS
from hub.planning.context import CandidatePlan, PlanningContext, candidate_plan
from hub.planning.pricebook import PriceBook
from hub.planning.sections import Section

MIN_PROMISE = 0.1
"""Share of the best plan's time that a segment must be expected to save: how estimates spread a cost is not surer."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A plan that gives one segment of the best plan's graph to another backend."""

    plan: CandidatePlan
    gain_s: float
    """Seconds per call that it is expected to save."""
    compile_s: float
    """Seconds to compile and verify its clusters."""

    @property
    def worth(self) -> float:
        """Return the expected saving per second of trying."""
        return self.gain_s / max(self.compile_s, MIN_SECONDS)


def promises(
    context: PlanningContext,
    book: PriceBook,
    verdicts: Verdicts,
    sections: Sequence[Section],
    whole_s: Mapping[str, float],
    switch_s: float,
) -> Sequence[Promise]:
    """Return the plans that are expected to save enough, the most worthwhile first.

    `whole_s` holds the measured seconds of each plan of one cluster, by backend: the fastest is to be beaten.
    `switch_s` is the cost of a switch between two backends.
    """
    if len(sections) < 2 or not whole_s:
        return ()
    first = min(whole_s, key=whole_s.__getitem__)
    prices = {name: _prices_s(context, book, sections, name) for name in dict.fromkeys((first, *verdicts.backends))}
    sums_s = {name: sum(filter(None, row)) for name, row in prices.items() if name in whole_s and None not in row}
    scales = {name: whole_s[name] / sum_s for name, sum_s in sums_s.items() if sum_s > 0.0}
    if first not in scales:
        return ()
    typical = median(scales.values())  # for backends whose whole plans were not measured
    found: list[Promise] = []
    for second in (name for name in prices if name != first):
        scale = scales.get(second, typical)
        pairs = zip(prices[first], prices[second], strict=True)
        start, stop, gain_s = best_segment(
            [None if here is None or there is None else scales[first] * here - scale * there for here, there in pairs]
        )
        gain_s -= switch_s * ((start > 0) + (stop < len(sections)))
        if gain_s >= MIN_PROMISE * whole_s[first] and stop - start < len(sections):
            plan = _plan(context, verdicts, first, second, sections[start:stop])
            compile_s = sum(book.compile_s(one, plan.settings) for one in plan.assignment.clusters)
            found.append(Promise(plan, gain_s, compile_s))
    return sorted(found, key=lambda one: -one.worth)


def best_segment(gains_s: Sequence[float | None]) -> tuple[int, int, float]:
    """Return start, end and sum of the consecutive positions with the largest sum; an empty one if none is above 0.

    None is part of no segment. Source: Kadane's algorithm (Bentley, Programming Pearls, 1984).
    """
    best, start, sum_s = (0, 0, 0.0), 0, 0.0
    for position, gain_s in enumerate(gains_s):
        if gain_s is None or sum_s + gain_s <= 0.0:
            start, sum_s = position + 1, 0.0
            continue
        sum_s += gain_s
        if sum_s > best[2]:
            best = start, position + 1, sum_s
    return best


def _prices_s(
    context: PlanningContext, book: PriceBook, sections: Sequence[Section], backend: str
) -> Sequence[float | None]:
    """Return the expected seconds of each region in a backend; None for one that it does not run whole, in one cluster."""
    settings = context.settings(busy_wait=False)
    found: list[float | None] = []
    for section in sections:
        pieces = section.pieces.get(backend, ())
        rest = section.left_over(backend) if pieces else section.region.nodes
        is_whole = len(pieces) <= 1 and all(is_trivial(context.graph.by_name[name]) for name in rest)
        found.append(sum(book.expected(piece, settings).run_s for piece in pieces) if is_whole else None)
    return found


def _plan(
    context: PlanningContext, verdicts: Verdicts, first: str, second: str, segment: Sequence[Section]
) -> CandidatePlan:
    inside = set(chain.from_iterable(section.region.nodes for section in segment))
    choice = assignment_by(verdicts, lambda name: second if name in inside else first, context.options)
    return candidate_plan(context, choice)
