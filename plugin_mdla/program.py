"""The accelerator's programs: a list of layers in execution order, each one ONNX operator that it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Shape = tuple[int, ...]

KINDS = (
    "Add",
    "AveragePool",
    "BatchNormalization",
    "Concat",
    "Conv",
    "ConvTranspose",
    "Gemm",
    "GlobalAveragePool",
    "LeakyRelu",
    "MaxPool",
    "Mul",
    "Relu",
    "Sigmoid",
    "Tanh",
    "Upsample",
)
"""ONNX operators that the device takes."""


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One operator, with the names of its activations and with its weights."""

    kind: str
    name: str
    """The name of its result."""
    inputs: tuple[str, ...]
    shape: Shape
    """The shape of its result on the device: [N, C, H, W] or [N, C]."""
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    weight: torch.Tensor | None = None
    """Conv [O, I/groups, kh, kw]; ConvTranspose [I, O/groups, kh, kw]; Gemm [O, I]; BatchNormalization the scale [C]; for
    Add and Mul a constant operand that broadcasts."""
    bias: torch.Tensor | None = None
    """Conv, ConvTranspose and Gemm [O]; BatchNormalization the shift [C]."""
    node: str = ""
    """The graph's node that the result is the value of; empty for an intermediate step."""

    @property
    def has_products(self) -> bool:
        """Return whether activations are multiplied by weights and added up."""
        return self.kind in ("Conv", "ConvTranspose", "Gemm", "BatchNormalization")

    @property
    def macs(self) -> int:
        """Number of multiply-accumulates of one run; one per element if nothing is added up."""
        if self.weight is None or not self.has_products:
            return math.prod(self.shape)
        if self.kind == "ConvTranspose":
            return math.prod(self.attributes["input_shape"]) * math.prod(self.weight.shape[1:])
        if self.kind == "BatchNormalization":
            return math.prod(self.shape)
        return math.prod(self.shape) * math.prod(self.weight.shape[1:])


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Layers with their inputs and outputs, as they are on the device."""

    inputs: Mapping[str, Shape]
    """Device shapes of the inputs, in call order."""
    layers: tuple[Layer, ...]
    outputs: tuple[str, ...]
    """Names of the results, in order; a name may occur twice, or be an input's."""

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Device shapes of all values."""
        return {**self.inputs, **{layer.name: layer.shape for layer in self.layers}}

    @property
    def inshapes(self) -> str:
        """Shapes of the inputs as the device's compiler reads them: "1x3x224x224;1x10"."""
        return ";".join("x".join(map(str, shape)) for shape in self.inputs.values())
