"""Keeps infinities, NaN and integers beyond 2^20 from executables that are right on usual inputs only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hub.errors import InputRefused
from hub.plugin.graph import Spec, TensorSpec
from hub.verification.inputs import USUAL_INTEGER, WIDE_INTEGERS

_EXPONENTS = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80}
"""Bits that are all set in infinities and NaN, for dtypes that NumPy sums slowly or does not know."""


def finite_only(executable: Callable[..., Sequence[Any]], specs: Sequence[Spec]) -> FiniteOnly:
    """Return the executable wrapped in a check of its inputs; `specs` are those of the cluster's inputs."""
    return FiniteOnly(executable, specs)


class FiniteOnly:
    """An executable that raises InputRefused if an input holds unusual values. Thread-safe."""

    __slots__ = ("__weakref__", "_away", "_floats", "_integers", "_on_cuda", "executable", "uses_openmp")

    def __init__(self, executable: Callable[..., Sequence[Any]], specs: Sequence[Spec]) -> None:
        self.executable = executable
        self.uses_openmp: bool = getattr(executable, "uses_openmp", False)
        tensors = {position: spec for position, spec in enumerate(specs) if isinstance(spec, TensorSpec)}
        floats = [at for at, spec in tensors.items() if spec.dtype.is_floating_point or spec.dtype.is_complex]
        integers = [position for position, spec in tensors.items() if spec.dtype in WIDE_INTEGERS]
        near = {position for position, spec in tensors.items() if spec.device.type == "cpu"}
        self._floats = tuple(position for position in floats if position in near)
        self._integers = tuple(position for position in integers if position in near)
        away = [position for position in (*floats, *integers) if position not in near]
        devices = dict.fromkeys(tensors[position].device for position in away)
        self._away = tuple(tuple(at for at in away if tensors[at].device == device) for device in devices)
        """Positions of the inputs on each accelerator."""
        self._on_cuda = torch.backends.cuda.is_built() and any(device.type == "cuda" for device in devices)

    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        """Run one call. Raises InputRefused before the executable gets such values, else what the executable raises."""
        if self._on_cuda and torch.cuda.is_current_stream_capturing():
            raise InputRefused("a CUDA graph is being recorded, during which infinities and NaN cannot be checked for")
        for position in self._floats:
            if not is_finite(inputs[position]):
                raise _refusal(position, is_float=True)
        for position in self._integers:
            if not is_usual(inputs[position]):
                raise _refusal(position, is_float=False)
        for positions in self._away:
            self._check_away(positions, inputs)
        return self.executable(*inputs)

    def _check_away(self, positions: Sequence[int], inputs: Sequence[Any]) -> None:
        """Check the inputs on one accelerator, and synchronize with it once: each read of a result stops its queue."""
        checks = torch.stack([_all_usual(inputs[position]) for position in positions])
        if not bool(checks.all()):
            position = next(at for at, check in zip(positions, checks.cpu(), strict=True) if not bool(check))
            raise _refusal(position, is_float=inputs[position].dtype not in WIDE_INTEGERS)

    def lift(self) -> None:
        """Disable the check: the executable has been found right on unusual inputs, too."""
        self._floats = self._integers = self._away = ()

    def dump(self, folder: Path) -> None:
        """Write the executable's own dump."""
        dump = getattr(self.executable, "dump", None)
        if dump is not None:
            dump(folder)


def _refusal(position: int, *, is_float: bool) -> InputRefused:
    what = "an infinity or NaN" if is_float else "integers beyond 2^20"
    return InputRefused(f"input {position} holds {what}, for which its results differ from eager's")


def _all_usual(value: torch.Tensor) -> torch.Tensor:
    """Return, as a tensor on the same device, whether all elements are finite, or are integers within 2^20."""
    if value.is_floating_point() or value.is_complex():
        return value.isfinite().all()
    return ((value <= USUAL_INTEGER) & (value >= -USUAL_INTEGER)).all()


def is_finite(value: torch.Tensor) -> bool:
    """Return whether all elements are finite. The sum shows it in one fast pass, unless it overflows.

    NumPy sums on this thread alone; PyTorch would wake OpenMP's threads, which busy-wait on the cores of other pools.
    """
    if value.device.type != "cpu" or value.dtype not in (torch.float32, torch.float64, *_EXPONENTS):
        return bool(_all_usual(value))
    plain = value.detach().resolve_neg()
    if (mask := _EXPONENTS.get(value.dtype)) is not None:
        bits = plain.view(torch.int16).numpy()
        return not bool(((bits & mask) == mask).any())
    array = plain.numpy()
    with np.errstate(all="ignore"):
        total = np.add.reduce(array, axis=None)
    return math.isfinite(total) or bool(np.isfinite(array).all())


def is_usual(value: torch.Tensor) -> bool:
    """Return whether all of an integer tensor's elements are within 2^20, and so are exact in any arithmetic."""
    if not value.numel():
        return True
    if value.device.type != "cpu":
        return bool(_all_usual(value))
    array = value.detach().numpy()
    return bool(array.max() <= USUAL_INTEGER and array.min() >= -USUAL_INTEGER)
