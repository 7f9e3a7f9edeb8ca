"""Lowers arithmetic on pairs of numbers, extremes and bounds."""

from __future__ import annotations

from typing import Any

import torch

from .call import Call, lowers
from .patterns import match_rms_norm, rms_normalised


def _scaled(call: Call, name: str, alpha: Any) -> str:
    value = call.typed(name)
    return value if alpha == 1 else call.op("Mul", value, call.as_dtype(alpha, call.out_dtype))


@lowers("add.Tensor", "add.Scalar")
def add(call: Call) -> str:
    """Return self + alpha * other; for booleans: or."""
    if call.out_dtype == torch.bool:
        return call.op("Or", call.typed("self"), call.typed("other"))
    return call.op("Add", call.typed("self"), _scaled(call, "other", call["alpha"]))


@lowers("sub.Tensor", "sub.Scalar")
def subtract(call: Call) -> str:
    """Return self - alpha * other."""
    return call.op("Sub", call.typed("self"), _scaled(call, "other", call["alpha"]))


@lowers("rsub.Tensor", "rsub.Scalar")
def reverse_subtract(call: Call) -> str:
    """Return other - alpha * self."""
    return call.op("Sub", call.typed("other"), _scaled(call, "self", call["alpha"]))


@lowers("mul.Tensor", "mul.Scalar")
def multiply(call: Call) -> str:
    """Return self * other; for booleans: and. The last product of a written-out RMS norm becomes one operator."""
    if (found := match_rms_norm(call.node)) is not None:
        return rms_normalised(call, found)
    kind = "And" if call.out_dtype == torch.bool else "Mul"
    return call.op(kind, call.typed("self"), call.typed("other"))


@lowers("div.Tensor", "div.Scalar", "true_divide.Tensor")
def divide(call: Call) -> str:
    """Return self / other, in floating point even for integers."""
    return call.op("Div", call.typed("self"), call.typed("other"))


@lowers("div.Tensor_mode", "div.Scalar_mode")
def divide_rounded(call: Call) -> str:
    """Return self / other, rounded toward zero ("trunc") or down ("floor")."""
    mode = call["rounding_mode"]
    if mode is None:
        return divide(call)
    if mode == "floor":
        return floor_divide(call)
    quotient = call.op("Div", call.typed("self"), call.typed("other"))
    return truncated(call, quotient) if call.out_dtype.is_floating_point else quotient


def truncated(call: Call, value: str) -> str:
    """Round floats toward zero; a result of zero keeps its sign."""
    is_below = call.op("Less", value, call.constant(0.0))
    return call.op("Where", is_below, call.op("Ceil", value), call.op("Floor", value))


@lowers("floor_divide.default", "floor_divide.Scalar")
def floor_divide(call: Call) -> str:
    """Return the quotient rounded down, from the remainder: exact where self / other alone would round up."""
    value, by = call.typed("self"), call.typed("other")
    if not call.out_dtype.is_floating_point:
        quotient = call.op("Div", value, by)
        differs = _has_other_sign(call, _rest(call, value, by), by)
        return call.op("Where", differs, call.op("Sub", quotient, call.constant(1)), quotient)
    rest = _rest(call, value, by)
    quotient = call.op("Div", call.op("Sub", value, rest), by)
    lower = call.op("Sub", quotient, call.constant(1.0))
    by_zero = call.op("Equal", by, call.constant(0.0))
    rounded = call.op("Round", call.op("Where", _has_other_sign(call, rest, by), lower, quotient))
    return call.op("Where", by_zero, call.op("Div", value, by), rounded)


def _rest(call: Call, value: str, by: str) -> str:
    """Return the remainder with the dividend's sign. ORT's own operator computes integers in double."""
    if call.out_dtype.is_floating_point:
        return call.op("Mod", value, by, fmod=1)
    return call.op("Sub", value, call.op("Mul", call.op("Div", value, by), by))


def _has_other_sign(call: Call, rest: str, by: str) -> str:
    """Return a mask of the remainders that are not zero and differ in sign from the divisor."""
    zero = call.constant(0)
    differs = call.op("Xor", call.op("Less", rest, zero), call.op("Less", by, zero))
    return call.op("And", differs, call.op("Not", call.op("Equal", rest, zero)))


@lowers("remainder.Tensor", "remainder.Scalar")
def remainder(call: Call) -> str:
    """Return the remainder with the divisor's sign."""
    return _remainder(call, call.typed("self"), call.typed("other"))


def _remainder(call: Call, value: str, by: str) -> str:
    if not call.out_dtype.is_floating_point:
        return call.op("Mod", value, by)
    rest = _rest(call, value, by)
    return call.op("Where", _has_other_sign(call, rest, by), call.op("Add", rest, by), rest)


