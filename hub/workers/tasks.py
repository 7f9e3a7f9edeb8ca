"""Requests to a worker process: query plugins, and compile, verify and time, outside the user's process."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch

from hub.cache.artifacts import check_artifact, discard_artifact
from hub.config.options import Options
from hub.discovery.registry import Registry, registry
from hub.dispatch.assemble import Assembled, Loaded, assemble, uses_openmp
from hub.dispatch.codegen import Step
from hub.errors import CompileError, ContractError, InputRefused, PluginError, RunError
from hub.partition import verdicts
from hub.partition.extract import extract
from hub.partition.proposals import Offered, offered_by_plugins
from hub.partition.verdicts import Answers
from hub.plan import Event, EventKind, Stage
from hub.plugin.backend import CompileSettings, overrides
from hub.plugin.graph import Cluster, Spec, TensorSpec
from hub.pricing.eager import profile_eager
from hub.pricing.patience import PATIENCE
from hub.pricing.roofline import Peaks, settle
from hub.pricing.timing import SLOW_S, Timing, time_call
from hub.process.accelerators import accelerators_of, free_unused, wait_for
from hub.process.heap import is_lack_of_memory, trim
from hub.process.leftovers import MANY_LEFT, leftovers, more
from hub.process.modes import Modes, set_modes
from hub.process.phases import Phases, Work
from hub.process.priority import step_behind
from hub.process.state import WORKER, Said, kept_state, told_changes
from hub.process.threads import release_openmp, set_threads
from hub.process.traffic import GAPS
from hub.report.numbers import count
from hub.verification.endurance import Leisure
from hub.verification.inputs import slightly_larger
from hub.workers.candidate import Candidate
from hub.workers.compilation.build import build_cluster, leisure_of, load_cluster, plugin_edge, running
from hub.workers.compilation.report import Report
from hub.workers.compilation.values import values_at
from hub.workers.transfer import Sample, read_sample


@dataclass(slots=True)
class _State:
    sample: Sample | None = None
    built: dict[str, Loaded] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    plan: Assembled | None = None
    stepwise: Assembled | None = None
    """The same plan with times of each step. It is a separate object if timing has to wait for each step."""
    other_sizes: tuple[tuple[Any, ...], ...] | None = None
    """Values for calls of other sizes; None until the first plan is timed with them."""
    new_sizes_s: float | None = None
    """Seconds that the first call of new sizes costs the built plan; None until it is measured."""
    leisure: Leisure | None = None
    """The checks that run after the first answer."""
    configured: Registry | None = None
    """The registry under the session's options."""

    @property
    def registry(self) -> Registry:
        return self.configured or registry()

    @property
    def loaded_sample(self) -> Sample:
        if self.sample is None:
            raise RuntimeError("no sample was loaded")
        return self.sample


_state = _State()
_LAPPED_CALLS = 5
"""Number of calls of a plan that wait for each step, in addition to those that count for the plan."""
_NEW_SIZES = 0.5
"""Fraction of calls that are taken to be the first of their sizes, in programs with symbolic ones."""
_MIN_NEW_SIZES = 0.05
"""Smallest cost of new sizes that counts, as a fraction of a call. Less may be noise, and more rounds would not show it."""
_NEW_SIZES_BYTES = 64 << 20
"""Maximum bytes of inputs of another size: each contender's process has five copies."""
_NEW_SIZES_LIMIT_S = 2.0
"""Seconds after which neither other sizes are sought nor calls of them made."""
_CALLS = 2
"""Number of calls that are checked for leftovers, after the first ones, which may start a thread pool."""


def load(folder: str, threads: int, modes: Modes, options: Options, traffic: str | None = None) -> None:
    """Read the sample, and set the thread count, the user's settings of PyTorch, and the backends' own settings.

    `traffic` is the file that counts the calls of the user's model while it runs; None if it does not run.
    """
    GAPS.watch(None if traffic is None else Path(traffic))
    PATIENCE.begin()
    set_modes(modes)
    torch.set_grad_enabled(False)
    set_threads(threads)
    _state.configured = registry().configured(options)
    _state.sample = read_sample(Path(folder))


def rest() -> None:
    """Free everything that was loaded and built."""
    GAPS.watch(None)
    _state.sample = _state.plan = _state.stepwise = _state.configured = _state.leisure = None
    _state.other_sizes = _state.new_sizes_s = None
    for held in (_state.built, _state.values):
        held.clear()
    gc.collect()
    free_unused()
    trim()


