"""Lowers pooling and resampling."""

from __future__ import annotations

import math
from typing import Any

import torch

from .call import Call, lowers
from .conv import spread


@lowers("max_pool1d.default", "max_pool2d.default", "max_pool3d.default", "max_pool2d_with_indices.default")
def max_pool(call: Call) -> str | tuple[str, ...]:
    """Return the largest element of each window, without positions."""
    result = _largest(call, value := call.input("self"))
    if call.hazards.may_hold_lowest(call["self"]):
        is_nan = _occurs(call, call.op("IsNaN", value))
        is_finite = _occurs(call, call.op("Greater", value, call.constant(-math.inf)))
        result = call.op("Where", is_finite, result, call.constant(-math.inf))
        result = call.op("Where", is_nan, call.constant(math.nan), result)
    return result if len(call.outs) == 1 else (result, "")


def _largest(call: Call, value: str) -> str:
    """Return the largest element of each window. It begins with the lowest number, and loses NaN and negative infinity."""
    return call.op("MaxPool", value, **_windows(call), dilations=spread(call["dilation"], _dims(call)))


def _occurs(call: Call, condition: str) -> str:
    """Return for each window whether a condition holds for an element."""
    number = call.builder.cast(condition, torch.bool, torch.float32)
    return call.op("Greater", _largest(call, number), call.constant(0.0, torch.float32))


@lowers("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def average_pool(call: Call) -> str:
    """Return the mean of each window."""
    return call.op("AveragePool", call.input("self"), **_windows(call), count_include_pad=int(call["count_include_pad"]))


def _dims(call: Call) -> int:
    return int(next(letter for letter in str(call.node.target) if letter.isdigit()))


def _windows(call: Call) -> dict[str, Any]:
    dims = _dims(call)
    kernel = spread(call["kernel_size"], dims)
    padding = spread(call["padding"], dims)
    strides = spread(call["stride"], dims) if call["stride"] else kernel
    return {"kernel_shape": kernel, "strides": strides, "pads": padding * 2, "ceil_mode": int(call["ceil_mode"])}


@lowers(
    "adaptive_avg_pool1d.default",
    "adaptive_avg_pool2d.default",
    "_adaptive_avg_pool2d.default",
    "adaptive_avg_pool3d.default",
)
def adaptive_average_pool(call: Call) -> str:
    """Return the means of equal windows, as many as requested."""
    sizes = list(call["output_size"])
    if all(size == 1 for size in sizes):
        return call.op("GlobalAveragePool", call.input("self"))
    kernel = [old // new for old, new in zip(call.shape("self")[-len(sizes) :], sizes, strict=True)]
    return call.op("AveragePool", call.input("self"), kernel_shape=kernel, strides=kernel)
