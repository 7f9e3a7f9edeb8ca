"""A captured graph as PyTorch calls it: plan on the first real call, then run the plan, and notice when weights change."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import fx

from hub.capture.pins import owners
from hub.capture.specialize import size_places, specialized
from hub.config.options import Options
from hub.discovery.registry import registry
from hub.dispatch.assemble import Assembled, Shadow, Sizes, assemble
from hub.dispatch.debug import write_debug_folder
from hub.dispatch.frequent_sizes import FrequentSizes
from hub.dispatch.recorded import CudaRecorder, Recorded, Run, unrecordable
from hub.dispatch.weights import can_guard, held_at, on_held_storage
from hub.errors import CaptureError, OptionError, PlanError, WeightsChanged, text_of
from hub.frontend.bindings import CALLED, MAX_CHANGES, Binding, Bindings
from hub.frontend.checking import check_names
from hub.frontend.eager_plans import eager_plan, pending_plan
from hub.frontend.record import Record
from hub.plan import Event, EventKind, Plan, Stage
from hub.planning.aside import Aside, too_large_to_copy
from hub.planning.background import Background, sure_of_sizes
from hub.planning.evidence import Mode
from hub.planning.make import Made, Maker
from hub.plugin.graph import Graph
from hub.process.accelerators import accelerators_of
from hub.process.forks import LOST_THREADS, freed_in_forks, has_lost_threads
from hub.process.heap import trim
from hub.process.interception import is_batched, is_intercepted, not_intercepted
from hub.process.modes import modes
from hub.process.phases import Phases, Work
from hub.process.traffic import TRAFFIC
from hub.report.progress import progress_for
from hub.workers.candidate import Candidate

OBSERVING = freed_in_forks(threading.RLock())
"""Held while calls of graphs are observed that several compiled models may share: a graph has only one observer."""


def _generate_code(program: fx.GraphModule) -> None:
    """Generate a program's code, and that of those within it, now: two first calls in two threads would spoil it."""
    for module in program.modules():
        if isinstance(module, fx.GraphModule):
            _ = module.code  # PyTorch delays this for programs from AOTAutograd