@lowers("fmod.Tensor", "fmod.Scalar")
def fmod(call: Call) -> str:
    """Return the remainder with the dividend's sign."""
    return _rest(call, call.typed("self"), call.typed("other"))


@lowers("pow.Tensor_Scalar")
def power_of_constant(call: Call) -> str:
    """Return self ** exponent, by roots and reciprocals if the exponent allows it.

    ORT squares and cubes fast, and its fusions (FastGelu, LayerNormalization) look for Pow.
    """
    base, exponent = call.typed("self"), call["exponent"]
    easy = {
        0.5: lambda: call.op("Sqrt", base),
        -0.5: lambda: call.op("Reciprocal", call.op("Sqrt", base)),
        1: lambda: base,
        -1: lambda: call.op("Reciprocal", base),
    }
    if not call.out_dtype.is_floating_point:  # ORT computes powers of integers in double
        easy[2] = lambda: call.op("Mul", base, base)
        easy[3] = lambda: call.op("Mul", call.op("Mul", base, base), base)
    return easy[exponent]() if exponent in easy else call.op("Pow", base, call.typed("exponent"))


@lowers("pow.Tensor_Tensor", "pow.Scalar")
def power(call: Call) -> str:
    """Return self ** exponent."""
    return call.op("Pow", call.typed("self"), call.typed("exponent"))


@lowers("maximum.default", "max.other")
def maximum(call: Call) -> str:
    """Return the larger element of each pair."""
    return _extreme(call, "Max", call.typed("self"), call.typed("other"))


@lowers("minimum.default", "min.other")
def minimum(call: Call) -> str:
    """Return the smaller element of each pair."""
    return _extreme(call, "Min", call.typed("self"), call.typed("other"))


def _extreme(call: Call, kind: str, one: str, other: str) -> str:
    if call.out_dtype == torch.bool:
        return call.op("Or" if kind == "Max" else "And", one, other)
    if call.out_dtype is torch.int64:  # if one operand has a single element, ORT computes int64 as int32
        return call.op("Where", call.op("Less" if kind == "Max" else "Greater", one, other), other, one)
    return call.op(kind, one, other)


@lowers(
    "clamp.default",
    "clamp.Tensor",
    "clamp_min.default",
    "clamp_min.Tensor",
    "clamp_max.Tensor",
    "clamp_max.default",
    "hardtanh.default",
    "relu6.default",
)
def clamp(call: Call) -> str:
    """Return self between two bounds, each optional. Clip needs two plain floats; Max and Min take tensors.

    For a missing bound Clip uses the largest finite number, and it computes int64 as int32.
    """
    low, high = (None if bound is None else call.as_dtype(bound, call.out_dtype) for bound in _bounds(call))
    value = call.typed("self")
    is_tensor = str(call.node.target).endswith(".Tensor")
    if call.out_dtype.is_floating_point and low and high and not is_tensor:
        return call.op("Clip", value, low, high)
    for kind, bound in (("Max", low), ("Min", high)):
        if bound is not None:
            value = _extreme(call, kind, value, bound)
    return value


def _bounds(call: Call) -> tuple[Any, Any]:
    names = call.declared
    if str(call.node.target) == "aten.relu6.default":
        return 0.0, 6.0
    low = next((call[name] for name in ("min", "min_val") if name in names), None)
    high = next((call[name] for name in ("max", "max_val") if name in names), None)
    return low, high


@lowers("addcmul.default", "addcdiv.default")
def add_combined(call: Call) -> str:
    """Return self + value * (tensor1 * or / tensor2)."""
    kind = "Mul" if "addcmul" in str(call.node.target) else "Div"
    term = call.op(kind, call.typed("tensor1"), call.typed("tensor2"))
    if call["value"] != 1:
        term = call.op("Mul", term, call.typed("value"))
    return call.op("Add", call.typed("self"), term)


@lowers("lerp.Scalar", "lerp.Tensor")
def interpolate(call: Call) -> str:
    """Interpolate from the nearer end, as ATen does (ATen/native/Lerp.h): from the other one, large numbers cancel."""
    start, end, weight = (call.typed(name) for name in ("self", "end", "weight"))
    distance = call.op("Sub", end, start)
    from_start = call.op("Add", start, call.op("Mul", weight, distance))
    from_end = call.op("Sub", end, call.op("Mul", distance, call.op("Sub", call.constant(1), weight)))
    given = call["weight"]
    if isinstance(given, (int, float)):
        return from_start if abs(given) < 0.5 else from_end
    return call.op("Where", call.op("Less", call.op("Abs", weight), call.constant(0.5)), from_start, from_end)
