"""Rules for operators that work element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from openvino import Output, Type
from torch import fx

from hub.plugin import declared_arguments, operator_name, value_of
from plugin_openvino.alarms import Alarm
from plugin_openvino.bounds import EXACT_IN_FLOAT32, largest
from plugin_openvino.call import Call
from plugin_openvino.library import ops
from plugin_openvino.operands import constant, convert, output

Rule = Callable[[Call], Any]


def promoted(left: Any, right: Any) -> torch.dtype:
    """Return the dtype in which PyTorch computes with two arguments (nodes or numbers)."""
    return torch.result_type(_stand_in(left), _stand_in(right))


def _stand_in(raw: Any) -> Any:
    """Return an empty tensor that promotes as the argument does: 0-d tensors and numbers have lower priority."""
    value = value_of(raw) if isinstance(raw, fx.Node) else raw
    if isinstance(value, torch.Tensor):
        return torch.empty([0] * min(1, value.dim()), dtype=value.dtype, device="meta")
    if isinstance(value, (bool, torch.SymBool)):
        return True
    return 1 if isinstance(value, (int, torch.SymInt)) else 1.0


def is_tensor(raw: Any) -> bool:
    """Return whether an argument is a tensor computed in the graph."""
    return isinstance(raw, fx.Node) and isinstance(value_of(raw), torch.Tensor)


def unary(operation: Callable[[Output], Any]) -> Rule:
    """Return a rule for `f(self)`, computed in the result's dtype."""
    return lambda call: operation(call.tensor("self", call.dtype))


def binary(operation: Callable[[Output, Output], Any], *, on_bools: Callable[[Output, Output], Any] | None = None) -> Rule:
    """Return a rule for `f(self, alpha * other)`, computed in the result's dtype; `on_bools` if that is bool."""

    def rule(call: Call) -> Any:
        left, right = call.tensor("self", call.dtype), call.tensor("other", call.dtype)
        if on_bools is not None and call.dtype is torch.bool:
            return on_bools(left, right)
        return within_int32(call, operation, left, _scaled(call, right))

    return rule


_ROOM = 2.0**16
"""A margin larger than float32's error for numbers in int32's range."""


def within_int32(call: Call, operation: Callable[..., Any], *values: Output) -> Output:
    """Compute `operation` in int64, which OpenVINO computes as int32: numbers that leave its range raise an alarm."""
    if call.dtype is torch.int64 and largest(call.node) > EXACT_IN_FLOAT32:
        wide = output(operation(*(convert(value, torch.float32) for value in values)))
        raise_alarm_beyond(call, wide, 2.0**31 - _ROOM)
    return output(operation(*values))


def raise_alarm_beyond(call: Call, value: Output, limit: float) -> None:
    """Make a call run eagerly if an element's absolute value reaches a limit."""
    call.raise_alarm_where(
        ops.logical_not(ops.less(ops.abs(convert(value, torch.float32)), constant(limit, torch.float32))),
        Alarm.BEYOND_INT32,
    )


def _scaled(call: Call, value: Output) -> Output:
    names = {declared.name for declared in declared_arguments(call.node)}
    if "alpha" not in names or call.raw("alpha") == 1:
        return value
    return output(ops.multiply(value, call.tensor("alpha", call.dtype)))


def comparison(operation: Callable[[Output, Output], Any]) -> Rule:
    """Return a rule for `self ? other` in the promoted dtype; bools compare as int32, for which every kernel exists.

    OpenVINO compares integers as float32, which is correct if one of the two is exact in it; otherwise it raises an alarm.
    """

    def rule(call: Call) -> Any:
        dtype = promoted(call.raw("self"), call.raw("other"))
        wide = torch.int32 if dtype is torch.bool else dtype
        if not dtype.is_floating_point and min(largest(call.raw(name)) for name in ("self", "other")) > EXACT_IN_FLOAT32:
            smaller = min(
                (name for name in ("self", "other") if is_tensor(call.raw(name))), key=lambda name: _rank(call, name)
            )
            raise_alarm_beyond(call, call.tensor(smaller), EXACT_IN_FLOAT32)
        return operation(call.tensor("self", wide), call.tensor("other", wide))

    return rule


