"""What a worker process can be asked: to compile, verify and time clusters and plans, apart from the user's process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hub.backend import CompileSettings
from hub.cache.artifacts import check_artifact
from hub.compilation.build import build_cluster, load_cluster
from hub.compilation.transfer import Sample, read_sample
from hub.compilation.values import values_at
from hub.dispatch.assemble import Assembled, Loaded, assemble
from hub.dispatch.codegen import Step
from hub.dispatch.spinning import Calm
from hub.errors import CompileError
from hub.graph import Cluster
from hub.partition.extract import extract
from hub.pricing.eager import profile_eager
from hub.pricing.timing import Timing, time_call


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the parent learns about one compilation."""

    compile_s: float
    error: float
    """Largest max|error| / max|reference| of its outputs on the sample."""
    is_saved: bool


@dataclass(slots=True)
class _State:
    sample: Sample | None = None
    clusters: dict[str, Cluster] = field(default_factory=dict)
    built: dict[str, Loaded] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    plan: Assembled | None = None

    @property
    def loaded_sample(self) -> Sample:
        if self.sample is None:
            raise RuntimeError("no sample was loaded")
        return self.sample


_state = _State()


def load(folder: str, threads: int) -> None:
    """Reads the sample and sets the thread count."""
    torch.set_grad_enabled(False)
    torch.set_num_threads(threads)
    _state.sample = read_sample(Path(folder))


def prepare(names: Sequence[str]) -> None:
    """Runs the graph once in eager, unless all are there, and keeps the named values: real inputs of clusters to come."""
    if missing := set(names) - set(_state.values):
        sample = _state.loaded_sample
        _state.values |= values_at(sample.graph, sample.values, missing)


def profile() -> dict[str, float]:
    """Gives what each node costs in eager, in seconds."""
    sample = _state.loaded_sample
    return profile_eager(sample.graph, sample.values)


def compile_cluster(
    name: str, backend: str, nodes: Sequence[str], settings: CompileSettings, folder: str | None
) -> Compiled:
    """Compiles, verifies and, where a folder is given, saves one cluster."""
    start = time.perf_counter()
    cluster = _cluster(name, nodes)
    loaded, verified, saved = build_cluster(
        cluster, backend, settings, inputs=_inputs(cluster), folder=None if folder is None else Path(folder)
    )
    _state.built[name] = loaded
    return Compiled(time.perf_counter() - start, verified.error, saved.is_done)


def load_saved(name: str, backend: str, nodes: Sequence[str], settings: CompileSettings, folder: str) -> None:
    """Loads one cluster that another worker saved, if its files are as they were saved. Raises PluginError."""
    if not (found := check_artifact(Path(folder))).is_intact:
        reason = found.problem or "it was removed meanwhile"
        raise CompileError(f"the saved executable cannot be loaded: {reason}", backend=backend, cluster=name)
    cluster = _cluster(name, nodes)
    _state.built[name] = load_cluster(cluster, backend, settings, Path(folder))


def time_cluster(name: str, at_least_s: float, spin: bool) -> Timing:
    """Times one compiled cluster alone; without `spin`, PyTorch's threads do not spin either."""
    loaded = _state.built[name]
    inputs = _inputs(loaded.cluster)
    calm = None if spin else Calm()
    timing = time_call(lambda: loaded.executable(*inputs), at_least_s)
    del calm
    return timing


def build_plan(steps: Sequence[Step], spin: bool) -> float:
    """Puts a whole plan together from compiled clusters, runs it twice, and gives the second run's seconds."""
    sample = _state.loaded_sample
    loaded = {step.name: _state.built[step.name] for step in steps if not step.is_eager}
    _state.plan = assemble(sample.graph, steps, loaded, original=None, strict=True, timed=True, spin=spin)
    _state.plan.run(sample.values)
    start = time.perf_counter()
    _state.plan.run(sample.values)
    return time.perf_counter() - start


def time_plan(at_least_s: float) -> tuple[list[float], list[float]]:
    """Runs the plan for a while; gives seconds of each call, and seconds of each step per call."""
    plan, values = _state.plan, _state.loaded_sample.values
    if plan is None:
        raise RuntimeError("no plan was built")
    plan.run(values)  # warms caches up after others had the cores
    plan.laps[:] = [0.0] * len(plan.laps)
    timing = time_call(lambda: plan.run(values), at_least_s, warmup=0)
    return list(timing.samples_s), [lap / len(timing.samples_s) for lap in plan.laps]


def _cluster(name: str, nodes: Sequence[str]) -> Cluster:
    if name not in _state.clusters:
        sample = _state.loaded_sample
        weights = {weight: sample.by_name[weight] for weight in sample.graph.weights}
        _state.clusters[name] = extract(sample.graph, nodes, name, weights)
    return _state.clusters[name]


def _inputs(cluster: Cluster) -> list[Any]:
    return [_state.values[name] for name in cluster.input_names]


HANDLERS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (load, prepare, profile, compile_cluster, load_saved, time_cluster, build_plan, time_plan)
}
