"""Constants at addresses that Inductor takes for granted on GPUs."""

from __future__ import annotations

import torch

from hub.plugin import copied

ALIGNMENT = 16
"""Bytes: `torch._inductor.utils.ALIGNMENT`, which its Triton kernels assume of every constant."""


def for_device(constant: torch.Tensor) -> torch.Tensor:
    """Return a constant as it is on CPUs, and elsewhere where it starts at an aligned address; else an aligned copy."""
    return constant if constant.device.type == "cpu" or constant.layout is not torch.strided else aligned(constant)


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor itself where it starts at an aligned address, else a copy of the same size and strides that does."""
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 or not tensor.numel() else copied(tensor)