@dataclass(frozen=True, slots=True)
class _Begun:
    """A plan that is about to be built for the weights of one call."""

    graph: Graph
    """The captured graph; its weights are those that the binding guards."""
    binding: Binding
    maker: Maker
    values: Sequence[Any]
    """The arguments of the call, with weights as they are in memory now."""
    inputs: tuple[int, ...]
    """Positions of the weights that the plan takes as inputs."""


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
        for program in (graph.module, original):
            if isinstance(program, fx.GraphModule):
                _generate_code(program)
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
        self._record = Record(graph.name, options)
        self.weights: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        """Parameters and buffers it was called with, keyed by identity: tensors cannot be compared."""
        self._bindings = Bindings()
        self._aside_weights: tuple[str, ...] = ()
        """Weights that are constants of the plan that is being made: planning copied others like inputs."""
        self._lock = freed_in_forks(threading.RLock())
        self._is_building = False
        """True while the thread that holds the lock makes a binding."""
        self._later = Background(self)
        self._aside: Aside | None = None
        """The planning that goes on while the first calls run in eager."""
        self._n_waited = 0
        """Number of calls that ran in eager before there was a plan."""
        self._sized: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()
        """Graphs of the same program, each for one combination of sizes and with a plan of its own."""
        self._sizing = freed_in_forks(threading.Lock())
        """Held while these are read: the other lock is held as long as a call waits for its plan."""
        self.numbers: frozenset[str] = frozenset()
        """Inputs that Dynamo makes of numbers which have changed before. They are neither weights nor tensors of a call."""
        self.observer: Callable[[CompiledGraph, Sequence[Any], Sequence[Any]], None] | None = None
        """Callback for every call, set while calls are recorded. It receives the graph, its arguments and its outputs."""

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run one call. Raise HubError only if the options are strict."""
        return self.take(args)

    def take(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Run one call. The plan of a backward empties a list of arguments, to free each after its last use."""
        binding = self._bindings.current
        witness, CALLED.witness = CALLED.witness, None
        CALLED.free()
        if self.mode == "backward" and is_batched():
            with not_intercepted():
                return self.run_in_eager(args)
        if witness is None:
            is_bound = binding is not None and binding.guard.holds(args)
        else:
            is_bound = witness.holds(self, binding, args)
        if binding is None or not is_bound or is_intercepted() or self.observer is not None:
            return self._call_slowly(args)
        return binding.run(args)

    def current(self) -> Binding | None:
        """Return the binding that the next call tries first."""
        return self._bindings.current

    @property
    def plan(self) -> Plan | None:
        """The plan in use; that of the calls in eager while one is made; None before the first call."""
        return self._record.plan

    def run_for(self, args: Sequence[Any]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        """Return a callable that runs the plan with the current weights among these arguments. It does not guard them.

        Wait for the plan if the model still runs in eager.
        """
        while True:
            if self._aside is not None:
                self._aside.wait()
            with not_intercepted():
                binding = self._bind(args)
            if self._aside is None or not self._aside.is_pending:
                return binding.run

    def _call_slowly(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Run one call that needs a binding first, or whose operators something intercepts."""
        with not_intercepted():
            binding = self._bindings.current
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
        with self._sizing:
            found = list(self._sized)
        return sorted(found, key=lambda one: one.graph.name)

    def begin_for(self, args: Sequence[Any], weights: Sequence[str]) -> CompiledGraph:
        """Begin a plan for the sizes of these arguments while the model runs. Raise CaptureError if that is impossible.

        `weights` names those that the caller guards: its plan for these sizes may hold no others as constants.
        """
        own = specialized(replace(self.graph, weights=tuple(weights)), args)
        if reason := too_large_to_copy(own, args):
            raise CaptureError(reason)
        owner = None if self.owner is None else self.owner()
        found = CompiledGraph(own, self.mode, self.options, self.original, owner)
        with self._sizing:
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

    def leave_to_eager(self) -> None:
        """Run in eager from now on what was built in the parent process. Called in a fork."""
        self._bindings.abandon()

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
        self._record.replace_note(Stage.LATER, event)
        if error is not None:
            self._record.failed_later(candidate, event, error)
            if self.options.cuda_graphs or self._bindings.are_several:
                # Recorded launches, and plans for other weights, would go on with what was replaced in this one.
                self.refresh()

    def _bind(self, args: Sequence[Any]) -> Binding:
        """Return a binding for these weights, an existing or a new one."""
        if (found := self._known(args)) is not None:
            self._record.tell_news()
            return found
        with self._lock:
            if (found := self._known(args)) is not None:  # another thread was faster
                return found
            if self._is_building:  # a signal handler or a finalizer calls the model while this thread plans it
                return self._waiting(args)
            self._bindings.drop_stale()
            self._is_building = True
            try:
                binding = self._build(args)
            finally:
                self._is_building = False
            self._bindings.add(binding)
            self._record.warn()  # last, because a user may have turned warnings into errors
            return binding

    def _known(self, args: Sequence[Any]) -> Binding | None:
        with self._lock:
            if self._aside is not None and self._aside.has_ended:
                self._bindings.drop_waiting()
            return self._bindings.find(args)

    def _build(self, args: Sequence[Any]) -> Binding:
        check_names(self.options)
        if self._aside is not None and not self._aside.has_ended:  # in a fork it never does
            return self._waiting(args)
        begun = self._begun(args)
        if not self._may_answer_in_eager() or begun.maker.is_quick(begun.values, self._record.known):
            return self._planned_now(args, begun)
        if not (reason := too_large_to_copy(begun.graph, args)):
            try:
                return self._planned_aside(begun, args)
            except (RuntimeError, MemoryError) as error:  # no memory for copies, or no thread
                reason = text_of(error)
        binding = self._planned_now(args, begun)
        self._record.note(Stage.LOAD, f"planned in a call: {reason}")
        return binding

    def _planned_now(self, args: Sequence[Any], begun: _Begun) -> Binding:
        """Build the plan, or make one, while the call waits. If another thread changes weights, they become inputs."""
        try:
            return self._planned(args, self._record.known, begun)
        except WeightsChanged:
            self._bindings.n_changes = MAX_CHANGES
            return self._planned(args, self._record.known, self._begun(args))

    def _begun(self, args: Sequence[Any], *, is_last: bool = True, is_copied: bool = False) -> _Begun:
        """Hold the weights among these arguments, before anything is read from them."""
        graph = self._with_guarded_weights(args, is_copied=is_copied)
        positions = self._positions(graph)
        binding = Binding(positions, args)
        self._remember_weights(args)
        inputs = self._weights_as_inputs(graph)
        values = held_at(inputs, args)
        for position, weight in zip(positions, binding.guard.held, strict=True):
            values[position] = weight
        options = self.options if is_last else self.options.model_copy(update={"background": False})
        maker = Maker(
            graph,
            self.mode,
            options,
            registry(),
            progress_for(self.graph.name),
            self._record.demoted,
            is_current=binding.guard.is_fresh,
        )
        return _Begun(graph, binding, maker, values, inputs)

    def _may_answer_in_eager(self) -> bool:
        """Return whether calls may run in eager while the graph is planned, or its plan compiled, in another process."""
        return self.options.may_answer_in_eager and not has_lost_threads()

    def _waiting(self, args: Sequence[Any]) -> Binding:
        """Return a binding that takes any weights and runs in eager."""
        binding = Binding((), args)
        binding.run, binding.is_final = self._remembering(self._counted(self.run_in_eager)), False
        return binding

    def _counted(self, run: Run) -> Run:
        """Wrap `run` so that plans can be timed in the gaps between its calls."""

        def counted(args: Sequence[Any]) -> tuple[Any, ...]:
            self._n_waited += 1
            with TRAFFIC:
                return run(args)

        return counted

    def _planned_aside(self, begun: _Begun, args: Sequence[Any]) -> Binding:
        options = self.options.for_workers().model_copy(update={"background": False, "start": "wait"})
        facts = {"mode": self.mode, "options": options, "threads": begun.maker.threads, "modes": modes()}
        known = begun.maker.without_failed(self._record.known)
        aside = Aside(self, begun.graph, args, {**facts, "known": known}, self.phases)
        self._record.begin(pending_plan(self.graph, self.mode, begun.maker.threads))
        earlier, self._aside = self._aside, aside
        self._aside_weights = begun.graph.weights
        try:
            aside.start()
        except BaseException:
            self._aside = earlier
            self._record.end()
            raise
        return self._waiting(args)

    def improve(self, values: Sequence[Any], plan: Plan) -> None:
        """Build the best plan so far, and use it from the next call on until a better one comes.

        If that fails, keep what runs now: the final plan reports the failure.
        """
        n_cleared = self._bindings.n_cleared
        try:
            with TRAFFIC:  # it takes cores from what is timed meanwhile
                binding = self._bound(self._begun(values, is_last=False, is_copied=True), plan, is_last=False)
        except Exception:  # noqa: BLE001 - see above
            return
        binding.run, binding.is_final = self._counted(binding.run), False
        with self._lock:
            if self._bindings.n_cleared == n_cleared:
                self._bindings.replace_waiting(binding)

    def settle(self, values: Sequence[Any], plan: Plan | None, problem: str) -> None:
        """Build a plan for these arguments and use it from the next call on. If `plan` is None, make one first.

        Called by the thread that planned in the background, while other threads call the model in eager. If the user has
        changed weights meanwhile, as training does between two evaluations, the plan is kept, and the next call builds it.
        """
        n_cleared = self._bindings.n_cleared
        begun = self._begun(values, is_copied=True)
        try:
            binding = self._planned(values, plan, begun)
        except WeightsChanged:
            binding = begun.binding
        except Exception as error:  # noqa: BLE001 - no caller could handle it here: the plan reports it
            binding = self._waiting(values)
            binding.run, binding.is_final = self._in_eager(error), True
        with self._lock:
            if not binding.guard.is_fresh():
                self._bindings.n_changes += 1
                self._bindings.replace_waiting()
                if plan is not None:
                    self._record.enter(plan)
                return
            self._record.note_background(problem, self._n_waited)
            is_current = self._bindings.n_cleared == n_cleared  # else the next call builds it with the weights of then
            self._bindings.replace_waiting(*([binding] if is_current else []))
            self._record.announce()

    def end_waiting(self) -> None:
        """Stop what served only while planning went on, and keep the earlier plan if there is no new one."""
        with self._lock:
            if self._aside is not None and self._aside.is_pending:
                return  # planning for other weights has begun meanwhile
            self._bindings.drop_waiting()
            self._bindings.current = None
            self._record.end()

    def _planned(self, args: Sequence[Any], plan: Plan | None, begun: _Begun) -> Binding:
        """Return a binding that runs `plan`, or a new plan if it is None. It runs in eager if no plan could be made.

        Raise WeightsChanged if something failed because a weight changed meanwhile.
        """
        try:
            return self._bound(begun, plan)
        except WeightsChanged:
            raise
        except Exception as error:
            asked = PlanError if self.options.plan is not None else OptionError
            # A fork that cannot run the plan is no mistake in its file.
            if self.options.strict or (isinstance(error, (OptionError, asked)) and not has_lost_threads()):
                raise
            binding = Binding(self._positions(self._with_guarded_weights(args)), args)
            binding.run = self._in_eager(error)
            return binding

    def _positions(self, graph: Graph) -> list[int]:
        """Return the positions of a graph's weights among the arguments of a call."""
        return [index for index, node in enumerate(graph.placeholders) if node.name in graph.weights]

    def _bound(self, begun: _Begun, plan: Plan | None, *, is_last: bool = True) -> Binding:
        """Return a binding that runs a plan. Raise if none can be made. Only the last plan is verified further."""
        graph, binding, maker, inputs = begun.graph, begun.binding, begun.maker, begun.inputs
        values = list(begun.values)
        for position in inputs:  # the user may write to them at any time, and verification compares what it runs on
            values[position] = values[position].clone()
        held = {graph.placeholders[position].name: values[position] for position in self._positions(graph)}
        try:
            if has_lost_threads():
                raise PlanError(LOST_THREADS, hint="start processes by spawn, or compile in the forks alone")
            with self.phases.during(Work.BUILD):
                made = maker.make(values, plan)
                self.phases.add(made.phases)
                run = self._recorded(self._assembled(graph, made, held, is_last=is_last).run)
                run = on_held_storage(self._by_size(run, made.plan, graph.weights) if is_last else run, inputs)
                binding.run = run if graph.weights else self._remembering(run)
        finally:
            maker.progress.done()
            trim()
        return binding

    def _in_eager(self, error: Exception) -> Run:
        """Give up on planning and return eager: a bug in the hub must not break the user's model."""
        reason = f"planning failed: {text_of(error)}"
        self._record.enter(eager_plan(self.graph.name, reason, self.mode))
        return self.run_in_eager

    def run_in_eager(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Run one call in eager, as PyTorch does without the hub."""
        return tuple(self.original(*args))

    def _weights_as_inputs(self, graph: Graph) -> tuple[int, ...]:
        """Return the positions of weights that are inputs of a plan for this graph, without those that it returns."""
        names = frozenset(self.graph.weights) - {*graph.weights, *owners(graph.outputs)}
        return tuple(place for place, node in enumerate(graph.placeholders) if node.name in names)

    def _assembled(self, graph: Graph, made: Made, weights: Mapping[str, torch.Tensor], *, is_last: bool) -> Assembled:
        assembled = assemble(
            graph,
            made.steps,
            made.loaded,
            original=self.original,
            report=partial(self._record.failed, made.served),
            strict=self.options.strict,
            busy_wait=made.plan.busy_wait,
            shadow=Shadow(self.options.shadow, made.plan.accuracy, self._record.drifted) if self.options.shadow else None,
            sizes=Sizes(made.plan.accuracy, partial(sure_of_sizes, made)),
            bodies=self.bodies,
            weights=weights,
            takes=self.mode == "backward" and not self.options.cuda_graphs,
        )
        self._record.made(made.plan, made.cache_problem, is_final=is_last)
        self._later.begin(made, assembled.run)
        if self.options.debug_dir is not None:
            self._write_debug_folder(self.options.debug_dir, graph, assembled.source, made)
        return assembled

    def _write_debug_folder(self, root: Path, graph: Graph, source: str, made: Made) -> None:
        try:
            write_debug_folder(root, graph, made.plan, source, made.loaded)
        except OSError as error:
            self._record.note(Stage.DEBUG, f"debug_dir: {text_of(error)}")

    def _by_size(self, run: Run, plan: Plan, weights: Sequence[str]) -> Run:
        """Return a runner that gives frequent sizes plans of their own, if planning may go on while the model runs.

        `weights` are those that the binding guards.
        """
        options = self.options
        is_plain = self.mode == "inference" and not (self.bodies or self.is_body or options.shadow or options.cuda_graphs)
        places = size_places(self.graph)
        is_served = options.background and options.may_answer_in_eager
        if not (is_plain and is_served and places) or accelerators_of(self._fakes()):
            return run
        own: weakref.ref[CompiledGraph] = weakref.ref(self)
        return FrequentSizes(run, places, plan.plan_s, partial(_begin_for, own, weights), partial(_note_of, own))

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

    def note_time(self, text: str) -> None:
        """Add a note on timing to the plan."""
        self._record.note(Stage.TIME, text)

    def _note_recording(self, text: str) -> None:
        self._record.note(Stage.RECORD, text)
        if self.options.strict:
            raise OptionError(text, hint="leave cuda_graphs out, or strict=True")

    def _with_guarded_weights(self, args: Sequence[Any], *, is_copied: bool = False) -> Graph:
        """Return the graph with the weights whose changes can be noticed as constants; with none after many changes.

        With `is_copied`, the arguments are those that planning copied: the copy of a weight is not the user's.
        """
        if not self.graph.weights:
            return self.graph
        if is_copied:
            return replace(self.graph, weights=self._aside_weights)
        if self._bindings.n_changes >= MAX_CHANGES or self._bindings.is_full:
            return replace(self.graph, weights=())
        values = dict(zip((node.name for node in self.graph.placeholders), args, strict=True))
        return replace(self.graph, weights=tuple(name for name in self.graph.weights if can_guard(values[name])))

    def _remembering(self, run: Run) -> Run:
        """Wrap `run` of a binding that takes any weights, so that a model is found by those it was called with."""
        positions = self._positions(self.graph)
        if not positions:
            return run
        first = positions[0]

        def remembering(args: Sequence[Any]) -> tuple[Any, ...]:
            if id(args[first]) not in self.weights:
                self._remember_weights(args)
            return run(args)

        return remembering

    def known_weights(self) -> set[int]:
        """Return the identities of the living weights that it was called with. Other threads may add some meanwhile."""
        return {id(weight) for reference in self.weights.valuerefs() if (weight := reference()) is not None}

    def _remember_weights(self, args: Sequence[Any]) -> None:
        for position in self._positions(self.graph):
            self.weights[id(args[position])] = args[position]


def _begin_for(graph: weakref.ref[CompiledGraph], weights: Sequence[str], args: Sequence[Any]) -> CompiledGraph | None:
    found = graph()
    return None if found is None else found.begin_for(args, weights)


def _note_of(graph: weakref.ref[CompiledGraph], text: str) -> None:
    if (found := graph()) is not None:
        found.note_time(text)
