"""Search for plans that mix backends: cost each region, solve for the cheapest assignments, return the best few.

A region is timed in isolation, once for all regions of equal structure. An isolated cluster, however, pays for entering,
leaving and changing layouts, which a cluster of many regions pays once. What a backend saves inside a cluster is derived
from its whole-graph cost: a region's inner cost is its own cost, scaled so that all of them add up to the whole. The whole
is measured without busy-wait if possible, because a cluster runs so in a mix.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from hub.config.options import Options
from hub.errors import PlanError
from hub.partition.assignments import Assignment, assignment_by
from hub.partition.group import EAGER, Group
from hub.partition.proposals import proposed
from hub.partition.regions import Region, classes, coarsened, regions
from hub.partition.verdicts import Verdicts
from hub.plan import Search
from hub.planning.assign.chain import RegionChain, Route, k_best
from hub.planning.assign.problem import Candidate, Problem, Solution
from hub.planning.assign.solve import LIMIT_S, solve
from hub.planning.context import CandidatePlan, PlanningContext, candidate_plan
from hub.planning.pricebook import PriceBook
from hub.planning.sections import Section, sections_of
from hub.plugin.graph import Graph, TensorSpec
from hub.plugin.table import operator_name
from hub.pricing.profile import MIX_S, Profile, boundary_s, mixing_s
from hub.pricing.roofline import CALL_S, flops, only_accelerator, peaks, settle_peaks
from hub.process.accelerators import is_accelerator

MAX_REGIONS = 256
"""Number of regions beyond which adjacent ones are joined: every boundary costs, so more choices cannot pay."""
MIN_INNER, MAX_INNER = 0.5, 1.2
"""Bounds on the ratio of a region's inner cost to its isolated cost; beyond them one of the two measurements is off."""
HOPE = 1.03
"""Factor over the best known plan beyond which a mix, by its prediction, is not worth timing."""
_LIMITS_S = {"fast": 3.0, "off": 3.0}
"""Seconds that an exact solution may take: it is one contender of many, and the budget for all of them is 20 s."""
_MAX_ROUTES = 64
"""Number of cheapest routes from which mixes are chosen: routes adjacent in rank often differ by one light region."""


