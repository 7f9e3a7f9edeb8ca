"""Run a program in floating point, for the ranges of its values and as the reference of reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from .arithmetic import apply, window_counts
from .program import Layer, Program


def run_floating(program: Program, inputs: Sequence[torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Return every value of a program, by name, in the inputs' dtype. Inputs have device shapes."""
    values = dict(zip(program.inputs, inputs, strict=True))
    with torch.no_grad():
        for layer in program.layers:
            values[layer.name] = _result(layer, [values[name] for name in layer.inputs])
    return values


def _result(layer: Layer, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    x = inputs[0]
    if layer.kind == "Sigmoid":
        return torch.sigmoid(x)
    if layer.kind == "Tanh":
        return torch.tanh(x)
    if layer.kind == "LeakyRelu":
        return torch.nn.functional.leaky_relu(x, layer.attributes["alpha"])
    found = apply(layer, inputs, _like(layer.weight, x), _like(layer.bias, x))
    return found / window_counts(layer, x.shape).to(x.dtype) if layer.kind.endswith("AveragePool") else found


def _like(weight: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor | None:
    return None if weight is None else weight.detach().to(x.dtype)


def largest_values(values: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Return the largest magnitude of each value; 0 for one without elements."""
    return {name: float(value.abs().max()) if value.numel() else 0.0 for name, value in values.items()}
