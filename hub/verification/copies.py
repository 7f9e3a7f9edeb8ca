"""Copies of tensors with their memory layout: what is done to them, no other thread sees, and no other thread does."""

from __future__ import annotations

import contextlib
from typing import Any

import torch


def compact_copy(value: Any) -> Any:
    """Return a copy of a tensor with its memory layout, expanded dimensions included; return other values unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    with torch.inference_mode(False), torch.no_grad():  # a copy made in inference mode could not be written to outside it
        plain = value.detach()
        once = plain
        for dim, stride in enumerate(plain.stride() if plain.layout is torch.strided else ()):
            if stride == 0 and plain.shape[dim] > 1:
                once = once.narrow(dim, 0, 1)
        with contextlib.suppress(RuntimeError):  # elements overlap in another way, or there are no strides
            copy = torch.empty_strided(once.size(), once.stride(), dtype=once.dtype, device=once.device)
            return copy.copy_(once).expand(plain.size())
        return plain.clone()
