"""PyTorch's private names that this plugin uses, each with the reason. Without one of them DISC is slower, not wrong."""

from __future__ import annotations

from typing import Any

import torch

_C: Any = torch._C  # pyright: ignore[reportPrivateUsage] - its stub lacks some of these
_guards: Any = _C._dynamo.guards

storage_use_count: Any = getattr(_C, "_storage_Use_Count", None)
"""The number of tensors, in Python and in C++, that use a storage. PyTorch's CUDA graphs check it before they write to
theirs. Python counts its own references only. None if this PyTorch lacks it: no memory is kept then."""
TensorGuards: Any = getattr(_guards, "TensorGuards", None)
"""Dynamo's own guards of tensors: they check dtype, device, sizes, strides and the negative bit of all inputs in one
call, which takes 0.15 us instead of 0.35 us for each. None if this PyTorch lacks them."""
