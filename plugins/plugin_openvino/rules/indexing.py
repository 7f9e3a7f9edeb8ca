"""Rules for operators that read by index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from openvino import Output
from torch import fx

from plugin_openvino.alarms import Alarm
from plugin_openvino.call import Call
from plugin_openvino.library import ops
from plugin_openvino.operands import constant, indices, output, size_of
from plugin_openvino.rules.elementwise import Rule
from plugin_openvino.rules.shapes import transposed

_I64 = torch.int64


def _embedding(call: Call) -> Any:
    return ops.gather(call.tensor("weight"), call.tensor("indices"), constant(0, _I64))


def _gather(call: Call) -> Any:
    return ops.gather_elements(call.tensor("self"), call.tensor("index"), call.dim("dim"))


def _one_hot(call: Call) -> Any:
    """Return 1 at each position and 0 elsewhere. A position out of range makes the call run in eager, which raises."""
    positions, count = call.tensor("self"), int(call.raw("num_classes"))
    first, end = constant(0, _I64), constant(count, _I64)
    is_out = ops.logical_or(ops.less(positions, first), ops.greater_equal(positions, end))
    call.raise_alarm_where(is_out, Alarm.OUT_OF_RANGE)
    return ops.one_hot(positions, end, constant(1, _I64), first, -1)


def _index_select(call: Call) -> Any:
    return ops.gather(call.tensor("self"), call.tensor("index"), constant(call.dim("dim"), _I64))


def _index(call: Call) -> Any:
    """Read elements at tensors of positions. One tensor is a gather; several are joined to coordinates first."""
    given: Sequence[fx.Node | None] = call.raw("indices")
    dims = [dim for dim, item in enumerate(given) if item is not None]
    positions = [call.value(item, _I64) for item in given if item is not None]
    if len(dims) == 1:
        return ops.gather(call.tensor("self"), positions[0], constant(dims[0], _I64))
    return _gather_coordinates(call, dims, positions)


def _gather_coordinates(call: Call, dims: Sequence[int], positions: Sequence[Output]) -> Any:
    """Move the indexed dims to the front, gather, and move the result's dims to ATen's positions."""
    rank, rest = call.fake("self").dim(), [dim for dim in range(call.fake("self").dim()) if dim not in dims]
    value = transposed(call.tensor("self"), [*dims, *rest])
    shape = reduce(_broadcast_shape, positions)
    parts = [_coordinate(call, value, axis, item, shape) for axis, item in enumerate(positions)]
    picked = output(ops.gather_nd(value, ops.concat(parts, -1)))
    are_adjacent = dims[-1] - dims[0] == len(dims) - 1
    lead = len([dim for dim in rest if dim < dims[0]]) if are_adjacent else 0
    width = call.result.dim() - (rank - len(dims))
    order = [*range(width, width + lead), *range(width), *range(width + lead, call.result.dim())]
    return transposed(picked, order)


def _broadcast_shape(left: Output, right: Output) -> Output:
    """Return a value with the shape to which two values broadcast."""
    return output(ops.add(left, right))


def _coordinate(call: Call, value: Output, axis: int, positions: Output, like: Output) -> Output:
    """Return positions along an axis as [.., 1], counted from the front (GatherND accepts no negative ones).

    GatherND reads memory outside the value at positions out of range: these raise the alarm.
    """
    zero, size = constant(0, _I64), size_of(value, axis)
    from_front = ops.select(ops.less(positions, zero), ops.add(positions, size), positions)
    is_out = output(ops.logical_or(ops.less(from_front, zero), ops.greater_equal(from_front, size)))
    call.raise_alarm_where(is_out, Alarm.OUT_OF_RANGE)
    spread = ops.broadcast(ops.select(is_out, zero, from_front), ops.shape_of(like))
    return output(ops.unsqueeze(spread, indices([-1])))


RULES: Mapping[str, Rule] = {
    "aten.embedding.default": _embedding,
    "aten.gather.default": _gather,
    "aten.one_hot.default": _one_hot,
    "aten.index_select.default": _index_select,
    "aten.index.Tensor": _index,
    "aten._unsafe_index.Tensor": _index,
}
