"""Choice of the backends to query: a plugin's library loads in a worker, so only likely winners are queried."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from hub.errors import WorkerError
from hub.partition.assignments import assignment
from hub.partition.verdicts import Verdicts, verdicts_of
from hub.planning.context import CandidatePlan, PlanningContext, candidate_plan
from hub.planning.pricebook import PriceBook

AT_ONCE = 3
"""Number of backends that are queried at once, each in its own worker."""


def ask(context: PlanningContext, verdicts: Verdicts, book: PriceBook, backends: Iterable[str]) -> Verdicts:
    """Return the verdicts after querying some backends; the book drops its guesses for them."""
    names = tuple(backends)
    with contextlib.suppress(WorkerError):  # raised again when the backend is queried below
        context.workers.ask_early(names, context.options)
    book.forget_guesses(names)
    return verdicts_of(verdicts, names, context.registry, context.options, context.answers)


def at_best(context: PlanningContext, verdicts: Verdicts) -> Sequence[CandidatePlan]:
    """Return, for each backend not queried yet, the plan that it has if it supports everything it may.

    Backends that have no cluster even then are left out.
    """
    hoped = verdicts.at_best()
    options = (assignment(hoped, (name,), context.options) for name in hoped.backends)
    return [candidate_plan(context, option) for option in options if option.clusters]


def with_partners(context: PlanningContext, verdicts: Verdicts, first: str) -> Sequence[CandidatePlan]:
    """Return the plans of `first` with each backend not queried yet, which gets what the other refuses, at best."""
    hoped = verdicts.with_hopes()
    names = [name for name in hoped.backends if name in verdicts.unasked]
    return [candidate_plan(context, assignment(hoped, (first, name), context.options)) for name in names]


def ask_until_taken(context: PlanningContext, verdicts: Verdicts, book: PriceBook) -> Verdicts:
    """Query the backends expected to be fastest, a few at a time, until one supports something.

    Backends that option `force` names, and those that can only explain why they are unavailable, are queried first.
    """
    forced = [name for name in verdicts.unasked if name in context.options.force.values() or not verdicts.unasked[name]]
    verdicts = ask(context, verdicts, book, forced) if forced else verdicts
    while not verdicts.backends and (names := _fastest(context, verdicts, book)):
        verdicts = ask(context, verdicts, book, names)
    return verdicts


def ask_until_sure(context: PlanningContext, verdicts: Verdicts, book: PriceBook) -> Verdicts:
    """Query backends until no remaining one could be faster than the best plan of those queried.

    A refusal can only make a backend's plan slower, so its best possible plan is a bound. A backend with no known cost is
    always queried: it may have an estimate of its own.
    """
    while verdicts.unasked:
        orders = (*((name,) for name in verdicts.backends), ())
        known = [candidate_plan(context, assignment(verdicts, order, context.options)) for order in orders]
        best_s = min(book.total_s(plan) for plan in known)
        if not (names := _fastest(context, verdicts, book, below_s=best_s)):
            return verdicts
        verdicts = ask(context, verdicts, book, names)
    return verdicts


def _fastest(context: PlanningContext, verdicts: Verdicts, book: PriceBook, below_s: float = float("inf")) -> Sequence[str]:
    """Return the backends to query next: the fastest by expectation, if their bound is below `below_s` or unknown."""
    plans = {plan.assignment.backends[0]: plan for plan in at_best(context, verdicts)}
    blind = {
        name for name, plan in plans.items() if any(book.is_blind(one, plan.settings) for one in plan.assignment.clusters)
    }
    hopeful = [name for name, plan in plans.items() if name in blind or book.total_s(plan) < below_s]
    return sorted(hopeful, key=lambda name: _expected_s(plans[name], book))[:AT_ONCE]


def _expected_s(plan: CandidatePlan, book: PriceBook) -> float:
    clusters_s = sum(book.expected(found, plan.settings).run_s for found in plan.assignment.clusters)
    return clusters_s + book.eager_sum(plan.assignment.eager_nodes)
