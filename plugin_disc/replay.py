"""Replay of a recorded cluster, compared with eager."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hub.plugin import Cluster, CompileSettings
from hub.testing.conformance.judge import eager, exact, value_problem

from .recording import made_up_inputs, read_cluster, read_inputs
from .runtime import CALL_FILE, DiscExecutable, build, restore


@dataclass(frozen=True)
class Replay:
    """The result of a replay."""

    lines: tuple[str, ...]
    """Lines for people: the cluster, the origin of code and inputs, and each output's difference."""
    problem: str
    """The error of an output that exceeds its tolerance; "" if none does."""


def replay(folder: Path, *, is_compiled: bool) -> Replay:
    """Run the cluster in a debug folder: its saved machine code, or newly compiled code. The folder has to be trusted.

    Raise RunError if nothing is recorded or the call fails, and CompileError if the code cannot be compiled or loaded.
    """
    cluster = read_cluster(folder)
    is_saved = (folder / CALL_FILE).is_file() and not is_compiled
    executable = restore(folder, cluster) if is_saved else build(cluster, CompileSettings(threads=torch.get_num_threads()))
    recorded = read_inputs(folder)
    inputs = made_up_inputs(cluster) if recorded is None else recorded
    code = "saved machine code" if is_saved else "newly compiled code"
    origin = "made-up inputs, no call was recorded" if recorded is None else "recorded inputs"
    return _compared(cluster, executable, inputs, f"cluster {cluster.name}: {code}, {origin}")


def _compared(cluster: Cluster, executable: DiscExecutable, inputs: tuple[Any, ...], title: str) -> Replay:
    outputs, wanted = tuple(executable(*inputs)), eager(cluster, inputs)
    problem = value_problem(outputs, wanted, exact(cluster, inputs))
    lines = [_line(*item) for item in zip(cluster.output_names, outputs, wanted, strict=True)]
    return Replay((title, *lines, f"not as eager: {problem}" if problem else "as exact as eager"), problem)


def _line(name: str, output: torch.Tensor, wanted: torch.Tensor) -> str:
    """Return the difference of one output from eager's; NaN and infinities count unless eager has them too."""
    head = f"{name}  {str(output.dtype).removeprefix('torch.')}{list(output.shape)}"
    left, right = output.double(), wanted.double()
    is_same = (left == right) | (left.isnan() & right.isnan())
    if bool(is_same.all()):
        return f"{head}  equal"
    apart = (left - right).abs().masked_fill(is_same, 0.0)
    finite = right.abs()[right.isfinite()]
    scale = float(finite.max()) if finite.numel() else 0.0
    share = f", {float(apart.max()) / scale:.2g} of the largest" if scale else ""
    return f"{head}  {int((~is_same).sum())} of {output.numel()} differ, by at most {float(apart.max()):.3g}{share}"
