"""Lowers arithmetic, comparisons, logic, activations and casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from hub.support import value_of

from .builder import MICROSOFT
from .call import Call, lowers
from .patterns import match_rms_norm, rms_normalised

_UNARY = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh",
    "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "floor": "Floor", "log": "Log", "neg": "Neg",
    "reciprocal": "Reciprocal", "round": "Round", "sigmoid": "Sigmoid", "sign": "Sign", "sin": "Sin", "sinh": "Sinh",
    "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip
_KEEPS_INTEGERS = frozenset({"Ceil", "Floor", "Round"})
_COMPARE = {"eq": "Equal", "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "lt": "Less"}
_LOGICAL = {"and": "And", "or": "Or", "xor": "Xor"}


def _unary(kind: str) -> Callable[[Call], str]:
    def rule(call: Call) -> str:
        value = call.typed("self")
        return value if kind in _KEEPS_INTEGERS and not call.out_dtype.is_floating_point else call.op(kind, value)

    return rule


for _name, _kind in _UNARY.items():
    lowers(f"{_name}.default")(_unary(_kind))


@lowers("trunc.default", "fix.default")
def truncate(call: Call) -> str:
    """Rounds toward zero."""
    value = call.typed("self")
    if not call.out_dtype.is_floating_point:
        return value
    return call.op("Mul", call.op("Sign", value), call.op("Floor", call.op("Abs", value)))


@lowers("rsqrt.default")
def rsqrt(call: Call) -> str:
    """1 / sqrt(x)."""
    return call.op("Reciprocal", call.op("Sqrt", call.typed("self")))


@lowers("square.default")
def square(call: Call) -> str:
    """x * x."""
    return call.op("Mul", call.typed("self"), call.typed("self"))


@lowers("log2.default", "log10.default")
def scaled_log(call: Call) -> str:
    """Logarithm of base 2 or 10, from the natural one."""
    base = 2.0 if "log2" in str(call.node.target) else 10.0
    return call.op("Mul", call.op("Log", call.typed("self")), call.constant(1.0 / math.log(base)))


@lowers("exp2.default")
def exp2(call: Call) -> str:
    """2 ** x."""
    return call.op("Pow", call.constant(2.0), call.typed("self"))


@lowers("isnan.default")
def isnan(call: Call) -> str:
    """True where x is no number."""
    return call.op("IsNaN", call.input("self"))


@lowers("isinf.default")
def isinf(call: Call) -> str:
    """True where x is infinite, of either sign."""
    return call.op("IsInf", call.input("self"))


# --- Arithmetic -------------------------------------------------------------------------------------------------------


def _scaled(call: Call, name: str, alpha: Any) -> str:
    value = call.typed(name)
    return value if alpha == 1 else call.op("Mul", value, call.as_dtype(alpha, call.out_dtype))


@lowers("add.Tensor", "add.Scalar")
def add(call: Call) -> str:
    """self + alpha * other; of booleans: or."""
    if call.out_dtype == torch.bool:
        return call.op("Or", call.typed("self"), call.typed("other"))
    return call.op("Add", call.typed("self"), _scaled(call, "other", call["alpha"]))


@lowers("sub.Tensor", "sub.Scalar")
def subtract(call: Call) -> str:
    """self - alpha * other."""
    return call.op("Sub", call.typed("self"), _scaled(call, "other", call["alpha"]))


@lowers("rsub.Tensor", "rsub.Scalar")
def reverse_subtract(call: Call) -> str:
    """other - alpha * self."""
    return call.op("Sub", call.typed("other"), _scaled(call, "self", call["alpha"]))


@lowers("mul.Tensor", "mul.Scalar")
def multiply(call: Call) -> str:
    """self * other; of booleans: and. The last product of a written-out RMS norm becomes one operator."""
    if (found := match_rms_norm(call.node)) is not None:
        return rms_normalised(call, found)
    kind = "And" if call.out_dtype == torch.bool else "Mul"
    return call.op(kind, call.typed("self"), call.typed("other"))


@lowers("div.Tensor", "div.Scalar", "true_divide.Tensor")
def divide(call: Call) -> str:
    """self / other, in floating point even for integers."""
    return call.op("Div", call.typed("self"), call.typed("other"))


@lowers("div.Tensor_mode", "div.Scalar_mode")
def divide_rounded(call: Call) -> str:
    """self / other, then rounded toward zero ("trunc") or down ("floor")."""
    mode = call["rounding_mode"]
    if mode is None:
        return divide(call)
    if mode == "floor":
        return floor_divide(call)
    quotient = call.op("Div", call.typed("self"), call.typed("other"))
    if not call.out_dtype.is_floating_point:
        return quotient
    return call.op("Mul", call.op("Sign", quotient), call.op("Floor", call.op("Abs", quotient)))


@lowers("floor_divide.default", "floor_divide.Scalar")
def floor_divide(call: Call) -> str:
    """Quotient rounded down, from the remainder, so that it is exact where self / other alone would round up."""
    value, by = call.typed("self"), call.typed("other")
    exact = call.op("Div", call.op("Sub", value, _remainder(call, value, by)), by)
    if not call.out_dtype.is_floating_point:
        return exact
    by_zero = call.op("Equal", by, call.constant(0.0))
    return call.op("Where", by_zero, call.op("Div", value, by), call.op("Round", exact))


@lowers("remainder.Tensor", "remainder.Scalar")
def remainder(call: Call) -> str:
    """Remainder with the divisor's sign."""
    return _remainder(call, call.typed("self"), call.typed("other"))


