"""Operators of backward graphs."""

from __future__ import annotations

import math

from hub.toolkit.builders import cast, pointwise, select
from hub.toolkit.rules.call import Call, Rule
from hub.toolkit.rules.elementwise import add, by, exp, gt, le, mul, number, plus, short_erf, sigmoid, sub, tanh
from hub.toolkit.rules.reductions import total
from hub.toolkit.tensors import Tensor


def _pair(first: str, second: str, function: object) -> Rule:
    def rule(call: Call) -> Tensor:
        one, other = call.promoted(first, second)
        return cast(function(one, other), call.dtype)  # type: ignore[operator]

    return rule


def _tanh(grad: Tensor, output: Tensor) -> Tensor:
    return mul(grad, sub(number(1.0, output), mul(output, output)))


def _sigmoid(grad: Tensor, output: Tensor) -> Tensor:
    return mul(grad, mul(sub(number(1.0, output), output), output))


def _silu(grad: Tensor, source: Tensor) -> Tensor:
    share = sigmoid(source)
    return mul(mul(grad, share), plus(mul(source, sub(number(1.0, source), share)), 1.0))


def _threshold(call: Call) -> Tensor:
    grad, source = call.promoted("grad_output", "self")
    inside = le(source, number(call.number("threshold"), source))
    return cast(select(inside, number(0.0, grad), grad), call.dtype)


def _gelu(call: Call) -> Tensor:
    grad, source = call.promoted("grad_output", "self")
    if call.raw("approximate") == "none":
        below = by(plus(short_erf(by(source, math.sqrt(0.5))), 1.0), 0.5)
        density = by(exp(by(mul(source, source), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
        return cast(mul(grad, add(below, mul(source, density))), call.dtype)
    beta, kappa = math.sqrt(2.0 / math.pi), 0.044715
    square = mul(source, source)
    inner = by(add(source, by(mul(square, source), kappa)), beta)
    curve = tanh(inner)
    left = by(plus(curve, 1.0), 0.5)
    steep = by(plus(by(square, 3.0 * kappa), 1.0), beta)
    right = mul(by(source, 0.5), mul(sub(number(1.0, curve), mul(curve, curve)), steep))
    return cast(mul(grad, add(left, right)), call.dtype)


def _leaky(call: Call) -> Tensor:
    grad, source = call.promoted("grad_output", "self")
    return cast(select(gt(source, number(0.0, source)), grad, by(grad, call.number("negative_slope"))), call.dtype)


def _hardtanh(call: Call) -> Tensor:
    grad, source = call.promoted("grad_output", "self")
    low, high = number(call.number("min_val"), source), number(call.number("max_val"), source)
    outside = pointwise("or", le(source, low), pointwise("ge", source, high))
    return cast(select(outside, number(0.0, grad), grad), call.dtype)


def _softmax(call: Call) -> Tensor:
    grad, output = call.promoted("grad_output", "output")
    dim = call.raw("dim") % max(len(grad.shape), 1)
    product = mul(grad, output)
    dims = (dim,) if grad.shape else ()
    return cast(sub(product, mul(output, total(product, dims))), call.dtype)


def _log_softmax(call: Call) -> Tensor:
    grad, output = call.promoted("grad_output", "output")
    dim = call.raw("dim") % max(len(grad.shape), 1)
    dims = (dim,) if grad.shape else ()
    return cast(sub(grad, mul(exp(output), total(grad, dims))), call.dtype)


RULES: dict[str, Rule] = {
    "aten.tanh_backward.default": _pair("grad_output", "output", _tanh),
    "aten.sigmoid_backward.default": _pair("grad_output", "output", _sigmoid),
    "aten.silu_backward.default": _pair("grad_output", "self", _silu),
    "aten.threshold_backward.default": _threshold,
    "aten.gelu_backward.default": _gelu,
    "aten.leaky_relu_backward.default": _leaky,
    "aten.hardtanh_backward.default": _hardtanh,
    "aten._softmax_backward_data.default": _softmax,
    "aten._log_softmax_backward_data.default": _log_softmax,
}
