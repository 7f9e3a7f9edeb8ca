"""Rules for operators that reduce or scan dims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from openvino import Output

from hub.plugin import declared_arguments
from plugin_openvino.bounds import EXACT_IN_FLOAT32, largest
from plugin_openvino.call import Call
from plugin_openvino.library import ops
from plugin_openvino.operands import constant, convert, indices, output, size_of
from plugin_openvino.rules.elementwise import Rule, not_a_number, raise_alarm_beyond, within_int32

_F32, _I64 = torch.float32, torch.int64


def _axes(call: Call) -> Output:
    names = {declared.name for declared in declared_arguments(call.node)}
    return indices(call.dims("dim") if "dim" in names else range(call.fake("self").dim()))


def _keeps(call: Call) -> bool:
    names = {declared.name for declared in declared_arguments(call.node)}
    return bool(call.raw("keepdim")) if "keepdim" in names else False


def reduction(operation: Callable[..., Any], dtype: torch.dtype | None = None) -> Rule:
    """Return a rule for a reduction computed in `dtype`, or in the result's if that is None."""

    def rule(call: Call) -> Any:
        value = call.tensor("self", dtype or call.dtype)
        return operation(value, _axes(call), _keeps(call)) if call.fake("self").dim() else value

    return rule


def extreme(operation: Callable[..., Any]) -> Rule:
    """Return a rule for amax and amin."""
    return lambda call: _extreme(call, operation, call.tensor("self"), _axes(call), keeps=_keeps(call))


def _extreme(call: Call, operation: Callable[..., Any], value: Output, axes: Output, *, keeps: bool) -> Output:
    """Return the largest or smallest elements. If an element is NaN, so is the result, as in PyTorch.

    OpenVINO's may skip NaN, and returns the largest finite number where all elements are infinite.
    """
    result = operation(value, axes, keeps)
    if not call.fake("self").dtype.is_floating_point:
        _raise_alarm_where_inexact(call, value)
        return output(result)
    end = constant(float("-inf") if operation is ops.reduce_max else float("inf"), _F32)
    is_end = ops.reduce_logical_and(ops.equal(value, end), axes, keeps)
    has_nan = ops.reduce_logical_or(not_a_number(value), axes, keeps)
    return output(ops.select(has_nan, constant(float("nan"), _F32), ops.select(is_end, end, result)))


def place_of_extreme(operation: Callable[..., Any], *, gives_value: bool = False) -> Rule:
    """Return a rule for argmax and argmin: the first position of NaN, else of the extreme. Or for max and min with it."""

    def rule(call: Call) -> Any:
        value, is_flat = call.tensor("self"), call.raw("dim") is None
        rank = 1 if is_flat else call.fake("self").dim()
        value = output(ops.reshape(value, indices([-1]), False)) if is_flat else value
        dim = 0 if is_flat else call.dim("dim")
        axes, keeps = indices([dim]), _keeps(call) and not is_flat
        best = _extreme(call, operation, value, axes, keeps=True)
        is_best = output(ops.equal(value, best))
        if call.fake("self").dtype.is_floating_point:
            is_best = output(ops.logical_or(is_best, not_a_number(value)))
        size = output(ops.squeeze(size_of(value, dim), indices([0])))
        places = ops.range(constant(0, _I64), size, constant(1, _I64), "i64")
        column = ops.reshape(places, indices([-1, *[1] * (rank - dim - 1)]), False)
        place = output(ops.reduce_min(ops.select(is_best, column, size), axes, keeps))
        if is_flat and _keeps(call):
            place = output(ops.reshape(place, indices([1] * call.fake("self").dim()), False))
        if not gives_value:
            return place
        return (best if keeps else output(ops.squeeze(best, axes))), place

    return rule


def variance(value: Output, axes: Output, count: float, correction: float, *, keeps: bool) -> Output:
    """Return the variance over axes that hold `count` elements, in two passes, as PyTorch computes it."""
    centred = output(ops.subtract(value, ops.reduce_mean(value, axes, True)))
    total = ops.reduce_sum(ops.multiply(centred, centred), axes, keeps)
    return output(ops.divide(total, constant(max(count - correction, 0.0), _F32)))


def _variance(call: Call) -> Output:
    count = 1
    for dim in call.dims("dim"):
        count *= int(call.fake("self").shape[dim])
    given = call.raw("correction")
    return variance(call.tensor("self"), _axes(call), count, 1.0 if given is None else float(given), keeps=_keeps(call))


def _deviation(call: Call) -> Any:
    return ops.sqrt(_variance(call))


def _var_mean(call: Call) -> Any:
    return _variance(call), output(ops.reduce_mean(call.tensor("self"), _axes(call), _keeps(call)))


