"""Lowers functions of one number, casts and copies."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from .arithmetic import truncated
from .call import Call, lowers

_UNARY = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh",
    "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "floor": "Floor", "log": "Log", "neg": "Neg",
    "reciprocal": "Reciprocal", "round": "Round", "sigmoid": "Sigmoid", "sin": "Sin", "sinh": "Sinh",
    "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip
_KEEPS_INTEGERS = frozenset({"Ceil", "Floor", "Round"})


def _unary(kind: str) -> Callable[[Call], str]:
    def rule(call: Call) -> str:
        value = call.typed("self")
        return value if kind in _KEEPS_INTEGERS and not call.out_dtype.is_floating_point else call.op(kind, value)

    return rule


for _name, _kind in _UNARY.items():
    lowers(f"{_name}.default")(_unary(_kind))


@lowers("trunc.default", "fix.default")
def truncate(call: Call) -> str:
    """Round toward zero."""
    value = call.typed("self")
    return truncated(call, value) if call.out_dtype.is_floating_point else value


@lowers("sign.default")
def sign(call: Call) -> str:
    """Return -1, 0 or 1; 0 for NaN. ORT's own operator keeps NaN, and computes int64 as int32."""
    value, zero = call.typed("self"), call.constant(0)
    sides = (call.op(kind, value, zero) for kind in ("Greater", "Less"))
    return call.op("Sub", *(call.builder.cast(side, torch.bool, call.out_dtype) for side in sides))


@lowers("rsqrt.default")
def rsqrt(call: Call) -> str:
    """Return 1 / sqrt(x)."""
    return call.op("Reciprocal", call.op("Sqrt", call.typed("self")))


@lowers("square.default")
def square(call: Call) -> str:
    """Return x * x."""
    return call.op("Mul", call.typed("self"), call.typed("self"))


@lowers("log2.default", "log10.default")
def scaled_log(call: Call) -> str:
    """Return the logarithm to base 2 or 10, from the natural one.

    In float64, so that the logarithms of powers are whole numbers as in eager, also if `floor` follows.
    """
    base = 2.0 if "log2" in str(call.node.target) else 10.0
    wide = call.op("Log", call.typed("self", torch.float64))
    scaled = call.op("Mul", wide, call.constant(1.0 / math.log(base), torch.float64))
    return call.builder.cast(scaled, torch.float64, call.out_dtype)


@lowers("exp2.default")
def exp2(call: Call) -> str:
    """Return 2 ** x."""
    return call.op("Pow", call.constant(2.0), call.typed("self"))


@lowers("isnan.default")
def isnan(call: Call) -> str:
    """Return whether x is NaN."""
    return call.op("IsNaN", call.input("self"))


@lowers("isfinite.default")
def isfinite(call: Call) -> str:
    """Return whether x is neither NaN nor infinite."""
    value = call.input("self")
    return call.op("Not", call.op("Or", call.op("IsNaN", value), call.op("IsInf", value)))


@lowers("isinf.default")
def isinf(call: Call) -> str:
    """Return whether x is infinite, of either sign."""
    return call.op("IsInf", call.input("self"))


@lowers(
    "_to_copy.default", "to.dtype", "to.dtype_layout", "to.device", "to.other", "type_as.default", "clone.default",
    "alias.default", "contiguous.default", "detach.default", "lift_fresh_copy.default", "positive.default",
)  # fmt: skip
def copy(call: Call) -> str:
    """Return the same elements, possibly in another dtype."""
    return call.typed("self")
