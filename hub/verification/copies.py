"""Copies of tensors with their memory layout: what is done to them, no other thread sees, and no other thread does."""

from __future__ import annotations

import contextlib
from typing import Any

import torch


def write_back(value: torch.Tensor, kept: torch.Tensor) -> None:
    """Write a copy of a tensor back into it. Expanded dimensions are one element in memory, and are written once."""
    once(value).copy_(once(kept, like=value))


def once(value: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """Return a view with one element of each dimension that is expanded, in `like` if that is given."""
    like = value if like is None else like
    for dim, stride in enumerate(like.stride() if like.layout is torch.strided else ()):
        if stride == 0 and value.shape[dim] > 1:
            value = value.narrow(dim, 0, 1)
    return value


def compact_copy(value: Any) -> Any:
    """Return a copy of a tensor with its memory layout, expanded dimensions included; return other values unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    with torch.inference_mode(False), torch.no_grad():  # a copy made in inference mode could not be written to outside it
        plain = value.detach()
        small = once(plain)
        with contextlib.suppress(RuntimeError):  # elements overlap in another way, or there are no strides
            copy = torch.empty_strided(small.size(), small.stride(), dtype=small.dtype, device=small.device)
            return copy.copy_(small).expand(plain.size())
        return plain.clone()