def _rank(call: Call, name: str) -> int:
    return call.fake(name).dim()


def logical(operation: Callable[[Output, Output], Any]) -> Rule:
    """Return a rule for a logical operation on truth values."""
    return lambda call: operation(call.tensor("self", torch.bool), call.tensor("other", torch.bool))


def bitwise(on_bools: Callable[[Output, Output], Any], on_ints: Callable[[Output, Output], Any]) -> Rule:
    """Return a rule for a bitwise operation, which on bools is the logical one."""

    def rule(call: Call) -> Any:
        operation = on_bools if call.dtype is torch.bool else on_ints
        return operation(call.tensor("self", call.dtype), call.tensor("other", call.dtype))

    return rule


def not_a_number(value: Output) -> Output:
    """Return a mask of the floats that are NaN. OpenVINO's IsNaN runs on a slow reference kernel; a comparison fuses."""
    return output(ops.not_equal(value, value))


def extremum(operation: Callable[[Output, Output], Any]) -> Rule:
    """Return a rule for maximum and minimum. With NaN OpenVINO's return the second operand, PyTorch's return NaN."""

    def rule(call: Call) -> Any:
        left, right = call.tensor("self", call.dtype), call.tensor("other", call.dtype)
        result = output(operation(left, right))
        if not call.dtype.is_floating_point:
            return result
        result = output(ops.select(not_a_number(right), right, result))
        return ops.select(not_a_number(left), left, result)

    return rule


def clamped(low_name: str | None, high_name: str | None) -> Rule:
    """Return a rule for clamping between optional bounds. NaN stays NaN, as in PyTorch; OpenVINO's Clamp gives a bound."""

    def rule(call: Call) -> Any:
        value = result = call.tensor("self", call.dtype)
        bounds = [(low_name, ops.maximum), (high_name, ops.minimum)]
        given = [(call.optional(name, call.dtype), operation) for name, operation in bounds if name is not None]
        present = [(bound, operation) for bound, operation in given if bound is not None]
        for bound, operation in present:
            result = output(operation(result, bound))
        if not call.dtype.is_floating_point:  # OpenVINO merges two bounds into one Clamp, in float32
            for source in (value, *(bound for bound, _ in present)):
                raise_alarm_beyond(call, source, EXACT_IN_FLOAT32)
            return result
        tensors = [call.tensor(name, call.dtype) for name, _ in bounds if name is not None and is_tensor(call.raw(name))]
        for source in (value, *tensors):
            result = output(ops.select(not_a_number(source), source, result))
        return result

    return rule


def floor_quotient(left: Output, right: Output, dtype: torch.dtype) -> Output:
    """Return floor(left / right) of integers, exactly.

    OpenVINO divides integers in float32, which beyond 2^24 is wrong by up to 128; the remainder of that first guess is
    small enough for a second, exact division. Products may wrap, and wrap back.
    """
    guess = output(ops.divide(left, right))
    rest = output(ops.subtract(left, ops.multiply(guess, right)))
    better = output(ops.add(guess, ops.divide(rest, right)))
    rest = output(ops.subtract(left, ops.multiply(better, right)))
    nothing = constant(0, dtype)
    is_off = ops.logical_and(ops.not_equal(rest, nothing), ops.not_equal(ops.less(rest, nothing), ops.less(right, nothing)))
    return output(ops.subtract(better, convert(output(is_off), dtype)))


def _floor_divide(call: Call) -> Any:
    return floor_quotient(call.tensor("self", call.dtype), call.tensor("other", call.dtype), call.dtype)


