"""Plan making: decide, build in this process and verify; if a candidate fails, decide again without it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from hub.cache.forecast import remember
from hub.cache.keys import digest_of, plan_parts
from hub.cache.measurements import Measurements
from hub.cache.store import Store
from hub.config.options import Options
from hub.config.suggest import did_you_mean
from hub.discovery.registry import Registry
from hub.dispatch.assemble import Loaded
from hub.dispatch.codegen import Step
from hub.errors import CacheError, InputRefused, PlanError, WorkerError
from hub.partition.assignments import Assignment
from hub.partition.group import EAGER, Group, is_trivial
from hub.partition.verdicts import Verdicts, ask_backends, before_asking
from hub.plan import TROUBLE, DecidedBy, Event, EventKind, Plan, Stage
from hub.planning.building import Builder, ClusterFailed
from hub.planning.context import PlanningContext, limits_of
from hub.planning.decision import Decision
from hub.planning.evidence import Mode, fits, groups_of, plan_of, settings_of
from hub.planning.explanations import explained
from hub.planning.failures import failure_in_service, forget_failures
from hub.planning.later import Later, planning
from hub.planning.replay import moved_to_eager, plan_from_file, under_plan
from hub.plugin.graph import Graph
from hub.plugin.table import operator_name
from hub.process.phases import Phase, Work
from hub.process.scratch import scratch
from hub.report.progress import Progress
from hub.workers.candidate import Candidate
from hub.workers.crew import Crew
from hub.workers.in_process import InProcess
from hub.workers.pool import POOL
from hub.workers.session import Session
from hub.workers.transfer import Sample

_KEPT = (DecidedBy.OPTIONS, DecidedBy.NO_TAKER)
"""Reasons for a decision, other than measurement, that a later process need not reconsider."""


@dataclass(frozen=True, slots=True)
class Made:
    """A decided plan with its verified executables."""

    plan: Plan
    steps: tuple[Step, ...]
    loaded: Mapping[str, Loaded]
    served: Mapping[str, Candidate]
    """Candidates of its clusters, by name."""
    later: Later | None = None
    """Verification after the first answer, not started yet; None if nothing is left to verify, or if it is not allowed."""
    cache_problem: str = ""
    """Reason why the cache folder could not be used; "" if it was."""
    phases: tuple[Phase, ...] = ()
    """Phases of making the plan."""


class Maker:
    """Planner for one captured graph; it keeps no state between calls."""

    def __init__(
        self,
        graph: Graph,
        mode: Mode,
        options: Options,
        registry: Registry,
        progress: Progress,
        demoted: Mapping[Group, str] | None = None,
        tell_better: Callable[[Plan], None] | None = None,
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        """Bind one graph to its options and the registry.

        `demoted` maps candidates that failed in this process while they served this graph to the reason. `tell_better` is
        called with plans that are clearly faster than the ones before, while others are still being tried. `is_current`
        returns False once the user has changed a weight that a plan would hold.
        """
        self.graph = graph
        self.mode: Mode = mode
        self.options = options
        self.registry = registry.configured(options)
        self.progress = progress
        self.demoted = demoted or {}
        self.threads = options.threads or torch.get_num_threads()
        self._tell_better, self._is_current = tell_better, is_current
        self._digests: dict[str, str] = {}
        """Digests of the weights that were read so far."""
        self._has_provisional = False
        """True if an earlier process made a provisional plan: what is decided now stays."""
        self._early_notes: tuple[Event, ...] = ()
        """Notes on the cache from before planning began."""

    def make(self, values: Sequence[Any], plan: Plan | None = None) -> Made:
        """Return a running plan for this graph and the inputs of one real call.

        If `plan` is given, it is built again unchanged (for new weights). Raises PlanError or PluginError only under
        `strict`, PlanError if the options name a plan file that cannot be replayed, and WeightsChanged if something failed
        because a weight changed meanwhile.
        """
        start = time.perf_counter()
        with planning(), self._store() as (store, problem), self._session(values, plan) as session:
            context, notes = self._context(store, session)
            with contextlib.closing(context.measurements):
                made, is_news = self._made(context, store, plan, (*_no_cache(problem), *notes, *self._early_notes))
            if self.options.isolate:
                remember(store.root, needed_workers=session.crew.was_needed)
                if not session.crew.was_needed:
                    POOL.drop_unused()
                made = replace(made, later=self._later(made, session.crew, has_cache=not problem))
        plan_s = time.perf_counter() - start
        is_provisional = made.plan.is_provisional and not self._has_provisional
        plan = made.plan.model_copy(update={"plan_s": plan_s, "is_provisional": is_provisional})
        made = replace(made, plan=plan.with_events(*_provisional(plan)) if is_news else plan, cache_problem=problem)
        with session.crew.phases.during(Work.KEEP):
            lost = store.keep_plan(self._key(self.options.tune), _lasting_part(made.plan)) if is_news else ""
            if is_news and (reason := "there is no cache" if problem else lost):
                made = replace(made, plan=made.plan.with_events(_not_kept(reason)))
            if made.plan.decided_by is not DecidedBy.REPLAYED:  # then nothing was compiled
                store.prune(self.options.cache.gb * 1e9)
        self.progress.done()
        return replace(made, phases=session.crew.phases.found)

    def is_quick(self, values: Sequence[Any], plan: Plan | None = None) -> bool:
        """Return whether `make` would compile nothing for these values: another process would not be faster.

        `plan` is the one to build, if it is known. Without a cache no other process could hand anything over, nor for a
        backend that has saved nothing yet. `make` reports what goes wrong here.
        """
        try:
            return self._is_quick(values, plan)
        except Exception:  # noqa: BLE001 - see above
            return True

    def _is_quick(self, values: Sequence[Any], plan: Plan | None) -> bool:
        with self._store() as (store, problem), self._session(values, plan, is_dry=True) as session:
            if problem:
                return True
            earlier = self._earlier(plan, store)
            self._early_notes = _cache_notes(store)
            if not earlier:
                return False
            context, _ = self._context(store, session)
            with contextlib.closing(context.measurements):
                decision = _standing(context, earlier, is_asked_for=plan is not None)
                if decision is None or self.without_failed(decision.kept) is None:
                    return False
                saving = (group for group in decision.assignment.groups if (context.artifacts / group.backend).is_dir())
                return all(context.folder(group, decision.settings).is_dir() for group in saving)

    def without_failed(self, plan: Plan | None) -> Plan | None:
        """Return a plan, or None if one of its clusters has failed while it served this graph. A plan file's stays."""
        if plan is None or self.options.plan is not None or self.demoted.keys().isdisjoint(groups_of(plan)):
            return plan
        return None

    def _later(self, made: Made, crew: Crew, *, has_cache: bool) -> Later | None:
        """Return the verification that continues after the first answer; None if nothing is left or it is not possible.

        It needs the `background` option, and a cache, because saved executables have to outlive planning. It compares with
        eager on the weights of now, which must be those that the executables hold.
        """
        left = [candidate for candidate in made.served.values() if not candidate.report.standing.later]
        if not (self.options.background and left and has_cache and self._is_current()):
            return None
        if (folder := crew.hand_over()) is None:
            return None
        return Later(folder, left, crew.threads, crew.modes, crew.options, crew.limits)

    def _made(
        self, context: PlanningContext, store: Store, plan: Plan | None, events: tuple[Event, ...]
    ) -> tuple[Made, bool]:
        """Return what runs, and whether its plan should be kept for other processes."""
        asked = self._asked_for(plan, context)
        context = replace(context, options=self.options, threads=self.threads)
        kept = _standing(context, self._earlier(asked, store), is_asked_for=asked is not None)
        events = (*events, *_cache_notes(store))
        if kept is not None and not self.options.strict:
            return self._build_until_it_runs(context, store, None, kept, events), False
        verdicts = self._verdicts(context) if self.options.strict else self._unasked()
        decision = kept or _decided(context, verdicts, may_measure=asked is None)
        made = self._build_until_it_runs(context, store, verdicts, decision, events)
        if self.options.renew:
            forget_failures(context, made.served.values())
        return made, asked is None and is_lasting(made.plan)

    def _unasked(self) -> Verdicts:
        """Return what is known before any backend is queried."""
        return before_asking(self.graph, self.registry, self.options)

    def _verdicts(self, context: PlanningContext) -> Verdicts:
        """Return the verdicts of all backends, even if they cannot win: `strict` and `hub explain` list every reason."""
        bidders = [name for name in self.registry.entries if self._may_bid(name)]
        with contextlib.suppress(WorkerError):  # raised again when the backend is queried below
            context.workers.ask_early(bidders, self.options)
        return ask_backends(self.graph, self.registry, self.options, context.answers)

    def predict(self, values: Sequence[Any]) -> Plan:
        """Return a plan from the plan file, the cache or estimates, without compiling or timing anything.

        Backends that explain their clusters may run them.
        """
        with self._store() as (store, problem), self._session(values, None, is_dry=True) as session:
            context, notes = self._context(store, session)
            with contextlib.closing(context.measurements):
                return explained(self._predicted(context, store, (*_no_cache(problem), *notes)), context)

    def _predicted(self, context: PlanningContext, store: Store, events: tuple[Event, ...]) -> Plan:
        if (asked := self._asked_for(None, context)) is not None:
            return asked
        kept = next(iter(self._found(store, or_provisional=True)), None)
        if kept is not None and fits(kept, self.graph):
            return kept
        verdicts = self._verdicts(context)
        decision = _decided(context, verdicts, may_measure=False)
        self._check_strict(verdicts, decision.assignment, decision.events)
        events = (*events, *_troubles(context), *_cache_notes(store))
        return plan_of(self.graph, self.mode, decision, verdicts, self.options, events)

    def _asked_for(self, plan: Plan | None, context: PlanningContext) -> Plan | None:
        """Return the plan from the options' plan file and adopt its settings; without a plan file, return `plan`."""
        if self.options.plan is None:
            return plan
        if plan is None or not fits(plan, self.graph):
            plan = plan_from_file(self.graph, self.mode, self.options, self.registry, context.answers)
        self.options = under_plan(self.options, plan)
        self.threads = plan.threads
        return plan

    def _session(self, values: Sequence[Any], plan: Plan | None, *, is_dry: bool = False) -> Session:
        """Return the workers for one plan; none is started before it is needed."""
        is_timed = not is_dry and self.options.tune != "off" and plan is None and self.options.plan is None
        sample = Sample(self.graph, tuple(values))
        return Session(sample, self.threads, limits_of(self.options.workers), options=self.options, is_timed=is_timed)

    def _context(self, store: Store, session: Session) -> tuple[PlanningContext, tuple[Event, ...]]:
        measurements, text = Measurements.open(store.root)
        texts = (text, *self.registry.notes, *_forced_nowhere(self.options, self.graph))
        notes = tuple(Event(kind=EventKind.NOTE, stage=Stage.LOAD, message=note) for note in texts if note)
        context = PlanningContext(
            session.crew.sample,
            self.options,
            self.threads,
            self.registry,
            store.root / "artifacts",
            measurements,
            self.progress,
            session,
            session if self.options.isolate else InProcess(session.crew.sample, self.registry),
            tell_better=self._told,
            demoted=self.demoted,
            digests=self._digests,
        )
        return context, notes

    def _told(self, decision: Decision) -> None:
        if self._tell_better is not None and decision.verdicts is not None:
            self._tell_better(plan_of(self.graph, self.mode, decision, decision.verdicts, self.options, ()))

    @contextlib.contextmanager
    def _store(self) -> Generator[tuple[Store, str]]:
        """Yield the cache with ""; if it must not or cannot be used, yield a temporary one with the reason."""
        with contextlib.ExitStack() as stack:
            try:
                store, problem = Store(self.options.cache.root), ""
            except CacheError as error:
                store, problem = Store(stack.enter_context(scratch("cache"))), str(error)
            yield store, problem

    def _found(self, store: Store, *, or_provisional: bool = False) -> Sequence[Plan]:
        """Return the cached plans of an equal graph, best first; one made with `tune="full"` also serves requests for less.

        A provisional plan is decided again by who asks for its effort, and then for good: the machine may always be busy.
        """
        efforts = ("full",) if self.options.tune == "full" else ("full", self.options.tune)
        plans = {effort: plan for effort in efforts if (plan := store.plan(self._key(effort))) is not None}
        stale = {effort for effort, plan in plans.items() if plan.is_provisional and effort == self.options.tune}
        self._has_provisional = bool(stale)
        if self.options.renew:
            return ()
        return [plan for effort, plan in plans.items() if or_provisional or effort not in stale]

    def _key(self, effort: str) -> str:
        bidders = [entry for name, entry in self.registry.entries.items() if self._may_bid(name)]
        return digest_of(plan_parts(self.graph, self.mode, self.options, self.threads, effort, bidders))

    def _may_bid(self, name: str) -> bool:
        return self.registry.entries[name].status.accepted and self.options.allows(name)

    def _kept(self, plan: Plan | None) -> Decision | None:
        """Return the decision for an earlier plan if it fits; None otherwise."""
        if plan is None or not fits(plan, self.graph):
            return None
        groups = groups_of(plan)
        if any(found.backend != EAGER and found.backend not in self.registry.available() for found in groups):
            return None
        names = dict.fromkeys(found.backend for found in groups if found.backend != EAGER)
        assignment = Assignment(" + ".join(names) or EAGER, groups)
        return Decision(assignment, plan.decided_by, settings_of(plan), kept=plan)

    def _earlier(self, plan: Plan | None, store: Store) -> Sequence[Decision]:
        """Return the decisions for a given plan and for the cached ones, best first, without those that do not fit."""
        cached = [one.model_copy(update={"decided_by": DecidedBy.REPLAYED}) for one in self._found(store)]
        return [found for found in map(self._kept, (plan, *cached)) if found is not None]

    def _build_until_it_runs(
        self,
        context: PlanningContext,
        store: Store,
        verdicts: Verdicts | None,
        decision: Decision,
        events: tuple[Event, ...],
    ) -> Made:
        """Build a decision; while a cluster fails, decide without it and build again. `verdicts` are made when needed."""
        builder = Builder(context, store, self._is_current)
        while True:
            verdicts = decision.verdicts or verdicts
            if verdicts is not None:
                self._check_strict(verdicts, decision.assignment, decision.events)
            try:
                with builder.phases.during(Work.BUILD):
                    steps, loaded = builder.build(decision)
            except ClusterFailed as failed:
                if self.options.strict and not isinstance(failed.error, InputRefused):
                    raise failed.error from failed.error.__cause__
                events = (*events, failed.event)
                reason = str(failed.error).splitlines()[0]
                verdicts = verdicts or self._unasked()
                verdicts = verdicts.without(failed.group.backend, failed.nodes, reason)
                decision = (
                    self._patched(decision, failed, reason)
                    or _next_best(decision, failed, verdicts)
                    or _decided(context, verdicts, may_measure=False)
                )
                continue
            plan = self._plan(decision, verdicts, (*events, *_troubles(context), *_cache_notes(store), *builder.notes))
            plan = plan.model_copy(update={"verify_s": builder.verify_s})
            return Made(plan, steps, loaded, builder.served)

    def _patched(self, decision: Decision, failed: ClusterFailed, reason: str) -> Decision | None:
        """Return the plan file's plan with the failed nodes in eager; None for the hub's own plan, to be decided again."""
        if self.options.plan is None or decision.kept is None:
            return None
        return self._kept(moved_to_eager(self.graph, decision.kept, failed.group, failed.nodes, reason))

    def _plan(self, decision: Decision, verdicts: Verdicts | None, events: tuple[Event, ...]) -> Plan:
        if decision.kept is not None:
            news = (event for event in events if event not in decision.kept.events)
            return decision.kept.model_copy(update={"graph": self.graph.name}).with_events(*news)
        assert verdicts is not None, "only a kept plan is built without queries"
        return plan_of(self.graph, self.mode, decision, verdicts, self.options, events)

    def _check_strict(self, verdicts: Verdicts, assignment: Assignment, events: Sequence[Event]) -> None:
        """Raise PlanError for the first failure, or the first node that would run in eager unasked, under `strict`."""
        if not self.options.strict:
            return
        failed = [event for event in (*verdicts.events, *events) if event.kind is EventKind.FAILED]
        if failed:
            raise PlanError(f"strict: {failed[0].stage} failed: {failed[0].message}", backend=failed[0].backend)
        if self.options.plan is not None:
            return  # the plan file chose what runs in eager
        for found in assignment.groups:
            if found.backend == EAGER:
                self._check_asked(verdicts, found)

    def _check_asked(self, verdicts: Verdicts, found: Group) -> None:
        for name in found.nodes:
            node = self.graph.by_name[name]
            forced = self.options.forced(operator_name(node))
            wanted = forced if forced is not None else (self.options.backends or (None,))[0]
            if name in self.graph.pinned or is_trivial(node) or wanted is None or wanted == EAGER or forced == EAGER:
                continue
            if any(verdicts.takes(backend, name) for backend in verdicts.by_backend):
                continue  # eager was the fastest, so this is no fallback
            reasons = [verdicts.by_backend[backend][name].reason for backend in verdicts.by_backend]
            text = next(filter(None, reasons), "no backend could be used")
            raise PlanError(
                f"strict: would run in eager: {text}", node=name, hint="allow it with strict=False, or force it to eager"
            )


