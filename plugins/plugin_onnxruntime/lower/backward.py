"""Lowers the gradients of pointwise operators and softmax, as they appear in backward graphs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .call import Call, lowers
from .index import add_rows


@lowers("threshold_backward.default")
def threshold_backward(call: Call) -> str:
    """Return the gradient where self is above the threshold, else 0."""
    above = call.op("Greater", call.input("self"), call.constant(float(call["threshold"])))
    return call.op("Where", above, call.typed("grad_output"), call.constant(0.0))


@lowers("tanh_backward.default")
def tanh_backward(call: Call) -> str:
    """Return g (1 - y^2)."""
    output = call.input("output")
    return call.op("Mul", call.input("grad_output"), call.op("Sub", call.constant(1.0), call.op("Mul", output, output)))


@lowers("sigmoid_backward.default")
def sigmoid_backward(call: Call) -> str:
    """Return g y (1 - y)."""
    output = call.input("output")
    return call.op("Mul", call.op("Mul", call.input("grad_output"), call.op("Sub", call.constant(1.0), output)), output)


@lowers("_softmax_backward_data.default")
def softmax_backward(call: Call) -> str:
    """Return y (g - sum(g y)), with the sum along the softmax dim."""
    output, gradient = call.input("output"), call.input("grad_output")
    weighted = call.op("Mul", gradient, output)
    total = call.op("ReduceSum", weighted, call.ints(call.dim("dim", "output")), keepdims=1)
    return call.op("Sub", weighted, call.op("Mul", output, total))


@lowers("_log_softmax_backward_data.default")
def log_softmax_backward(call: Call) -> str:
    """Return g - exp(y) sum(g), with the sum along the softmax dim."""
    gradient = call.input("grad_output")
    total = call.op("ReduceSum", gradient, call.ints(call.dim("dim", "output")), keepdims=1)
    return call.op("Sub", gradient, call.op("Mul", call.op("Exp", call.input("output")), total))


@lowers("silu_backward.default")
def silu_backward(call: Call) -> str:
    """Return g s (1 + x (1 - s)), s = sigmoid(x)."""
    value = call.input("self")
    sigmoid, one = call.op("Sigmoid", value), call.constant(1.0)
    inner = call.op("Add", one, call.op("Mul", value, call.op("Sub", one, sigmoid)))
    return call.op("Mul", call.op("Mul", call.input("grad_output"), sigmoid), inner)


@lowers("gelu_backward.default")
def gelu_backward(call: Call) -> str:
    """Return g times the derivative of x Phi(x), or of its tanh form."""
    slope = _exact_slope(call) if call["approximate"] == "none" else _tanh_slope(call)
    return call.op("Mul", call.input("grad_output"), slope)


def _exact_slope(call: Call) -> str:
    """Return Phi(x) + x phi(x)."""
    value, half = call.input("self"), call.constant(0.5)
    erf = call.op("Erf", call.op("Mul", value, call.constant(0.7071067811865476)))
    phi = call.op(
        "Mul",
        call.op("Exp", call.op("Mul", call.op("Mul", value, value), call.constant(-0.5))),
        call.constant(0.3989422804014327),
    )
    return call.op("Add", call.op("Add", half, call.op("Mul", half, erf)), call.op("Mul", value, phi))


def _tanh_slope(call: Call) -> str:
    """Return (1 + t) / 2 + x (1 - t^2) u' / 2, t = tanh(u), u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    value, one, half = call.input("self"), call.constant(1.0), call.constant(0.5)
    square = call.op("Mul", value, value)
    root = call.constant(0.7978845608028654)
    bend = call.op("Add", one, call.op("Mul", call.constant(0.044715), square))
    tanh = call.op("Tanh", call.op("Mul", call.op("Mul", root, value), bend))
    inner = call.op("Mul", root, call.op("Add", one, call.op("Mul", call.constant(3 * 0.044715), square)))
    steep = call.op("Mul", call.op("Sub", one, call.op("Mul", tanh, tanh)), inner)
    return call.op("Mul", half, call.op("Add", call.op("Add", one, tanh), call.op("Mul", value, steep)))


