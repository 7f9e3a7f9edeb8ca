"""Rules for operators that create tensors from numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hub.plugin import declared_arguments
from plugin_openvino.call import Call
from plugin_openvino.library import ops
from plugin_openvino.operands import constant
from plugin_openvino.rules.elementwise import Rule

_I64 = torch.int64


def filled(size: str, value: float | str) -> Rule:
    """Return a rule for a tensor of one number (or of the argument named `value`), with the size given by an argument."""

    def rule(call: Call) -> Any:
        number = call.tensor(value, call.dtype) if isinstance(value, str) else constant(value, call.dtype)
        return ops.broadcast(number, call.vector(call.raw(size)))

    return rule


def filled_like(value: float | str) -> Rule:
    """Return a rule for a tensor of one number (or of the argument named `value`), in the shape of `self`."""

    def rule(call: Call) -> Any:
        number = call.tensor(value, call.dtype) if isinstance(value, str) else constant(value, call.dtype)
        return ops.broadcast(number, ops.shape_of(call.tensor("self")))

    return rule


def _arange(call: Call) -> Any:
    names = {declared.name for declared in declared_arguments(call.node)}
    start = call.value(call.raw("start"), _I64) if "start" in names else constant(0, _I64)
    step = call.value(call.raw("step"), _I64) if "step" in names else constant(1, _I64)
    values = ops.range(start, call.value(call.raw("end"), _I64), step, "i64")
    return values if call.dtype is _I64 else ops.convert(values, "f32" if call.dtype is torch.float32 else "i32")


def _scalar_tensor(call: Call) -> Any:
    return call.value(call.raw("s"), call.dtype)


RULES: Mapping[str, Rule] = {
    "aten.arange.default": _arange,
    "aten.arange.start": _arange,
    "aten.arange.start_step": _arange,
    "aten.full.default": filled("size", "fill_value"),
    "aten.zeros.default": filled("size", 0),
    "aten.ones.default": filled("size", 1),
    "aten.new_full.default": filled("size", "fill_value"),
    "aten.new_zeros.default": filled("size", 0),
    "aten.new_ones.default": filled("size", 1),
    "aten.full_like.default": filled_like("fill_value"),
    "aten.zeros_like.default": filled_like(0),
    "aten.ones_like.default": filled_like(1),
    "aten.scalar_tensor.default": _scalar_tensor,
}