def _remainder(call: Call) -> Any:
    left, right = call.tensor("self", call.dtype), call.tensor("other", call.dtype)
    return ops.subtract(left, ops.multiply(floor_quotient(left, right, call.dtype), right))


def _divide(call: Call) -> Any:
    """Return the quotient, in full precision if an operator with steps follows."""
    return _quotient(call, is_exact=_reaches_a_step(call.node))


def _quotient(call: Call, *, is_exact: bool) -> Output:
    """Return the quotient; if it is exact, it is rounded once, as in eager.

    OpenVINO makes of a division by a constant a product with its reciprocal. That is off by a rounding for many multiples
    of 41, for example, which `floor` makes a whole.
    """
    node = ops.divide(call.tensor("self", call.dtype), call.tensor("other", call.dtype))
    if is_exact:
        node.get_rt_info()["nonconvertable_divide_0"] = True  # as OpenVINO spells it
    return output(node)


_STEPS = frozenset({
    "ceil", "div", "eq", "floor", "floor_divide", "fmod", "frac", "ge", "gt", "le", "lt", "ne", "remainder", "round",
    "sign", "trunc", "_to_copy", "to", "type_as", "argmax", "argmin", "topk", "sort",
})  # fmt: skip
"""Names of operators whose results jump."""
_NEAR = 3
"""Number of operators after which a step no longer counts: other roundings have come between."""


def _reaches_a_step(node: fx.Node, near: int = _NEAR) -> bool:
    """Return whether an operator whose result jumps is at most some operators away, or may be: outside of the cluster."""
    if any(user.op == "output" for user in node.users):
        return True
    names = (operator_name(user).removeprefix("aten.").partition(".")[0] for user in node.users)
    return any(name in _STEPS for name in names) or (
        near > 1 and any(_reaches_a_step(user, near - 1) for user in node.users)
    )


def _power(call: Call) -> Any:
    value, exponent = call.tensor("self", call.dtype), call.raw("exponent")
    if exponent == 2:
        return ops.multiply(value, value)
    if exponent == 3:
        return ops.multiply(ops.multiply(value, value), value)
    if exponent == 0.5:
        return ops.sqrt(value)
    return ops.power(value, call.tensor("exponent", call.dtype))


def where(condition: str, yes: str, no: str) -> Rule:
    """Return a rule that selects between two arguments.

    Where integers are compared in the same model, OpenVINO computes these operands in float32, too.
    """

    def rule(call: Call) -> Any:
        values = call.tensor(yes, call.dtype), call.tensor(no, call.dtype)
        result = output(ops.select(call.tensor(condition, torch.bool), *values))
        is_whole = call.dtype in (torch.int32, torch.int64)
        if is_whole and max(largest(call.raw(yes)), largest(call.raw(no))) > EXACT_IN_FLOAT32:
            raise_alarm_beyond(call, result, EXACT_IN_FLOAT32)
        return result

    return rule


def _addcmul(call: Call) -> Any:
    product = ops.multiply(call.tensor("tensor1", call.dtype), call.tensor("tensor2", call.dtype))
    return ops.add(call.tensor("self", call.dtype), ops.multiply(product, call.tensor("value", call.dtype)))


def _addcdiv(call: Call) -> Any:
    quotient = ops.divide(call.tensor("tensor1", call.dtype), call.tensor("tensor2", call.dtype))
    return ops.add(call.tensor("self", call.dtype), ops.multiply(quotient, call.tensor("value", call.dtype)))


def _lerp(call: Call) -> Any:
    """Interpolate from the nearer end, as ATen does (ATen/native/Lerp.h): from the other one, large numbers cancel."""
    start, end, weight = (call.tensor(name, call.dtype) for name in ("self", "end", "weight"))
    distance = ops.subtract(end, start)
    from_start = output(ops.add(start, ops.multiply(weight, distance)))
    from_end = output(ops.subtract(end, ops.multiply(distance, ops.subtract(constant(1, call.dtype), weight))))
    given = call.raw("weight")
    if isinstance(given, (int, float)):
        return from_start if abs(given) < 0.5 else from_end
    return ops.select(ops.less(ops.abs(weight), constant(0.5, call.dtype)), from_start, from_end)