@lowers("embedding_dense_backward.default")
def embedding_backward(call: Call) -> str:
    """Return the gradients, added up in the rows that were read; the padding row stays 0."""
    width = call.shape("grad_output")[-1]
    table = call.op("Expand", call.constant(0.0), call.builder.sizes(call.out_shape))
    indices = call.builder.cast(call.input("indices"), call.dtype("indices"), torch.int64)
    flat = call.op("Reshape", indices, call.ints(-1))
    gradient = call.op("Reshape", call.typed("grad_output"), call.ints(-1, width))
    if call["padding_idx"] >= 0:
        padding = call.op("Equal", call.unsqueeze(flat, 1), call.constant(call["padding_idx"], torch.int64))
        gradient = call.op("Where", padding, call.constant(0.0), gradient)
    return add_rows(call, table, flat, gradient, (width,))


@lowers("native_dropout_backward.default")
def dropout_backward(call: Call) -> str:
    """Return g, scaled where the element was kept, else 0."""
    kept = call.typed("mask")
    return call.op("Mul", call.op("Mul", call.typed("grad_output"), kept), call.typed("scale"))


@lowers("native_layer_norm_backward.default")
def layer_norm_backward(call: Call) -> tuple[str, ...]:
    """Return the gradients of input, weight and bias that `output_mask` selects."""
    gradient, normal = call.input("grad_out"), _normalised(call)
    rank, width = call.rank("input"), len(call["normalized_shape"])
    inner, outer = call.ints(*range(rank - width, rank)), range(rank - width)
    wanted = call["output_mask"]
    scaled = gradient if call["weight"] is None else call.op("Mul", gradient, call.input("weight"))
    of_input = _centred(call, scaled, normal, inner) if wanted[0] else ""
    of_weight = _summed(call, call.op("Mul", gradient, normal), outer) if wanted[1] else ""
    return of_input, of_weight, _summed(call, gradient, outer) if wanted[2] else ""


def _summed(call: Call, value: str, dims: Sequence[int]) -> str:
    """Return the sum over some dims, possibly none; ORT reads "none" as "all"."""
    return call.op("ReduceSum", value, call.ints(*dims), keepdims=0) if dims else value


def _normalised(call: Call) -> str:
    return call.op("Mul", call.op("Sub", call.input("input"), call.input("mean")), call.input("rstd"))


def _centred(call: Call, scaled: str, normal: str, inner: str) -> str:
    """Return rstd (s - mean(s) - n mean(s n)), with the means over the normalised dims."""
    along = call.op("ReduceMean", call.op("Mul", scaled, normal), inner, keepdims=1)
    level = call.op("ReduceMean", scaled, inner, keepdims=1)
    rest = call.op("Sub", call.op("Sub", scaled, level), call.op("Mul", normal, along))
    return call.op("Mul", rest, call.input("rstd"))


@lowers("slice_backward.default")
def slice_backward(call: Call) -> str:
    """Return zeros with the gradient at the slice's position; sizes and positions are plain numbers."""
    dim = call["dim"] % len(call.out_shape)
    start, _, _ = slice(call["start"], call["end"]).indices(call.out_shape[dim])
    return _placed(call, dim, start, call.input("grad_output"), call.shape("grad_output")[dim])


@lowers("select_backward.default")
def select_backward(call: Call) -> str:
    """Return zeros with the gradient at the selected element."""
    dim = call["dim"] % len(call.out_shape)
    return _placed(call, dim, call["index"] % call.out_shape[dim], call.unsqueeze(call.input("grad_output"), dim), 1)


def _placed(call: Call, dim: int, start: int, update: str, count: int) -> str:
    """Return zeros of the result's sizes with `count` elements of `update` from `start` on along one dim."""
    before, after = [0] * len(call.out_shape), [0] * len(call.out_shape)
    before[dim], after[dim] = start, call.out_shape[dim] - start - count
    return call.op("Pad", update, call.ints(*before, *after))
