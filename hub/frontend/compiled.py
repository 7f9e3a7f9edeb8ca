"""A captured graph as PyTorch calls it: plan on the first real call, then run the plan, and notice when weights change."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import fx

from hub.capture.specialize import is_size, specialized
from hub.config.options import Options
from hub.discovery.registry import registry
from hub.dispatch.assemble import Assembled, Shadow, Sizes, assemble
from hub.dispatch.debug import write_debug_folder
from hub.dispatch.frequent_sizes import FrequentSizes
from hub.dispatch.recorded import CudaRecorder, Recorded, Run, unrecordable
from hub.dispatch.shadow import Drift
from hub.dispatch.weights import WeightGuard, can_guard, held_at, on_held_storage
from hub.errors import CaptureError, OptionError, PlanError, text_of, warn_user
from hub.frontend.checking import check_names
from hub.partition.group import Group
from hub.plan import EAGER, TROUBLE, DecidedBy, Event, EventKind, Plan, PlannedCluster, Stage
from hub.planning.aside import Aside, too_large_to_copy
from hub.planning.background import Background, sure_of_sizes
from hub.planning.building import observe
from hub.planning.evidence import Mode
from hub.planning.failures import reason_of, remember_failure_in_service
from hub.planning.make import Made, Maker
from hub.plugin.graph import Graph
from hub.process.accelerators import accelerators_of
from hub.process.forks import LOST_THREADS, freed_in_forks, has_lost_threads, never_freed
from hub.process.heap import trim
from hub.process.modes import modes
from hub.process.phases import Phases, Work
from hub.process.traffic import TRAFFIC
from hub.report.numbers import count
from hub.report.progress import progress_for
from hub.torch_private import DisableAutocast, is_any_autocast_enabled
from hub.workers.candidate import Candidate

_warned_folders: set[str] = set()
"""Unusable cache folders that this process has warned about: every graph would repeat the warning."""
MAX_BINDINGS = 4
"""Maximum number of sets of weights with executables of their own: models of one class share a captured graph."""
MAX_CHANGES = 3
"""Number of weight changes after which weights become inputs: recompiling at each optimizer step would never pay."""


class Binding:
    """One plan built for one set of weights. The plan is freed with them, even if this object is still referenced."""

    __slots__ = ("__weakref__", "guard", "run")

    def __init__(self, positions: Sequence[int], args: Sequence[Any]) -> None:
        """Guard the weights at `positions` among the arguments of a call. `run` is set once the plan is built."""
        own = weakref.ref(self)

        def end() -> None:
            if (binding := own()) is not None:
                binding.run = _ended

        self.guard = WeightGuard(positions, args, end)
        self.run: Run = _ended


def _ended(_: Sequence[Any]) -> tuple[Any, ...]:
    """Replace a plan whose weights are freed. It is never called, since the guard no longer holds."""
    raise RuntimeError("a plan was called whose weights are freed")


class CompiledGraph:
    """The callable that the hub returns to PyTorch for one captured graph. It takes the graph's inputs one by one."""

    def __init__(
        self,
        graph: Graph,
        mode: Mode,
        options: Options,
        original: Callable[..., Any],
        owner: object | None,
        *,
        is_body: bool = False,
        phases: Phases | None = None,
    ) -> None:
        """Wrap a captured graph. `phases` holds the time that capture took, and records the time that planning takes."""
        self.graph = graph
        self.phases = phases or Phases()
        self.bodies: Mapping[str, Callable[..., Any]] = {}
        """Planned programs that operators of this graph call, keyed by the attribute that holds each."""
        self.is_body = is_body
        """True if an operator of another graph calls it."""
        self.mode: Mode = mode
        self.options = options
        self.original = original
        self.owner = None if owner is None else weakref.ref(owner)
        self.plan: Plan | None = None
        self.weights: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        """Parameters and buffers it was called with, keyed by identity: tensors cannot be compared."""
        self._bindings: list[Binding] = []
        self._demoted: dict[Group, str] = {}
        """Candidates that failed at run time, with the reason. Later bindings skip them, even if a cache holds them."""
        self._changes = 0
        self._lock = freed_in_forks(threading.RLock())
        self._current: Binding | None = None
        self._warned: set[str] = set()
        self._cache_problem = ""
        self._later = Background(self)
        self._aside: Aside | None = None
        """The planning that goes on while the first calls run in eager."""
        self._n_waited = 0
        """Number of calls that ran in eager before there was a plan."""
        self._is_news = False
        """True if a plan is in use whose events have not been reported to the user."""
        self._sized: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()
        """Graphs of the same program, each for one combination of sizes and with a plan of its own."""
        self.observer: Callable[[CompiledGraph, Sequence[Any], Sequence[Any]], None] | None = None
        """Callback for every call, set while calls are recorded. It receives the graph, its arguments and its outputs."""

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run one call. Raise HubError only if the options are strict."""
        binding = self._current
        if binding is None or not binding.guard.holds(args) or is_any_autocast_enabled() or self.observer is not None:
            return self._call_slowly(args)
        return binding.run(args)

    def current(self) -> Binding | None:
        """Return the binding that the next call tries first."""
        return self._current

    def run_for(self, args: Sequence[Any]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        """Return a callable that runs the plan with the current weights among these arguments. It does not guard them.

        Wait for the plan if the model still runs in eager.
        """
        if self._aside is not None:
            self._aside.wait()
        return self._bind(args).run

    def _call_slowly(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Run one call that needs a binding first, or that is made under autocast: the graph already holds the casts."""
        with DisableAutocast():
            binding = self._current
            if binding is None or not binding.guard.holds(args):
                with self.phases.during(Work.GRAPH):
                    binding = self._bind(args)
                with self.phases.during(Work.ANSWER):
                    outputs = binding.run(args)
            else:
                outputs = binding.run(args)
        if self.observer is not None:
            self.observer(self, args, outputs)
        return outputs

    def for_sizes(self) -> list[CompiledGraph]:
        """Return the graphs of single combinations of sizes that have, or will get, plans of their own."""
        return sorted(self._sized, key=lambda one: one.graph.name)

    def begin_for(self, args: Sequence[Any]) -> CompiledGraph:
        """Begin a plan for the sizes of these arguments while the model runs. Raise CaptureError if that is impossible."""
        own = specialized(self.graph, args)
        if reason := too_large_to_copy(own, args):
            raise CaptureError(reason)
        owner = None if self.owner is None else self.owner()
        found = CompiledGraph(own, self.mode, self.options, self.original, owner)
        self._sized.add(found)
        with torch.no_grad():
            found._bind(args)
        return found

    def ready(self, args: Sequence[Any]) -> Run | None:
        """Return the runner of the plan for the weights among these arguments; None while planning or for other weights."""
        binding = self._known(args) if self.is_over() else None
        return None if binding is None else binding.run

    def is_over(self) -> bool:
        """Return whether planning is over."""
        return self._aside is None or not self._aside.is_pending

    def refresh(self) -> None:
        """Discard what was built, so that the next call reads every weight again. Keep the plan."""
        with self._lock:
            self._bindings.clear()
            self._current = None

    def leave_to_eager(self) -> None:
        """Run in eager from now on what was built in the parent process. Called in a fork."""
        never_freed([binding.run for binding in self._bindings])
        self._bindings, self._current = [], None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the plan and for the checks that run after the first answer. Return False if the timeout comes first."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        if self._aside is not None and not self._aside.wait_with(progress_for(self.graph.name), timeout_s):
            return False
        return self._later.wait(None if end_s is None else max(0.0, end_s - time.monotonic()))

    def plan_now(self) -> Plan | None:
        """Return the plan in use. While planning goes on, a note in the plan reports its stage."""
        plan, work = self.plan, self._aside
        if plan is None or work is None or not work.is_pending:
            return plan
        where = f" ({work.stage})" if work.stage else ""
        text = f"planning continues{where}: `hub.wait` waits for it, and with `start='wait'` the first call does"
        return plan.with_events(Event(kind=EventKind.NOTE, stage=Stage.TIME, message=text))

    def learn_later(self, candidate: Candidate, event: Event, error: BaseException | None = None) -> None:
        """Record an event that was found after the first answer. If there is an error, drop the candidate."""
        with self._lock:
            if self.plan is not None:
                others = (old for old in self.plan.events if (old.stage, old.cluster) != (Stage.LATER, event.cluster))
                self.plan = self.plan.model_copy(update={"events": (*others, event)})
        if error is not None:
            self._demote(candidate, error)
            observe(
                registry(), "hub_fallback", backend=event.backend or "", cluster=event.cluster or "", reason=event.message
            )

    def _bind(self, args: Sequence[Any]) -> Binding:
        """Return a binding for these weights, an existing or a new one."""
        if (found := self._known(args)) is not None:
            self._tell_news()
            return found
        with self._lock:
            if (found := self._known(args)) is not None:  # another thread was faster
                return found
            self._drop_stale()
            binding = self._build(args)
            self._bindings = [*self._bindings[-(MAX_BINDINGS - 1) :], binding]
            self._current = binding
            self._warn()  # last, because a user may have turned warnings into errors
            return binding

    def _known(self, args: Sequence[Any]) -> Binding | None:
        with self._lock:
            for binding in self._bindings:
                if binding.guard.holds(args):
                    self._current = binding
                    return binding
        return None

    def _drop_stale(self) -> None:
        """Drop bindings whose weights have changed, and count them."""
        fresh = [binding for binding in self._bindings if binding.guard.is_fresh()]
        self._changes += len(self._bindings) - len(fresh)
        self._bindings = fresh

    def _build(self, args: Sequence[Any]) -> Binding:
        check_names(self.options)
        if self._aside is not None and self._aside.is_pending:
            return self._waiting(args)
        if not self._may_answer_in_eager() or (maker := self._maker(self._with_guarded_weights(args))).is_quick():
            return self._planned(args, self.plan)
        if not (reason := too_large_to_copy(maker.graph, args)):
            return self._planned_aside(maker, args)
        binding = self._planned(args, None)
        self._note(Stage.LOAD, f"planned in the first call: {reason}")
        return binding

    def _maker(self, graph: Graph, *, may_go_on: bool = True) -> Maker:
        options = self.options if may_go_on else self.options.model_copy(update={"background": False})
        return Maker(graph, self.mode, options, registry(), progress_for(self.graph.name), self._demoted)

    def _may_answer_in_eager(self) -> bool:
        """Return whether the first calls may run in eager while the graph is planned in another process."""
        return self.options.may_answer_in_eager and self.plan is None and not has_lost_threads()

    def _waiting(self, args: Sequence[Any]) -> Binding:
        """Return a binding that takes any weights and runs in eager."""
        binding = Binding((), args)
        binding.run = self._counted(self.run_in_eager)
        return binding

    def _counted(self, run: Run) -> Run:
        """Wrap `run` so that plans can be timed in the gaps between its calls."""

        def counted(args: Sequence[Any]) -> tuple[Any, ...]:
            self._n_waited += 1
            with TRAFFIC:
                return run(args)

        return counted

    def _planned_aside(self, maker: Maker, args: Sequence[Any]) -> Binding:
        options = self.options.model_copy(update={"background": False, "start": "wait", "origins": {}})
        facts = {"mode": self.mode, "options": options, "threads": maker.threads, "modes": modes()}
        self.plan = pending_plan(self.graph, self.mode, maker.threads)
        self._remember_weights(args)
        self._aside = Aside(self, maker.graph, args, facts, self.phases)
        self._aside.start()
        return self._waiting(args)

    def improve(self, values: Sequence[Any], plan: Plan) -> None:
        """Build the best plan so far, and use it from the next call on until a better one comes.

        If that fails, keep what runs now: the final plan reports the failure.
        """
        try:
            binding = self._bound(values, plan, is_last=False)
        except Exception:  # noqa: BLE001 - see above
            return
        binding.run = self._counted(binding.run)
        with self._lock:
            self._bindings, self._current = [binding], None

    def settle(self, values: Sequence[Any], plan: Plan | None, problem: str) -> None:
        """Build a plan for these arguments and use it from the next call on. If `plan` is None, make one first.

        Called by the thread that planned in the background, while other threads call the model in eager.
        """
        try:
            binding = self._planned(values, plan)
        except Exception as error:  # noqa: BLE001 - no caller could handle it here: the plan reports it
            binding = self._waiting(values)
            binding.run = self._in_eager(error)
        with self._lock:
            if self.plan is not None:
                is_timed = self.plan.decided_by is DecidedBy.MEASURED_PLANS
                calls = f"timed in the gaps between {count(self._n_waited, 'call')} of the model"
                if problem:
                    self._note(Stage.LOAD, f"not planned in a separate process: {problem}")
                if is_timed:
                    self._note(Stage.TIME, calls)
            self._bindings, self._current, self._is_news = [binding], None, True

    def _planned(self, args: Sequence[Any], plan: Plan | None) -> Binding:
        """Return a binding that runs `plan`, or a new plan if it is None. It runs in eager if no plan could be made."""
        try:
            return self._bound(args, plan)
        except Exception as error:
            asked = PlanError if self.options.plan is not None else OptionError
            if self.options.strict or isinstance(error, (OptionError, asked)):
                raise
            binding = Binding(self._positions(self._with_guarded_weights(args)), args)
            binding.run = self._in_eager(error)
            return binding

    def _positions(self, graph: Graph) -> list[int]:
        """Return the positions of a graph's weights among the arguments of a call."""
        return [index for index, node in enumerate(graph.placeholders) if node.name in graph.weights]

    def _bound(self, args: Sequence[Any], plan: Plan | None, *, is_last: bool = True) -> Binding:
        """Return a binding that runs a plan. Raise if none can be made. Only the last plan is verified further."""
        graph = self._with_guarded_weights(args)
        positions = self._positions(graph)
        binding = Binding(positions, args)
        self._remember_weights(args)
        inputs = self._weights_as_inputs(graph)
        values = held_at(inputs, args)
        for position, weight in zip(positions, binding.guard.held, strict=True):
            values[position] = weight
        held = {graph.placeholders[position].name: values[position] for position in positions}
        maker = self._maker(graph, may_go_on=is_last)
        try:
            if has_lost_threads():
                raise PlanError(LOST_THREADS, hint="start processes by spawn, or compile in the forks alone")
            with self.phases.during(Work.BUILD):
                made = maker.make(values, plan)
                self.phases.add(made.phases)
                run = on_held_storage(self._recorded(self._assembled(graph, made, held).run), inputs)
                binding.run = self._by_size(run, made.plan) if is_last else run
        finally:
            maker.progress.done()
            trim()
        return binding

    def _in_eager(self, error: Exception) -> Run:
        """Give up on planning and return eager: a bug in the hub must not break the user's model."""
        reason = f"planning failed: {text_of(error)}"
        self.plan = eager_plan(self.graph.name, reason, self.mode)
        return self.run_in_eager

    def run_in_eager(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Run one call in eager, as PyTorch does without the hub."""
        return tuple(self.original(*args))

    def _weights_as_inputs(self, graph: Graph) -> tuple[int, ...]:
        """Return the positions of weights that are inputs of a plan for this graph, without those that it returns."""
        constants = frozenset((*graph.weights, *(value.name for value in graph.outputs if isinstance(value, fx.Node))))
        names = frozenset(self.graph.weights) - constants
        return tuple(place for place, node in enumerate(graph.placeholders) if node.name in names)

    def _assembled(self, graph: Graph, made: Made, weights: Mapping[str, torch.Tensor]) -> Assembled:
        assembled = assemble(
            graph,
            made.steps,
            made.loaded,
            original=self.original,
            report=partial(self._failed_while_running, made.served),
            strict=self.options.strict,
            busy_wait=made.plan.busy_wait,
            shadow=Shadow(self.options.shadow, made.plan.accuracy, self._drifted) if self.options.shadow else None,
            sizes=Sizes(made.plan.accuracy, partial(sure_of_sizes, made)),
            bodies=self.bodies,
            weights=weights,
        )
        self.plan = made.plan
        self._later.begin(made, assembled.run)
        self._cache_problem = made.cache_problem
        observe(registry(), "hub_plan_made", plan=made.plan)
        if self.options.debug_dir is not None:
            self._write_debug_folder(self.options.debug_dir, graph, assembled.source, made)
        return assembled

    def _write_debug_folder(self, root: Path, graph: Graph, source: str, made: Made) -> None:
        try:
            write_debug_folder(root, graph, made.plan, source, made.loaded)
        except OSError as error:
            self._note(Stage.SAVE, f"debug_dir: {text_of(error)}")

    def _by_size(self, run: Run, plan: Plan) -> Run:
        """Return a runner that gives frequent sizes plans of their own, if planning may go on while the model runs."""
        options = self.options
        is_plain = self.mode == "inference" and not (self.bodies or self.is_body or options.shadow or options.cuda_graphs)
        places = [at for at, node in enumerate(self.graph.placeholders) if is_size(node)]
        is_served = options.background and options.may_answer_in_eager
        if not (is_plain and is_served and places) or accelerators_of(self._fakes()):
            return run
        own: weakref.ref[CompiledGraph] = weakref.ref(self)
        return FrequentSizes(run, places, plan.plan_s, partial(_begin_for, own), partial(_note_of, own))

    def _fakes(self) -> list[torch.Tensor]:
        values = (node.meta.get("val") for node in self.graph.placeholders)
        return [value for value in values if isinstance(value, torch.Tensor)]

    def _recorded(self, run: Run) -> Run:
        """Return a runner that replays the plan as a CUDA graph, if that is requested and possible; else `run` itself."""
        if not self.options.cuda_graphs:
            return run
        reason = "shadow mode looks at live calls" if self.options.shadow else unrecordable(self.graph)
        if reason:
            self._note_recording(f"the plan is not run as a CUDA graph: {reason}")
            return run
        names = frozenset(self.graph.weights)
        weights = [place for place, node in enumerate(self.graph.placeholders) if node.name in names]
        return Recorded(run, weights, CudaRecorder(), self._not_recorded)

    def _not_recorded(self, error: BaseException) -> None:
        self._note_recording(f"the plan is no longer run as a CUDA graph: {type(error).__name__}: {error}")

    def _note(self, stage: Stage, text: str) -> None:
        with self._lock:
            if self.plan is not None:
                self.plan = self.plan.with_events(Event(kind=EventKind.NOTE, stage=stage, message=text))

    def note_time(self, text: str) -> None:
        """Add a note on timing to the plan."""
        self._note(Stage.TIME, text)

    def _note_recording(self, text: str) -> None:
        self._note(Stage.RECORD, text)
        if self.options.strict:
            raise OptionError(text, hint="leave cuda_graphs out, or strict=True")

    def _with_guarded_weights(self, args: Sequence[Any]) -> Graph:
        """Return the graph with the weights whose changes can be noticed as constants; with none after many changes."""
        if not self.graph.weights:
            return self.graph
        if self._changes >= MAX_CHANGES or len(self._bindings) >= MAX_BINDINGS:
            return replace(self.graph, weights=())
        values = dict(zip((node.name for node in self.graph.placeholders), args, strict=True))
        return replace(self.graph, weights=tuple(name for name in self.graph.weights if can_guard(values[name])))

    def _remember_weights(self, args: Sequence[Any]) -> None:
        names = frozenset(self.graph.weights)
        for node, value in zip(self.graph.placeholders, args, strict=True):
            if node.name in names:
                self.weights[id(value)] = value

    def _failed_while_running(
        self, served: Mapping[str, Candidate], backend: str, cluster: str, error: BaseException, *, is_final: bool
    ) -> None:
        if is_final:
            self._demote(served[cluster], error)
        message = text_of(error)
        event = Event(
            kind=EventKind.FALLBACK,
            stage=Stage.RUN,
            backend=backend,
            cluster=cluster,
            message=message,
            error=type(error).__name__,
        )
        with self._lock:
            if self.plan is None:
                return
            is_news = event not in self.plan.events  # background checks may have recorded the same failure before
            self.plan = self.plan.with_events(event) if is_news else self.plan
        if is_news:
            observe(registry(), "hub_fallback", backend=backend, cluster=cluster, reason=message)
        elif not is_final:
            return  # such values were rejected and reported before
        duration = "from now on" if is_final else "for such calls"
        self._warn_once(f"{backend} failed on {cluster} of {self.graph.name}, which runs in eager {duration}: {message}")

    def _demote(self, candidate: Candidate, error: BaseException) -> None:
        """Exclude a candidate that failed from later bindings, and from the plans of later captures and processes."""
        with self._lock:
            if candidate.group in self._demoted:
                return
            self._demoted[candidate.group] = reason_of(error)
        remember_failure_in_service(candidate, error)

    def _drifted(self, backend: str, cluster: str, drift: Drift) -> None:
        """Record in the plan what shadow mode found, replacing its previous note on the cluster."""
        event = Event(kind=EventKind.NOTE, stage=Stage.SHADOW, backend=backend, cluster=cluster, message=str(drift))
        with self._lock:
            if self.plan is not None:
                others = (old for old in self.plan.events if (old.stage, old.cluster) != (event.stage, cluster))
                self.plan = self.plan.model_copy(update={"events": (*others, event)})

    def _tell_news(self) -> None:
        """Warn about what happened during background planning. Called in a user's thread."""
        if self._is_news:
            self._is_news = False
            self._warn()

    def _warn(self) -> None:
        folder = str(self.options.cache.root)
        if self._cache_problem and folder not in _warned_folders:
            _warned_folders.add(folder)
            warn_user(f"nothing is saved for later processes: {self._cache_problem}")
        for event in () if self.plan is None else self.plan.events:
            if event.kind in TROUBLE:
                observe(
                    registry(),
                    "hub_fallback",
                    backend=event.backend or "",
                    cluster=event.cluster or "",
                    reason=event.message,
                )
                self._warn_once(f"{event.backend or 'the hub'}: {event.stage}: {event.message}")

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warn_user(text)


def _begin_for(graph: weakref.ref[CompiledGraph], args: Sequence[Any]) -> CompiledGraph | None:
    found = graph()
    return None if found is None else found.begin_for(args)


def _note_of(graph: weakref.ref[CompiledGraph], text: str) -> None:
    if (found := graph()) is not None:
        found.note_time(text)


def pending_plan(graph: Graph, mode: Mode, threads: int) -> Plan:
    """Return the plan of a graph that runs in eager until planning is done."""
    nodes = tuple(node.name for node in graph.nodes)
    cluster = PlannedCluster(name="e0", backend=EAGER, nodes=nodes, reason="planning continues in the background")
    return Plan(
        graph=graph.name,
        graph_digest=graph.digest,
        mode=mode,
        clusters=(cluster,),
        threads=threads,
        decided_by=DecidedBy.PENDING,
    )


def eager_plan(name: str, reason: str, mode: Mode = "inference") -> Plan:
    """Return the plan of a program that could not be captured and runs in eager."""
    cluster = PlannedCluster(name="e0", backend=EAGER, nodes=(), reason=reason)
    event = Event(kind=EventKind.FALLBACK, stage=Stage.CAPTURE, message=reason)
    return Plan(
        graph=name,
        graph_digest="",
        mode=mode,
        clusters=(cluster,),
        threads=torch.get_num_threads(),
        decided_by=DecidedBy.NOT_CAPTURED,
        events=(event,),
    )