class Mixer:
    """Search for mixed plans of one graph, with the costs known when it is called."""

    def __init__(self, context: PlanningContext, book: PriceBook, *, trusts_estimates: bool) -> None:
        self._context = context
        self._book = book
        self._trusts_estimates = trusts_estimates
        """False if measured costs exist: next to them a roofline estimate looks cheap and would win by its optimism.

        Learned costs are never used for mixes: of hundreds of combinations, the cheapest has the luckiest error.
        """
        self._regions = coarsened(context.graph, regions(context.graph), MAX_REGIONS, cost=flops)
        self._settings = context.settings(busy_wait=False)
        profile = settle_peaks(context.measurements, context.threads)
        self._call_s = profile.call_s
        self._copies_s = tuple(_copies_s(context.graph, one, profile) for one in self._regions)
        """Seconds of copying values in other layouts, if a cluster begins after this region."""
        self._profile = profile
        self._is_accelerated = only_accelerator(context.graph) is not None
        """True if no backend computes with CPU threads, so that switching between thread pools costs nothing."""
        self.mix_s = 0.0 if self._is_accelerated else max(profile.mix_s.values(), default=MIX_S)
        """Seconds to switch between two backends at most."""
        self._gap: float | None = None
        self._method = ""
        self._predicted_s: dict[tuple[Group, ...], float] = {}

    def sections(self, verdicts: Verdicts) -> tuple[Section, ...]:
        """Return the regions with the clusters that each backend would make of them."""
        return sections_of(self._context.graph, verdicts, self._regions)

    def best_known_s(self, sections: Sequence[Section]) -> Mapping[str, float]:
        """Return, by structure, the best measured seconds of a region: on one backend, or in eager."""
        found: dict[str, float] = {}
        for section in sections:
            known = [self._book.eager_sum(section.region.nodes)]
            for backend, pieces in section.pieces.items():
                costs = [self._book.measured(piece, self._settings) for piece in pieces]
                rest_s = self._book.eager_sum(section.left_over(backend))
                if None not in costs:
                    known.append(sum(cost.run_s for cost in costs if cost is not None) + rest_s)
            found[section.region.structure] = min(known)
        return found

    def mixes(
        self, verdicts: Verdicts, plans: Sequence[CandidatePlan], best_s: float, known: Collection[tuple[Group, ...]]
    ) -> tuple[CandidatePlan, ...]:
        """Return plans of several clusters that may beat `best_s` seconds and are not `known`, most promising first."""
        if not verdicts.backends:
            return ()
        alone = tuple(map(self._section_prices, self.sections(verdicts)))
        chain = self._chain(alone, self._whole_s(plans), self._calm_s(plans))
        found: dict[tuple[Group, ...], tuple[Assignment, float]] = {}
        for route in _diverse(k_best(chain, _MAX_ROUTES)):
            if route.cost_s <= HOPE * best_s:
                choice = assignment_by(verdicts, _by_node(self._regions_of(route)), self._context.options)
                found.setdefault(choice.groups, (choice, route.cost_s))
        self._gap, self._method = 0.0, "chain"
        if (covered := self._covered(verdicts, plans)) is not None and covered[1] <= HOPE * best_s:
            found.setdefault(covered[0].groups, covered)
        new = {
            groups: (choice, cost_s)
            for groups, (choice, cost_s) in sorted(found.items(), key=lambda item: item[1][1])
            if len(choice.clusters) > 1 and groups not in known
        }
        for groups, (_, cost_s) in new.items():
            self._predicted_s.setdefault(groups, cost_s)
        return tuple(candidate_plan(self._context, choice) for choice, _ in new.values())

    def predicted_s(self, plan: CandidatePlan) -> float | None:
        """Return predicted seconds of one call of a mix that this mixer proposed; None for any other plan."""
        return self._predicted_s.get(plan.assignment.groups)

    def search(self, verdicts: Verdicts, *, n_compiled: int, n_timed: int) -> Search:
        """Return the size and the method of the search, for the plan's evidence."""
        sections = self.sections(verdicts)
        pieces = {
            (self._book.structure(piece), piece.backend) for one in sections for p in one.pieces.values() for piece in p
        }
        known = sum(self._book.is_known(structure, backend, self._settings) for structure, backend in pieces)
        return Search(
            regions=len(self._regions),
            structures=len(classes(self._regions)),
            candidates=len(pieces),
            measured=known,
            compiled=n_compiled,
            timed_now=n_timed,
            method=self._method,
            gap=self._gap,
        )

    def _is_usable(self, found: Group) -> bool:
        if self._book.has_failed(found):
            return False
        source = self._book.cost(found, self._settings).source
        return source == "measured" or (source == "estimated" and self._trusts_estimates)

    # --- Regions in a chain -------------------------------------------------------------------------------------------

    def _regions_of(self, route: Route) -> Iterable[tuple[tuple[str, ...], str]]:
        return ((region.nodes, backend) for region, backend in zip(self._regions, route.backends, strict=True))

    def _section_prices(self, section: Section) -> Mapping[str, float]:
        """Return a region's isolated cost on every backend that supports it, and in eager."""
        prices = {
            backend: sum(self._book.cost(piece, self._settings).run_s for piece in pieces)
            + self._book.eager_sum(section.left_over(backend))
            for backend, pieces in section.pieces.items()
            if all(map(self._is_usable, pieces))
        }
        return {**prices, EAGER: self._book.eager_sum(section.region.nodes)}

    def _whole_s(self, plans: Sequence[CandidatePlan]) -> Mapping[str, float]:
        """Return the seconds of each backend's plan of the whole graph, if all its costs are measured."""
        found: dict[str, float] = {}
        for plan in plans:
            costs = [self._book.measured_at_all(item, plan.settings) for item in plan.assignment.clusters]
            if len(plan.assignment.backends) == 1 and None not in costs:
                found[plan.assignment.backends[0]] = self._book.total_s(plan)
        return found

    def _calm_s(self, plans: Sequence[CandidatePlan]) -> Mapping[str, float]:
        """Return the same without busy-wait, as a backend runs in a mix, if that was measured."""
        calm = [replace(plan, settings=self._settings) for plan in plans if len(plan.assignment.backends) == 1]
        return {
            plan.assignment.backends[0]: self._book.total_s(plan)
            for plan in calm
            if all(self._book.measured(item, self._settings) is not None for item in plan.assignment.clusters)
        }

    def _chain(
        self, alone: Sequence[Mapping[str, float]], whole_s: Mapping[str, float], calm_s: Mapping[str, float]
    ) -> RegionChain:
        backends = tuple(dict.fromkeys(name for prices in alone for name in prices if name != EAGER))
        shares = {name: _inner_share(name, alone, {**whole_s, **calm_s}) for name in backends}
        inside: list[tuple[float | None, ...]] = []
        enter: list[tuple[float, ...]] = []
        for position, prices in enumerate(alone):
            copies_s = self._copies_s[position - 1] if position else 0.0
            split = {name: self._split(name, prices[name], shares[name], copies_s) for name in backends if name in prices}
            inside.append((*(split[name][0] if name in split else None for name in backends), prices[EAGER]))
            enter.append((*(split[name][1] if name in split else 0.0 for name in backends), 0.0))
        possible = {name: whole_s[name] for name in backends if name in whole_s and all(name in prices for prices in alone)}
        names = (*backends, EAGER)
        return RegionChain(names, tuple(inside), tuple(enter), possible, self._switch_s(names))

    def _switch_s(self, backends: Sequence[str]) -> tuple[tuple[float, ...], ...]:
        """Return seconds to switch between thread pools, as measured by `hub doctor`; empty without pools."""
        if self._is_accelerated:
            return ()
        return tuple(tuple(mixing_s(self._profile, one, other) for other in backends) for one in backends)

    def _split(self, backend: str, alone_s: float, share: float | None, copies_s: float) -> tuple[float, float]:
        """Return a region's cost inside a cluster, and the extra cost if a cluster begins at it.

        The inside cost is the region's share of the whole graph's cost; if that is unknown, its isolated cost minus a call
        and its copies. Entering costs at least the rest of the isolated cost: otherwise a graph cut in two would look
        cheaper than the measured whole.
        """
        entering_s = min(self._call_s.get(backend, CALL_S) + copies_s, alone_s / 2)
        inside_s = alone_s - entering_s if share is None else share * alone_s
        return inside_s, max(entering_s, alone_s - inside_s)

    # --- Any candidates: a binary program -----------------------------------------------------------------------------

    def _covered(self, verdicts: Verdicts, plans: Sequence[CandidatePlan]) -> tuple[Assignment, float] | None:
        """Return the exact cheapest cover by all known clusters, including those that plugins propose, and its seconds.

        None if the solver finds none, or if each backend supports the whole graph and no plugin proposes anything: the
        chain is exact then.
        """
        proposals, events = proposed(self._context.graph, self._context.offered(), verdicts, self._context.options)
        self._book.note(events)
        groups = list(dict.fromkeys((*(found for plan in plans for found in plan.assignment.clusters), *proposals)))
        if len(groups) <= len(verdicts.backends) and not proposals:
            return None
        groups += [piece for one in self.sections(verdicts) for pieces in one.pieces.values() for piece in pieces]
        usable = [found for found in dict.fromkeys(groups) if self._is_usable(found)]
        solution = self._solved(usable)
        if solution is None:
            return None
        self._gap, self._method = solution.gap, solution.method
        names = [node.name for node in self._context.graph.nodes]
        chosen = (([names[position] for position in one.nodes], one.backend) for one in solution.chosen)
        return assignment_by(verdicts, _by_node(chosen), self._context.options), solution.cost_s

    def _solved(self, groups: Sequence[Group]) -> Solution | None:
        graph = self._context.graph
        place = {node: position for position, node in enumerate(graph.nodes)}
        names = {node.name: position for node, position in place.items()}
        problem = Problem(
            reads=tuple(
                tuple(sorted({place[one] for one in node.all_input_nodes if one in place})) for node in graph.nodes
            ),
            eager_s=tuple(self._book.eager_s()[node.name] for node in graph.nodes),
            candidates=tuple(
                Candidate(
                    tuple(sorted(names[name] for name in found.nodes)),
                    found.backend,
                    self._book.cost(found, self._settings).run_s,
                )
                for found in groups
            ),
            required=frozenset(names[name] for name in _forced(graph, groups, self._context.options)),
            mix_s=self.mix_s,
        )
        try:
            return solve(problem, limit_s=_LIMITS_S.get(self._context.options.tune, LIMIT_S))
        except PlanError:  # no solution was found in time
            return None