def _remainder(call: Call, value: str, by: str) -> str:
    if not call.out_dtype.is_floating_point:
        return call.op("Mod", value, by)
    rest = call.op("Mod", value, by, fmod=1)
    zero = call.constant(0.0)
    differs = call.op("Xor", call.op("Less", rest, zero), call.op("Less", by, zero))
    wrong = call.op("And", differs, call.op("Not", call.op("Equal", rest, zero)))
    return call.op("Where", wrong, call.op("Add", rest, by), rest)


@lowers("fmod.Tensor", "fmod.Scalar")
def fmod(call: Call) -> str:
    """Remainder with the dividend's sign."""
    return call.op("Mod", call.typed("self"), call.typed("other"), fmod=1)


@lowers("pow.Tensor_Scalar")
def power_of_constant(call: Call) -> str:
    """self ** exponent, by roots and reciprocals where the exponent allows.

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
    """self ** exponent."""
    return call.op("Pow", call.typed("self"), call.typed("exponent"))


@lowers("maximum.default", "max.other")
def maximum(call: Call) -> str:
    """The larger one of each pair."""
    return _extreme(call, "Max", call.typed("self"), call.typed("other"))


@lowers("minimum.default", "min.other")
def minimum(call: Call) -> str:
    """The smaller one of each pair."""
    return _extreme(call, "Min", call.typed("self"), call.typed("other"))


def _extreme(call: Call, kind: str, one: str, other: str) -> str:
    if call.out_dtype == torch.bool:
        return call.op("Or" if kind == "Max" else "And", one, other)
    return call.op(kind, one, other)


@lowers("clamp.default", "clamp.Tensor", "clamp_min.default", "clamp_max.default", "hardtanh.default", "relu6.default")
def clamp(call: Call) -> str:
    """self between two bounds, either of which may be absent; Clip needs plain numbers, Max and Min take tensors."""
    low, high = _bounds(call)
    value = call.typed("self")
    if str(call.node.target) != "aten.clamp.Tensor":
        names = ["" if bound is None else call.as_dtype(bound, call.out_dtype) for bound in (low, high)]
        return call.op("Clip", value, *(names if names[1] else names[:1]))
    for kind, bound in (("Max", low), ("Min", high)):
        if bound is not None:
            value = call.op(kind, value, call.as_dtype(bound, call.out_dtype))
    return value


def _bounds(call: Call) -> tuple[Any, Any]:
    names = {declared.name for declared in call.node.target._schema.arguments}  # pyright: ignore
    if str(call.node.target) == "aten.relu6.default":
        return 0.0, 6.0
    low = next((call[name] for name in ("min", "min_val") if name in names), None)
    high = next((call[name] for name in ("max", "max_val") if name in names), None)
    return low, high


@lowers("addcmul.default", "addcdiv.default")
def add_combined(call: Call) -> str:
    """self + value * (tensor1 * or / tensor2)."""
    kind = "Mul" if "addcmul" in str(call.node.target) else "Div"
    term = call.op(kind, call.typed("tensor1"), call.typed("tensor2"))
    if call["value"] != 1:
        term = call.op("Mul", term, call.typed("value"))
    return call.op("Add", call.typed("self"), term)


@lowers("lerp.Scalar", "lerp.Tensor")
def interpolate(call: Call) -> str:
    """self + weight * (end - self)."""
    step = call.op("Sub", call.typed("end"), call.typed("self"))
    return call.op("Add", call.typed("self"), call.op("Mul", step, call.typed("weight")))


# --- Comparisons and logic --------------------------------------------------------------------------------------------


def _compare(kind: str, negated: bool = False) -> Callable[[Call], str]:
    def rule(call: Call) -> str:
        dtype = common_dtype(call, "self", "other")
        if dtype == torch.bool and kind != "Equal":
            dtype = torch.int32
        answer = call.op(kind, call.typed("self", dtype), call.typed("other", dtype))
        return call.op("Not", answer) if negated else answer

    return rule


def common_dtype(call: Call, *names: str) -> torch.dtype:
    """Gives the dtype in which PyTorch computes with these arguments, numbers counting for less than tensors."""
    values = [value_of(call[name]) for name in names]
    plain = [
        value if isinstance(value, torch.Tensor) else type(value)(1) if isinstance(value, (int, float)) else 1
        for value in values
    ]
    return torch.result_type(*plain) if len(plain) > 1 else plain[0].dtype


for _name, _kind in _COMPARE.items():
    lowers(f"{_name}.Tensor", f"{_name}.Scalar")(_compare(_kind))
lowers("ne.Tensor", "ne.Scalar")(_compare("Equal", negated=True))


def _logical(kind: str) -> Callable[[Call], str]:
    def rule(call: Call) -> str:
        return call.op(kind, call.typed("self", torch.bool), call.typed("other", torch.bool))

    return rule


def _bitwise(word: str) -> Callable[[Call], str]:
    def rule(call: Call) -> str:
        kind = _LOGICAL[word] if call.out_dtype == torch.bool else f"Bitwise{_LOGICAL[word]}"
        return call.op(kind, call.typed("self"), call.typed("other"))

    return rule


for _name, _kind in _LOGICAL.items():
    lowers(f"logical_{_name}.default")(_logical(_kind))
    lowers(f"bitwise_{_name}.Tensor", f"bitwise_{_name}.Scalar", f"__{_name}__.Tensor", f"__{_name}__.Scalar")(
        _bitwise(_name)
    )


@lowers("logical_not.default")
def logical_not(call: Call) -> str:
    """True where self is zero."""
    return call.op("Not", call.typed("self", torch.bool))


@lowers("bitwise_not.default")
def bitwise_not(call: Call) -> str:
    """Every bit flipped; of booleans: not."""
    return call.op("Not" if call.out_dtype == torch.bool else "BitwiseNot", call.input("self"))


@lowers("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(call: Call) -> str:
    """self where the condition holds, else other."""
    return select_where(call, call.typed("condition", torch.bool), call.typed("self"), call.typed("other"))


def select_where(call: Call, condition: str, one: str, other: str) -> str:
    """Where for the first output's dtype; ORT has no kernel for booleans, which go through uint8."""
    if call.out_dtype != torch.bool:
        return call.op("Where", condition, one, other)
    bytes_ = [call.builder.cast(value, torch.bool, torch.uint8) for value in (one, other)]
    return call.builder.cast(call.op("Where", condition, *bytes_), torch.uint8, torch.bool)


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(call: Call) -> str:
    """value where the mask holds, else self."""
    return select_where(call, call.input("mask"), call.typed("value"), call.typed("self"))


