"""The order in which a tensor's dims lie in memory."""

from __future__ import annotations

from collections.abc import Sequence

from hub.graph import TensorSpec, priced_size


def memory_order(spec: TensorSpec) -> tuple[int, ...]:
    """Gives the dims from outermost in memory to innermost, if elements lie packed in that order; else as they are."""
    dims = tuple(range(len(spec.shape)))
    sizes, strides = tuple(map(priced_size, spec.shape)), tuple(map(priced_size, spec.stride))
    order = tuple(sorted(dims, key=lambda dim: (-strides[dim], -sizes[dim], dim)))
    step = 1
    for dim in reversed(order):
        if sizes[dim] != 1 and strides[dim] != step:
            return dims
        step *= sizes[dim]
    if 0 in sizes or spec.is_contiguous:
        return dims
    return order


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """Gives the order that undoes one."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))