def _standing(context: PlanningContext, earlier: Sequence[Decision], *, is_asked_for: bool) -> Decision | None:
    """Return the first of earlier decisions whose clusters have not failed since; if it was asked for, they may have.

    Without a cluster that has failed, another plan may be the fastest.
    """
    return next((found for found in earlier if is_asked_for or not _has_failed_since(context, found)), None)


def _has_failed_since(context: PlanningContext, decision: Decision) -> bool:
    """Return whether a cluster of a plan has failed while it served in another process, after the plan was made."""
    settings = decision.settings
    clusters = (found for found in decision.assignment.clusters if found not in context.demoted)
    return any(failure_in_service(context, context.candidate("", found, settings)) is not None for found in clusters)


def _next_best(decision: Decision, failed: ClusterFailed, verdicts: Verdicts) -> Decision | None:
    """Return the decision for the fastest plan that was timed as a whole and does without the failed cluster."""
    found = decision.without(failed.group.backend, failed.nodes)
    return None if found is None else replace(found, verdicts=verdicts)


def _forced_nowhere(options: Options, graph: Graph) -> Iterable[str]:
    """Yield a note for each operator that the options force, and that this graph does not have."""
    present = {operator_name(node) for node in graph.nodes}
    present |= {name.rpartition(".")[0] for name in present}
    for name in options.force:
        if name not in present:
            yield f"force: no node of this graph is {name}{did_you_mean(name, present)}"


