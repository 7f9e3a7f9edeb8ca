"""The report on one cluster: size, predicted time, and accuracy layer by layer on given inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hub.plugin import CompileError

from .accuracy import report
from .calibration import with_bounds
from .floating import largest_values, run_floating
from .formats import choose_formats, needs_ranges
from .program import Program
from .settings import Settings
from .timing import bus_bytes, predicted_s


def evidence(program: Program, settings: Settings, ranges: Mapping[str, float] | None, inputs: Sequence[Any]) -> str:
    """Return the report on a cluster. `ranges` are the calibration file's; None takes them from `inputs`, with a note.

    Numbers are the software device's, on a board, too.
    """
    lines = [
        f"{len(program.layers)} layers, {sum(layer.macs for layer in program.layers) / 1e6:.1f} M products; "
        f"{1e3 * predicted_s(program, settings):.2f} ms predicted on the board, "
        f"{bus_bytes(program, value_bytes=settings.value_bytes)} bytes over its bus"
    ]
    if not program.layers:
        return f"{lines[0]}\n"
    shaped = [value.detach().reshape(shape) for value, shape in zip(inputs, program.inputs.values(), strict=True)]
    if needs_ranges(settings):
        lines.append(f"ranges: {settings.calibration}" if ranges is not None else _NO_CALIBRATION)
    try:
        formats = choose_formats(program, settings, _ranges(program, shaped) if ranges is None else ranges)
    except CompileError as error:
        return "\n".join((*lines, f"{error}", ""))
    return "\n".join((*lines, report(program, formats, shaped)))


_NO_CALIBRATION = "ranges: these inputs; others may exceed them, `hub mdla calibrate` takes ranges from samples"


def _ranges(program: Program, inputs: Sequence[torch.Tensor]) -> Mapping[str, float]:
    return with_bounds(program, largest_values(run_floating(program, inputs)))
