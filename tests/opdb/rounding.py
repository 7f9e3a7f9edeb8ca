"""Rounds at random what every operator gives, to see how far the results of many roundings lie apart.

Source: Monte Carlo arithmetic (Parker 1997), in float64 with the roundings of a narrower dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Rounding(TorchDispatchMode):
    """Within it, floating-point results are moved by up to one rounding of a dtype; views and writes are left alone."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        """Round as a dtype does: float32 if it is not floating."""
        super().__init__()
        self.eps = torch.finfo(dtype if dtype.is_floating_point else torch.float32).eps
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operator."""
        found = func(*args, **(kwargs or {}))
        schema = func._schema
        is_plain = not schema.is_mutable and all(result.alias_info is None for result in schema.returns)
        return pytree.tree_map_only(torch.Tensor, self._moved, found) if is_plain else found

    def _moved(self, value: torch.Tensor) -> torch.Tensor:
        if value.dtype is not torch.float64 or value.layout is not torch.strided:
            return value
        parts = torch.rand(value.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        return torch.where(value.isfinite(), value + value * parts * self.eps, value)
