"""The computation of each operator, over real numbers or over integers in float64: the same function serves both.

Over integers every sum here is exact (below 2**53), so the order of summation, and with it the number of threads, does
not matter. Means are returned as sums; the caller divides them, because it knows whether to round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.nn import functional

from .program import Layer

Operands = Sequence[torch.Tensor]


def apply(layer: Layer, inputs: Operands, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
    """Return a layer's result before rounding; for AveragePool and GlobalAveragePool, the sum over each window.

    LeakyRelu, Sigmoid and Tanh, which are pointwise, are not covered.
    """
    return _FUNCTIONS[layer.kind](layer, inputs, weight, bias)


def window_counts(layer: Layer, shape: Sequence[int]) -> torch.Tensor:
    """Return the number of elements of an input of `shape` in each mean of a pooling layer, broadcastable to its result."""
    if layer.kind == "GlobalAveragePool":
        return torch.tensor(float(math.prod(shape[2:])), dtype=torch.float64)
    if layer.attributes["count_include_pad"]:
        return torch.tensor(float(math.prod(layer.attributes["kernel"])), dtype=torch.float64)
    return _window_sums(torch.ones(1, 1, *shape[2:], dtype=torch.float64), layer)


def _conv(layer: Layer, inputs: Operands, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
    assert weight is not None
    (x,), attributes = inputs, layer.attributes
    top, left, bottom, right = attributes["pads"]
    if top == bottom and left == right:
        padding = (top, left)
    else:
        x, padding = functional.pad(x, (left, right, top, bottom)), (0, 0)
    if attributes["groups"] == x.shape[1] and x.dtype == torch.float64 and x.shape[1] > 1:
        return _depthwise(functional.pad(x, (padding[1], padding[1], padding[0], padding[0])), weight, bias, layer)
    return functional.conv2d(x, weight, bias, attributes["strides"], padding, attributes["dilations"], attributes["groups"])


def _depthwise(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, layer: Layer) -> torch.Tensor:
    """Compute one or a few filters per channel by shifted products: PyTorch makes one float64 convolution per channel."""
    (down, right), (tall, wide) = layer.attributes["strides"], layer.attributes["dilations"]
    height, width = layer.shape[2:]
    times = weight.shape[0] // x.shape[1]
    x = x.repeat_interleave(times, 1) if times > 1 else x
    total = torch.zeros(layer.shape, dtype=x.dtype) if bias is None else bias.view(1, -1, 1, 1).expand(layer.shape).clone()
    for row in range(weight.shape[2]):
        for column in range(weight.shape[3]):
            top, left = row * tall, column * wide
            part = x[:, :, top : top + down * (height - 1) + 1 : down, left : left + right * (width - 1) + 1 : right]
            total.addcmul_(part, weight[:, 0, row, column].view(1, -1, 1, 1))
    return total


def _conv_transpose(layer: Layer, inputs: Operands, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
    assert weight is not None
    attributes = layer.attributes
    return functional.conv_transpose2d(
        inputs[0], weight, bias, attributes["strides"], attributes["pads"][:2], attributes["output_padding"],
        attributes["groups"], attributes["dilations"],
    )  # fmt: skip


def _gemm(layer: Layer, inputs: Operands, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG001 - one form
    assert weight is not None
    return functional.linear(inputs[0], weight, bias)


def _batch_norm(layer: Layer, inputs: Operands, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG001
    assert weight is not None and bias is not None
    form = (1, -1, *[1] * (inputs[0].dim() - 2))
    return inputs[0] * weight.view(form) + bias.view(form)


def _max_pool(layer: Layer, inputs: Operands, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG001
    top, left, bottom, right = layer.attributes["pads"]
    x = functional.pad(inputs[0], (left, right, top, bottom), value=-torch.inf)
    return functional.max_pool2d(x, layer.attributes["kernel"], layer.attributes["strides"])


def _window_sums(x: torch.Tensor, layer: Layer) -> torch.Tensor:
    top, left, bottom, right = layer.attributes["pads"]
    x = functional.pad(x, (left, right, top, bottom))
    return functional.avg_pool2d(x, layer.attributes["kernel"], layer.attributes["strides"], divisor_override=1)


def _average(layer: Layer, inputs: Operands, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG001
    return _window_sums(inputs[0], layer)


def _global_average(layer: Layer, inputs: Operands, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG001
    return inputs[0].sum((2, 3), keepdim=True)


def _relu(layer: Layer, inputs: Operands, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG001
    return inputs[0].clamp(min=0)


def _both(inputs: Operands, weight: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    if weight is not None:
        return inputs[0], weight
    return inputs[0], inputs[1]


def _add(layer: Layer, inputs: Operands, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG001
    return torch.add(*_both(inputs, weight))


def _mul(layer: Layer, inputs: Operands, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG001
    return torch.mul(*_both(inputs, weight))


def _concat(layer: Layer, inputs: Operands, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG001
    return torch.cat(list(inputs), layer.attributes["axis"])


def _upsample(layer: Layer, inputs: Operands, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG001
    tall, wide = layer.attributes["scales"]
    return inputs[0].repeat_interleave(tall, 2).repeat_interleave(wide, 3)


_FUNCTIONS: Mapping[str, Callable[[Layer, Operands, torch.Tensor | None, torch.Tensor | None], torch.Tensor]] = {
    "Add": _add,
    "AveragePool": _average,
    "BatchNormalization": _batch_norm,
    "Concat": _concat,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average,
    "MaxPool": _max_pool,
    "Mul": _mul,
    "Relu": _relu,
    "Upsample": _upsample,
}
