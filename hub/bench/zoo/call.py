"""A wrapper that makes a model with keyword inputs and a structured output a function from tensors to one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Call(torch.nn.Module):
    """A module that calls `model` with its inputs under the given names, and returns one field of its output."""

    def __init__(self, model: torch.nn.Module, names: Sequence[str], output: str, **fixed: Any) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(names)
        self.output = output
        self.fixed = fixed

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Run the model once."""
        return getattr(self.model(**dict(zip(self.names, inputs, strict=True)), **self.fixed), self.output)