def _copies_s(graph: Graph, region: Region, profile: Profile) -> float:
    values = (graph.by_name[name].meta.get("val") for name in region.carried)
    specs = (TensorSpec.of(value) for value in values if isinstance(value, torch.Tensor))
    return sum(_copy_s(profile, spec) for spec in specs if not spec.is_contiguous)


def _copy_s(profile: Profile, spec: TensorSpec) -> float:
    if is_accelerator(spec.device):
        return 2 * spec.nbytes / peaks(profile.threads, spec.device).bytes_s
    return boundary_s(profile, spec)


def _inner_share(backend: str, alone: Sequence[Mapping[str, float]], whole_s: Mapping[str, float]) -> float | None:
    """Return the whole graph's cost over the sum of its regions' isolated costs, within bounds; None if one is unknown."""
    if backend not in whole_s or not all(backend in prices for prices in alone):
        return None
    total_s = sum(prices[backend] for prices in alone)
    return min(MAX_INNER, max(MIN_INNER, whole_s[backend] / total_s)) if total_s > 0 else None


def _diverse(routes: Iterable[Route]) -> Iterable[Route]:
    """Yield the cheapest route for each set of backends and number of clusters."""
    seen: set[tuple[frozenset[str], int]] = set()
    for route in routes:
        kind = (frozenset(route.backends), route.n_clusters)
        if kind not in seen:
            seen.add(kind)
            yield route


def _by_node(parts: Iterable[tuple[Iterable[str], str]]) -> Callable[[str], str]:
    backend_of = {name: backend for names, backend in parts for name in names}
    return lambda name: backend_of.get(name, EAGER)


def _forced(graph: Graph, groups: Iterable[Group], options: Options) -> frozenset[str]:
    """Return the names of nodes that the options force to a backend that supports them, and so not to eager."""
    possible = {(found.backend, name) for found in groups for name in found.nodes}
    return frozenset(node.name for node in graph.nodes if (options.forced(operator_name(node)), node.name) in possible)
