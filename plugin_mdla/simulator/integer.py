"""One layer in integers, as the device computes it.

Products of 16-bit (or 8-bit) integers and the bias are added up in 48 bits, with as many fraction bits as both factors
together; the result is rounded to its own format once, at the end, and saturates there. Means divide the exact sum and
round once. Sigmoid and Tanh are tables over all integers of the input's format, each entry rounded from the exact function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch

from ..arithmetic import apply, window_counts
from ..fixed import ACCUMULATOR_BITS, Format, Quantised, quantise, requantise, saturate
from ..formats import SLOPE
from ..program import Layer

_ACCUMULATOR = Format(ACCUMULATOR_BITS, 0)


class IntegerLayer:
    """A layer with its weights as integers."""

    def __init__(self, layer: Layer, sources: Sequence[Format], weight: Format | None, result: Format) -> None:
        self.layer, self.sources, self.weight_format, self.result = layer, tuple(sources), weight, result
        self.weight_saturated = 0
        self.weight = self._weight()
        self.bias = self._bias()

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Quantised:
        """Return the result in its format, with the number of its elements that saturated."""
        kind, source = self.layer.kind, self.sources[0]
        if kind in ("Sigmoid", "Tanh"):
            return self._looked_up(inputs[0])
        if kind == "LeakyRelu":
            return self._leaky(inputs[0])
        if kind.endswith("AveragePool"):
            return self._mean(inputs[0])
        if kind == "Add":
            return self._sum(inputs)
        if kind == "Concat":
            return self._joined(inputs)
        fraction = source.fraction
        if self.weight_format is not None:
            fraction += self.weight_format.fraction
        elif kind == "Mul":
            fraction += self.sources[1].fraction
        total = apply(self.layer, inputs, self.weight, self.bias)
        held = saturate(total, _ACCUMULATOR) if self.layer.has_products else Quantised(total)
        found = requantise(held.integers, fraction, self.result)
        return Quantised(found.integers, max(found.saturated, held.saturated))

    def _weight(self) -> torch.Tensor | None:
        if self.layer.weight is None or self.weight_format is None:
            return None
        found = quantise(self.layer.weight.detach(), self.weight_format)
        self.weight_saturated = found.saturated
        return found.integers

    def _bias(self) -> torch.Tensor | None:
        if self.layer.bias is None or self.weight_format is None:
            return None
        fraction = self.sources[0].fraction + self.weight_format.fraction
        found = quantise(self.layer.bias.detach(), Format(ACCUMULATOR_BITS - 1, fraction))
        self.weight_saturated += found.saturated
        return found.integers

    def _looked_up(self, x: torch.Tensor) -> Quantised:
        entries = _table(self.layer.kind, self.sources[0], self.result)
        return Quantised(entries[(x + (self.sources[0].largest + 1)).long()])

    def _leaky(self, x: torch.Tensor) -> Quantised:
        slope = quantise(torch.tensor(self.layer.attributes["alpha"], dtype=torch.float64), SLOPE).integers
        scaled = torch.where(x >= 0, x * 2.0**SLOPE.fraction, x * slope)
        return requantise(scaled, self.sources[0].fraction + SLOPE.fraction, self.result)

    def _mean(self, x: torch.Tensor) -> Quantised:
        """Return floor((2 s + n) / 2 n) of the sum s and the count n, in integers; the division is exact enough for it."""
        counts = window_counts(self.layer, x.shape)
        shift = self.result.fraction - self.sources[0].fraction
        total = apply(self.layer, (x,), None, None) * 2.0 ** max(shift, 0)
        counts = counts * 2.0 ** max(-shift, 0)
        return saturate(torch.floor((2 * total + counts) / (2 * counts)), self.result)

    def _sum(self, inputs: Sequence[torch.Tensor]) -> Quantised:
        other = self.weight_format if self.weight_format is not None else self.sources[1]
        fraction = max(self.sources[0].fraction, other.fraction)
        operands = (inputs[0], self.weight if self.weight is not None else inputs[1])
        first, second = (
            value * 2.0 ** (fraction - form.fraction)
            for value, form in zip(operands, (self.sources[0], other), strict=True)
        )
        return requantise(first + second, fraction, self.result)

    def _joined(self, inputs: Sequence[torch.Tensor]) -> Quantised:
        parts = [requantise(value, form.fraction, self.result) for value, form in zip(inputs, self.sources, strict=True)]
        joined = apply(self.layer, [part.integers for part in parts], None, None)
        return Quantised(joined, sum(part.saturated for part in parts))


@lru_cache(maxsize=32)
def _table(kind: str, source: Format, result: Format) -> torch.Tensor:
    """Return the results of a function for every integer of a format, smallest first."""
    function = _sigmoid if kind == "Sigmoid" else math.tanh
    scale, integers = 2.0**-source.fraction, range(-source.largest - 1, source.largest + 1)
    values = torch.tensor([function(integer * scale) for integer in integers], dtype=torch.float64)
    return quantise(values, result).integers


def _sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value)) if value >= 0 else math.exp(value) / (1.0 + math.exp(value))
