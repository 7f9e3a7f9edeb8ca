"""Rules for activation functions. They use OpenVINO's own, which fuse into the convolution or product before them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from plugin_openvino.call import Call
from plugin_openvino.library import ops
from plugin_openvino.operands import constant, indices, output
from plugin_openvino.rules.elementwise import Rule, log_of_one_plus, not_a_number, unary

_F32 = torch.float32


def _gelu(call: Call) -> Any:
    return ops.gelu(call.tensor("self"), "ERF" if call.raw("approximate") == "none" else "TANH")


def _hardtanh(call: Call) -> Any:
    """Clamp to bounds that, with dynamic shapes, Dynamo may pass as numbers known only at run time."""
    low, high = call.raw("min_val"), call.raw("max_val")
    if isinstance(low, fx.Node) or isinstance(high, fx.Node):
        return ops.minimum(ops.maximum(call.tensor("self"), call.value(low, _F32)), call.value(high, _F32))
    return ops.clamp(call.tensor("self"), float(low), float(high))


def _leaky_relu(call: Call) -> Any:
    return ops.prelu(call.tensor("self"), constant([call.raw("negative_slope")], _F32))


def _prelu(call: Call) -> Any:
    """Scale negative elements by one factor, or by one for each channel, which is dim 1."""
    dims, is_shared = call.fake("self").dim(), call.fake("weight").numel() == 1
    shape = [1] * dims if is_shared or dims < 2 else [1, -1, *[1] * (dims - 2)]
    return ops.prelu(call.tensor("self"), ops.reshape(call.tensor("weight"), indices(shape), False))


def _elu(call: Call) -> Any:
    return ops.elu(call.tensor("self"), float(call.raw("alpha")))


def _selu(call: Call) -> Any:
    alpha, scale = 1.6732632423543772, 1.0507009873554805  # Klambauer et al. 2017, as in ATen's selu
    return ops.selu(call.tensor("self"), constant(alpha, _F32), constant(scale, _F32))


def _celu(call: Call) -> Any:
    value, alpha = call.tensor("self"), call.tensor("alpha", _F32)
    below = ops.multiply(ops.elu(ops.divide(value, alpha), 1.0), alpha)
    return ops.select(ops.less(constant(0, _F32), value), value, below)


def _threshold(call: Call) -> Any:
    value = call.tensor("self")
    return ops.select(ops.less_equal(value, call.tensor("threshold", _F32)), call.tensor("value", _F32), value)


def _softshrink(call: Call) -> Any:
    value, width, nothing = call.tensor("self"), call.tensor("lambd", _F32), constant(0, _F32)
    moved = ops.select(ops.less(nothing, value), ops.subtract(value, width), ops.add(value, width))
    return ops.select(ops.less_equal(ops.abs(value), width), nothing, moved)


def _softmax(call: Call) -> Any:
    return ops.softmax(call.tensor("self", call.dtype), call.dim("dim"))


def _log_softmax(call: Call) -> Any:
    return ops.log_softmax(call.tensor("self", call.dtype), call.dim("dim"))


def _glu(call: Call) -> Any:
    halves = ops.split(call.tensor("self"), constant(call.dim("dim"), torch.int64), 2)
    return ops.multiply(halves.output(0), ops.sigmoid(halves.output(1)))


def _softplus(value: Any) -> Any:
    """Return log(1 + exp(x)), and x itself above 20, as eager does.

    OpenVINO's own softplus is off by a rounding of x where x is negative: 7.6e-6 at -75, where the result is 3e-33.
    """
    most = constant(20, _F32)
    smooth = log_of_one_plus(output(ops.exp(ops.minimum(value, most))))
    return ops.select(ops.less_equal(value, most), smooth, value)  # NaN stays, which `exp` loses


def _log_sigmoid(call: Call) -> Any:
    """Return log(sigmoid(x)) as min(x, 0) - log(1 + exp(-|x|)), as eager does."""
    value = call.tensor("self")
    tail = log_of_one_plus(output(ops.exp(ops.negative(ops.abs(value)))))
    result = ops.subtract(ops.minimum(value, constant(0, _F32)), tail)
    return ops.select(not_a_number(value), value, result)


RULES: Mapping[str, Rule] = {
    "aten.relu.default": unary(ops.relu),
    "aten.relu6.default": lambda call: ops.clamp(call.tensor("self"), 0.0, 6.0),
    "aten.hardtanh.default": _hardtanh,
    "aten.hardswish.default": unary(ops.hswish),
    "aten.hardsigmoid.default": unary(ops.hsigmoid),
    "aten.leaky_relu.default": _leaky_relu,
    "aten.prelu.default": _prelu,
    "aten.elu.default": _elu,
    "aten.celu.default": _celu,
    "aten.threshold.default": _threshold,
    "aten.softshrink.default": _softshrink,
    "aten.selu.default": _selu,
    "aten.gelu.default": _gelu,
    "aten.silu.default": unary(ops.swish),
    "aten.mish.default": unary(ops.mish),
    "aten.sigmoid.default": unary(ops.sigmoid),
    "aten.tanh.default": unary(ops.tanh),
    "aten.softplus.default": unary(_softplus),
    "aten.log_sigmoid.default": _log_sigmoid,
    "aten.glu.default": _glu,
    "aten.softmax.int": _softmax,
    "aten._softmax.default": _softmax,
    "aten.log_softmax.int": _log_softmax,
    "aten._log_softmax.default": _log_softmax,
}
