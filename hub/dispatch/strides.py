"""Lay an executable's outputs out with the strides of eager's outputs, if they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hub.capture.pins import is_dense


def restrided(
    executable: Callable[..., Sequence[Any]], outputs: Sequence[torch.Tensor], strides: Sequence[tuple[int, ...]]
) -> Callable[..., Sequence[Any]]:
    """Return the executable, wrapped if `outputs` (of one call) do not have eager's `strides`.

    Only dense layouts can be requested: views with gaps are pinned to eager. The strides of fake tensors are not used: for
    some operators they differ from those of the kernels (for example, `max_unpool2d` of channels-last inputs).
    """
    orders = [_missing_order(output, wanted) for output, wanted in zip(outputs, strides, strict=True)]
    if all(order is None for order in orders):
        return executable

    def run(*inputs: Any) -> Sequence[Any]:
        results = executable(*inputs)
        return [value if order is None else _laid_out(value, order) for value, order in zip(results, orders, strict=True)]

    return run


def _missing_order(output: torch.Tensor, strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the dims from the widest stride to the narrowest, ties in order; None if the output already matches."""
    if output.numel() < 2:
        return None
    wanted = torch.empty_strided(output.shape, strides, device="meta")
    if not is_dense(wanted) or _is_laid_out_as(wanted, output):
        return None
    return tuple(sorted(range(wanted.dim()), key=lambda dim: (-wanted.stride(dim), dim)))


def _is_laid_out_as(wanted: torch.Tensor, output: torch.Tensor) -> bool:
    """Return True for equal strides in all dims where they matter."""
    steps = zip(output.shape, output.stride(), wanted.stride(), strict=True)
    return all(size == 1 or stride == want for size, stride, want in steps)


def _laid_out(value: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return value.permute(order).contiguous().permute(inverse)
