"""Keeps infinities and NaN from executables that are right on finite inputs only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hub.errors import InputRefused
from hub.graph import Spec, TensorSpec

_EXPONENTS = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80}
"""Bits that are all set in infinities and NaN, for dtypes that NumPy adds up slowly or does not know."""


def finite_only(executable: Callable[..., Sequence[Any]], specs: Sequence[Spec]) -> FiniteOnly:
    """Gives the executable behind a check of its floating inputs; `specs` are those of the cluster's inputs."""
    return FiniteOnly(executable, specs)


class FiniteOnly:
    """An executable whose calls raise InputRefused where a floating input holds an infinity or NaN. Safe in any thread."""

    __slots__ = ("_executable", "_positions")

    def __init__(self, executable: Callable[..., Sequence[Any]], specs: Sequence[Spec]) -> None:
        self._executable = executable
        self._positions = tuple(
            position for position, spec in enumerate(specs) if isinstance(spec, TensorSpec) and spec.dtype.is_floating_point
        )

    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        """Runs one call. Raises InputRefused before the executable sees such values, else what the executable raises."""
        for position in self._positions:
            if not is_finite(inputs[position]):
                raise InputRefused(f"input {position} holds an infinity or NaN, for which its results differ from eager's")
        return self._executable(*inputs)

    def dump(self, folder: Path) -> None:
        """Writes what the executable itself writes."""
        dump = getattr(self._executable, "dump", None)
        if dump is not None:
            dump(folder)


def is_finite(value: torch.Tensor) -> bool:
    """Says whether all elements are finite. The sum tells in one fast pass, unless it overflows.

    NumPy adds up on this thread alone: PyTorch would wake OpenMP's threads, which spin on the cores of other pools.
    """
    if value.device.type != "cpu" or value.dtype not in (torch.float32, torch.float64, *_EXPONENTS):
        return bool(value.isfinite().all())
    plain = value.detach().resolve_neg()
    if (mask := _EXPONENTS.get(value.dtype)) is not None:
        bits = plain.view(torch.int16).numpy()
        return not bool(((bits & mask) == mask).any())
    array = plain.numpy()
    with np.errstate(all="ignore"):
        total = np.add.reduce(array, axis=None)
    return math.isfinite(total) or bool(np.isfinite(array).all())