def answers(backend: str, options: Options) -> Answers:
    """Ask a backend about every node of the graph. Raise HubError if it cannot be loaded."""
    with kept_state() as changed:
        found = verdicts.answers(_state.loaded_sample.graph, _state.registry, options, backend)
    if not (message := told_changes(changed, WORKER)):
        return found
    return replace(
        found, events=(*found.events, Event(kind=EventKind.NOTE, stage=Stage.SUPPORT, backend=backend, message=message))
    )


def estimate(
    backend: str, nodes: Sequence[str], settings: CompileSettings, peaks: Peaks, accelerators: Mapping[str, Peaks]
) -> Said:
    """Ask a backend for the cost of a cluster on a machine with these peaks."""
    settle(settings.threads, peaks, accelerators)
    with plugin_edge(backend, None, "estimate"), kept_state() as changed:
        answer = _state.registry.backend(backend).estimate(_cut("estimate", nodes), settings)
    return Said(answer, told_changes(changed, WORKER))


def explain(name: str, backend: str, nodes: Sequence[str], settings: CompileSettings) -> Said:
    """Ask a backend to explain a cluster on its real inputs, which are not computed for one that explains nothing."""
    if not overrides(_state.registry.backend(backend), "explain"):
        return Said("")
    cluster = _cut(name, nodes)
    prepare(cluster.input_names)
    with plugin_edge(backend, name, "explain"), kept_state() as changed:
        answer = _state.registry.backend(backend).explain(cluster, settings, _inputs(cluster))
    return Said(answer, told_changes(changed, WORKER))


def offered() -> tuple[Offered, ...]:
    """Ask every plugin for the clusters that it proposes."""
    with kept_state():
        return offered_by_plugins(_state.loaded_sample.graph, _state.registry)


def prepare(names: Sequence[str]) -> None:
    """Run the graph once in eager, unless all values are known, and keep the named ones: real inputs of later clusters."""
    if missing := set(names) - set(_state.values):
        sample = _state.loaded_sample
        _state.values |= values_at(sample.graph, sample.values, missing)


def values(names: Sequence[str]) -> Mapping[str, Any]:
    """Return the named values of one run of the graph in eager."""
    prepare(names)
    return {name: _state.values[name] for name in names}


def profile() -> tuple[dict[str, float], int]:
    """Return the cost of each node in eager, in seconds, and during how many runs other work took cores."""
    sample, before = _state.loaded_sample, GAPS.overlaps + PATIENCE.disturbed
    found = PATIENCE.timed(lambda: profile_eager(sample.graph, sample.values), lambda seconds: sum(seconds.values()))
    return found, GAPS.overlaps + PATIENCE.disturbed - before


def compile_cluster(candidate: Candidate, is_kept: bool, most_saved_bytes: int | None = None) -> Report:
    """Compile, run, verify and, if it has a folder, save one cluster. Keep it loaded if `is_kept`."""
    start, phases = time.perf_counter(), Phases()
    with phases.during(Work.CHECK, candidate.backend):
        cluster = _cut(candidate.name, candidate.group.nodes)
        before = leftovers()
        built = build_cluster(
            cluster,
            candidate.backend,
            candidate.settings,
            inputs=_inputs(cluster),
            registry=_state.registry,
            folder=candidate.folder,
            is_alone=True,
            most_saved_bytes=most_saved_bytes,
        )
        try:
            _check_leftovers(built.loaded, before, _inputs(cluster))
        except PluginError:
            if candidate.folder is not None:
                discard_artifact(candidate.folder, is_damaged=False)  # it was saved already, and must not be found
            raise
    if is_kept:
        _state.built[candidate.name] = built.loaded
    found = (*built.report.phases, *phases.found)
    return replace(built.report, compile_s=time.perf_counter() - start, phases=found)


def _check_leftovers(loaded: Loaded, before: Counter[str], inputs: Sequence[Any]) -> None:
    """Raise ContractError for leftovers in the user's process: of each call, or of compiling the cluster there again."""
    backend, name = loaded.backend, loaded.cluster.name
    if not overrides(_state.registry.backend(backend), "load") and (left := more(before, MANY_LEFT)):
        raise ContractError(f"compiling it leaves {left} behind", backend=backend, cluster=name)
    before = leftovers()
    for _ in range(_CALLS):
        with plugin_edge(backend, name, "run"):
            loaded.executable(*inputs)
    if left := more(before, _CALLS):
        raise ContractError(f"{count(_CALLS, 'call')} of it leave {left} behind", backend=backend, cluster=name)


