"""The software device: a program in integers, with the values that saturated in each call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..fixed import Quantised, dequantise, quantise
from ..formats import Formats
from ..program import Program
from .integer import IntegerLayer


@dataclass(frozen=True, slots=True)
class Call:
    """The result of one call."""

    outputs: tuple[torch.Tensor, ...]
    """Outputs as float32, of device shapes."""
    saturated: Mapping[str, int]
    """Number of elements that did not fit their format, by value; only values with any."""
    not_finite: int = 0
    """Number of NaN and infinities among the inputs."""

    @property
    def is_faithful(self) -> bool:
        """Return whether every value fitted its format."""
        return not self.saturated and not self.not_finite


class Simulator:
    """One program on the software device. Weights are its only state, so threads may share it."""

    def __init__(self, program: Program, formats: Formats) -> None:
        self.program, self.formats = program, formats
        self._layers = tuple(
            IntegerLayer(
                layer,
                tuple(formats.values[name] for name in layer.inputs),
                formats.weights.get(layer.name),
                formats.values[layer.name],
            )
            for layer in program.layers
        )
        self._last_use = _last_uses(program)

    @property
    def weights_saturated(self) -> Mapping[str, int]:
        """Number of weights that did not fit, by layer; only layers with any."""
        return {layer.layer.name: layer.weight_saturated for layer in self._layers if layer.weight_saturated}

    def run(self, inputs: Sequence[torch.Tensor], *, stop_at: int | None = None) -> Call:
        """Run one call. `inputs` are float tensors of the device shapes, in order; they are not written to.

        Values that do not fit saturate and are counted. `stop_at` ends the call early once that many elements did not fit;
        there are no outputs then.
        """
        saturated: dict[str, int] = {}
        values: dict[str, torch.Tensor] = {}
        not_finite = 0
        with torch.no_grad():
            for (name, shape), value in zip(self.program.inputs.items(), inputs, strict=True):
                found = quantise(value.reshape(shape), self.formats.values[name])
                not_finite += found.not_finite
                _keep(name, found, values, saturated)
            for position, layer in enumerate(self._layers):
                if stop_at is not None and sum(saturated.values()) + not_finite >= stop_at:
                    return Call((), saturated, not_finite)
                found = layer([values[name] for name in layer.layer.inputs])
                _keep(layer.layer.name, found, values, saturated)
                for name in self._last_use.get(position, ()):
                    del values[name]
            outputs = tuple(dequantise(values[name], self.formats.values[name]) for name in self.program.outputs)
        return Call(outputs, saturated, not_finite)

    def run_all(self, inputs: Sequence[torch.Tensor]) -> tuple[Mapping[str, torch.Tensor], Mapping[str, int]]:
        """Return every value of one call by name, as float32, and counts of saturated elements by value, for reports."""
        saturated: dict[str, int] = {}
        values: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            for (name, shape), value in zip(self.program.inputs.items(), inputs, strict=True):
                _keep(name, quantise(value.reshape(shape), self.formats.values[name]), values, saturated)
            for layer in self._layers:
                _keep(layer.layer.name, layer([values[name] for name in layer.layer.inputs]), values, saturated)
        return {name: dequantise(value, self.formats.values[name]) for name, value in values.items()}, saturated


def _keep(name: str, found: Quantised, values: dict[str, torch.Tensor], saturated: dict[str, int]) -> None:
    values[name] = found.integers
    if found.saturated:
        saturated[name] = found.saturated


def _last_uses(program: Program) -> Mapping[int, tuple[str, ...]]:
    """Return the values that no later layer reads, by the position of each layer: they need not be kept after it."""
    last: dict[str, int] = {}
    for position, layer in enumerate(program.layers):
        last[layer.name] = position
        last.update(dict.fromkeys(layer.inputs, position))
    found: dict[int, list[str]] = {}
    for name, position in last.items():
        if name not in program.outputs:
            found.setdefault(position, []).append(name)
    return {position: tuple(names) for position, names in found.items()}
