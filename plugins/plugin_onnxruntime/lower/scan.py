"""Lowers running sums and products, and softmax."""

from __future__ import annotations

import torch
from onnx import helper

from .builder import ELEMENT
from .call import Call, lowers


@lowers("cumsum.default")
def cumsum(call: Call) -> str:
    """Return the running sum along one dim."""
    value = call.typed("self")
    return value if call.rank("self") == 0 else call.op("CumSum", value, call.constant(call.dim("dim"), torch.int64))


@lowers("cumprod.default")
def cumprod(call: Call) -> str:
    """Return the running product along one dim: ONNX has no operator, so a Scan carries the product."""
    value, axis = call.typed("self"), call.dim("dim")
    shape = [size for dim, size in enumerate(call.shape("self")) if dim != axis]
    start = call.op("Expand", call.constant(1), call.builder.sizes(shape)) if shape else call.constant(1)
    element = ELEMENT[call.out_dtype]
    infos = {name: helper.make_tensor_value_info(name, element, None) for name in ("so_far", "next", "product", "emitted")}
    body = helper.make_graph(
        [helper.make_node("Mul", ["so_far", "next"], ["product"]), helper.make_node("Identity", ["product"], ["emitted"])],
        "cumprod", [infos["so_far"], infos["next"]], [infos["product"], infos["emitted"]],
    )  # fmt: skip
    scan = call.ops(
        "Scan", start, value, n_outputs=2, body=body, num_scan_inputs=1, scan_input_axes=[axis], scan_output_axes=[axis]
    )
    return scan[1]


@lowers("softmax.int", "_softmax.default")
def softmax(call: Call) -> str:
    """Return the exponents of one dim, divided by their sum."""
    return call.op("Softmax", call.typed("self"), axis=call.dim("dim"))


@lowers("log_softmax.int", "_log_softmax.default")
def log_softmax(call: Call) -> str:
    """Return the logarithm of softmax, computed without overflow."""
    return call.op("LogSoftmax", call.typed("self"), axis=call.dim("dim"))


@lowers("_safe_softmax.default")
def safe_softmax(call: Call) -> str:
    """Return softmax, but 0 where the whole dim is minus infinity."""
    value = call.typed("self")
    highest = call.op("ReduceMax", value, call.ints(call.dim("dim")), keepdims=1)
    empty = call.op("Equal", highest, call.constant(float("-inf")))
    return call.op("Where", empty, call.constant(0.0), call.op("Softmax", value, axis=call.dim("dim")))