def hold(candidate: Candidate) -> None:
    """Load one cluster that another worker saved, if its files are intact, or compile it again if it was not saved.

    Raise PluginError if that fails.
    """
    if (folder := candidate.saved_in) is None:
        compile_cluster(replace(candidate, folder=None), is_kept=True)
        return
    name, backend = candidate.name, candidate.backend
    if not (found := check_artifact(folder)).is_intact:
        reason = found.problem or "it was removed meanwhile"
        raise CompileError(f"the saved executable cannot be loaded: {reason}", backend=backend, cluster=name)
    cluster = _cut(name, candidate.group.nodes)
    with kept_state():  # its changes were reported when the worker that saved it loaded it back
        _state.built[name] = load_cluster(cluster, backend, candidate.settings, folder, _state.registry)


def time_cluster(name: str, at_least_s: float, busy_wait: bool) -> Timing:
    """Time one compiled cluster alone. Without `busy_wait`, PyTorch's threads are ended before each call, as in a mix."""
    loaded = _state.built[name]
    inputs = _inputs(loaded.cluster)
    is_released = not busy_wait and not uses_openmp(loaded.executable)

    def call() -> Any:
        if is_released:
            release_openmp()
        return loaded.executable(*inputs)

    awaited = accelerators_of(inputs)
    before = PATIENCE.disturbed
    timing = PATIENCE.timed(lambda: time_call(call, at_least_s, awaited=awaited), _median_s)
    return _marked(timing, before)


def _marked(timing: Timing, before: int) -> Timing:
    """Return a timing that says so if other processes took cores during it. `before` is `PATIENCE.disturbed` until then."""
    return timing if PATIENCE.disturbed == before else replace(timing, disturbed=len(timing.samples_s))


def build_plan(steps: Sequence[Step], busy_wait: bool, tries_new_sizes: bool = False) -> float:
    """Assemble a whole plan from compiled clusters, run it twice, and return the second run's seconds.

    With `tries_new_sizes`, `time_plan` adds a share of what the first call of new sizes costs.
    """
    sample = _state.loaded_sample
    loaded = {step.name: _state.built[step.name] for step in steps if not step.is_eager}
    _state.plan = _state.stepwise = assemble(sample.graph, steps, loaded, strict=True, timed=True, busy_wait=busy_wait)
    awaited = accelerators_of((_state.plan.run(sample.values), sample.values))
    if awaited:  # they compute while the next step is prepared, unless each step is waited for
        _state.plan = assemble(sample.graph, steps, loaded, strict=True, busy_wait=busy_wait)
    wait_for(awaited)
    start = time.perf_counter()
    _state.plan.run(sample.values)
    wait_for(awaited)
    seconds = time.perf_counter() - start
    _state.new_sizes_s = None if tries_new_sizes and not awaited else 0.0
    return seconds


def _cost_of_new_sizes(run: Callable[..., Any], sample: Sample, call_s: float) -> float:
    """Return by how many seconds the first call of new sizes takes longer than the second: the median over some sizes.

    A backend that refuses new sizes leaves the call to eager. Calls during which the user's model ran count only if there
    are no others: the longer a backend prepares a size, the likelier it is interrupted.
    """
    start_s = time.perf_counter()
    if _state.other_sizes is None:
        _state.other_sizes = tuple(_at_other_sizes(sample))
    extra_s: dict[bool, list[float]] = {True: [], False: []}
    """Seconds by whether both calls ran in gaps."""
    for values in _state.other_sizes:
        try:
            first, second = (GAPS.once(partial(_seconds_of, partial(run, values))) for _ in range(2))
        except RunError as error:
            if not isinstance(error.__cause__, InputRefused):
                raise
            eager = partial(sample.graph.module, *values)
            first, second = GAPS.once(partial(_seconds_of, eager)), (call_s, True)
        extra_s[first[1] and second[1]].append(first[0] - second[0])
        if time.perf_counter() - start_s > _NEW_SIZES_LIMIT_S:
            break
    samples = extra_s[True] or extra_s[False]
    found_s = median(samples) if samples else 0.0
    return found_s if found_s >= _MIN_NEW_SIZES * call_s else 0.0


def _seconds_of(call: Callable[[], Any]) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


def _at_other_sizes(sample: Sample) -> Iterator[tuple[Any, ...]]:
    """Yield values for calls of slightly larger symbolic sizes, as far as eager takes them.

    Sizes that are symbolic change from call to call. Some libraries prepare each new size anew, so that calls of one size
    would make them look faster than they are (`python -m benchmarks.sizes`).
    """
    if not sample.graph.is_dynamic:
        return
    cluster = extract(sample.graph, [node.name for node in sample.graph.nodes], sample.graph.name, {})
    if not all(isinstance(spec, TensorSpec) for spec in cast("Sequence[Spec]", cluster.outputs)):  # numbers, for eager
        return
    start_s, real = time.perf_counter(), [sample.by_name[name] for name in cluster.input_names]
    symbolic = [value for spec, value in zip(cluster.inputs, real, strict=True) if _is_symbolic(spec)]
    if sum(value.nbytes for value in symbolic) > _NEW_SIZES_BYTES:
        return
    for inputs in slightly_larger(cluster, real):
        given: dict[str, Any] = {**sample.by_name, **dict(zip(cluster.input_names, inputs, strict=True))}
        values: tuple[Any, ...] = tuple(given.values())
        try:
            sample.graph.module(*values)
        except Exception:  # noqa: BLE001 - such as an index that is out of range at these sizes
            continue
        yield values
        if time.perf_counter() - start_s > _NEW_SIZES_LIMIT_S / 2:  # a large graph: the rest of the time is for calls
            return


