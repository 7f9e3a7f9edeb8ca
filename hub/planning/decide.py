"""Decision for one assignment: the only one there is, the cheapest by predicted cost, or the fastest measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hub.errors import PluginError, WorkerError
from hub.partition.assignments import Assignment, assignment, assignments
from hub.partition.group import Group
from hub.partition.verdicts import Verdicts
from hub.plan import DecidedBy, Event, EventKind, Stage
from hub.planning.asking import AT_ONCE, ask_until_sure, ask_until_taken, at_best
from hub.planning.context import CandidatePlan, PlanningContext, candidate_plan
from hub.planning.decision import Decision
from hub.planning.measure import by_measuring
from hub.planning.mixes import Mixer
from hub.planning.pricebook import PriceBook
from hub.plugin.cost import Cost
from hub.pricing.compile_times import weighed
from hub.pricing.roofline import settle_accelerators, settle_peaks

MAX_MIXES = 2
"""Number of mixed plans that are predicted, in addition to eager and each backend alone."""


def decide(context: PlanningContext, verdicts: Verdicts, *, may_measure: bool) -> Decision:
    """Return the decision for one graph. A plugin failure does not raise: it drops the candidate and becomes an event."""
    settle_peaks(context.measurements, context.threads)
    settle_accelerators(context.measurements, context.graph)
    book = PriceBook(context)
    is_timed = may_measure and context.options.tune != "off"
    if may_measure and len(verdicts.unasked) > AT_ONCE:  # costs decide which backends to query
        _measure_eager(context, book, is_anew=is_timed)
    verdicts = ask_until_taken(context, verdicts, book)
    if not is_timed:
        verdicts = ask_until_sure(context, verdicts, book)
    choices = assignments(verdicts, context.options)
    if len(choices) == 1 and not at_best(context, verdicts):
        return _predicted(
            context, verdicts, choices, book, DecidedBy.OPTIONS if choices[0].clusters else DecidedBy.NO_TAKER
        )
    if is_timed:
        found = by_measuring(context, verdicts, choices, book)
        if isinstance(found, Decision):
            return found
        verdicts = ask_until_sure(context, found, book)
        choices = _possible(context, verdicts, book)
    elif may_measure:
        _measure_eager(context, book)
    return _predicted(context, verdicts, choices, book)


def _possible(context: PlanningContext, verdicts: Verdicts, book: PriceBook) -> Sequence[Assignment]:
    """Return the assignments none of whose clusters has failed; at least the one without a backend of choice."""
    choices = assignments(verdicts, context.options)
    possible = [choice for choice in choices if not any(map(book.has_failed, choice.clusters))]
    return possible or [assignment(verdicts, (), context.options)]


def _measure_eager(context: PlanningContext, book: PriceBook, *, is_anew: bool = False) -> None:
    """Run the graph a few times in eager, once per machine, because costs are predicted as ratios to eager."""
    if book.has_timed_eager or (book.knows_eager and not is_anew):
        return
    try:
        book.keep_eager(context.workers.eager_prices())
    except (PluginError, WorkerError) as error:
        text = f"eager could not be timed: {error.message}"
        book.note([Event(kind=EventKind.NOTE, stage=Stage.ESTIMATE, message=text)])


def _predicted(
    context: PlanningContext,
    verdicts: Verdicts,
    choices: Sequence[Assignment],
    book: PriceBook,
    decided_by: DecidedBy | None = None,
) -> Decision:
    """Decide by the best known costs if there is a choice: measured earlier, learned, or estimated."""
    plans = [candidate_plan(context, choice) for choice in choices]
    total_s = dict.fromkeys(plans, 0.0)
    search = None
    if len(plans) > 1:
        is_measured = any(plan.assignment.clusters and _is_measured(plan, book) for plan in plans)
        mixer = Mixer(context, book, trusts_estimates=not is_measured)
        if is_measured:  # next to measured plans, one known by estimates alone would win by their optimism
            plans = [plan for plan in plans if not _is_estimated(plan, book)]
        total_s = {plan: book.total_s(plan) for plan in plans}
        known = {plan.assignment.groups for plan in plans}
        for plan in mixer.mixes(verdicts, plans, min(total_s.values()), known)[:MAX_MIXES]:
            known_s = None if _is_measured(plan, book) else mixer.predicted_s(plan)
            total_s.setdefault(plan, book.total_s(plan) if known_s is None else known_s)
        plans = list(total_s)
        search = mixer.search(verdicts, n_compiled=0, n_timed=0)
    best = min(plans, key=lambda plan: (_weighed(plan, total_s[plan], book), len(plan.assignment.clusters)))
    costs = book.all_costs((*plans, best))
    return Decision(
        assignment=best.assignment,
        decided_by=decided_by or _sources(costs),
        settings=best.settings,
        costs=costs,
        predicted_s=total_s[best] if len(plans) > 1 else None,
        failures=book.failures,
        eager_s=book.eager_s(),
        search=search,
        events=tuple(book.events),
        verdicts=verdicts,
    )


def _weighed(plan: CandidatePlan, run_s: float, book: PriceBook) -> float:
    """Return the seconds that a plan counts with: a prediction is not exact enough to justify any time of compilation."""
    if _is_measured(plan, book):
        return run_s
    return weighed(run_s, sum(book.compile_s(found, plan.settings) for found in plan.assignment.clusters))


def _is_measured(plan: CandidatePlan, book: PriceBook) -> bool:
    return all(book.measured_at_all(found, plan.settings) is not None for found in plan.assignment.clusters)


def _is_estimated(plan: CandidatePlan, book: PriceBook) -> bool:
    return any(book.cost(found, plan.settings).source == "estimated" for found in plan.assignment.clusters)


def _sources(costs: Mapping[Group, Cost]) -> DecidedBy:
    """Return the sources of the costs behind a decision, the most certain first: "measured and estimated prices"."""
    found = {cost.source for cost in costs.values()}
    names = [name for name in ("measured", "learned", "estimated") if name in found]
    return DecidedBy(f"{' and '.join(names)} prices") if names else DecidedBy.ESTIMATES
