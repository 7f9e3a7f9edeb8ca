"""The accuracy of fixed point, layer by layer: formats, saturation, error, signal to noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .fixed import Format
from .floating import run_floating
from .formats import Formats
from .program import Program
from .simulator.device import Simulator


@dataclass(frozen=True, slots=True)
class LayerAccuracy:
    """The accuracy of one value of the program, against a run in float64."""

    name: str
    kind: str
    format: Format
    weights: Format | None
    """The format of its weight; None if it has none."""
    saturated: int
    mean: float
    """Mean |error| over max |reference|."""
    largest: float
    """Max |error| over max |reference|."""
    noise_db: float
    """Signal to noise in dB; infinite if there is no error."""


def measured(
    name: str,
    kind: str,
    form: Format,
    saturated: int,
    got: torch.Tensor,
    want: torch.Tensor,
    *,
    weights: Format | None = None,
) -> LayerAccuracy:
    """Compare a value with its reference."""
    error, scale = (got.double() - want.double()).abs(), float(want.abs().max()) or 1.0
    noise, signal = float(error.square().sum()), float(want.double().square().sum())
    ratio = math.inf if noise == 0 else 10 * math.log10(max(signal, 1e-300) / noise)
    mean, largest = float(error.mean()) / scale, float(error.max()) / scale
    return LayerAccuracy(name, kind, form, weights, saturated, mean, largest, ratio)


def accuracies(program: Program, formats: Formats, inputs: Sequence[torch.Tensor]) -> tuple[LayerAccuracy, ...]:
    """Return the accuracy of every layer on inputs of device shapes, against a run in float64."""
    got, saturated = Simulator(program, formats).run_all(inputs)
    want = run_floating(program, [value.double() for value in inputs])
    kinds = {**dict.fromkeys(program.inputs, "input"), **{layer.name: layer.kind for layer in program.layers}}
    return tuple(
        measured(
            name,
            kind,
            formats.values[name],
            saturated.get(name, 0),
            got[name],
            want[name],
            weights=formats.weights.get(name),
        )
        for name, kind in kinds.items()
    )


def report(program: Program, formats: Formats, inputs: Sequence[torch.Tensor]) -> str:
    """Return the report as a table, with advice if values saturate."""
    found = accuracies(program, formats, inputs)
    name_width = max(5, *(len(item.name) for item in found))
    kind_width = max(8, *(len(item.kind) for item in found))
    lines = [
        f"{'value':<{name_width}}  {'operator':<{kind_width}}  {'format':<8} {'weights':<8} {'saturated':>9} {'mean %':>8} "
        f"{'max %':>8} {'SNR dB':>7}"
    ]
    lines += [
        f"{item.name:<{name_width}}  {item.kind:<{kind_width}}  {item.format!s:<8} {item.weights or ''!s:<8} "
        f"{item.saturated:>9} {100 * item.mean:>8.3f} {100 * item.largest:>8.3f} {item.noise_db:>7.1f}"
        for item in found
    ]
    full = [item.name for item in found if item.saturated]
    if full:
        lines.append(f"saturated: {', '.join(full)}; calibrate on samples with their range, or use HUB_MDLA_FORMAT=auto")
    if cut := Simulator(program, formats).weights_saturated:
        lines.append(f"weights saturated: {', '.join(cut)}; HUB_MDLA_FORMAT=auto or varfp gives them formats of their own")
    return "\n".join((*lines, ""))
