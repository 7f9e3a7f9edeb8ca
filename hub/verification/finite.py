"""Keeps infinities, NaN and integers beyond 2^20 from executables that are right on usual inputs only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hub.errors import InputRefused
from hub.graph import Spec, TensorSpec
from hub.verification.inputs import USUAL_INTEGER, WIDE_INTEGERS

_EXPONENTS = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80}
"""Bits that are all set in infinities and NaN, for dtypes that NumPy adds up slowly or does not know."""


def finite_only(executable: Callable[..., Sequence[Any]], specs: Sequence[Spec]) -> FiniteOnly:
    """Gives the executable behind a check of its inputs; `specs` are those of the cluster's inputs."""
    return FiniteOnly(executable, specs)


class FiniteOnly:
    """An executable whose calls raise InputRefused where an input holds what is not usual. Safe from any thread."""

    __slots__ = ("_executable", "_floats", "_integers")

    def __init__(self, executable: Callable[..., Sequence[Any]], specs: Sequence[Spec]) -> None:
        self._executable = executable
        tensors = [(position, spec.dtype) for position, spec in enumerate(specs) if isinstance(spec, TensorSpec)]
        self._floats = tuple(position for position, dtype in tensors if dtype.is_floating_point)
        self._integers = tuple(position for position, dtype in tensors if dtype in WIDE_INTEGERS)

    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        """Runs one call. Raises InputRefused before the executable sees such values, else what the executable raises."""
        for position in self._floats:
            if not is_finite(inputs[position]):
                raise InputRefused(f"input {position} holds an infinity or NaN, for which its results differ from eager's")
        for position in self._integers:
            if not is_usual(inputs[position]):
                raise InputRefused(
                    f"input {position} holds integers beyond 2^20, for which its results differ from eager's"
                )
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


def is_usual(value: torch.Tensor) -> bool:
    """Says whether all of an integer tensor's elements lie within 2^20, and so are exact in any arithmetic."""
    if not value.numel():
        return True
    if value.device.type != "cpu":
        return bool(((value <= USUAL_INTEGER) & (value >= -USUAL_INTEGER)).all())
    array = value.detach().numpy()
    return bool(array.max() <= USUAL_INTEGER and array.min() >= -USUAL_INTEGER)