def _is_symbolic(spec: Spec) -> bool:
    return isinstance(spec, TensorSpec) and not all(isinstance(size, int) for size in spec.shape)


def time_plan(at_least_s: float) -> tuple[Timing, list[float]]:
    """Run the plan for at least `at_least_s` seconds. Return the timing of its calls, and seconds of each step per call.

    In programs with symbolic sizes each call includes a share of what new sizes cost.
    """
    plan, stepwise, sample = _state.plan, _state.stepwise, _state.loaded_sample
    if plan is None or stepwise is None:
        raise RuntimeError("no plan was built")
    values = sample.values
    start_s = time.perf_counter()
    awaited = accelerators_of((plan.run(values), values))  # warms up caches after other work on the cores
    is_slow = time.perf_counter() - start_s > SLOW_S
    laps: dict[Timing, list[float]] = {}

    def take() -> Timing:
        stepwise.laps[:] = [0.0] * len(stepwise.laps)
        timing = time_call(lambda: plan.run(values), at_least_s, warmup=0, awaited=awaited, is_slow=is_slow)
        laps[timing] = list(stepwise.laps)
        return timing

    before = PATIENCE.disturbed
    timing = PATIENCE.timed(take, _median_s)
    stepwise.laps[:] = laps[timing]
    n_calls = len(timing.samples_s) if stepwise is plan else 1 if is_slow else _LAPPED_CALLS
    for _ in range(n_calls if stepwise is not plan else 0):
        stepwise.run(values)
    laps_s = [lap / n_calls for lap in stepwise.laps]
    if _state.new_sizes_s is None:  # the first time, while it is this plan's turn
        _state.new_sizes_s = _cost_of_new_sizes(plan.run, sample, timing.median_s)
    extra_s = _NEW_SIZES * _state.new_sizes_s
    slower = replace(timing, samples_s=tuple(sample_s + extra_s for sample_s in timing.samples_s))
    return _marked(slower, before), laps_s


def _median_s(timing: Timing) -> float:
    return timing.median_s


def verify_at_leisure(candidate: Candidate) -> None:
    """Prepare a cluster for the checks that run after the first answer."""
    cluster = _cut(candidate.name, candidate.group.nodes)
    prepare(cluster.input_names)
    inputs, saved_in = _inputs(cluster), candidate.saved_in
    with _enough_memory():
        _state.leisure = leisure_of(cluster, candidate.backend, candidate.settings, saved_in, inputs, _state.registry)


def prepare_kind(kind: str) -> bool:
    """Run eager on a kind of generated inputs. Return False if there are none, or eager raises."""
    return _leisure().prepare(kind)


def compare_kind(name: str, backend: str, kind: str) -> str | None:
    """Compare the executable with eager on the prepared inputs. Return as `Leisure.compare` does."""
    with _enough_memory(), running(backend, name):
        return _leisure().compare(kind)


def endure(name: str, backend: str) -> int:
    """Make many calls of the executable. Return how many."""
    with _enough_memory(), plugin_edge(backend, name, "run"):
        return _leisure().endure()


@contextmanager
def _enough_memory() -> Generator[None]:
    """Convert out-of-memory errors, which are not the executable's fault, to CompileError."""
    try:
        yield
    except PluginError as error:
        if is_lack_of_memory(error.__cause__):
            raise CompileError(error.message) from error
        raise


def _leisure() -> Leisure:
    assert _state.leisure is not None, "a cluster is made ready first"
    return _state.leisure


def _cut(name: str, nodes: Sequence[str]) -> Cluster:
    sample = _state.loaded_sample
    return extract(sample.graph, nodes, name, sample.weights)


def _inputs(cluster: Cluster) -> list[Any]:
    return [_state.values[name] for name in cluster.input_names]


HANDLERS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(load, rest, answers, estimate, explain, offered),
        *(prepare, values, profile, compile_cluster, hold, time_cluster, build_plan, time_plan),
        *(step_behind, verify_at_leisure, prepare_kind, compare_kind, endure),
    )
}