def _cast(call: Call) -> Any:
    """Convert to another dtype. To int64, floats beyond OpenVINO's int32 and NaN are marked."""
    value = call.tensor("self")
    if call.dtype is torch.int64 and value.get_element_type() == Type.f32:
        is_beyond = ops.logical_not(ops.less(ops.abs(value), constant(2.0**31, torch.float32)))
        call.mark(is_beyond)
        value = output(ops.select(is_beyond, constant(0, torch.float32), value))
    return convert(value, call.dtype)


def _rsub(call: Call) -> Any:
    left, right = call.tensor("other", call.dtype), _scaled(call, call.tensor("self", call.dtype))
    return within_int32(call, ops.subtract, left, right)


def _not(call: Call) -> Any:
    value = call.tensor("self")
    return ops.logical_not(value) if call.dtype is torch.bool else ops.bitwise_not(value)


def _absolute_is_infinite(call: Call) -> Any:
    return ops.equal(ops.abs(call.tensor("self")), constant(float("inf"), call.fake("self").dtype))


def _is_finite(call: Call) -> Any:
    return ops.less(ops.abs(call.tensor("self")), constant(float("inf"), call.fake("self").dtype))


def _divide_with_mode(call: Call) -> Any:
    return _divide(call) if call.raw("rounding_mode") is None else truncated(_quotient(call, is_exact=True))


def truncated(value: Output) -> Any:
    """Return the value rounded towards 0."""
    return ops.select(ops.less(value, constant(0, torch.float32)), ops.ceiling(value), ops.floor(value))


def _sign(value: Output) -> Any:
    """Return the sign, which is 0 for NaN in PyTorch."""
    if value.get_element_type() != Type.f32:
        return ops.sign(value)
    return ops.select(not_a_number(value), constant(0, torch.float32), ops.sign(value))


def _exp(value: Output) -> Any:
    """Return the exponential, with NaN for NaN: OpenVINO's Exp returns infinity."""
    return ops.select(not_a_number(value), value, ops.exp(value))


def _polynomial(coefficients: Sequence[float], value: Any) -> Output:
    """Return a polynomial of a value by Horner's rule, given its coefficients from the constant one on."""
    result = constant(coefficients[-1], torch.float32)
    for coefficient in coefficients[-2::-1]:
        result = output(ops.add(ops.multiply(result, value), constant(coefficient, torch.float32)))
    return result


def _erf(value: Output) -> Any:
    """Return the error function.

    OpenVINO's Erf is off by 5e-8 everywhere, which near 0 exceeds the value; there the series to x^9 is exact in float32.
    """
    square = ops.multiply(value, value)
    series = ops.multiply(_polynomial(_ERF_SERIES, square), value)
    is_small = ops.less(ops.abs(value), constant(0.25, torch.float32))
    return ops.select(is_small, series, ops.erf(value))


_ERF_SERIES = [2 / math.sqrt(math.pi) * factor for factor in (1, -1 / 3, 1 / 10, -1 / 42, 1 / 216)]


def log_of_one_plus(value: Output) -> Any:
    """Return log(1 + x): near 0, where the sum is rounded, by the series 2 atanh(x / (2 + x)), exact in float32."""
    part = output(ops.divide(value, ops.add(value, constant(2, torch.float32))))
    square = ops.multiply(part, part)
    series = ops.multiply(_polynomial(_ATANH_SERIES, square), part)
    is_small = ops.less(ops.abs(value), constant(0.25, torch.float32))
    return ops.select(is_small, series, ops.log(ops.add(value, constant(1, torch.float32))))


_ATANH_SERIES = [2 / power for power in (1, 3, 5, 7, 9, 11)]


