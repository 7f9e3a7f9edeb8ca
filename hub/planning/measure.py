"""Planning by measurement: compile in workers, time clusters in isolation, assign, then race whole plans."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

from hub.cache.measurements import machine_digest
from hub.errors import PluginError, WorkerError, text_of, words_of
from hub.partition.assignments import Assignment, assignments
from hub.partition.group import EAGER, Group
from hub.partition.verdicts import Verdicts
from hub.plan import DecidedBy, Event, EventKind, Search, Stage
from hub.planning.asking import AT_ONCE, ask, at_best, with_partners
from hub.planning.attempt_order import Attempt, deviation_of, most_promising, spread_of
from hub.planning.candidates import Candidates
from hub.planning.context import CandidatePlan, PlanningContext, candidate_plan, is_on_accelerators
from hub.planning.decision import Decision
from hub.planning.explore import MAX_FAST, worth_measuring
from hub.planning.mixes import Mixer
from hub.planning.pricebook import PriceBook
from hub.planning.race import Proof, Race
from hub.planning.segments import promises
from hub.planning.steps import plain_names, steps_for
from hub.plugin.cost import Cost
from hub.pricing.roofline import settle_peaks
from hub.process.phases import Work
from hub.process.working import now
from hub.report.numbers import count, duration
from hub.workers.candidate import Candidate
from hub.workers.clock import Clock
from hub.workers.profiling import measure_profile
from hub.workers.runners import PlanRunner

MAX_REPAIRS = 8
"""Number of times that a cluster is recompiled without a node that made it fail."""
MAX_MIXES: Mapping[str, int] = {"fast": 2, "full": 6}
"""Number of mixed plans that are timed whole, in addition to eager and each backend alone."""
MAX_SEGMENTS: Mapping[str, int] = {"fast": 1, "full": 3}
"""Number of plans that are tried because one segment of the graph is expected to be faster in another backend."""
MAX_PRICING_ROUNDS = 12
"""Rounds of compiling and timing pieces that could still change the decision, under `tune="full"`."""
MIN_HEAT_S = 4.0
"""Minimum seconds for which whole plans are timed, however long compilation took."""
MAX_HEAT_S = 60.0
HOPELESS = 2.0
"""Factor over the best plan beyond which a plan is not timed whole, by the summed costs of its parts in isolation."""
NEAR = 2.0
"""Factor over the best expected time up to which the planner still waits for a backend, under `tune="fast"`.

Estimates are off by as much: on Mamba, Inductor was expected to be the slowest of three, and is the fastest by far.
"""
MIN_GAIN: Mapping[str, float] = {"fast": 0.02, "full": 1e-4}
"""Minimum expected saving, as a share of a call, for which a plan is tried."""
MIN_CHANCE: Mapping[str, float] = {"fast": 0.25, "full": 0.0}
"""Minimum probability of beating the incumbent for which a plan is tried."""
PATIENCE = 2.0
"""Multiple of its expected compile time for which the most promising plan compiles alone."""
MIN_ALONE_S = 5.0
WORTHY = 0.95
"""Share of the best plan's time that a mix must be predicted to stay below for its compilation to get extra time."""
REST = 0.1
"""Share of eager's time that may stay in eager in a plan of nearly the whole graph."""
BETTER = 0.8
"""Share of the running plan's time that a new plan must stay below to be built before planning ends."""
LONG_S = 0.1
"""Seconds of a call in eager from which plans are timed without the cost of new sizes: measuring it takes ten calls."""
MAX_DISTURBED = 0.25
"""Share of timings during which other work took cores, above which another process decides again."""
SMALL_S = 2e-3
"""Call time below which a graph is also tried on one thread at once: it may run best there, and compiles fast."""

PROFILE_BUDGET_S = 120.0
"""Minimum budget in seconds at which the 20 s that measuring the machine takes are well spent."""


