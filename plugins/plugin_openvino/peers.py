"""OpenVINO as its own users run a PyTorch model, for comparison in `hub bench`. No hub code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import openvino as ov
import torch

from plugin_openvino.core import core


def whole(module: torch.nn.Module, inputs: Sequence[Any]) -> Callable[[], Any]:
    """Return a callable that runs the module once: exported, converted and compiled by OpenVINO for latency in float32."""
    with torch.no_grad():
        model = _converted(module, tuple(inputs))
    config = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    request = core().compile_model(model, "CPU", config).create_infer_request()
    arrays = [np.asarray(value.detach()) for value in inputs]
    return lambda: request.infer(arrays, share_inputs=True, share_outputs=True)


def _converted(module: torch.nn.Module, inputs: tuple[Any, ...]) -> ov.Model:
    """Convert with static shapes: from an exported program, or else by tracing, as in OpenVINO's guide."""
    try:
        return ov.convert_model(torch.export.export(module, inputs))  # pyright: ignore[reportUnknownMemberType] - OpenVINO's
    except Exception:  # noqa: BLE001 - exporters and frontends raise anything; tracing is the documented alternative
        shapes = [list(value.shape) for value in inputs]
        return ov.convert_model(module, example_input=inputs, input=shapes)  # pyright: ignore[reportUnknownMemberType] - OpenVINO's
