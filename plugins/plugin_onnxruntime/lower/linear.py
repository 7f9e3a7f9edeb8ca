"""Lowers matrix products."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from hub.plugin import value_of

from .builder import is_float32
from .call import Call, lowers


@lowers("linear.default")
def linear(call: Call) -> str:
    """Return x W^T + b. A constant weight is transposed once: ORT packs it and fuses MatMul + Add only in that form."""
    if call.rank("input") == 2 and call.rank("weight") == 2:
        return _gemm(call, call.input("input"), call.input("weight"), call.input("bias"))
    ranks = call.rank("input"), call.rank("weight")
    result = product(call, call.input("input"), transposed(call, "weight"), *ranks)
    return result if call["bias"] is None else call.op("Add", result, call.input("bias"))


def _gemm(call: Call, one: str, other: str, bias: str) -> str:
    return call.op("Gemm", one, other, *([bias] if bias else []), transB=1)


def transposed(call: Call, name: str) -> str:
    """Return a matrix argument transposed, at compile time if it is constant."""
    value = constant_of(call, call[name])
    if value is None or value.dim() != 2:
        order = [*range(call.rank(name) - 2), call.rank(name) - 1, call.rank(name) - 2][-call.rank(name) :]
        return call.transpose(call.input(name), order)
    return call.builder.shared(("transposed", call.input(name)), lambda: call.builder.weight(value.t()))


def constant_of(call: Call, value: Any) -> torch.Tensor | None:
    """Return the tensor behind a constant argument; None if it is computed."""
    if not isinstance(value, fx.Node) or value.op != "get_attr":
        return None
    return getattr(call.node.graph.owning_module, str(value.target))


@lowers("matmul.default", "mm.default", "bmm.default", "mv.default", "dot.default")
def matmul(call: Call, first: int = 0) -> str:
    """Return the product of two arguments, at position `first` and the next, with batch dims broadcast."""
    left, right = call.node.args[first : first + 2]
    return product(
        call, call.as_dtype(left, call.out_dtype), call.as_dtype(right, call.out_dtype), _rank(left), _rank(right)
    )


def product(call: Call, left: str, right: str, left_rank: int, right_rank: int) -> str:
    """Return left @ right.

    A vector on the right becomes a matrix of one column: ORT 1.31 fuses a Transpose of the left operand into the product
    without checking the rank of the right one, and reads the left operand untransposed.
    """
    if right_rank != 1 or left_rank < 2:
        return call.op("MatMul", left, right)
    return call.squeeze(call.op("MatMul", left, call.unsqueeze(right, 1)), left_rank - 1)


def _rank(value: Any) -> int:
    return value_of(value).dim()


@lowers("outer.default", "ger.default")
def outer(call: Call) -> str:
    """Return every product of two vectors' elements."""
    return call.op("Mul", call.unsqueeze(call.typed("self"), 1), call.typed("vec2"))


@lowers("addmm.default")
def addmm(call: Call) -> str:
    """Return beta self + alpha mat1 mat2, as one Gemm if its attributes can hold the factors."""
    alpha, beta = float(call.number("alpha")), float(call.number("beta"))
    if call.out_dtype == torch.float32 or (is_float32(alpha) and is_float32(beta)):
        return call.op("Gemm", call.input("mat1"), call.input("mat2"), call.input("self"), alpha=alpha, beta=beta)
    return _weighted_sum(call, call.op("MatMul", call.input("mat1"), call.input("mat2")))


@lowers("baddbmm.default", "addmv.default")
def add_product(call: Call) -> str:
    """Return beta self + alpha (batch1 batch2)."""
    return _weighted_sum(call, matmul(call, first=1))


@lowers("addbmm.default")
def add_summed_products(call: Call) -> str:
    """Return beta self + alpha (sum over the batch of batch1 batch2)."""
    return _weighted_sum(call, call.op("ReduceSum", matmul(call, first=1), call.ints(0), keepdims=0))


def _weighted_sum(call: Call, product: str) -> str:
    """Return beta self + alpha product; `self` is not read if beta is 0."""
    alpha, beta = call.number("alpha"), call.number("beta")
    scaled = product if alpha == 1 else call.op("Mul", product, call.constant(alpha))
    if beta == 0:
        return scaled
    return call.op(
        "Add", call.typed("self") if beta == 1 else call.op("Mul", call.typed("self"), call.constant(beta)), scaled
    )


@lowers("einsum.default")
def einsum(call: Call) -> str:
    """Return the Einstein summation; ORT reads the same notation."""
    return call.op("Einsum", *call.inputs("tensors"), equation=call["equation"].replace(" ", ""))