def _vector_norm(call: Call) -> Any:
    operation = ops.reduce_l2 if call.raw("ord") == 2 else ops.reduce_l1
    return operation(call.tensor("self"), _axes(call), _keeps(call))


def _logsumexp(call: Call) -> Any:
    """Subtract the largest element first, unless it is infinite: infinity minus infinity is NaN."""
    value, axes = call.tensor("self"), _axes(call)
    highest = output(ops.reduce_max(value, axes, True))
    is_infinite = ops.equal(ops.abs(highest), constant(float("inf"), _F32))
    highest = output(ops.select(is_infinite, constant(0, _F32), highest))
    total = ops.log(ops.reduce_sum(ops.exp(ops.subtract(value, highest)), axes, True))
    result = output(ops.add(total, highest))
    return result if _keeps(call) else ops.squeeze(result, axes)


def _cumsum(call: Call) -> Any:
    value = call.tensor("self", call.dtype)
    axis = constant(call.dim("dim"), torch.int64)

    def summed(each: Output) -> Any:
        return ops.cum_sum(each, axis)

    return within_int32(call, summed, value) if call.fake("self").dim() else value


def _sum(call: Call) -> Any:
    """Return the sum, which OpenVINO computes in float32 for integers: sums that are not exact in it raise an alarm."""
    value = call.tensor("self", call.dtype)
    if not call.fake("self").dim():
        return value
    if not call.dtype.is_floating_point and not _are_few_bools(call.fake("self")):
        absolute = ops.abs(convert(value, _F32))
        raise_alarm_beyond(call, output(ops.reduce_sum(absolute, _axes(call), False)), EXACT_IN_FLOAT32)
    return ops.reduce_sum(value, _axes(call), _keeps(call))


def _are_few_bools(value: torch.Tensor) -> bool:
    """Return whether a sum counts so few that float32 has their number."""
    sizes: list[Any] = list(value.shape)  # some may be symbols
    is_known = all(isinstance(size, int) for size in sizes)
    return value.dtype is torch.bool and is_known and prod(sizes) < EXACT_IN_FLOAT32


def _raise_alarm_where_inexact(call: Call, value: Output) -> None:
    if largest(call.raw("self")) > EXACT_IN_FLOAT32:
        raise_alarm_beyond(call, value, EXACT_IN_FLOAT32)


def _diff(call: Call) -> Any:
    dim = call.dim("dim")
    parts = [part for part in (call.optional("prepend"), call.tensor("self"), call.optional("append")) if part is not None]
    whole = output(ops.concat(parts, dim)) if len(parts) > 1 else parts[0]
    later = ops.slice(whole, indices([1]), indices([2**62]), indices([1]), indices([dim]))
    earlier = ops.slice(whole, indices([0]), indices([-1]), indices([1]), indices([dim]))
    if call.dtype is torch.bool:
        return ops.logical_xor(later, earlier)
    return within_int32(call, ops.subtract, output(later), output(earlier))


RULES: Mapping[str, Rule] = {
    "aten.sum.default": _sum,
    "aten.sum.dim_IntList": _sum,
    "aten.mean.default": reduction(ops.reduce_mean),
    "aten.mean.dim": reduction(ops.reduce_mean),
    "aten.any.default": reduction(ops.reduce_logical_or, torch.bool),
    "aten.any.dim": reduction(ops.reduce_logical_or, torch.bool),
    "aten.any.dims": reduction(ops.reduce_logical_or, torch.bool),
    "aten.all.default": reduction(ops.reduce_logical_and, torch.bool),
    "aten.all.dim": reduction(ops.reduce_logical_and, torch.bool),
    "aten.all.dims": reduction(ops.reduce_logical_and, torch.bool),
    "aten.amax.default": extreme(ops.reduce_max),
    "aten.amin.default": extreme(ops.reduce_min),
    "aten.max.default": extreme(ops.reduce_max),
    "aten.min.default": extreme(ops.reduce_min),
    "aten.argmax.default": place_of_extreme(ops.reduce_max),
    "aten.argmin.default": place_of_extreme(ops.reduce_min),
    "aten.max.dim": place_of_extreme(ops.reduce_max, gives_value=True),
    "aten.min.dim": place_of_extreme(ops.reduce_min, gives_value=True),
    "aten.var.correction": _variance,
    "aten.std.correction": _deviation,
    "aten.var_mean.correction": _var_mean,
    "aten.linalg_vector_norm.default": _vector_norm,
    "aten.logsumexp.default": _logsumexp,
    "aten.cumsum.default": _cumsum,
    "aten.diff.default": _diff,
}