# --- Activations ------------------------------------------------------------------------------------------------------


@lowers("relu.default")
def relu(call: Call) -> str:
    """max(x, 0)."""
    value = call.typed("self")
    return call.op("Max", value, call.constant(0)) if call.out_dtype == torch.int64 else call.op("Relu", value)


@lowers("gelu.default")
def gelu(call: Call) -> str:
    """x * Phi(x), exactly or by tanh; ORT's own operators are what its BiasGelu fusion looks for."""
    kind = "Gelu" if call["approximate"] == "none" else "FastGelu"
    return call.op(kind, call.input("self"), domain=MICROSOFT)


@lowers("silu.default")
def silu(call: Call) -> str:
    """x * sigmoid(x), as ORT's one-pass operator."""
    if call.out_dtype == torch.float32:
        return call.op("QuickGelu", call.input("self"), domain=MICROSOFT, alpha=1.0)
    return call.op("Mul", call.input("self"), call.op("Sigmoid", call.input("self")))


@lowers("leaky_relu.default")
def leaky_relu(call: Call) -> str:
    """x, or negative_slope * x below zero; under `dynamic=True` the slope can be a number known only at run time."""
    if isinstance(call["negative_slope"], fx.Node):
        value, zero = call.input("self"), call.constant(0.0)
        return call.op("Where", call.op("Greater", value, zero), value, call.op("Mul", value, call.typed("negative_slope")))
    return call.op("LeakyRelu", call.input("self"), alpha=float(call["negative_slope"]))


