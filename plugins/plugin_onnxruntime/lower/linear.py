"""Lowers matrix products."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .builder import MICROSOFT
from .call import Call, lowers


@lowers("linear.default")
def linear(call: Call) -> str:
    """x W^T + b. A constant weight is transposed once here, since ORT packs it and fuses MatMul + Add only in that form."""
    if call.rank("input") == 2 and call.rank("weight") == 2:
        return _gemm(call, call.input("input"), call.input("weight"), call.input("bias"))
    product = call.op("MatMul", call.input("input"), transposed(call, "weight"))
    return product if call["bias"] is None else call.op("Add", product, call.input("bias"))


def _gemm(call: Call, one: str, other: str, bias: str) -> str:
    return call.op("Gemm", one, other, *([bias] if bias else []), transB=1)


def transposed(call: Call, name: str) -> str:
    """Gives a matrix argument transposed: at compile time where it is a constant."""
    value = constant_of(call, call[name])
    if value is None or value.dim() != 2:
        order = [*range(call.rank(name) - 2), call.rank(name) - 1, call.rank(name) - 2][-call.rank(name) :]
        return call.transpose(call.input(name), order)
    return call.builder.shared(("transposed", call.input(name)), lambda: call.builder.weight(value.t()))


def constant_of(call: Call, value: Any) -> torch.Tensor | None:
    """Gives the tensor behind a constant argument, None where it is computed."""
    if not isinstance(value, fx.Node) or value.op != "get_attr":
        return None
    return getattr(call.node.graph.owning_module, str(value.target))


@lowers("matmul.default", "mm.default", "bmm.default", "mv.default", "dot.default")
def matmul(call: Call) -> str:
    """Matrix product with broadcasting batch dims."""
    left, right = call["self"], _second(call)
    return call.op("MatMul", call.name_of(left), call.name_of(right))


def _second(call: Call) -> Any:
    return call.node.args[1]


@lowers("outer.default", "ger.default")
def outer(call: Call) -> str:
    """Every product of two vectors' elements."""
    return call.op("Mul", call.unsqueeze(call.typed("self"), 1), call.typed("vec2"))


@lowers("addmm.default")
def addmm(call: Call) -> str:
    """beta self + alpha mat1 mat2, as one Gemm."""
    alpha, beta = float(call.number("alpha")), float(call.number("beta"))
    return call.op("Gemm", call.input("mat1"), call.input("mat2"), call.input("self"), alpha=alpha, beta=beta)


@lowers("baddbmm.default", "addbmm.default", "addmv.default")
def baddbmm(call: Call) -> str:
    """beta self + alpha batch1 batch2; `self` is not read where beta is 0."""
    alpha, beta = float(call.number("alpha")), float(call.number("beta"))
    first, second = (call.name_of(node) for node in call.node.args[1:3])  # pyright: ignore
    product = (
        call.op("FusedMatMul", first, second, domain=MICROSOFT, alpha=alpha)
        if alpha != 1
        else call.op("MatMul", first, second)
    )
    if "addbmm" in str(call.node.target) and "baddbmm" not in str(call.node.target):
        product = call.op("ReduceSum", product, call.ints(0), keepdims=0)
    if beta == 0:
        return product
    base = call.typed("self") if beta == 1 else call.op("Mul", call.typed("self"), call.constant(beta))
    return call.op("Add", base, product)


@lowers("einsum.default")
def einsum(call: Call) -> str:
    """Einstein summation; ORT reads the same notation."""
    return call.op("Einsum", *call.inputs("tensors"), equation=call["equation"].replace(" ", ""))