def _frac(value: Output) -> Any:
    return ops.subtract(value, truncated(value))


def _nan_to_num(call: Call) -> Any:
    """Replace NaN and infinities; without numbers for these, by 0 and float32's largest."""
    value, most = call.tensor("self"), torch.finfo(torch.float32).max
    given = {"nan": 0.0, "posinf": most, "neginf": -most}
    nan, above, below = (number if call.raw(name) is None else call.raw(name) for name, number in given.items())
    result = output(ops.select(not_a_number(value), call.value(nan, torch.float32), value))
    for end, number in ((float("inf"), above), (float("-inf"), below)):
        is_end = ops.equal(value, constant(end, torch.float32))
        result = output(ops.select(is_end, call.value(number, torch.float32), result))
    return result


def _reciprocal(value: Output) -> Any:
    return ops.divide(constant(1, torch.float32), value)


def _log_over(base: float) -> Rule:
    """Return a rule for a logarithm from the natural one. Before a step, logarithms of powers are made whole numbers."""

    def rule(call: Call) -> Any:
        value = call.tensor("self", call.dtype)
        result = output(ops.multiply(ops.log(value), constant(1 / math.log(base), torch.float32)))
        if not _reaches_a_step(call.node):
            return result
        whole = output(ops.round(result, "half_to_even"))
        is_power = ops.equal(ops.power(constant(base, torch.float32), whole), value)
        return ops.select(is_power, whole, result)

    return rule


