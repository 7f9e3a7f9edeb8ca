"""Puts generated code and executables together into the callable that runs a plan."""

from __future__ import annotations

import linecache
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hub.dispatch.codegen import Step, generate
from hub.dispatch.shadow import ReportDrift, Shadowed
from hub.dispatch.spinning import Calm
from hub.errors import AccuracyError, ContractError, InputRefused, RunError, text_of
from hub.graph import Cluster, Graph
from hub.plugin_fault import is_plugins

Run = Callable[[Sequence[Any]], tuple[Any, ...]]
Report = Callable[[str, str, BaseException], None]
"""Told (backend, cluster, error) when an executable fails and eager takes over."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A cluster with the callable that runs it."""

    cluster: Cluster
    backend: str
    executable: Callable[..., Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Shadow:
    """How shadow mode checks the clusters of a plan."""

    share: float
    """Of live calls, from 0 to 1; the first call is always checked."""
    accuracy: float | None = None
    report: ReportDrift | None = None


@dataclass(frozen=True, slots=True)
class Assembled:
    """A runnable plan."""

    run: Run
    source: str
    laps: list[float] = field(default_factory=list)
    """Seconds spent in each step so far; stays empty unless timed."""


def assemble(
    graph: Graph,
    steps: Sequence[Step],
    loaded: Mapping[str, Loaded],
    *,
    original: Callable[..., Any] | None = None,
    report: Report | None = None,
    strict: bool = False,
    timed: bool = False,
    spin: bool = True,
    shadow: Shadow | None = None,
) -> Assembled:
    """Gives the callable for a schedule. `loaded` holds an entry for each step that is not eager.

    Without `spin`, PyTorch's own idle threads do not spin either for as long as the callable lives.

    With `shadow`, a share of each cluster's calls is compared with eager.

    `original` runs the whole program in eager where inputs overlap in memory in a way the graph was not captured for.
    """
    program = generate(graph, steps, timed=timed)
    laps = [0.0] * len(steps) if timed else []
    namespace: dict[str, Any] = {**program.namespace, "laps": laps, "now": time.perf_counter}
    if not spin and loaded:
        namespace["calm"] = Calm()
    if graph.mutated:
        namespace |= {"overlaps": _overlap_check(graph), "original": original or graph.module}
    for name, item in loaded.items():
        namespace[name] = item.executable if shadow is None else _shadowed(item, shadow)
        namespace[f"{name}_failed"] = _fallback(namespace, item, report, strict=strict)
    filename = f"<hub {graph.name} {id(namespace):x}>"
    linecache.cache[filename] = (len(program.source), None, program.source.splitlines(keepends=True), filename)
    exec(compile(program.source, filename, "exec"), namespace)
    return Assembled(namespace["run"], program.source, laps)


def _shadowed(item: Loaded, shadow: Shadow) -> Shadowed:
    return Shadowed(
        item.cluster,
        item.backend,
        item.executable,
        share=shadow.share,
        accuracy=shadow.accuracy,
        report=shadow.report,
    )


def _fallback(
    namespace: dict[str, Any], item: Loaded, report: Report | None, *, strict: bool
) -> Callable[..., Sequence[Any]]:
    name = item.cluster.name

    def failed(error: BaseException, *inputs: Any) -> Sequence[Any]:
        if not is_plugins(error) or (strict and isinstance(error, (AccuracyError, ContractError))):
            raise error
        if strict:
            raise RunError(
                f"the executable failed: {text_of(error)}",
                backend=item.backend,
                cluster=name,
                hint="without strict=True the cluster runs in eager",
            ) from error
        if not isinstance(error, InputRefused):
            namespace[name] = item.cluster.module
        if report is not None:
            report(item.backend, name, error)
        return item.cluster.module(*inputs)

    return failed


def _overlap_check(graph: Graph) -> Callable[[Sequence[Any]], bool]:
    """Gives a check whether an input that is written to shares memory with another input."""
    position_of = {node.name: position for position, node in enumerate(graph.placeholders)}
    written = tuple(position_of[name] for name in graph.mutated)

    def overlaps(args: Sequence[Any]) -> bool:
        storages = [
            value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) and value.numel() else None
            for value in args
        ]
        return any(storages[position] is not None and storages.count(storages[position]) > 1 for position in written)

    return overlaps
