"""Gives an executable's outputs the strides that eager's have, where they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from hub.capture.pins import is_dense
from hub.graph import TensorSpec
from hub.support import is_symbolic


def restrided(
    executable: Callable[..., Sequence[Any]], specs: Sequence[TensorSpec], outputs: Sequence[torch.Tensor]
) -> Callable[..., Sequence[Any]]:
    """Gives the executable, wrapped where `outputs` (of one call) show that its memory order is not eager's.

    Only dense layouts can be wanted: views with gaps are pinned to eager.
    """
    orders = [_missing_order(spec, output) for spec, output in zip(specs, outputs, strict=True)]
    if all(order is None for order in orders):
        return executable

    def run(*inputs: Any) -> Sequence[Any]:
        results = executable(*inputs)
        return [value if order is None else _laid_out(value, order) for value, order in zip(results, orders, strict=True)]

    return run


def _missing_order(spec: TensorSpec, output: torch.Tensor) -> tuple[int, ...] | None:
    """Gives the dims from the widest stride to the narrowest, ties in order; None where the output is laid out so."""
    if output.numel() < 2 or (strides := _strides(spec, output)) is None:
        return None
    wanted = torch.empty_strided(output.shape, strides, device="meta")
    if not is_dense(wanted) or _is_laid_out_as(wanted, output):
        return None
    return tuple(sorted(range(wanted.dim()), key=lambda dim: (-wanted.stride(dim), dim)))


def _strides(spec: TensorSpec, output: torch.Tensor) -> list[int] | None:
    """Gives the strides that eager's output has at the sizes of this one; None where they depend on other sizes, too."""
    sizes = {
        size.node.expr: sympy.Integer(found)
        for size, found in zip(spec.shape, output.shape, strict=True)
        if is_symbolic(size)
    }
    found = [step.node.expr.xreplace(sizes) if is_symbolic(step) else step for step in spec.stride]
    return list(map(int, found)) if all(isinstance(step, int) or step.is_Integer for step in found) else None


def _is_laid_out_as(wanted: torch.Tensor, output: torch.Tensor) -> bool:
    """True for equal strides where they matter."""
    steps = zip(output.shape, output.stride(), wanted.stride(), strict=True)
    return all(size == 1 or stride == want for size, stride, want in steps)


def _laid_out(value: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return value.permute(order).contiguous().permute(inverse)
