"""Choose the format of every tensor of a program: one for all, by weights, or by the ranges on samples."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from hub.plugin import ConstantsRefused

from .fixed import ACCUMULATOR_BITS, MAX_FRACTION, Q8_8, Format, chosen
from .program import Layer, Program
from .settings import Settings

HEADROOM = 2.0
"""Factor above the largest value in calibration, for 16 bits: at the cost of one bit, other inputs seldom saturate.
int8 cannot spare that bit."""
SLOPE = Format(16, 15)
"""The format of LeakyRelu's slope."""
FINER_MEAN = 8
"""Fraction bits that a mean may have in addition to its input's: with more, sums are too long to divide exactly."""
KEEPS = ("Relu", "MaxPool", "Upsample")
"""Operators that keep their input's format, because they only select or move values."""


@dataclass(frozen=True, slots=True)
class Formats:
    """The format of each value, by its name, and of each weight, by the name of its layer."""

    values: Mapping[str, Format]
    weights: Mapping[str, Format]


def needs_ranges(settings: Settings) -> bool:
    """Return whether the formats of activations depend on samples."""
    return settings.format in ("auto", "int8")


def choose_formats(program: Program, settings: Settings, ranges: Mapping[str, float]) -> Formats:
    """Return the formats of a program. `ranges` are the largest magnitudes of values, by name, if `needs_ranges`.

    Raise ConstantsRefused for a value or weight that no format holds.
    """
    values: dict[str, Format] = {}
    for name in program.inputs:
        with _at(next((layer for layer in program.layers if name in layer.inputs), None)):
            values[name] = _value_format(name, settings, ranges)
    weights: dict[str, Format] = {}
    for layer in program.layers:
        with _at(layer):
            _choose(layer, settings, ranges, values, weights)
    return Formats(values, weights)


@contextmanager
def _at(layer: Layer | None) -> Generator[None]:
    """Add the graph's node to errors, so that the hub disables the device for that node, not for the whole cluster."""
    try:
        yield
    except ConstantsRefused as error:
        error.node = error.node or (layer.node if layer is not None else "") or None
        raise


def _choose(
    layer: Layer,
    settings: Settings,
    ranges: Mapping[str, float],
    values: dict[str, Format],
    weights: dict[str, Format],
) -> None:
    kept = layer.kind in KEEPS and needs_ranges(settings)
    values[layer.name] = values[layer.inputs[0]] if kept else _value_format(layer.name, settings, ranges)
    if layer.kind.endswith("AveragePool"):
        finest = values[layer.inputs[0]].fraction + FINER_MEAN
        values[layer.name] = replace(values[layer.name], fraction=min(values[layer.name].fraction, finest))
    if layer.weight is not None:
        weights[layer.name] = _weight_format(layer, layer.weight, values[layer.inputs[0]], settings)


def check_weights(program: Program, settings: Settings) -> None:
    """Raise ConstantsRefused for a weight that no format holds; unlike ranges, weights are known before any call."""
    for layer in program.layers:
        if layer.weight is not None:
            with _at(layer):
                _weight_format(layer, layer.weight, Q8_8, settings)


def _value_format(name: str, settings: Settings, ranges: Mapping[str, float]) -> Format:
    if not needs_ranges(settings):
        return Q8_8
    headroom = HEADROOM if settings.bits == 16 else 1.0
    return chosen(ranges[name], settings.bits, headroom=headroom, what=f"value {name}")


def _weight_format(layer: Layer, weight: torch.Tensor, source: Format, settings: Settings) -> Format:
    """Return the finest format of a weight for which its bias, added at the products' scale, still fits the accumulator."""
    if settings.format == "q8.8":
        return Q8_8
    what = f"the {'constant' if not layer.has_products else 'weight'} of {layer.kind} {layer.name}"
    found = chosen(_largest(weight), settings.bits, headroom=1.0, what=what)
    bias = 0.0 if layer.bias is None else _largest(layer.bias)
    if not math.isfinite(bias):
        raise ConstantsRefused(f"the bias of {layer.kind} {layer.name} holds NaN or infinity", backend="mdla")
    room = ACCUMULATOR_BITS - 2 - source.fraction - math.ceil(math.log2(bias)) if bias > 0 else MAX_FRACTION
    return Format(found.bits, max(0, min(found.fraction, room)))


def _largest(weight: torch.Tensor) -> float:
    return float(weight.abs().max()) if weight.numel() else 0.0
