"""Write a program as an ONNX model of opset 9: the newest with Upsample, which the device takes and later ones lack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from .program import Layer, Program

OPSET = 9
_IR_VERSION = 4
"""The first version in which initializers need not be inputs, too."""


def onnx_model(program: Program) -> onnx.ModelProto:
    """Return the model: operators of `KINDS` only, weights as initializers. Inputs among the outputs are left out."""
    builder = _Builder()
    for layer in program.layers:
        builder.take(layer)
    shapes = program.shapes
    graph = helper.make_graph(
        builder.nodes,
        "mdla",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in program.inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in device_outputs(program)],
        builder.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="compiler-hub")
    model.ir_version = _IR_VERSION
    return model


def device_outputs(program: Program) -> tuple[str, ...]:
    """Return the names of the outputs that layers compute, each once, in order."""
    return tuple(dict.fromkeys(name for name in program.outputs if name not in program.inputs))


class _Builder:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def take(self, layer: Layer) -> None:
        inputs = [*layer.inputs, *(_WEIGHTS.get(layer.kind, _operands)(self, layer))]
        attributes = _ATTRIBUTES[layer.kind](layer) if layer.kind in _ATTRIBUTES else {}
        self.nodes.append(helper.make_node(layer.kind, inputs, [layer.name], name=layer.name, **attributes))

    def weight(self, name: str, value: torch.Tensor) -> str:
        array = value.detach().contiguous().numpy().astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name


def _operands(builder: _Builder, layer: Layer) -> list[str]:
    found = [] if layer.weight is None else [builder.weight(f"{layer.name}.weight", layer.weight)]
    return found if layer.bias is None else [*found, builder.weight(f"{layer.name}.bias", layer.bias)]


def _gemm(builder: _Builder, layer: Layer) -> list[str]:
    """Return the operands with a bias of zeros if there is none: Gemm of opset 9 requires its third operand."""
    assert layer.weight is not None
    bias = torch.zeros(layer.weight.shape[0]) if layer.bias is None else layer.bias
    return [builder.weight(f"{layer.name}.weight", layer.weight), builder.weight(f"{layer.name}.bias", bias)]


def _statistics(builder: _Builder, layer: Layer) -> list[str]:
    """Return scale and shift, which are `weight` and `bias`, then mean 0 and variance 1, which change nothing."""
    assert layer.weight is not None
    zeros, ones = torch.zeros_like(layer.weight), torch.ones_like(layer.weight)
    return [
        *_operands(builder, layer),
        builder.weight(f"{layer.name}.mean", zeros),
        builder.weight(f"{layer.name}.variance", ones),
    ]


def _scales(builder: _Builder, layer: Layer) -> list[str]:
    tall, wide = layer.attributes["scales"]
    return [builder.weight(f"{layer.name}.scales", torch.tensor([1.0, 1.0, tall, wide]))]


_WEIGHTS: Mapping[str, Callable[[_Builder, Layer], list[str]]] = {
    "Gemm": _gemm,
    "BatchNormalization": _statistics,
    "Upsample": _scales,
}


def _conv(layer: Layer) -> dict[str, Any]:
    assert layer.weight is not None
    found = layer.attributes
    return {
        "kernel_shape": list(layer.weight.shape[2:]),
        "strides": list(found["strides"]),
        "pads": list(found["pads"]),
        "dilations": list(found["dilations"]),
        "group": found["groups"],
    }


def _conv_transpose(layer: Layer) -> dict[str, Any]:
    return {**_conv(layer), "output_padding": list(layer.attributes["output_padding"])}


def _pool(layer: Layer) -> dict[str, Any]:
    found = layer.attributes
    return {"kernel_shape": list(found["kernel"]), "strides": list(found["strides"]), "pads": list(found["pads"])}


def _average(layer: Layer) -> dict[str, Any]:
    return {**_pool(layer), "count_include_pad": int(layer.attributes["count_include_pad"])}


_ATTRIBUTES: Mapping[str, Callable[[Layer], dict[str, Any]]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _pool,
    "AveragePool": _average,
    "Gemm": lambda _: {"transB": 1},
    "BatchNormalization": lambda _: {"epsilon": 0.0},
    "LeakyRelu": lambda layer: {"alpha": layer.attributes["alpha"]},
    "Concat": lambda layer: {"axis": layer.attributes["axis"]},
    "Upsample": lambda _: {"mode": "nearest"},
}
