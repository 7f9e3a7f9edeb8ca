"""Measurement of each operator's eager time within one run of the whole graph."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from torch import fx

from hub.plugin.graph import Graph
from hub.plugin.table import tensors_of
from hub.pricing.timing import SLOW_S
from hub.process.accelerators import accelerators_of, wait_for, wait_for_values
from hub.process.traffic import GAPS


def profile_eager(graph: Graph, inputs: Sequence[Any], *, runs: int = 3) -> dict[str, float]:
    """Return seconds of each node, the median over `runs` runs after a warmup run. Inputs in placeholder order.

    If one run takes seconds, one after the warmup run has to do.
    """
    laps: dict[str, list[float]] = {}
    with torch.no_grad():
        for number in range(runs + 1):
            seconds_of = GAPS.sample(lambda: _profiled(graph, inputs))
            if number:
                for name, seconds in seconds_of.items():
                    laps.setdefault(name, []).append(seconds)
                if sum(seconds_of.values()) > SLOW_S:
                    break
    return {name: median(samples) for name, samples in laps.items()}


def _profiled(graph: Graph, inputs: Sequence[Any]) -> dict[str, float]:
    profiler = _Profiler(graph.module)
    wait_for_values(inputs)
    profiler.run(*inputs)
    return profiler.seconds


class _Profiler(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seconds: dict[str, float] = {}
        self._now = ""
        self._awaited = {node.name: accelerators_of(tensors_of(node)) for node in module.graph.nodes}
        """Accelerators to wait for, by node, so that each node begins with its inputs ready."""

    def run_node(self, n: fx.Node) -> Any:
        self._now = n.name
        return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        awaited = self._awaited[self._now]
        start = time.perf_counter()
        result = super().call_function(target, args, kwargs)
        if awaited:
            wait_for(awaited)
        self.seconds[self._now] = time.perf_counter() - start
        return result
