"""The vector registers of this machine."""

from __future__ import annotations

from functools import cache

import torch


@cache
def lanes() -> int:
    """Return how many float32 one register holds: 16 with AVX-512, 8 with AVX2, 0 with neither."""
    capability = torch.backends.cpu.get_cpu_capability()
    return {"AVX512": 16, "AVX2": 8}.get(capability, 0)
