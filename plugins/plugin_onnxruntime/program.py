"""A cluster's compiled form before ORT loads it: an ONNX model, its large constants, and how values enter and leave it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto

NAME = "onnxruntime"
MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "weights.bin"
EDGES_FILE = "edges.json"
_PAGE = 4096
"""Bytes. Constants start at page boundaries in the file, so that ORT can map each one."""

Order = tuple[int, ...]
"""Dims of a tensor in memory order; empty if that is their own order."""


@dataclass(frozen=True, slots=True)
class Edges:
    """The edges of a cluster: how inputs enter the model and outputs leave it, one entry each, in the cluster's order."""

    inputs: tuple[str, ...]
    """ONNX names; "" for inputs that the model does not read."""
    outputs: tuple[str, ...]
    input_orders: tuple[Order, ...]
    """Memory orders of inputs. A permuted input enters in memory order, and the model transposes it."""
    output_orders: tuple[Order, ...]
    """Memory orders of outputs. A permuted output leaves in memory order, and is viewed back."""

    def to_json(self) -> str:
        """Return the edges as JSON."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_json(cls, text: str) -> Edges:
        """Read the edges from JSON. Raise ValueError or KeyError if the text is invalid."""
        found = json.loads(text)

        def orders(name: str) -> tuple[Order, ...]:
            listed: Sequence[Sequence[int]] = found[name]
            return tuple(map(tuple, listed))

        return cls(tuple(found["inputs"]), tuple(found["outputs"]), orders("input_orders"), orders("output_orders"))


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """An ONNX model whose large constants are named in it but stored outside it."""

    model: onnx.ModelProto
    weights: Mapping[str, torch.Tensor]
    """Contiguous CPU tensors, by initializer name; the model refers to `weights.bin`, which need not exist."""
    edges: Edges

    def save(self, folder: Path) -> None:
        """Write the model, the constants and the edges."""
        (folder / MODEL_FILE).write_bytes(self.model.SerializeToString())
        (folder / EDGES_FILE).write_text(self.edges.to_json())
        with (folder / WEIGHTS_FILE).open("wb") as file:
            for tensor in self.weights.values():
                file.seek(_aligned(file.tell()))
                content: Any = tensor.reshape(-1).view(torch.uint8).numpy()
                file.write(memoryview(content))


def outside(model: onnx.ModelProto, weights: Mapping[str, torch.Tensor], elements: Mapping[torch.dtype, int]) -> None:
    """Add initializers to a model, in place, that refer to the positions at which `Program.save` writes the constants."""
    offset = 0
    for name, tensor in weights.items():
        offset = _aligned(offset)
        reference = TensorProto(
            name=name, dims=tensor.shape, data_type=elements[tensor.dtype], data_location=TensorProto.EXTERNAL
        )
        for key, value in (("location", WEIGHTS_FILE), ("offset", offset), ("length", tensor.nbytes)):
            reference.external_data.add(key=key, value=str(value))
        model.graph.initializer.append(reference)
        offset += tensor.nbytes


def _aligned(offset: int) -> int:
    return -(-offset // _PAGE) * _PAGE
