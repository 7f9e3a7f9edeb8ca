"""How products read float32: tf32 is for users who asked for it."""

from __future__ import annotations

import torch

from .kernel import IEEE, TF32

TF32_ERROR = 2e-3
"""Least granted error, max|error| / max|reference|, that covers tf32.

Both factors of a product are cut to 10 bits of fraction, an error of 2^-10 each. Sums with much cancellation may be off
by more; the output check finds those.
"""


def precision_of(device: torch.device, accuracy: float | None) -> str:
    """Return how products of float32 are computed on a device.

    Eager itself computes in tf32 on NVIDIA's GPUs after `torch.set_float32_matmul_precision("high")`, or "medium";
    `accuracy` is the error that the user has granted. The interpreter and AMD's GPUs have no tf32 here.
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return IEEE
    is_eagers = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return TF32 if is_eagers or (accuracy is not None and accuracy >= TF32_ERROR) else IEEE
