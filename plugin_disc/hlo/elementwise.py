"""Operations that work element by element."""

from __future__ import annotations

from collections.abc import Callable

from hub.toolkit.builders import BITS, FLOATS, HALVES, broadcast, cast, pointwise, select
from hub.toolkit.rules import elementwise as functions
from hub.toolkit.rules.elementwise import add, apply, eq, ge, lt, mul, ne, number, sub
from hub.toolkit.tensors import Tensor

from .values import Op, Rule, number_of, same_size

Function = Callable[..., Tensor]


def computing(source: Tensor) -> Tensor:
    """Return half-precision floats as float32, and everything else unchanged."""
    return cast(source, "f32") if source.dtype in HALVES else source


def accumulating(op: Op, source: Tensor) -> Tensor:
    """Return elements in the dtype in which they are combined: the result's, unless they are floats of more precision."""
    is_wider = source.dtype not in FLOATS or op.kind == "f64"
    return computing(cast(source, op.kind) if is_wider else source)


def _aligned(op: Op) -> list[Tensor]:
    """Return the operands, whose sizes have to be equal, except for scalars."""
    found = op.tensors()
    shapes = [tensor.shape for tensor in found if tensor.shape]
    for shape in shapes[1:]:
        for one, other in zip(shapes[0], shape, strict=True):
            same_size(one, other)
    return found


def _rule(function: Function) -> Rule:
    """Return the rule for a function of all operands; half-precision floats are computed as float32."""

    def rule(op: Op) -> Tensor:
        return cast(function(*map(computing, _aligned(op))), op.kind)

    return rule


def _floating(function: Function) -> Rule:
    """Return the same, for floats only."""
    inner = _rule(function)

    def rule(op: Op) -> Tensor:
        if op.tensor(0).dtype not in FLOATS:
            raise op.refused(f"of {op.tensor(0).dtype}, floats here")
        return inner(op)  # type: ignore[return-value]

    return rule


def _reciprocal_root(source: Tensor) -> Tensor:
    return functions.reciprocal(pointwise("sqrt", source))


def _square(source: Tensor) -> Tensor:
    return mul(source, source)


def _negated(source: Tensor) -> Tensor:
    return pointwise("neg", source)


def _sign(source: Tensor) -> Tensor:
    """Return -1, 0 or 1; zeros and NaN unchanged."""
    if source.dtype not in FLOATS:
        return functions.sign(source)
    is_kept = pointwise("or", eq(source, number(0.0, source)), ne(source, source))
    return select(is_kept, source, pointwise("copysign", number(1.0, source), source))


def _from_zero(source: Tensor) -> Tensor:
    """Return the nearest integer, ties away from zero."""
    whole = pointwise("trunc", source)
    is_far = ge(pointwise("abs", sub(source, whole)), number(0.5, source))
    return select(is_far, add(whole, pointwise("copysign", number(1.0, source), source)), whole)


def divided(left: Tensor, right: Tensor) -> Tensor:
    """Return the quotient; for integers it is truncated towards zero, and -1 if the divisor is 0."""
    if left.dtype in FLOATS:
        return pointwise("div", left, right)
    ones = number(-1 if left.dtype != "u8" else 255, left)
    return select(eq(right, number(0, left)), ones, pointwise("idiv", left, right))


def _remainder(left: Tensor, right: Tensor) -> Tensor:
    """Return the remainder of a division towards zero; for integers the dividend if the divisor is 0."""
    if left.dtype in FLOATS:
        return pointwise("fmod", left, right)
    return select(eq(right, number(0, left)), left, pointwise("irem", left, right))


def _power(op: Op) -> Tensor:
    base, exponent = map(computing, _aligned(op))
    number = number_of(exponent)
    if base.dtype in FLOATS:
        if number is not None and float(number).is_integer():  # a root is not the power 0.5 of -0.0 and -inf
            return cast(broadcast(functions.power(base, number), base.shape), op.kind)
        return cast(broadcast(pointwise("pow", base, exponent), base.shape), op.kind)
    if number is not None and 0 <= number <= 64:
        return functions.power(base, int(number))
    raise op.refused("integers to a power that is not a constant from 0 to 64")


