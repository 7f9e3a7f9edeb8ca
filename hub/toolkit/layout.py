"""The order of a tensor's dims in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hub.plugin.graph import TensorSpec, priced_size
from hub.toolkit.sizes import Size, python_text, size_of


def memory_order(spec: TensorSpec) -> tuple[int, ...]:
    """Return the dims from outermost to innermost in memory if elements are packed in that order; otherwise unchanged."""
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


def gapped_strides(spec: TensorSpec, symbols: Mapping[Any, str]) -> tuple[Size, ...] | None:
    """Return the strides of a tensor with gaps or repeated elements in memory: slices, steps, expanded tensors.

    None if elements are packed, in any order of dims, if there are none, or if a stride depends on a symbol that is not
    among `symbols`.
    """
    sizes, strides = tuple(map(size_of, spec.shape)), tuple(map(size_of, spec.stride))
    if is_packed(spec) or 0 in sizes or not all(is_shown(stride, symbols) for stride in strides):
        return None
    return strides


def is_packed(spec: TensorSpec) -> bool:
    """Return whether elements lie without gaps, each once, in any order of dims."""
    return spec.is_contiguous or memory_order(spec) != tuple(range(len(spec.shape)))


def is_shown(size: Size, symbols: Mapping[Any, str]) -> bool:
    """Return whether a size can be computed from the given symbols."""
    try:
        python_text(size, symbols)
    except ValueError:
        return False
    return True


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """Return the inverse of a permutation."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))
