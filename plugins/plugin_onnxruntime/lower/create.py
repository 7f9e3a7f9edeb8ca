"""Lowers operators that make tensors from sizes and numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from onnx import helper
from torch import fx

from .builder import ELEMENT
from .call import Call, all_static, lowers

_MAX_STORED = 1 << 16
"""Elements. Larger filled tensors are created at run time instead of being stored in the model."""


@lowers("full.default", "new_full.default", "full_like.default")
def full(call: Call) -> str:
    """Return one value everywhere."""
    return filled(call, call["fill_value"])


@lowers(
    "zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format", "empty_like.default",
    "new_empty.default",
)  # fmt: skip
def zeros(call: Call) -> str:
    """Return zeros, also for operators that allow any value."""
    return filled(call, 0)


@lowers("ones.default", "ones_like.default", "new_ones.default")
def ones(call: Call) -> str:
    """Return ones."""
    return filled(call, 1)


def filled(call: Call, value: Any) -> str:
    """Return a tensor of the first output's sizes and dtype with one value everywhere."""
    shape, dtype = call.out_shape, call.out_dtype
    if isinstance(value, fx.Node):
        return call.expand(call.as_dtype(value, dtype), (), shape)
    if all_static(shape) and math.prod(shape) <= _MAX_STORED:
        return call.builder.weight(torch.full(shape, value, dtype=dtype))
    element = torch.tensor([value], dtype=dtype).numpy().tobytes()
    content = helper.make_tensor("value", ELEMENT[dtype], [1], element, raw=True)
    return call.op("ConstantOfShape", call.builder.sizes(shape), value=content)


@lowers("scalar_tensor.default")
def scalar(call: Call) -> str:
    """Return a number as a 0-d tensor."""
    return call.typed("s")


@lowers("arange.default", "arange.start", "arange.start_step")
def arange(call: Call) -> str:
    """Return numbers from start to end at intervals of step; computed at compile time if nothing is symbolic."""
    names = call.declared
    start, end, step = (
        call[name] if name in names else default for name, default in (("start", 0), ("end", 0), ("step", 1))
    )
    if not any(isinstance(value, fx.Node) for value in (start, end, step)):
        return call.builder.weight(torch.arange(start, end, step, dtype=call.out_dtype))
    return call.op("Range", *(call.as_dtype(value, call.out_dtype) for value in (start, end, step)))


@lowers("linspace.default")
def linspace(call: Call) -> str:
    """Return evenly spaced numbers, computed at compile time."""
    return call.builder.weight(
        torch.linspace(call.number("start"), call.number("end"), call["steps"], dtype=call.out_dtype)
    )


@lowers("eye.default", "eye.m")
def eye(call: Call) -> str:
    """Return ones on the diagonal, computed at compile time."""
    return call.builder.weight(torch.eye(*call.out_shape, dtype=call.out_dtype))


@lowers("tril.default", "triu.default")
def triangle(call: Call) -> str:
    """Return one triangle of the last two dims, zeros elsewhere; ORT has no int32 kernel."""
    dtype = torch.int64 if call.out_dtype == torch.int32 else call.out_dtype
    value = call.typed("self", dtype)
    offset = call.builder.scalar_size(call.size(call["diagonal"]))
    upper = int("triu" in str(call.node.target))
    return call.builder.cast(call.op("Trilu", value, offset, upper=upper), dtype, call.out_dtype)


@lowers("one_hot.default")
def one_hot(call: Call) -> str:
    """Return a new last dim with 1 at each index; int64 as in PyTorch. ORT requires the index to have a dim.

    PyTorch raises for an index out of range, which OneHot wraps or leaves out; Gather raises, too, for one too large.
    """
    depth = call["num_classes"]
    value = call.input("self") if call.rank("self") else call.reshape(call.input("self"), (), (1,))
    is_below = call.op("Less", value, call.constant(0, call.dtype("self")))
    place = call.op("Where", is_below, call.constant(depth, call.dtype("self")), value)
    nothing = call.op("Gather", call.constant([0] * depth, torch.int64), place, axis=0)
    hot = call.op("OneHot", value, call.constant(depth, torch.int64), call.constant([0, 1], torch.int64), axis=-1)
    hot = call.op("Add", hot, call.unsqueeze(nothing, max(1, call.rank("self"))))
    return hot if call.rank("self") else call.reshape(hot, (1, depth), (depth,))