_DIRECTIONS = {"EQ": "eq", "NE": "ne", "GE": "ge", "GT": "gt", "LE": "le", "LT": "lt"}


def _compared(op: Op) -> Tensor:
    if op.word("compare_type") == "TOTALORDER":
        raise op.refused("the total order of floats")
    left, right = map(computing, _aligned(op))
    return pointwise(_DIRECTIONS[op.word("comparison_direction")], left, right)


def _chosen(op: Op) -> Tensor:
    condition, yes, no = _aligned(op)
    return select(broadcast(condition, yes.shape), yes, no)


def _clamped(low: Tensor, source: Tensor, high: Tensor) -> Tensor:
    return pointwise("min", pointwise("max", source, broadcast(low, source.shape)), broadcast(high, source.shape))


def _shifted(function: str, *, keeps_sign: bool = False) -> Rule:
    """Return the rule for a shift; a shift by all bits or more leaves only the sign, or 0 if it is not kept."""

    def rule(op: Op) -> Tensor:
        source, by = _aligned(op)
        bits = BITS[source.dtype]
        last = number(bits - 1, by)
        inside = pointwise("and", ge(by, number(0, by)), lt(by, number(min(bits, 127), by)))
        if keeps_sign:
            return pointwise(function, source, select(inside, by, last))
        return select(inside, pointwise(function, source, select(inside, by, last)), number(0, source))

    return rule


def _logistic(source: Tensor) -> Tensor:
    return functions.sigmoid(source)


def _converted(op: Op) -> Tensor:
    return cast(op.tensor(0), op.kind)


def _maximum(left: Tensor, right: Tensor) -> Tensor:
    return pointwise("max", left, right)


_CHLO = ("erf", "erfc", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan")
_FLOATING: dict[str, Function] = {
    "stablehlo.ceil": apply("ceil"),
    "stablehlo.cosine": apply("cos"),
    "stablehlo.exponential": apply("exp"),
    "stablehlo.exponential_minus_one": apply("expm1"),
    "stablehlo.floor": apply("floor"),
    "stablehlo.is_finite": functions.is_finite,
    "stablehlo.log": apply("log"),
    "stablehlo.log_plus_one": apply("log1p"),
    "stablehlo.logistic": _logistic,
    "stablehlo.round_nearest_afz": _from_zero,
    "stablehlo.round_nearest_even": apply("round"),
    "stablehlo.rsqrt": _reciprocal_root,
    "stablehlo.sine": apply("sin"),
    "stablehlo.sqrt": apply("sqrt"),
    "stablehlo.tan": apply("tan"),
    "stablehlo.tanh": apply("tanh"),
    "stablehlo.atan2": apply("atan2"),
    "chlo.square": _square,
    "chlo.is_inf": functions.is_infinite,
    **{f"chlo.{name}": apply(name) for name in _CHLO},
}
_ANY: dict[str, Function] = {
    "stablehlo.abs": apply("abs"),
    "stablehlo.negate": _negated,
    "stablehlo.sign": _sign,
    "stablehlo.not": apply("not"),
    "stablehlo.add": add,
    "stablehlo.subtract": sub,
    "stablehlo.multiply": mul,
    "stablehlo.divide": divided,
    "stablehlo.remainder": _remainder,
    "stablehlo.maximum": _maximum,
    "stablehlo.minimum": apply("min"),
    "stablehlo.and": apply("and"),
    "stablehlo.or": apply("or"),
    "stablehlo.xor": apply("xor"),
    "stablehlo.clamp": _clamped,
}

RULES: dict[str, Rule] = {
    **{name: _floating(function) for name, function in _FLOATING.items()},
    **{name: _rule(function) for name, function in _ANY.items()},
    "stablehlo.power": _power,
    "stablehlo.compare": _compared,
    "stablehlo.select": _chosen,
    "stablehlo.convert": _converted,
    "stablehlo.shift_left": _shifted("shl"),
    "stablehlo.shift_right_arithmetic": _shifted("shr", keeps_sign=True),
    "stablehlo.shift_right_logical": _shifted("shru"),
}