def by_measuring(
    context: PlanningContext, verdicts: Verdicts, choices: Sequence[Assignment], book: PriceBook
) -> Decision | Verdicts:
    """Return the decision for the fastest whole plan. If no plan could be timed, return the verdicts known by then.

    Nothing raises. A plugin failure drops the plugin's candidate and is recorded in the decision's events. Without a
    decision, the book has these events, and the reason why nothing was timed.
    """
    _measure_machine(context, verdicts, book)
    measuring = _Measuring(context, book, verdicts, choices)
    try:
        if (decision := measuring.decide()) is not None:
            return decision
        note = Event(kind=EventKind.NOTE, stage=Stage.TIME, message="no whole plan could be timed: decided by prices")
    except Exception as error:  # noqa: BLE001 - measuring is optional: the predictions remain
        note = Event(kind=EventKind.FAILED, stage=Stage.TIME, message=f"could not measure: {text_of(error)}")
    book.note((*measuring.candidates.events, *measuring.events, *measuring.candidates.late_notes(), note))
    return measuring.verdicts


def _measure_machine(context: PlanningContext, verdicts: Verdicts, book: PriceBook) -> None:
    """Measure what `hub doctor` would, once per machine and if time allows, so that switching thread pools has a cost."""
    backends = (*verdicts.backends, *verdicts.unasked)
    is_worth = len(backends) > 1 and context.options.tune == "full" and context.options.budget_s >= PROFILE_BUDGET_S
    if not is_worth or settle_peaks(context.measurements, context.threads).call_s:
        return
    context.progress.stage("measuring the machine")
    try:
        profile = measure_profile(context.threads, backends, context.progress.advance)
    except (PluginError, WorkerError, OSError) as error:
        text = f"the machine could not be measured: {words_of(error).splitlines()[0]}"
        book.note([Event(kind=EventKind.NOTE, stage=Stage.TIME, message=text)])
        return
    context.measurements.keep_profile(machine_digest(), context.threads, profile.to_json())
    settle_peaks(context.measurements, context.threads)


