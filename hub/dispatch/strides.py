"""Gives an executable's outputs the strides that eager's have, where they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hub.capture.pins import is_dense
from hub.graph import TensorSpec, hint


def dims_by_stride(spec: TensorSpec) -> tuple[int, ...]:
    """Gives a dense spec's dims from the widest stride to the narrowest, ties in order."""
    return tuple(sorted(range(len(spec.shape)), key=lambda dim: (-hint(spec.stride[dim]), dim)))


def restrided(
    executable: Callable[..., Sequence[Any]], specs: Sequence[TensorSpec], outputs: Sequence[torch.Tensor]
) -> Callable[..., Sequence[Any]]:
    """Gives the executable, wrapped where `outputs` (of one call) show that its memory order is not eager's.

    Only dense layouts can be wanted: views with gaps are pinned to eager.
    """
    orders = [None if _fits(spec, output) else dims_by_stride(spec) for spec, output in zip(specs, outputs, strict=True)]
    if all(order is None for order in orders):
        return executable

    def run(*inputs: Any) -> Sequence[Any]:
        results = executable(*inputs)
        return [value if order is None else _laid_out(value, order) for value, order in zip(results, orders, strict=True)]

    return run


def _fits(spec: TensorSpec, output: torch.Tensor) -> bool:
    if output.numel() < 2:
        return True
    wanted = tuple(map(hint, spec.stride))
    return all(
        size == 1 or stride == want for size, stride, want in zip(output.shape, output.stride(), wanted, strict=True)
    ) or not _is_dense_spec(spec)


def _is_dense_spec(spec: TensorSpec) -> bool:
    return is_dense(
        torch.empty_strided([hint(size) for size in spec.shape], [hint(step) for step in spec.stride], device="meta")
    )


def _laid_out(value: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return value.permute(order).contiguous().permute(inverse)
