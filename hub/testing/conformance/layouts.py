"""Memory layouts of the same values: an executable may be called with any of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Layout = Callable[[torch.Tensor], torch.Tensor]


def as_they_are(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in its own memory with the same layout: strides, gaps and offset."""
    if not tensor.numel():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    storage = tensor.untyped_storage().clone()
    return tensor.new_empty(0).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the last two dims swapped in memory."""
    return _packed(tensor.mT).mT if tensor.dim() >= 2 else _packed(tensor)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """Return every second element of a larger tensor in the last dim; the gaps hold NaN, or the largest value."""
    if not tensor.dim():
        return tensor.clone()
    wide = _filled(tensor, (*tensor.shape[:-1], 2 * tensor.shape[-1] + 1))
    wide[..., 1::2] = tensor
    return wide[..., 1::2]


def offset(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy that begins at the fourth element of a larger buffer, so that its address is not aligned."""
    place = _filled(tensor, (tensor.numel() + 3,))
    place[3:] = tensor.reshape(-1)
    return place[3:].view(tensor.shape)


def backwards(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the dims in reverse order in memory."""
    dims = tuple(reversed(range(tensor.dim())))
    return _packed(tensor.permute(dims)).permute(dims)


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with channels last in memory, for four dims."""
    return tensor.clone(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor.clone()


LAYOUTS: Mapping[str, Layout] = {
    "transposed": transposed,
    "strided": strided,
    "offset": offset,
    "backwards": backwards,
    "channels last": channels_last,
}
"""Layouts that keep the values."""


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    """Return the first entry of the first dim with several, repeated with stride 0: unlike in `LAYOUTS`, values change."""
    dim = next((index for index, size in enumerate(tensor.shape) if size > 1), None)
    return tensor.clone() if dim is None else tensor.narrow(dim, 0, 1).clone().expand(tensor.shape)


def laid_out(inputs: Sequence[Any], layout: Layout) -> tuple[Any, ...]:
    """Return the inputs with each tensor in a layout, in its own memory."""
    return tuple(layout(value) if isinstance(value, torch.Tensor) else value for value in inputs)


def copied(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return the inputs in their own memory, with the same layout."""
    return laid_out(inputs, as_they_are)


def differ_in_layout(these: Sequence[Any], those: Sequence[Any]) -> bool:
    """Return whether any tensor has other strides, or another offset in its storage."""
    return any(
        this.stride() != that.stride() or this.storage_offset() != that.storage_offset()
        for this, that in zip(these, those, strict=True)
        if isinstance(this, torch.Tensor)
    )


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy; unlike `contiguous`, always a copy."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _filled(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    wide = tensor.new_empty(tuple(shape))
    if wide.dtype is torch.bool:
        return wide.fill_(True)
    if wide.is_floating_point():
        return wide.fill_(float("nan"))
    return wide.fill_(torch.iinfo(wide.dtype).max)
