"""Constants at the alignment that Inductor assumes on GPUs."""

from __future__ import annotations

import torch

from hub.plugin import copied

ALIGNMENT = 16
"""Bytes. `torch._inductor.utils.ALIGNMENT`, which Inductor's Triton kernels assume of every constant."""


def for_device(constant: torch.Tensor) -> torch.Tensor:
    """Return a constant unchanged if it is on a CPU or starts at an aligned address; otherwise return an aligned copy."""
    return constant if constant.device.type == "cpu" or constant.layout is not torch.strided else aligned(constant)


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor unchanged if its address is aligned; otherwise an aligned copy with the same size and strides."""
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 or not tensor.numel() else copied(tensor)