def _provisional(plan: Plan) -> tuple[Event, ...]:
    text = "other work used the cores during too many timings: the next process that asks for as much decides again"
    return (Event(kind=EventKind.NOTE, stage=Stage.TIME, message=text),) if plan.is_provisional else ()


def _not_kept(reason: str) -> Event:
    text = f"the plan is not kept, so the next process plans again: {reason}"
    return Event(kind=EventKind.NOTE, stage=Stage.SAVE, message=text)


def _no_cache(problem: str) -> tuple[Event, ...]:
    return (Event(kind=EventKind.NOTE, stage=Stage.LOAD, message=f"no cache: {problem}"),) if problem else ()


def is_lasting(plan: Plan) -> bool:
    """Return whether a later process would decide the same.

    A failure in a plan that was not measured may be temporary; so is an accelerator whose memory was full. An executable
    that refuses the first inputs, because of NaN in them, may take others.
    """
    if any(event.is_device_full for event in plan.events):
        return False
    if plan.decided_by is DecidedBy.MEASURED_PLANS:
        return True
    refusals = (event.kind is EventKind.REFUSED and event.stage is Stage.RUN for event in plan.events)
    return plan.decided_by in _KEPT and not any(event.kind in TROUBLE for event in plan.events) and not any(refusals)


def _lasting_part(plan: Plan) -> Plan:
    """Return the plan without the notes on this process's cache, which later processes will not see."""
    return plan.model_copy(update={"events": tuple(event for event in plan.events if not _is_about_loading(event))})


def _is_about_loading(event: Event) -> bool:
    return event.kind is EventKind.NOTE and event.stage in (Stage.LOAD, Stage.LATER)


def _troubles(context: PlanningContext) -> tuple[Event, ...]:
    """Return notes on problems with the measurement store."""
    return tuple(Event(kind=EventKind.NOTE, stage=Stage.LOAD, message=text) for text in context.measurements.notes)


def _cache_notes(store: Store) -> tuple[Event, ...]:
    """Return notes on cache entries that could not be used."""
    return tuple(Event(kind=EventKind.NOTE, stage=Stage.LOAD, message=text) for text in store.take_notes())


def _decided(context: PlanningContext, verdicts: Verdicts, *, may_measure: bool) -> Decision:
    """Return the result of `decide`, importing it on first use.

    Importing SciPy takes as long as capturing a small model. A process with a cached plan does not need it, nor does one
    that answers in eager while another process decides.
    """
    with context.session.crew.phases.during(Work.DECIDE):
        from hub.planning.decide import decide

        return decide(context, verdicts, may_measure=may_measure)
