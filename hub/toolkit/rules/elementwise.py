"""Elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from hub.toolkit.builders import BITS, FLOATS, HALVES, broadcast, cast, fill, pointwise, select
from hub.toolkit.rules.call import INT_TO_FLOAT, Call, Rule, computing
from hub.toolkit.tensors import Tensor

Function = Callable[..., Tensor]


def number(value: float, like: Tensor) -> Tensor:
    """Return a constant in the dtype of a tensor."""
    return fill(value, like.dtype)


def apply(function: str) -> Function:
    """Return the function of tensors with the given name."""
    return partial(pointwise, function)


add, sub, mul, div = apply("add"), apply("sub"), apply("mul"), apply("div")
maximum, minimum = apply("max"), apply("min")
exp, log, log1p, tanh, sqrt = apply("exp"), apply("log"), apply("log1p"), apply("tanh"), apply("sqrt")
lt, gt, eq, ne, le, ge = apply("lt"), apply("gt"), apply("eq"), apply("ne"), apply("le"), apply("ge")


def plus(source: Tensor, value: float) -> Tensor:
    """Return source + value."""
    return add(source, number(value, source))


def by(source: Tensor, value: float) -> Tensor:
    """Return source * value."""
    return mul(source, number(value, source))


def rounded(function: str, source: Tensor) -> Tensor:
    """Return floats rounded to whole numbers by a function; integers are unchanged."""
    return pointwise(function if source.dtype in FLOATS else "copy", source)


def reciprocal(source: Tensor) -> Tensor:
    """Return 1 / source."""
    return div(number(1.0, source), source)


def clamped(source: Tensor, low: float | None, high: float | None, *, keeps_zeros: bool = False) -> Tensor:
    """Return elements clamped to limits; NaN stays NaN. A zero at a limit keeps its own sign if that is wanted."""
    for limit, function, beyond in ((low, maximum, lt), (high, minimum, gt)):
        if limit is None:
            continue
        end = number(limit, source)
        if limit == 0 and keeps_zeros and source.dtype in FLOATS:
            source = select(beyond(source, end), end, source)
        else:
            source = function(source, end)
    return source


def sigmoid(source: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x))."""
    return reciprocal(plus(exp(apply("neg")(source)), 1.0))


def silu(source: Tensor) -> Tensor:
    """Return x / (1 + exp(-x))."""
    return div(source, plus(exp(apply("neg")(source)), 1.0))