RULES: Mapping[str, Rule] = {
    "aten.add.Tensor": binary(ops.add, on_bools=ops.logical_or),
    "aten.add.Scalar": binary(ops.add, on_bools=ops.logical_or),
    "aten.sub.Tensor": binary(ops.subtract),
    "aten.sub.Scalar": binary(ops.subtract),
    "aten.rsub.Scalar": _rsub,
    "aten.rsub.Tensor": _rsub,
    "aten.mul.Tensor": binary(ops.multiply, on_bools=ops.logical_and),
    "aten.mul.Scalar": binary(ops.multiply, on_bools=ops.logical_and),
    "aten.div.Tensor": _divide,
    "aten.div.Scalar": _divide,
    "aten.div.Tensor_mode": _divide_with_mode,
    "aten.floor_divide.default": _floor_divide,
    "aten.floor_divide.Scalar": _floor_divide,
    "aten.remainder.Scalar": _remainder,
    "aten.pow.Tensor_Scalar": _power,
    "aten.pow.Tensor_Tensor": _power,
    "aten.pow.Scalar": _power,
    "aten.square.default": unary(lambda value: ops.multiply(value, value)),
    "aten.maximum.default": extremum(ops.maximum),
    "aten.minimum.default": extremum(ops.minimum),
    "aten.max.other": extremum(ops.maximum),
    "aten.min.other": extremum(ops.minimum),
    "aten.clamp.default": clamped("min", "max"),
    "aten.clamp.Tensor": clamped("min", "max"),
    "aten.clamp_min.default": clamped("min", None),
    "aten.clamp_min.Tensor": clamped("min", None),
    "aten.clamp_max.default": clamped(None, "max"),
    "aten.clamp_max.Tensor": clamped(None, "max"),
    "aten.nan_to_num.default": _nan_to_num,
    "aten.addcmul.default": _addcmul,
    "aten.addcdiv.default": _addcdiv,
    "aten.lerp.Scalar": _lerp,
    "aten.lerp.Tensor": _lerp,
    "aten.eq.Tensor": comparison(ops.equal),
    "aten.eq.Scalar": comparison(ops.equal),
    "aten.ne.Tensor": comparison(ops.not_equal),
    "aten.ne.Scalar": comparison(ops.not_equal),
    "aten.lt.Tensor": comparison(ops.less),
    "aten.lt.Scalar": comparison(ops.less),
    "aten.le.Tensor": comparison(ops.less_equal),
    "aten.le.Scalar": comparison(ops.less_equal),
    "aten.gt.Tensor": comparison(lambda left, right: ops.less(right, left)),  # OpenVINO's Greater is true for NaN
    "aten.gt.Scalar": comparison(lambda left, right: ops.less(right, left)),
    "aten.ge.Tensor": comparison(lambda left, right: ops.less_equal(right, left)),
    "aten.ge.Scalar": comparison(lambda left, right: ops.less_equal(right, left)),
    "aten.logical_and.default": logical(ops.logical_and),
    "aten.logical_or.default": logical(ops.logical_or),
    "aten.logical_xor.default": logical(ops.logical_xor),
    "aten.logical_not.default": lambda call: ops.logical_not(call.tensor("self", torch.bool)),
    "aten.bitwise_and.Tensor": bitwise(ops.logical_and, ops.bitwise_and),
    "aten.bitwise_or.Tensor": bitwise(ops.logical_or, ops.bitwise_or),
    "aten.bitwise_xor.Tensor": bitwise(ops.logical_xor, ops.bitwise_xor),
    "aten.bitwise_not.default": _not,
    "aten.__and__.Tensor": bitwise(ops.logical_and, ops.bitwise_and),
    "aten.__or__.Tensor": bitwise(ops.logical_or, ops.bitwise_or),
    "aten.where.self": where("condition", "self", "other"),
    "aten.where.ScalarOther": where("condition", "self", "other"),
    "aten.where.ScalarSelf": where("condition", "self", "other"),
    "aten.where.Scalar": where("condition", "self", "other"),
    "aten.masked_fill.Scalar": where("mask", "value", "self"),
    "aten.masked_fill.Tensor": where("mask", "value", "self"),
    "aten.isnan.default": lambda call: not_a_number(call.tensor("self")),
    "aten.isinf.default": _absolute_is_infinite,
    "aten.isfinite.default": _is_finite,
    "aten.abs.default": unary(ops.abs),
    "aten.neg.default": unary(ops.negative),
    "aten.sign.default": unary(_sign),
    "aten.exp.default": unary(_exp),
    "aten.log.default": unary(ops.log),
    "aten.log2.default": _log_over(2),
    "aten.log10.default": _log_over(10),
    "aten.log1p.default": unary(log_of_one_plus),
    "aten.sqrt.default": unary(ops.sqrt),
    "aten.rsqrt.default": unary(lambda value: _reciprocal(output(ops.sqrt(value)))),
    "aten.reciprocal.default": unary(_reciprocal),
    "aten.sin.default": unary(ops.sin),
    "aten.cos.default": unary(ops.cos),
    "aten.tan.default": unary(ops.tan),
    "aten.asin.default": unary(ops.asin),
    "aten.acos.default": unary(ops.acos),
    "aten.atan.default": unary(ops.atan),
    "aten.sinh.default": unary(ops.sinh),
    "aten.cosh.default": unary(ops.cosh),
    "aten.asinh.default": unary(ops.asinh),
    "aten.acosh.default": unary(ops.acosh),
    "aten.atanh.default": unary(ops.atanh),
    "aten.erf.default": unary(_erf),
    "aten.floor.default": unary(ops.floor),
    "aten.ceil.default": unary(ops.ceiling),
    "aten.round.default": unary(lambda value: ops.round(value, "half_to_even")),
    "aten.trunc.default": unary(truncated),
    "aten.frac.default": unary(_frac),
    "aten.to.dtype": _cast,
    "aten.to.dtype_layout": _cast,
    "aten.to.device": _cast,
    "aten.to.other": _cast,
    "aten.type_as.default": _cast,
    "aten._to_copy.default": _cast,
    "aten.clone.default": _cast,
    "aten.contiguous.default": _cast,
    "aten.alias.default": _cast,
    "aten.lift_fresh_copy.default": _cast,
    "aten.dropout.default": lambda call: call.tensor("input"),
}
