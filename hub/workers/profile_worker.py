"""Requests to a process that measures the machine: compile two small clusters with a backend, and time them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import fx

from hub.discovery.registry import registry
from hub.errors import CompileError, PluginError
from hub.partition.extract import extract
from hub.plugin.backend import CompileSettings, Executable, overrides
from hub.plugin.graph import Cluster, Graph
from hub.plugin.probing import verdicts_on
from hub.pricing.profile import fastest_s, measure_peaks
from hub.pricing.timing import median_interval, time_call
from hub.process.threads import set_threads
from hub.torch_private import FakeTensorMode
from hub.workers.channel import serve
from hub.workers.compilation.build import compile_cluster, load_cluster, plugin_edge

CALLED_S = 0.1
"""Seconds for which a call on a 4x4 tensor is timed: thousands of calls."""
_ROUNDS = 9
_BLOCK_S = 0.02
"""Seconds of one block of calls to one backend."""

Call = Callable[[], Any]


@dataclass(slots=True)
class _State:
    threads: int = 1
    folder: Path = Path()
    calls: dict[str, tuple[Call, Call]] = field(default_factory=dict[str, tuple[Call, Call]])
    """Two calls per backend: the `relu` of 4x4, and the product."""


_state = _State()


def begin(threads: int, folder: str) -> None:
    """Set the thread count, and the folder through which workers share what they compiled."""
    torch.set_grad_enabled(False)
    set_threads(threads)
    _state.threads, _state.folder = threads, Path(folder)
    small, large, weight = torch.ones(4, 4), _input(), _weight()
    _state.calls["eager"] = (lambda: torch.relu(small), lambda: torch.nn.functional.linear(large, weight))


def peaks() -> tuple[float, float]:
    """Return the peak operations per second and bytes per second."""
    return measure_peaks(_state.threads)


def moves() -> tuple[float, float]:
    """Return bytes per second of a layout change and of a dtype change, on 4 MiB: an activation of a vision model."""
    value = torch.ones(1, 64, 128, 128)
    strided = value.to(memory_format=torch.channels_last)
    copied_s = fastest_s(lambda: strided.contiguous(), 20)
    cast_s = fastest_s(lambda: value.half().float(), 20)
    return 2 * value.nbytes / copied_s, 3 * value.nbytes / cast_s  # 4 + 2 bytes per element there, 2 + 4 back


def make(backend: str) -> None:
    """Compile both clusters and save them, or load them if another worker has saved them. Raise PluginError on failure."""
    entry = registry().entries.get(backend)
    if entry is None:
        raise CompileError("no such backend", backend=backend)
    settings = CompileSettings(threads=_state.threads, accuracy=entry.info.max_relative_error or None)
    relu, product = (_executable(cluster, backend, settings) for cluster in (relu_cluster(), product_cluster()))
    small, large = torch.ones(4, 4), _input()
    _state.calls[backend] = (lambda: relu(small), lambda: product(large))
    with plugin_edge(backend, None, "run"):
        for call in _state.calls[backend]:
            call()


def time_call_of(backend: str) -> float:
    """Return seconds to enter and leave a cluster of a backend: its `relu` of 4x4 minus eager's, at least 0."""
    taken_s = [time_call(_state.calls[name][0], CALLED_S, warmup=20).median_s for name in (backend, "eager")]
    return max(0.0, taken_s[0] - taken_s[1])


def time_mix(first: str, second: str) -> float:
    """Return how many seconds longer a call takes if calls of two backends alternate than if each has a block of its own.

    Return 0 if the difference does not persist over the rounds: these machines are noisy.
    """
    one, other = _state.calls[first][1], _state.calls[second][1]

    def both() -> None:
        one()
        other()

    extra_s: list[float] = []
    for _ in range(_ROUNDS):
        alone_s = _block_s(one) + _block_s(other)
        extra_s.append((_block_s(both) - alone_s) / 2)
    return median(extra_s) if median_interval(extra_s)[0] > 0 else 0.0


def _block_s(call: Call) -> float:
    return time_call(call, _BLOCK_S, warmup=1).median_s


def _executable(cluster: Cluster, backend: str, settings: CompileSettings) -> Callable[..., Any]:
    with plugin_edge(backend, cluster.name, "support"):
        verdict_on = verdicts_on(registry().backend(backend), cluster)
    for node in cluster.nodes:
        with plugin_edge(backend, cluster.name, "support"):
            verdict = verdict_on(node)
        if not verdict.accepted:
            raise CompileError(f"it does not support {cluster.name}: {verdict.reason}", backend=backend)
    saved = _state.folder / backend / cluster.name
    if saved.exists():
        return load_cluster(cluster, backend, settings, saved, registry()).executable
    executable = compile_cluster(cluster, backend, settings, registry())
    if overrides(registry().backend(backend), "load"):
        _save(executable, backend, saved)
    return executable


def _save(executable: Executable, backend: str, folder: Path) -> None:
    """Save into a folder that appears atomically. If that fails, each worker compiles for itself."""
    partial = folder.with_name(f"{folder.name}-{time.monotonic_ns()}")
    partial.mkdir(parents=True)
    try:
        with plugin_edge(backend, None, "save"):
            executable.save(partial)
        partial.rename(folder)
    except (PluginError, OSError):
        return


@cache
def relu_cluster() -> Cluster:
    """Return `relu` of a float32 tensor [4, 4]: nothing but the overhead of a call."""
    graph = fx.Graph()
    source = graph.placeholder("x")
    result = graph.call_function(torch.ops.aten.relu.default, (source,), name="relu")
    graph.output((result,))
    with FakeTensorMode():
        source.meta["val"], result.meta["val"] = torch.empty(4, 4), torch.empty(4, 4)
    return extract(Graph(fx.GraphModule(torch.nn.Module(), graph), "profile"), ["relu"], "relu", {})


@cache
def product_cluster() -> Cluster:
    """Return a float32 matrix product of [256, 512] and [512, 512]: about 1 ms, so that every thread has work."""
    graph = fx.Graph()
    source, weight = graph.placeholder("x"), graph.placeholder("weight")
    result = graph.call_function(torch.ops.aten.linear.default, (source, weight), name="linear")
    graph.output((result,))
    with FakeTensorMode():
        source.meta["val"], weight.meta["val"] = torch.empty(256, 512), torch.empty(512, 512)
        result.meta["val"] = torch.empty(256, 512)
    whole = Graph(fx.GraphModule(torch.nn.Module(), graph), "profile", weights=("weight",))
    return extract(whole, ["linear"], "linear", {"weight": _weight()})


@cache
def _weight() -> torch.Tensor:
    return torch.ones(512, 512) / 512


@cache
def _input() -> torch.Tensor:
    return torch.ones(256, 512)


if __name__ == "__main__":
    serve({function.__name__: function for function in (begin, peaks, moves, make, time_call_of, time_mix)})
