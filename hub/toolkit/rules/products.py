"""Matrix products and attention."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hub.toolkit.builders import (
    broadcast,
    cast,
    fill,
    iota,
    matrix_product,
    reduced,
    reshaped,
    select,
    swapped,
)
from hub.toolkit.rules.call import Call, Rule, computing
from hub.toolkit.rules.elementwise import add, by, exp, le, log, mul, sub
from hub.toolkit.rules.reductions import safe_softmax, total
from hub.toolkit.sizes import Size, floor_div, product
from hub.toolkit.tensors import Tensor


def _with_bias(result: Tensor, bias: Tensor | None) -> Tensor:
    return result if bias is None else add(result, bias)


def flat_product(left: Tensor, right: Tensor) -> Tensor:
    """Return left [..., K] times right [K, N], computed as one product."""
    lead = left.shape[:-1]
    flat = reshaped(left, (product(lead), left.shape[-1]))
    return reshaped(matrix_product(flat, right), (*lead, right.shape[-1]))


def _linear(call: Call) -> Tensor:
    source, weight = computing(call.tensor("input")), computing(call.tensor("weight"))
    bias = computing(call.tensor("bias")) if call.has("bias") else None
    result = flat_product(source, swapped(weight, 0, 1))
    return cast(reshaped(_with_bias(result, bias), call.shape), call.dtype)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return matmul's product: tensors of one dim get a row or column dim, which is removed from the result."""
    is_row, is_column = len(left.shape) == 1, len(right.shape) == 1
    left = reshaped(left, (1, *left.shape)) if is_row else left
    right = reshaped(right, (*right.shape, 1)) if is_column else right
    result = flat_product(left, right) if len(right.shape) == 2 else matrix_product(left, right)
    shape = (*result.shape[:-2], *(() if is_row else (result.shape[-2],)), *(() if is_column else (result.shape[-1],)))
    return reshaped(result, shape)


def _matmul(one: str, other: str) -> Rule:
    def rule(call: Call) -> Tensor:
        result = _product(computing(call.tensor(one)), computing(call.tensor(other)))
        return cast(reshaped(result, call.shape), call.dtype)

    return rule


def _added(one: str, other: str) -> Rule:
    """Return the rule of beta * self + alpha * product; self is not read if beta is 0."""

    def rule(call: Call) -> Tensor:
        result = _product(computing(call.tensor(one)), computing(call.tensor(other)))
        alpha, beta = call.number("alpha"), call.number("beta")
        result = result if alpha == 1 else by(result, alpha)
        if beta != 0:
            source = computing(call.tensor("self"))
            result = add(result, source if beta == 1 else by(source, beta))
        return cast(broadcast(result, call.shape), call.dtype)

    return rule


def _outer(call: Call) -> Tensor:
    left, right = call.promoted("self", "vec2", exact=["vec2"])
    return cast(mul(reshaped(left, (left.shape[0], 1)), right), call.dtype)


def scores_of(query: Tensor, key: Tensor, mask: Tensor | None, scale: float | None, *, is_causal: bool) -> Tensor:
    """Return query key^T scale + mask; minus infinity at masked positions."""
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = by(matrix_product(query, swapped(key, -2, -1)), scale)
    rank = len(scores.shape)
    if is_causal:
        row, column = (iota(scores.shape, rank - back) for back in (2, 1))
        scores = select(le(column, row), scores, fill(-math.inf, scores.dtype))
    if mask is not None and mask.dtype == "i1":
        return select(broadcast(mask, scores.shape), scores, fill(-math.inf, scores.dtype))
    return scores if mask is None else add(scores, cast(mask, scores.dtype))


@dataclass(frozen=True)
class _Heads:
    """The operands of attention. If heads share keys, there is one dim of groups and one of the heads in each."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None


def _heads_of(call: Call, *, is_grouped: bool) -> _Heads:
    query, key, value = (computing(call.tensor(name)) for name in ("query", "key", "value"))
    mask = call.tensor("attn_mask") if call.has("attn_mask") else None
    if not is_grouped or len(query.shape) < 3 or query.shape[-3] == key.shape[-3] == value.shape[-3]:
        return _Heads(query, key, value, mask)
    if key.shape[-3] != value.shape[-3]:
        return _Heads(query, _repeated(key, query.shape[-3]), _repeated(value, query.shape[-3]), mask)
    heads = key.shape[-3]
    if mask is not None and len(mask.shape) >= 3:
        mask = grouped(mask, -3, 1 if mask.shape[-3] == 1 else heads)
    return _Heads(grouped(query, -3, heads), grouped(key, -3, heads), grouped(value, -3, heads), mask)


def grouped(source: Tensor, dim: int, groups: Size) -> Tensor:
    """Return a tensor with the heads along a dim, counted from the end, split into groups."""
    heads, behind = source.shape[dim], len(source.shape) + dim + 1
    return reshaped(source, (*source.shape[: behind - 1], groups, floor_div(heads, groups), *source.shape[behind:]))


def _repeated(source: Tensor, count: Size) -> Tensor:
    """Return a tensor with each of its heads [..., H, S, E] repeated, so that there are `count`."""
    one = grouped(source, -3, source.shape[-3])
    *lead, groups, _, rows, width = one.shape
    return reshaped(broadcast(one, (*lead, groups, floor_div(count, groups), rows, width)), (*lead, count, rows, width))


def _attention(call: Call) -> Tensor:
    heads = _heads_of(call, is_grouped=call.has("enable_gqa") and call.raw("enable_gqa"))
    scores = scores_of(heads.query, heads.key, heads.mask, call.number("scale"), is_causal=call.raw("is_causal"))
    found = matrix_product(safe_softmax(scores, len(scores.shape) - 1), heads.value)
    return cast(reshaped(found, call.shape), call.dtype)


def _attention_for_training(call: Call) -> tuple[Tensor, Tensor]:
    """Return the result, with 0 in fully masked rows, and the log-sum-exps.

    Groups of heads follow from the numbers of heads, as in the kernel: the composite operator has checked `enable_gqa`.
    """
    heads = _heads_of(call, is_grouped=True)
    scores = scores_of(heads.query, heads.key, heads.mask, call.number("scale"), is_causal=call.raw("is_causal"))
    dims = (len(scores.shape) - 1,)
    top = reduced("max", scores, dims)
    sums = add(log(total(exp(sub(scores, top)), dims)), top)
    (result, dtype), (shape, kind) = call.result(0), call.result(1)
    found = matrix_product(safe_softmax(scores, dims[0]), heads.value)
    return cast(reshaped(found, result), dtype), cast(reshaped(sums, shape), kind)


RULES: dict[str, Rule] = {
    "aten.linear.default": _linear,
    "aten.matmul.default": _matmul("self", "other"),
    "aten.mm.default": _matmul("self", "mat2"),
    "aten.bmm.default": _matmul("self", "mat2"),
    "aten.mv.default": _matmul("self", "vec"),
    "aten.dot.default": _matmul("self", "tensor"),
    "aten.addmm.default": _added("mat1", "mat2"),
    "aten.baddbmm.default": _added("batch1", "batch2"),
    "aten.addmv.default": _added("mat", "vec"),
    **{f"aten.{name}.default": _outer for name in ("outer", "ger")},
    "aten.scaled_dot_product_attention.default": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention_for_training,
}
