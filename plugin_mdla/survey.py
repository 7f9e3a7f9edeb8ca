"""A whole model on the software device: the accuracy of every layer, and the predicted time on the board."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hub.plugin import EAGER, CompileSettings, extract, group_alone
from hub.testing.single import capture

from .backend import Mdla
from .settings import read_settings


def survey(module: torch.nn.Module, inputs: Sequence[Any], calibration: Path | None) -> str:
    """Return a report with each group's accuracy on `inputs`, its predicted time, and the refusals of nodes."""
    captured = capture(module, inputs)
    settings = read_settings().model_copy(update={"simulator": True})
    if calibration is not None:
        settings = settings.model_copy(update={"calibration": str(calibration)})
    backend = Mdla(settings)
    groups, refusals = group_alone(captured.graph, "mdla", backend.supports)
    values = dict(zip((node.name for node in captured.graph.placeholders), captured.inputs, strict=True))
    texts: list[str] = []
    for index, item in enumerate(groups):
        cluster = extract(captured.graph, item.nodes, f"group{index}", captured.weights)
        given = [values[name] for name in cluster.input_names]
        with torch.no_grad():
            values |= dict(zip(cluster.output_names, cluster.module(*given), strict=True))
        if item.backend == EAGER:
            continue
        texts.append(f"group{index}: {backend.explain(cluster, CompileSettings(threads=1), given)}")
    return "\n".join((*texts, *(f"not taken: {reason}" for reason in refusals), ""))
