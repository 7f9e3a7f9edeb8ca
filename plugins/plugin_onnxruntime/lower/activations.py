"""Lowers activation functions."""

from __future__ import annotations

import torch
from torch import fx

from .builder import MICROSOFT
from .call import Call, lowers


@lowers("relu.default")
def relu(call: Call) -> str:
    """Return max(x, 0)."""
    value = call.typed("self")
    if call.out_dtype is not torch.int64:
        return call.op("Relu", value)
    zero = call.constant(0)
    return call.op("Where", call.op("Less", value, zero), zero, value)


@lowers("gelu.default")
def gelu(call: Call) -> str:
    """Return x * Phi(x), exactly or by tanh. ORT's BiasGelu fusion looks for ORT's own operators."""
    kind = "Gelu" if call["approximate"] == "none" else "FastGelu"
    return call.op(kind, call.input("self"), domain=MICROSOFT)


@lowers("silu.default")
def silu(call: Call) -> str:
    """Return x * sigmoid(x), as ORT's one-pass operator."""
    return call.op("QuickGelu", call.input("self"), domain=MICROSOFT, alpha=1.0)


@lowers("leaky_relu.default")
def leaky_relu(call: Call) -> str:
    """Return x, or negative_slope * x below zero. Under `dynamic=True` the slope may be a number known only at run time."""
    if isinstance(call["negative_slope"], fx.Node):
        value, zero = call.input("self"), call.constant(0.0)
        return call.op("Where", call.op("Greater", value, zero), value, call.op("Mul", value, call.typed("negative_slope")))
    return call.op("LeakyRelu", call.input("self"), alpha=float(call["negative_slope"]))


@lowers("elu.default")
def elu(call: Call) -> str:
    """Return scale * (x, or alpha * (exp(x) - 1) below zero)."""
    value = call.op("Elu", call.input("self"), alpha=float(call["alpha"]))
    return value if call["scale"] == 1 else call.op("Mul", value, call.typed("scale"))


@lowers("selu.default")
def selu(call: Call) -> str:
    """Return ELU with the self-normalising constants, which are ONNX's defaults."""
    return call.op("Selu", call.input("self"))


@lowers("hardsigmoid.default")
def hardsigmoid(call: Call) -> str:
    """Return clamp(x / 6 + 1 / 2, 0, 1)."""
    return call.op("HardSigmoid", call.input("self"), alpha=1.0 / 6.0, beta=0.5)


@lowers("hardswish.default")
def hardswish(call: Call) -> str:
    """Return x * hardsigmoid(x)."""
    return call.op("Mul", call.input("self"), hardsigmoid(call))


@lowers("softplus.default")
def softplus(call: Call) -> str:
    """Return log(1 + exp(beta x)) / beta, and x itself above the threshold."""
    value, beta, threshold = call.input("self"), float(call["beta"]), float(call["threshold"])
    scaled = value if beta == 1.0 else call.op("Mul", value, call.constant(beta))
    smooth = call.op("Softplus", scaled)
    smooth = smooth if beta == 1.0 else call.op("Div", smooth, call.constant(beta))
    return call.op("Where", call.op("Greater", scaled, call.constant(threshold)), value, smooth)


@lowers("mish.default")
def mish(call: Call) -> str:
    """Return x * tanh(softplus(x))."""
    return call.op("Mul", call.input("self"), call.op("Tanh", call.op("Softplus", call.input("self"))))


@lowers("log_sigmoid.default")
def log_sigmoid(call: Call) -> str:
    """Return -softplus(-x)."""
    return call.op("Neg", call.op("Softplus", call.op("Neg", call.input("self"))))


@lowers("prelu.default", "_prelu_kernel.default")
def prelu(call: Call) -> str:
    """Return x, or a learned slope times x below zero; the slope varies along dim 1."""
    slope, shape = call.input("weight"), call.shape("weight")
    if len(shape) == 1 and call.rank("self") > 2:
        slope = call.reshape(slope, shape, (*shape, *[1] * (call.rank("self") - 2)))
    return call.op("PRelu", call.input("self"), slope)


@lowers("glu.default")
def glu(call: Call) -> str:
    """Return the first half times the sigmoid of the second half."""
    first, second = call.ops("Split", call.input("self"), n_outputs=2, axis=call.dim("dim"), num_outputs=2)
    return call.op("Mul", first, call.op("Sigmoid", second))