class _Measuring:
    """State of one planning run: what has been compiled and timed so far."""

    def __init__(
        self, context: PlanningContext, book: PriceBook, verdicts: Verdicts, choices: Sequence[Assignment]
    ) -> None:
        self.context = context
        self.session = context.session
        self.book = book
        self.verdicts = verdicts
        self.plans: list[CandidatePlan] = [candidate_plan(context, choice) for choice in choices]
        self.mixer = Mixer(context, book, trusts_estimates=False)
        self.clock = Clock(context.options.budget_s)
        self.candidates = Candidates(context, book, self.clock)
        self.events: list[Event] = []
        self._tried: set[tuple[Group, ...]] = set()
        """Assignments that were compiled, or that failed."""
        self._told_s = 0.0
        """Seconds per call of the plan that runs while planning continues."""
        self._has_explored = False
        """True once a backend with no known cost was tried: only one per graph is, however many there are."""
        self.mixable = verdicts
        """Verdicts of the backends whose whole plans were tried; mixes are built from these."""
        self.is_full = context.options.tune == "full"
        self._effort: Literal["fast", "full"] = "full" if self.is_full else "fast"
        self.is_away = is_on_accelerators(context.graph)
        """True if every result lies on accelerators: other thread counts or busy-wait would only recompile everything."""

    def decide(self) -> Decision | None:
        """Run every stage and return the decision."""
        if not self.book.has_timed_eager:
            self.book.keep_eager(self.session.eager_prices())
        self._told_s = sum(self.book.eager_s().values())
        # The same for all contenders, or they would be timed on different problems.
        self.session.runners.tries_new_sizes = self.context.graph.is_dynamic and self._told_s < LONG_S
        self._try_plans()
        self._try_segments()
        self._price_pieces()
        self._explore()
        finalists = self._finalists()
        race = Race(self.session.runners)
        self._run_heat(race, finalists)
        variants: Sequence[CandidatePlan] = ()
        try:
            variants = self._variants(race.proof(), finalists)
            if variants:
                self._run_heat(race, variants)
        except WorkerError as error:  # what was measured before counts
            self.events.append(_race_failure("with other threads", error))
        self.events += [_race_failure(name, error) for name, error in race.failures]
        self.events += [_revival(name) for name in race.revived]
        self.events += _disturbance(race.disturbed_share)
        is_provisional = race.disturbed_share > MAX_DISTURBED
        plans = {plan.name: plan for plan in (*finalists, *variants)}
        proofs = race.proofs()
        if not proofs:
            return None
        decision = self._decision(proofs[0], plans, is_provisional=is_provisional)
        return replace(decision, others=tuple(self._for(decision, proof, plans) for proof in proofs[1:]))

    # --- Attempts -----------------------------------------------------------------------------------------------------

    def _try_plans(self) -> None:
        """Query, compile and time the most promising plans first, until no whole plan is expected to be worth its time."""
        while self.clock.left_s > 0 and (chosen := self._next_plans()):
            backends = {name: None for plan in chosen for name in plan.assignment.backends}
            if strangers := [name for name in backends if name in self.verdicts.unasked]:
                self.verdicts = ask(self.context, self.verdicts, self.book, strangers)
                self.plans = self._plans()
                continue
            self._has_explored |= self._attempt(chosen[0]).is_unknown
            if self.is_full:  # the user chose this budget, so every core is used
                self._compile_repaired(chosen)
            else:
                self.clock.wait_for(self._worth_waiting_for(chosen))
                self._compile_first(*chosen)
            self._tried.update(
                plan.assignment.groups for plan in chosen if plan is chosen[0] or self.candidates.is_decided(plan)
            )
            self.candidates.time_alone()
            self._tell_better()

    def _try_segments(self) -> None:
        """Compile and time plans in which another backend than the best one runs a segment, if that promises enough."""
        sections = self.mixer.sections(self.verdicts)
        for _ in range(MAX_SEGMENTS[self._effort]):
            ready = [plan for plan in self.plans if self.candidates.is_ready(plan)]
            alone = [plan for plan in ready if len(plan.assignment.clusters) == 1]
            whole_s = {plan.assignment.backends[0]: self._predicted_s(plan) for plan in alone}
            found = promises(self.context, self.book, self.verdicts, sections, whole_s, self.mixer.mix_s)
            plan = next((one.plan for one in found if self._is_open(one.plan)), None)
            if plan is None:
                return
            self._tried.add(plan.assignment.groups)
            self.clock.wait_for(plan.assignment.backends)
            self.candidates.compile(self.candidates.clusters([plan]))
            self.candidates.time_alone()
            self.plans.append(plan)
            self._tell_better()

    def _tell_better(self) -> None:
        """Publish the best plan so far if it is clearly faster than the last one published, or than eager."""
        ready = [plan for plan in self.plans if plan.assignment.clusters and self.candidates.is_servable(plan)]
        best = min(ready, key=self._predicted_s, default=None)
        if best is None or self._predicted_s(best) > BETTER * self._told_s:
            return
        self._told_s = self._predicted_s(best)
        self.context.tell_better(
            Decision(
                assignment=best.assignment,
                decided_by=DecidedBy.MEASURED,
                settings=best.settings,
                costs=self.book.all_costs([best]),
                predicted_s=self._told_s,
                eager_s=self.book.eager_s(),
                verdicts=self.verdicts,
            )
        )

    def _hope(self) -> float:
        """Return the factor for estimates of unmeasured plans: measured over estimated time so far (median), at most 1.

        Most estimates are ratios to eager, which may have been timed while other work ran.
        """
        whole = [plan for plan in self.plans if len(plan.assignment.groups) == 1 and plan.assignment.clusters]
        found = [(plan.assignment.groups[0], plan.settings) for plan in whole]
        known = [(self.book.measured(*one), self.book.forecast(*one)) for one in found if self.candidates.is_known(*one)]
        ratios = [
            measured.run_s / forecast.run_s for measured, forecast in known if measured is not None and forecast.run_s > 0
        ]
        return min(1.0, median(ratios)) if ratios else 1.0

    def _compile_first(self, first: CandidatePlan, *others: CandidatePlan) -> None:
        """Compile the most promising plan alone: its measurement decides which others are worth trying.

        The others start next to it only if it takes far longer than expected, because it may hang.
        """
        backends = set(first.assignment.backends)
        concurrent = [plan for plan in others if backends.isdisjoint(plan.assignment.backends)]
        self._compile_repaired([first], concurrent, alone_s=max(MIN_ALONE_S, PATIENCE * self._attempt(first).compile_s))

    def _plans(self) -> list[CandidatePlan]:
        return [candidate_plan(self.context, choice) for choice in assignments(self.verdicts, self.context.options)]

    def _next_plans(self) -> Sequence[CandidatePlan]:
        """Return the plans to try now, the most promising first.

        A backend that was not queried yet is represented by the best plan that it could have.
        """
        plans = (*self.plans, *at_best(self.context, self.verdicts), *self._with_partners())
        open_ = [plan for plan in plans if plan.assignment.clusters and self._is_open(plan)]
        chosen = most_promising(
            map(self._attempt, open_),
            self._incumbent_s(),
            min_gain=MIN_GAIN[self._effort],
            min_chance=MIN_CHANCE[self._effort],
            count=AT_ONCE,
        )
        return [attempt.plan for attempt in chosen]

    def _with_partners(self) -> Sequence[CandidatePlan]:
        """Return the best plan of one backend, with each backend that was not queried for what it leaves in eager."""
        ready = [plan for plan in self.plans if self.candidates.is_ready(plan) and len(plan.assignment.backends) == 1]
        best = min(ready, key=self._predicted_s, default=None)
        if best is None:
            return ()
        rest_s = self.book.eager_sum(best.assignment.eager_nodes)
        if rest_s <= MIN_GAIN[self._effort] * self._predicted_s(best):
            return ()
        return with_partners(self.context, self.verdicts, best.assignment.backends[0])

    def _is_open(self, plan: CandidatePlan) -> bool:
        return plan.assignment.groups not in self._tried and not any(map(self.book.has_failed, plan.assignment.clusters))

    def _incumbent_s(self) -> float:
        """Return seconds of the incumbent, summed over its parts in isolation; initially eager's."""
        ready = [plan for plan in self.plans if self.candidates.is_ready(plan)]
        return min((self._predicted_s(plan) for plan in ready), default=sum(self.book.eager_s().values()))

    def _attempt(self, plan: CandidatePlan) -> Attempt:
        clusters = plan.assignment.clusters
        costs = [self.book.expected(found, plan.settings) for found in clusters]
        hope = self._hope()
        scales = [1.0 if cost.source == "measured" else hope for cost in costs]
        clusters_s = sum(cost.run_s * scale for cost, scale in zip(costs, scales, strict=True))
        alone_s = {found: cost.run_s for found, cost in zip(clusters, costs, strict=True)}
        run_s = clusters_s + self.book.eager_sum(plan.assignment.eager_nodes) + self.book.switching_s(plan, alone_s)
        spread_s = math.sqrt(sum((spread_of(cost) * scale) ** 2 for cost, scale in zip(costs, scales, strict=True)))
        new = [found for found in clusters if not self.candidates.is_known(found, plan.settings)]
        compile_s = sum(self.book.compile_s(found, plan.settings) for found in new)
        is_unknown = not self._has_explored and any(self.book.is_blind(found, plan.settings) for found in new)
        return Attempt(plan, run_s, deviation_of(run_s, spread_s), compile_s, is_unknown)

    def _compile_repaired(
        self, plans: Sequence[CandidatePlan], concurrent: Sequence[CandidatePlan] = (), alone_s: float = 0.0
    ) -> None:
        """Compile whole plans, and recompile them without the nodes that failures name.

        One bad operator must not cost a backend the whole graph. For `concurrent` and `alone_s` see `Candidates.compile`.
        """
        awaited = self.clock.awaited
        for _ in range(MAX_REPAIRS + 1):
            wanted = (*self.candidates.clusters(plans), *self.candidates.clusters(self._calm(plans), is_needed=False))
            found = self.candidates.compile(wanted, self.candidates.clusters(concurrent), alone_s)
            concurrent = ()
            # The failure of a piece must not cost a whole plan anything.
            failed = [(one.group, one.failure) for one in found if one.is_needed and one.failure is not None]
            named = [(group.backend, failure) for group, failure in failed if failure.node in group.nodes]
            if not named:
                return
            for backend, failure in named:
                self.verdicts = self.verdicts.without(backend, (str(failure.node),), failure.message)
            repaired = {backend for backend, _ in named}
            self.clock.wait_for({*self.clock.awaited, *(repaired & awaited)})  # a failure must not cost it its time
            self.plans = self._plans()
            alone = [plan for plan in self.plans if len(plan.assignment.backends) == 1]
            plans = [plan for plan in alone if plan.assignment.backends[0] in repaired and self._is_open(plan)]
            self._tried.update(plan.assignment.groups for plan in plans)

    def _worth_waiting_for(self, plans: Sequence[CandidatePlan]) -> Iterable[str]:
        """Return the backends that may support nearly the whole graph and are expected to be near the best plan."""
        all_s = sum(self.book.eager_s().values())
        alone = [plan for plan in plans if len(plan.assignment.backends) == 1]
        whole = [plan for plan in alone if self.book.eager_sum(plan.assignment.eager_nodes) <= REST * all_s]
        expected_s = {plan.assignment.backends[0]: self._attempt(plan).run_s for plan in whole}
        best_s = min(*expected_s.values(), self._incumbent_s()) if expected_s else 0.0
        return [backend for backend, seconds in expected_s.items() if seconds <= NEAR * best_s]

    def _price_pieces(self) -> None:
        """Time the heaviest pieces of backends that were tried, now or before: a mix of them may beat each one alone."""
        tried = {name for plan in self.plans if self._is_measured(plan) for name in plan.assignment.backends}
        self.mixable = self.verdicts.only(tried)
        if len(tried) > 1:
            self.candidates.compile(self._first_pieces())
            self.candidates.time_alone()

    def _is_measured(self, plan: CandidatePlan) -> bool:
        """Return whether a plan was compiled, or all of its clusters were timed by an earlier process."""
        costs = (self.book.measured_at_all(found, plan.settings) for found in plan.assignment.clusters)
        return self.candidates.is_ready(plan) or all(cost is not None for cost in costs)

    def _calm(self, plans: Sequence[CandidatePlan]) -> Sequence[CandidatePlan]:
        """Return single-backend plans without busy-wait, under `tune="full"`: mixes run so and are predicted from them."""
        if not self.is_full or len(self.verdicts.backends) < 2 or self.is_away:
            return ()
        alone = (plan for plan in plans if len(plan.assignment.backends) == 1 and plan.settings.busy_wait)
        return [_variant(plan, busy_wait=False) for plan in alone]

    def _first_pieces(self) -> list[Candidate]:
        """Return the heaviest pieces whose costs are unknown, to fill the time that is left."""
        sections = self.mixer.sections(self.mixable)
        known_s = self.mixer.best_known_s(sections)
        wanted = worth_measuring(sections, self.book, self.context.settings(busy_wait=False), known_s)
        return self.candidates.pieces(wanted if self.is_full else wanted[:MAX_FAST])

    # --- Costs --------------------------------------------------------------------------------------------------------

    def _explore(self) -> None:
        """Keep timing pieces while one could still change the decision, under `tune="full"`."""
        for _ in range(MAX_PRICING_ROUNDS if self.is_full else 0):
            sections = self.mixer.sections(self.mixable)
            known = self.mixer.best_known_s(sections)
            wanted = worth_measuring(sections, self.book, self.context.settings(busy_wait=False), known)
            settings = self.context.settings(busy_wait=False)
            tried = [item for item in wanted if not self.candidates.is_known(item.piece, settings)]
            if not tried or not self.candidates.compile(self.candidates.pieces(tried)):
                return
            self.candidates.time_alone()

    # --- Finalists ----------------------------------------------------------------------------------------------------

    def _finalists(self) -> list[CandidatePlan]:
        """Return the plans worth timing whole: each backend alone, eager, and the mixes predicted to be fastest."""
        ready = [plan for plan in self.plans if self.candidates.is_ready(plan)]
        alone_s = {plan: self._predicted_s(plan) for plan in ready}
        best_s = min(alone_s.values(), default=0.0)
        far_s = math.inf if self.session.is_disturbed else HOPELESS * best_s
        hopeful = [plan for plan in ready if alone_s[plan] <= far_s or not plan.assignment.clusters]
        singles = [plan for plan in hopeful if len(plan.assignment.backends) < 2]
        pairs = [plan for plan in hopeful if len(plan.assignment.backends) > 1]
        most = MAX_MIXES[self._effort]
        found = self.mixer.mixes(self.mixable, self.plans, best_s, {plan.assignment.groups for plan in ready})
        worthy = [plan for plan in found if self._predicted_s(plan) <= WORTHY * best_s][:most]
        # Some may win by far, and are worth the wait; of the others, those that would not be ready in time are left out.
        self.clock.wait_for({name for plan in worthy for name in plan.assignment.backends})
        new = self._compiled([plan for plan in found if self._is_in_time(plan)][:most])
        proven = sorted(pairs, key=self._predicted_s)  # predictions of new mixes are luckier than measurements
        best = sorted((*new, *proven), key=self._predicted_s)[:most]
        mixed = [*best, *(plan for plan in proven[:1] if plan not in best)]
        return _with_own_names([*singles, *mixed, *self._small_variants(singles)])

    def _is_in_time(self, plan: CandidatePlan) -> bool:
        """Return whether what is left to compile of a plan is expected to be ready in time, compiled in sequence."""
        left_s: dict[str, float] = {}
        for found in plan.assignment.clusters:
            if not self.candidates.is_kept(found, plan.settings):
                left_s[found.backend] = left_s.get(found.backend, 0.0) + self.book.compile_s(found, plan.settings)
        return all(now() + seconds <= self.clock.compile_until(backend) for backend, seconds in left_s.items())

    def _small_variants(self, singles: Sequence[CandidatePlan]) -> list[CandidatePlan]:
        """Return single-threaded variants of the single-backend plans of small graphs."""
        if self.context.options.threads is not None or self.context.threads == 1 or self.is_full or self.is_away:
            return []
        small = [plan for plan in singles if plan.assignment.clusters and self._predicted_s(plan) < SMALL_S]
        return self._compiled([_variant(plan, threads=1) for plan in small])

    def _variants(self, proof: Proof | None, finalists: Sequence[CandidatePlan]) -> list[CandidatePlan]:
        """Return variants of the two fastest plans with other thread counts and busy-wait toggled, under `tune="full"`."""
        if proof is None or not self.is_full or self.is_away:
            return []
        by_time = {item.name: item.median_s for item in proof.contenders}
        fastest = sorted((item for item in finalists if item.name in by_time), key=lambda item: by_time[item.name])
        best = [plan for plan in fastest[:2] if plan.assignment.clusters]
        self.clock.begin_last_compilations()
        counts = self._thread_counts()
        opposite = [plan for plan in best if plan.settings.busy_wait or not self.context.graph.is_part]
        variants = [_variant(plan, busy_wait=not plan.settings.busy_wait) for plan in opposite]
        variants += [_variant(plan, threads=number) for plan in best for number in counts]
        return self._compiled(variants)

    def _thread_counts(self) -> Sequence[int]:
        if self.context.options.threads is not None:
            return ()
        return tuple(sorted({1, max(1, self.context.threads // 2)} - {self.context.threads}))

    def _compiled(self, plans: Sequence[CandidatePlan]) -> list[CandidatePlan]:
        self.candidates.compile(self.candidates.clusters(plans))
        return [plan for plan in plans if self.candidates.is_ready(plan)]

    def _predicted_s(self, plan: CandidatePlan) -> float:
        return self.mixer.predicted_s(plan) or self.book.total_s(plan)

    # --- Race ---------------------------------------------------------------------------------------------------------

    def _heat_budget_s(self) -> float:
        left_s = max(MIN_HEAT_S, self.clock.left_s)
        return min(MAX_HEAT_S, left_s / 2) if self.is_full else left_s

    def _run_heat(self, race: Race, plans: Sequence[CandidatePlan]) -> None:
        self.context.progress.stage("timing whole plans", len(plans))
        runners: list[PlanRunner] = []
        with self.session.crew.phases.during(Work.RACE):
            for plan in plans:
                try:
                    runners.append(self._runner(plan))
                except (PluginError, WorkerError) as error:
                    self.events.append(_race_failure(plan.name, error))
                self.context.progress.advance(plan.name)
            race.heat(runners, self._heat_budget_s())

    def _runner(self, plan: CandidatePlan) -> PlanRunner:
        found = self.candidates.of(plan)
        names = [
            found[item].name if item in found else name
            for item, name in zip(plan.assignment.groups, plain_names(plan.assignment.groups), strict=True)
        ]
        steps = steps_for(self.context.graph, plan.assignment.groups, names)
        backends = plan.assignment.backends
        home = backends[0] if len(backends) == 1 else EAGER if not backends else None
        return self.session.runners.build(plan.name, steps, tuple(found.values()), home, busy_wait=plan.settings.busy_wait)

    def _decision(self, proof: Proof, plans: Mapping[str, CandidatePlan], *, is_provisional: bool) -> Decision:
        winner = plans[proof.winner.name]
        return Decision(
            assignment=winner.assignment,
            decided_by=DecidedBy.MEASURED_PLANS,
            settings=winner.settings,
            costs=self._costs(winner, plans),
            predicted_s=self._predicted_s(winner),
            failures=self.book.failures,
            eager_s=self.book.eager_s(),
            proof=proof,
            search=self._search(),
            is_provisional=is_provisional,
            events=(
                *self.candidates.events,
                *self.events,
                *self.candidates.late_notes(),
                *self._untried_notes(),
                *self.book.events,
            ),
            verdicts=self.verdicts,
        )

    def _for(self, decision: Decision, proof: Proof, plans: Mapping[str, CandidatePlan]) -> Decision:
        """Return the decision for another plan of the same race."""
        plan = plans[proof.winner.name]
        return replace(
            decision,
            assignment=plan.assignment,
            settings=plan.settings,
            costs=self._costs(plan, plans),
            predicted_s=self._predicted_s(plan),
            proof=proof,
        )

    def _costs(self, chosen: CandidatePlan, plans: Mapping[str, CandidatePlan]) -> Mapping[Group, Cost]:
        """Return the cost of every cluster under the settings of the chosen plan, if it has the cluster.

        Those of the other variants count least: none of them was timed alone.
        """
        return self.book.all_costs((*plans.values(), *self.plans, chosen))

    def _untried_notes(self) -> Iterable[Event]:
        """Yield, for each backend that was not tried, a note with its expected time."""
        tried = {found.backend for groups in self._tried for found in groups}
        plans = (*self.plans, *at_best(self.context, self.verdicts))
        for backend in (*self.verdicts.backends, *self.verdicts.unasked):
            mine = [plan for plan in plans if plan.assignment.backends == (backend,)]
            if backend not in tried and mine and self._is_open(mine[0]):
                more = "a larger `budget_s` tries more" if self.is_full else "`hub tune` tries more"
                text = f"not tried: expected to take {duration(self._attempt(mine[0]).run_s)} a call; {more}"
                yield Event(kind=EventKind.NOTE, stage=Stage.COMPILE, backend=backend, message=text)

    def _search(self) -> Search:
        return self.mixer.search(self.mixable, n_compiled=self.candidates.n_compiled, n_timed=self.book.n_kept)


def _variant(plan: CandidatePlan, *, threads: int | None = None, busy_wait: bool | None = None) -> CandidatePlan:
    settings = replace(
        plan.settings,
        threads=plan.settings.threads if threads is None else threads,
        busy_wait=plan.settings.busy_wait if busy_wait is None else busy_wait,
    )
    habit = "busy-waiting" if busy_wait else "no busy-waiting"
    what = habit if threads is None else count(threads, "thread")
    return CandidatePlan(f"{plan.name}, {what}", plan.assignment, settings)


def _with_own_names(plans: Sequence[CandidatePlan]) -> list[CandidatePlan]:
    """Number plans that share a name, because the same backends can split a graph in several ways."""
    seen: Counter[str] = Counter()
    named: list[CandidatePlan] = []
    for plan in plans:
        seen[plan.name] += 1
        named.append(plan if seen[plan.name] == 1 else replace(plan, name=f"{plan.name} ({seen[plan.name]})"))
    return named


def _disturbance(share: float) -> Iterable[Event]:
    """Yield a note on the share of timings during which other work took cores, if there were any."""
    if share:
        text = f"{share:.0%}".replace("%", " %") + " of the timings were taken while other work used the cores"
        yield Event(kind=EventKind.NOTE, stage=Stage.TIME, message=text)


def _race_failure(name: str, error: PluginError | WorkerError) -> Event:
    return Event(kind=EventKind.FAILED, stage=Stage.TIME, backend=error.backend, message=f"plan {name}: {error}")


def _revival(name: str) -> Event:
    return Event(kind=EventKind.NOTE, stage=Stage.TIME, message=f"plan {name}: built again, because its worker was gone")
