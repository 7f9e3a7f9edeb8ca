"""Functions as modules, models that several files use, and inputs of other sizes for what was compiled from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hub.plugin.graph import Cluster


class Of(nn.Module):
    """A module made of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


class OneCluster(nn.Module):
    """A model that is one cluster, over [rows, 8]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) * 2


class Attention(nn.Module):
    """Causal attention with two heads over [batch, length, 16], with a length among the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.inner(self.norm(x)).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.outer(mixed.transpose(1, 2).reshape(batch, length, width)) * length


def sized(cluster: Cluster, x: torch.Tensor) -> list[Any]:
    """Return a cluster's inputs for one tensor; numbers are its sizes, told apart by their symbols."""
    spec = next(spec for spec in cluster.inputs if hasattr(spec, "shape"))
    sizes = {str(symbol): size for symbol, size in zip(spec.shape, x.shape, strict=True)}
    return [x if hasattr(other, "shape") else sizes[str(other.value)] for other in cluster.inputs]