@lowers("elu.default")
def elu(call: Call) -> str:
    """scale * (x, or alpha * (exp(x) - 1) below zero)."""
    value = call.op("Elu", call.input("self"), alpha=float(call["alpha"]))
    return value if call["scale"] == 1 else call.op("Mul", value, call.typed("scale"))


@lowers("selu.default")
def selu(call: Call) -> str:
    """ELU with the self-normalising constants, which are ONNX's defaults."""
    return call.op("Selu", call.input("self"))


@lowers("hardsigmoid.default")
def hardsigmoid(call: Call) -> str:
    """clamp(x / 6 + 1 / 2, 0, 1)."""
    return call.op("HardSigmoid", call.input("self"), alpha=1.0 / 6.0, beta=0.5)


@lowers("hardswish.default")
def hardswish(call: Call) -> str:
    """x * hardsigmoid(x)."""
    return call.op("Mul", call.input("self"), hardsigmoid(call))


@lowers("softplus.default")
def softplus(call: Call) -> str:
    """log(1 + exp(beta x)) / beta, and x itself above the threshold."""
    value, beta, threshold = call.input("self"), float(call["beta"]), float(call["threshold"])
    scaled = value if beta == 1.0 else call.op("Mul", value, call.constant(beta))
    smooth = call.op("Softplus", scaled)
    smooth = smooth if beta == 1.0 else call.op("Div", smooth, call.constant(beta))
    return call.op("Where", call.op("Greater", scaled, call.constant(threshold)), value, smooth)


@lowers("mish.default")
def mish(call: Call) -> str:
    """x * tanh(softplus(x))."""
    return call.op("Mul", call.input("self"), call.op("Tanh", call.op("Softplus", call.input("self"))))


@lowers("log_sigmoid.default")
def log_sigmoid(call: Call) -> str:
    """-softplus(-x)."""
    return call.op("Neg", call.op("Softplus", call.op("Neg", call.input("self"))))


@lowers("prelu.default", "_prelu_kernel.default")
def prelu(call: Call) -> str:
    """x, or a learned slope times x below zero; the slope runs along dim 1."""
    slope, shape = call.input("weight"), call.shape("weight")
    if len(shape) == 1 and call.rank("self") > 2:
        slope = call.reshape(slope, shape, (*shape, *[1] * (call.rank("self") - 2)))
    return call.op("PRelu", call.input("self"), slope)


@lowers("glu.default")
def glu(call: Call) -> str:
    """First half times sigmoid of the second half."""
    first, second = call.ops("Split", call.input("self"), n_outputs=2, axis=call.dim("dim"), num_outputs=2)
    return call.op("Mul", first, call.op("Sigmoid", second))


# --- Casts and copies -------------------------------------------------------------------------------------------------


@lowers(
    "_to_copy.default", "to.dtype", "to.dtype_layout", "to.device", "to.other", "type_as.default", "clone.default",
    "alias.default", "contiguous.default", "detach.default", "lift_fresh_copy.default", "positive.default",
)  # fmt: skip
def copy(call: Call) -> str:
    """The same elements, perhaps of another dtype."""
    return call.typed("self")