def softplus(source: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Return log(1 + exp(beta x)) / beta, and x above the threshold."""
    scaled = by(source, beta)
    curve = div(log1p(exp(scaled)), number(beta, source))
    return select(gt(scaled, number(threshold, source)), source, curve)


_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
"""Abramowitz and Stegun, 7.1.26: error at most 1.5e-7."""


def short_erf(source: Tensor) -> Tensor:
    """Return the error function in float32 as in PyTorch's gelu kernels, with few operations; exact in other dtypes."""
    if source.dtype != "f32":
        return pointwise("erf", source)
    size = pointwise("abs", source)
    one = number(1.0, source)
    part = div(one, pointwise("fma", number(0.3275911, source), size, one))
    curve = number(_ERF[0], source)
    for factor in _ERF[1:]:
        curve = pointwise("fma", curve, part, number(factor, source))
    density = pointwise("neg", exp(pointwise("neg", mul(source, source))))
    return pointwise("copysign", pointwise("fma", mul(density, part), curve, one), source)


def gelu(source: Tensor, approximate: str = "none") -> Tensor:
    """Return x times the normal distribution function of x."""
    if approximate == "none":
        return mul(by(source, 0.5), plus(short_erf(by(source, math.sqrt(0.5))), 1.0))
    cube = mul(mul(source, source), source)
    inner = by(add(source, by(cube, 0.044715)), math.sqrt(2.0 / math.pi))
    return mul(by(source, 0.5), plus(tanh(inner), 1.0))


def elu(source: Tensor, alpha: float, scale: float, input_scale: float) -> Tensor:
    """Return scale * x, and scale * alpha * (exp(input_scale x) - 1) below 0."""
    curve = by(apply("expm1")(by(source, input_scale)), alpha * scale)
    return select(le(source, number(0.0, source)), curve, by(source, scale))


def sign(source: Tensor) -> Tensor:
    """Return -1, 0 or 1; 0 for NaN."""
    zero = number(0, source)
    if source.dtype == "i1":
        return source
    if source.dtype == "u8":
        return select(ne(source, zero), number(1, source), zero)
    below = select(lt(source, zero), number(-1, source), zero)
    return select(gt(source, zero), number(1, source), below)


def is_nan(source: Tensor) -> Tensor:
    """Return a mask of the elements that are NaN."""
    return ne(source, source) if source.dtype in FLOATS else fill(False, "i1", source.shape)


def is_infinite(source: Tensor) -> Tensor:
    """Return a mask of the elements that are infinite."""
    if source.dtype not in FLOATS:
        return fill(False, "i1", source.shape)
    return eq(apply("abs")(source), number(math.inf, source))


def is_finite(source: Tensor) -> Tensor:
    """Return a mask of the elements that are finite."""
    if source.dtype not in FLOATS:
        return fill(True, "i1", source.shape)
    return lt(apply("abs")(source), number(math.inf, source))


def hard_sigmoid(source: Tensor) -> Tensor:
    """Return x / 6 + 1/2, clamped to 0 and 1."""
    return div(clamped(plus(source, 3.0), 0.0, 6.0), number(6.0, source))


def hard_swish(source: Tensor) -> Tensor:
    """Return x times its hard sigmoid."""
    return div(mul(source, clamped(plus(source, 3.0), 0.0, 6.0)), number(6.0, source))


def log_sigmoid(source: Tensor) -> Tensor:
    """Return the logarithm of the sigmoid."""
    small = log1p(exp(apply("neg")(apply("abs")(source))))
    return sub(minimum(source, number(0.0, source)), small)


def mish(source: Tensor) -> Tensor:
    """Return x tanh(log(1 + exp(x)))."""
    return mul(source, tanh(log1p(exp(source))))


def power(source: Tensor, exponent: float) -> Tensor:
    """Return a constant power, computed by multiplications if PyTorch does the same."""
    if exponent == 0:
        return broadcast(number(1, source), source.shape)
    if float(exponent).is_integer() and 0 < exponent <= (3 if source.dtype in FLOATS else 64):
        return _repeated(source, int(exponent))
    if exponent == 0.5:
        return sqrt(source)
    if exponent == -0.5:
        return reciprocal(sqrt(source))
    if exponent == -1:
        return reciprocal(source)
    if exponent == -2:
        return reciprocal(mul(source, source))
    return pointwise("pow", source, number(exponent, source))


def _repeated(source: Tensor, times: int) -> Tensor:
    result = source
    for _ in range(times - 1):
        result = mul(result, source)
    return result


def remainder(left: Tensor, right: Tensor) -> Tensor:
    """Return the remainder of a division, with the divisor's sign."""
    rest = pointwise("fmod" if left.dtype in FLOATS else "irem", left, right)
    zero = number(0, left)
    differs = pointwise("xor", lt(right, zero), lt(rest, zero))
    is_off = pointwise("and", ne(rest, zero), differs)
    return select(is_off, add(rest, right), rest)


def floor_divided(left: Tensor, right: Tensor, kept: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> Tensor:
    """Return the quotient rounded down, computed from the remainder to be as exact as in PyTorch.

    Each step of floats is rounded by `kept`.
    """
    zero = number(0, left)
    if left.dtype not in FLOATS:
        quotient = pointwise("idiv", left, right)
        rest = pointwise("irem", left, right)
        is_off = pointwise("and", ne(rest, zero), pointwise("xor", lt(right, zero), lt(rest, zero)))
        return sub(quotient, cast(is_off, left.dtype))
    rest = pointwise("fmod", left, right)
    quotient = kept(div(kept(sub(left, rest)), right))
    is_off = pointwise("and", ne(rest, zero), pointwise("xor", lt(right, zero), lt(rest, zero)))
    quotient = select(is_off, kept(plus(quotient, -1.0)), quotient)
    down = pointwise("floor", quotient)
    down = select(gt(kept(sub(quotient, down)), number(0.5, left)), plus(down, 1.0), down)
    down = select(ne(quotient, zero), down, pointwise("copysign", zero, div(left, right)))
    return select(eq(right, zero), div(left, right), down)


# --- Rules ------------------------------------------------------------------------------------------------------------


def _celu(source: Tensor, alpha: float) -> Tensor:
    return elu(source, alpha, 1.0, 1.0 / alpha)


def _leaky(source: Tensor, slope: float) -> Tensor:
    return select(gt(source, number(0.0, source)), source, by(source, slope))


def _above(source: Tensor, limit: float, value: float) -> Tensor:
    return select(le(source, number(limit, source)), number(value, source), source)


def _shrunk(source: Tensor, limit: float) -> Tensor:
    inside = pointwise("and", ge(source, number(-limit, source)), le(source, number(limit, source)))
    return select(inside, number(0.0, source), source)


def _same(function: Callable[[Tensor], Tensor]) -> Rule:
    """Return the rule of a function of one tensor, computed in its own dtype."""
    return _same_with(function)


def _same_with(function: Function, *names: str) -> Rule:
    """Return the rule of a function of one tensor, computed in its own dtype, and plain numbers."""

    def rule(call: Call) -> Tensor:
        (source,) = call.promoted(_first_name(call))
        return cast(function(source, *(call.number(name) for name in names)), call.dtype)

    return rule


def _floating(function: Callable[[Tensor], Tensor]) -> Rule:
    """Return the rule of a function of one tensor; integers are computed as float32."""
    return _floating_with(function)


def _floating_with(function: Function, *names: str) -> Rule:
    """Return the same with plain numbers as further arguments."""

    def rule(call: Call) -> Tensor:
        (source,) = call.promoted(_first_name(call), kind=INT_TO_FLOAT)
        return cast(function(source, *(call.number(name) for name in names)), call.dtype)

    return rule


def _first_name(call: Call) -> str:
    from hub.plugin.table import declared_arguments

    return declared_arguments(call.node)[0].name


def _pair(function: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    """Return the rule of a function of two tensors or numbers, in their promoted dtype."""

    def rule(call: Call) -> Tensor:
        left, right = call.promoted("self", "other")
        return _shaped(function(left, right), call)

    return rule


def _product(call: Call) -> Tensor:
    left, right = call.promoted("self", "other", exact=_unrounded(call))
    return _shaped(mul(left, right), call)


def _unrounded(call: Call, on_cpu: Sequence[str] = ("other",)) -> Sequence[str]:
    """Return which operands of arithmetic PyTorch leaves unrounded if they are one number: on a GPU, both."""
    return on_cpu if call.is_on_cpu else ("self", "other")


def _same_with_rounded(function: Function, name: str) -> Rule:
    """Return the rule of a function of one tensor and a number that PyTorch first rounds to the tensor's dtype."""

    def rule(call: Call) -> Tensor:
        (source,) = call.promoted(_first_name(call))
        return cast(function(source, call.rounded(call.number(name))), call.dtype)

    return rule


def _limited(limits: Callable[[Call], tuple[float | None, float | None]]) -> Rule:
    """Return the rule that clamps to numbers. On a CPU, and not on a GPU, zeros keep their sign at a limit of zero."""

    def rule(call: Call) -> Tensor:
        (source,) = call.promoted("self")
        return _shaped(clamped(source, *limits(call), keeps_zeros=call.is_on_cpu), call)

    return rule


def _shaped(tensor: Tensor, call: Call) -> Tensor:
    return broadcast(cast(tensor, call.dtype), call.shape)


def _scaled_pair(function: Function, *, is_turned: bool = False) -> Rule:
    def rule(call: Call) -> Tensor:
        left, right = call.promoted("self", "other", exact=_unrounded(call, on_cpu=()))
        if left.dtype != "i1" or call.dtype != "i1":
            kind = "f32" if call.dtype in ("f16", "bf16") else call.dtype
            left, right = cast(left, kind), cast(right, kind)
        if is_turned:
            left, right = right, left
        factor = call.number("alpha")
        factor = call.rounded(factor) if call.is_on_cpu else factor
        right = right if factor == 1 else by(right, factor)
        return _shaped(function(left, right), call)

    return rule


def _quotient(call: Call) -> Tensor:
    mode = call.number("rounding_mode") if call.has("rounding_mode") else None
    if mode is None:
        left, right = call.promoted("self", "other", kind=INT_TO_FLOAT, exact=_unrounded(call))
        return _shaped(div(left, right), call)
    if mode == "floor":
        return _floor_quotient(call)
    left, right = call.promoted("self", "other", exact=("other",))
    if left.dtype in FLOATS:
        return _shaped(pointwise("trunc", _stepwise(call)(div(left, right))), call)
    return _shaped(pointwise("idiv", left, right), call)


def _floor_quotient(call: Call) -> Tensor:
    left, right = call.promoted("self", "other", exact=("other",))
    return _shaped(floor_divided(left, right, _stepwise(call)), call)


def _stepwise(call: Call) -> Callable[[Tensor], Tensor]:
    """Return how each step of a whole quotient is rounded: to half precision, except by one number."""
    kind = call.dtype
    is_rounded = kind in HALVES and not call.is_one_number("other")
    return lambda tensor: cast(cast(tensor, kind), tensor.dtype) if is_rounded else tensor


def _left_shifted(source: Tensor, count: Tensor) -> Tensor:
    """Return source * 2^count, and 0 if `count` is negative or not below the number of bits."""
    bits = BITS[source.dtype]
    inside = pointwise("and", ge(count, number(0, count)), lt(count, number(bits, count)))
    shifted = pointwise("shl", source, select(inside, count, number(0, count)))
    return select(inside, shifted, number(0, source))


def _right_shifted(source: Tensor, count: Tensor) -> Tensor:
    """Return source / 2^count rounded down; only the sign remains for a negative count, or one of all bits or more."""
    last = BITS[source.dtype] - 1
    inside = pointwise("and", ge(count, number(0, count)), le(count, number(last, count)))
    shifted = pointwise("shr", source, select(inside, count, number(last, count)))
    return shifted if source.dtype != "u8" else select(inside, shifted, number(0, source))


def _compared(function: Function) -> Rule:
    def rule(call: Call) -> Tensor:
        left, right = call.promoted("self", "other")
        return broadcast(function(left, right), call.shape)

    return rule


def _logical(function: str) -> Rule:
    def rule(call: Call) -> Tensor:
        left, right = (cast(call.tensor(name), "i1") for name in ("self", "other"))
        return broadcast(pointwise(function, left, right), call.shape)

    return rule


def _where(call: Call) -> Tensor:
    yes, no = (cast(call.tensor(name), call.dtype) for name in ("self", "other"))
    return broadcast(select(cast(call.tensor("condition"), "i1"), yes, no), call.shape)


def _masked_fill(call: Call) -> Tensor:
    source = call.tensor("self")
    value = cast(call.tensor("value"), source.dtype)
    return broadcast(select(call.tensor("mask"), value, source), call.shape)


def _clamp(call: Call) -> Tensor:
    """Clamp to those limits that there are. Which zero is the larger one is open in eager only between tensors."""
    kind = "f32" if call.dtype in ("f16", "bf16") else call.dtype
    result = cast(call.tensor("self"), kind)
    for name, function in (("min", maximum), ("max", minimum)):
        if not call.has(name):
            continue
        limit = call.raw(name)
        if limit == 0:
            low, high = (limit, None) if name == "min" else (None, limit)
            result = clamped(result, low, high, keeps_zeros=call.is_on_cpu)
        else:
            result = function(result, cast(call.tensor(name), kind))
    return _shaped(result, call)


def _addcmul(call: Call) -> Tensor:
    """Round product and sum once, as PyTorch's kernels do: rounded twice, results are far off if terms cancel."""
    source, one, other = call.promoted("self", "tensor1", "tensor2")
    value = call.number("value")
    factor = by(one, value) if value != 1 else one
    if source.dtype in ("f32", "f64"):
        return _shaped(pointwise("fma", factor, other, source), call)
    return _shaped(add(source, mul(factor, other)), call)


def _addcdiv(call: Call) -> Tensor:
    source, one, other = call.promoted("self", "tensor1", "tensor2")
    value = call.number("value")
    return _shaped(add(source, div(by(one, value) if value != 1 else one, other)), call)


def _lerp(call: Call) -> Tensor:
    """Interpolate from the nearer end, and round product and sum once, as PyTorch's vectorised kernels do."""
    start, end, weight = call.promoted("self", "end", "weight", exact=["weight"] if call.is_number("weight") else [])
    way, back = sub(end, start), sub(weight, number(1.0, start))
    if start.dtype in ("f32", "f64"):
        near, far = pointwise("fma", weight, way, start), pointwise("fma", back, way, end)
    else:
        near, far = add(start, mul(weight, way)), add(end, mul(back, way))
    return _shaped(select(lt(pointwise("abs", weight), number(0.5, start)), near, far), call)


def _power_of(call: Call) -> Tensor:
    """Round the exponent first. On a CPU, only unrounded ones make a root, and in float16 none: that of -inf is NaN."""
    (source,) = call.promoted("self")
    kind = "f32" if call.dtype in ("f16", "bf16") else call.dtype
    source, given = cast(source, kind), call.number("exponent")
    exponent = call.rounded(given)
    if abs(exponent) == 0.5 and call.is_on_cpu and (exponent != given or call.dtype == "f16"):
        return _shaped(pointwise("pow", source, number(exponent, source)), call)
    return _shaped(power(source, exponent), call)


def _powers(call: Call) -> Tensor:
    base, exponent = call.promoted("self", "exponent")
    return _shaped(pointwise("pow", base, exponent), call)


def _not_nan(first: Tensor, second: Tensor, function: Function) -> Tensor:
    return select(is_nan(first), second, select(is_nan(second), first, function(first, second)))


def _prelu(call: Call) -> Tensor:
    source, weight = computing(call.tensor("self")), computing(call.tensor("weight"))
    rank = len(source.shape)
    if len(weight.shape) == 1 and rank > 1:
        from hub.toolkit.builders import reshaped

        weight = reshaped(weight, (weight.shape[0], *([1] * (rank - 2))))
    return _shaped(select(gt(source, number(0.0, source)), source, mul(weight, source)), call)


_LARGEST = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38, "f64": 1.7976931348623157e308}


def _nan_to_num(call: Call) -> Tensor:
    source = computing(call.tensor("self"))
    largest = _LARGEST[call.dtype]
    top = call.number("posinf") if call.has("posinf") else largest
    bottom = call.number("neginf") if call.has("neginf") else -largest
    result = select(is_nan(source), number(call.number("nan") if call.has("nan") else 0.0, source), source)
    result = select(eq(source, number(math.inf, source)), number(top, source), result)
    return cast(select(eq(source, number(-math.inf, source)), number(bottom, source), result), call.dtype)


def _logaddexp(left: Tensor, right: Tensor) -> Tensor:
    top = maximum(left, right)
    apart = pointwise("abs", sub(left, right))
    return select(eq(left, right), plus(left, math.log(2.0)), add(top, log1p(exp(pointwise("neg", apart)))))


def xlogy(left: Tensor, right: Tensor) -> Tensor:
    """Return x * log(y), and 0 where x is 0 and y is not NaN."""
    zero = number(0.0, left)
    result = select(eq(left, zero), zero, mul(left, log(right)))
    return select(is_nan(right), right, result)


def _tests(function: Function) -> Rule:
    return lambda call: broadcast(function(computing(call.tensor("self"))), call.shape)


_MATHEMATICS = "exp expm1 exp2 log log2 log10 log1p sqrt sin cos tan asin acos atan sinh cosh tanh acosh atanh erf erfc"
RULES: dict[str, Rule] = {
    **{f"aten.{name}.default": _floating(apply(name)) for name in _MATHEMATICS.split()},
    **{f"aten.{name}.default": _same(partial(rounded, name)) for name in ("floor", "ceil", "trunc", "round")},
    "aten.fix.default": _same(partial(rounded, "trunc")),
    "aten.abs.default": _same(apply("abs")),
    "aten.neg.default": _same(apply("neg")),
    "aten.relu.default": _limited(lambda _: (0, None)),
    "aten.sign.default": _same(sign),
    "aten.sgn.default": _same(sign),
    "aten.square.default": _same(lambda source: mul(source, source)),
    "aten.frac.default": _same(lambda source: sub(source, pointwise("trunc", source))),
    "aten.positive.default": _same(lambda source: source),
    "aten.sigmoid.default": _floating(sigmoid),
    "aten.rsqrt.default": _floating(lambda source: reciprocal(sqrt(source))),
    "aten.reciprocal.default": _floating(reciprocal),
    "aten.silu.default": _floating(silu),
    "aten.mish.default": _floating(mish),
    "aten.log_sigmoid.default": _floating(log_sigmoid),
    "aten.log_sigmoid_forward.default": lambda call: (
        cast(log_sigmoid(call.promoted("self")[0]), call.result(0)[1]),
        fill(0.0, call.result(1)[1], call.result(1)[0]),
    ),
    "aten.gelu.default": _floating_with(gelu, "approximate"),
    "aten.hardsigmoid.default": _floating(hard_sigmoid),
    "aten.hardswish.default": _floating(hard_swish),
    "aten.relu6.default": _limited(lambda _: (0.0, 6.0)),
    "aten.hardtanh.default": _limited(lambda call: (call.number("min_val"), call.number("max_val"))),
    "aten.selu.default": _floating(lambda source: elu(source, 1.6732632423543772, 1.0507009873554805, 1.0)),
    "aten.elu.default": _floating_with(elu, "alpha", "scale", "input_scale"),
    "aten.celu.default": _floating_with(_celu, "alpha"),
    "aten.leaky_relu.default": _floating_with(_leaky, "negative_slope"),
    "aten.softplus.default": _floating_with(softplus, "beta", "threshold"),
    "aten.threshold.default": _same_with(_above, "threshold", "value"),
    "aten.hardshrink.default": _same_with_rounded(_shrunk, "lambd"),
    "aten.deg2rad.default": _floating(lambda source: by(source, math.pi / 180.0)),
    "aten.rad2deg.default": _floating(lambda source: by(source, 180.0 / math.pi)),
    "aten.prelu.default": _prelu,
    "aten._prelu_kernel.default": _prelu,
    "aten.isnan.default": _tests(is_nan),
    "aten.isinf.default": _tests(is_infinite),
    "aten.isfinite.default": _tests(is_finite),
    "aten.logical_not.default": lambda call: pointwise("not", cast(call.tensor("self"), "i1")),
    "aten.bitwise_not.default": lambda call: pointwise("not", call.tensor("self")),
    "aten.nan_to_num.default": _nan_to_num,
    **{f"aten.add.{form}": _scaled_pair(add) for form in ("Tensor", "Scalar")},
    **{f"aten.sub.{form}": _scaled_pair(sub) for form in ("Tensor", "Scalar")},
    **{f"aten.rsub.{form}": _scaled_pair(sub, is_turned=True) for form in ("Tensor", "Scalar")},
    **{f"aten.mul.{form}": _product for form in ("Tensor", "Scalar")},
    **{f"aten.div.{form}": _quotient for form in ("Tensor", "Scalar", "Tensor_mode", "Scalar_mode")},
    "aten.true_divide.Tensor": _quotient,
    "aten.floor_divide.default": _floor_quotient,
    "aten.floor_divide.Scalar": _floor_quotient,
    "aten.remainder.Tensor": _pair(remainder),
    "aten.remainder.Scalar": _pair(remainder),
    **{
        f"aten.fmod.{form}": _pair(lambda left, right: pointwise("fmod" if left.dtype in FLOATS else "irem", left, right))
        for form in ("Tensor", "Scalar")
    },
    "aten.pow.Tensor_Scalar": _power_of,
    "aten.pow.Tensor_Tensor": _powers,
    "aten.pow.Scalar": _powers,
    "aten.atan2.default": _pair(apply("atan2")),
    "aten.hypot.default": _pair(apply("hypot")),
    "aten.copysign.Tensor": _pair(apply("copysign")),
    "aten.logaddexp.default": _pair(_logaddexp),
    "aten.xlogy.Tensor": _pair(xlogy),
    **{f"aten.{name}": _pair(maximum) for name in ("maximum.default", "max.other")},
    **{f"aten.{name}": _pair(minimum) for name in ("minimum.default", "min.other")},
    "aten.fmax.default": _pair(lambda left, right: _not_nan(left, right, maximum)),
    "aten.fmin.default": _pair(lambda left, right: _not_nan(left, right, minimum)),
    **{
        f"aten.{name}.{form}": _compared(apply(name))
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for form in ("Tensor", "Scalar")
    },
    **{
        f"aten.bitwise_{name}_shift.{form}": _pair(function)
        for name, function in (("left", _left_shifted), ("right", _right_shifted))
        for form in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
    },
    **{f"aten.__lshift__.{form}": _pair(_left_shifted) for form in ("Tensor", "Scalar")},
    **{f"aten.__rshift__.{form}": _pair(_right_shifted) for form in ("Tensor", "Scalar")},
    **{f"aten.logical_{name}.default": _logical(name) for name in ("and", "or", "xor")},
    **{
        f"aten.{prefix}.{form}": _pair(apply(name))
        for name in ("and", "or", "xor")
        for prefix in (f"bitwise_{name}", f"__{name}__")
        for form in ("Tensor", "Scalar")
    },
    **{f"aten.where.{form}": _where for form in ("self", "ScalarSelf", "ScalarOther", "Scalar")},
    **{f"aten.masked_fill.{form}": _masked_fill for form in ("Scalar", "Tensor")},
    **{f"aten.{name}.{form}": _clamp for name in ("clamp", "clamp_min", "clamp_max") for form in ("default", "Tensor")},
    "aten.addcmul.default": _addcmul,
    "aten.addcdiv.default": _addcdiv,
    **{f"aten.lerp.{form}": _lerp for form in ("Scalar", "Tensor")},
}
