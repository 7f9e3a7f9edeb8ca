"""Run a model's graph on samples and record the ranges, which calibration files contain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from hub.plugin import (
    Graph,
    OptionError,
    operator_name,
    tensor_digest,
)

from .calibration import Calibration, Range


def calibrated(graph: Graph, inputs: Sequence[Any], samples: Iterable[Sequence[torch.Tensor]]) -> Calibration:
    """Run a graph on samples in eager and return the largest magnitude of each float value.

    `inputs` are the values of all placeholders; a sample has one tensor for each that is no weight, of the captured shape,
    in order. Raise OptionError if there are no samples, or if one has another number or shape of tensors, or is not finite.
    """
    recorder = _Recorder(graph.module)
    free = [position for position, node in enumerate(graph.placeholders) if node.name not in graph.weights]
    count = 0
    for sample in samples:
        values = list(inputs)
        if len(sample) != len(free):
            raise OptionError(f"sample {count} has {len(sample)} tensors, the model takes {len(free)}", backend="mdla")
        for position, value in zip(free, sample, strict=True):
            _check(value, values[position], count)
            values[position] = value
        with torch.no_grad():
            recorder.run(*values)
        count += 1
    if not count:
        raise OptionError("there are no samples", backend="mdla", hint="save a list of input tuples with torch.save")
    weights = {
        node.name: tensor_digest(value)
        for node, value in zip(graph.placeholders, inputs, strict=True)
        if node.name in graph.weights
    }
    return Calibration(recorder.ranges, weights, count)


def _check(value: Any, captured: Any, count: int) -> None:
    if not isinstance(value, torch.Tensor) or value.shape != captured.shape or value.dtype != captured.dtype:
        found = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise OptionError(f"sample {count}: {found}, a tensor {list(captured.shape)} expected", backend="mdla")
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        raise OptionError(f"sample {count} holds NaN or infinity", backend="mdla")


class _Recorder(fx.Interpreter):
    """An interpreter that records the largest magnitude of every float tensor of its runs."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.ranges: dict[str, Range] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run one node as usual, and record the range of its result."""
        value = super().run_node(n)
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
            largest = float(value.detach().abs().max())
            before = self.ranges.get(n.name)
            largest = largest if before is None else max(largest, before.largest)
            self.ranges[n.name] = Range(operator_name(n), tuple(value.shape), largest)
        return value
