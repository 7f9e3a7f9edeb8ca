"""Gradients of layers, of attention, and of operators that read a part of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hub.toolkit.builders import broadcast, cast, fill, iota, matrix_product, padded, reshaped, select, swapped
from hub.toolkit.rules.call import Call, Rule, computing
from hub.toolkit.rules.elementwise import by, exp, le, mul, ne, number, sub
from hub.toolkit.rules.indexing import along
from hub.toolkit.rules.products import grouped
from hub.toolkit.rules.puts import put
from hub.toolkit.rules.reductions import mean_of, total
from hub.toolkit.sizes import Size, at_most, from_front, minus, plus, product, slice_start
from hub.toolkit.tensors import Tensor


def _layer_norm(call: Call) -> tuple[Tensor | None, ...]:
    """Return the gradients of a layer norm.

    With x' = (x - mean) / deviation and g = grad * weight, the input's gradient is (g - mean(g) - x' mean(g x')) /
    deviation.
    """
    grad, source = computing(call.tensor("grad_out")), computing(call.tensor("input"))
    mean, steepness = (cast(call.tensor(name), source.dtype) for name in ("mean", "rstd"))
    rank, count = len(source.shape), len(call.raw("normalized_shape"))
    inner, outer = range(rank - count, rank), range(rank - count)
    plain = mul(sub(source, mean), steepness)
    scaled = mul(grad, computing(call.tensor("weight"))) if call.has("weight") else grad
    away = sub(sub(scaled, mean_of(scaled, inner)), mul(plain, mean_of(mul(scaled, plain), inner)))
    found = (mul(away, steepness), total(mul(grad, plain), outer), total(grad, outer))
    return tuple(
        _result(call, place, each) if is_wanted else None
        for place, (each, is_wanted) in enumerate(zip(found, call.raw("output_mask"), strict=True))
    )


def _result(call: Call, place: int, tensor: Tensor) -> Tensor:
    shape, dtype = call.result(place)
    return cast(reshaped(tensor, shape), dtype)


def _attention(call: Call) -> tuple[Tensor, ...]:
    """Return the gradients of attention, recomputed from the log-sum-exps alone.

    Source: FlashAttention (Dao et al. 2022), appendix B.2.
    """
    names = ("grad_out", "query", "key", "value", "out")
    grad, query, key, value, out = (computing(call.tensor(name)) for name in names)
    logsum, heads = call.tensor("logsumexp"), key.shape[-3]
    is_grouped = query.shape[-3] != heads
    if is_grouped:
        grad, query, key, value, out = (grouped(each, -3, heads) for each in (grad, query, key, value, out))
        logsum = grouped(logsum, -2, heads)
    scale = call.number("scale") if call.has("scale") else 1.0 / math.sqrt(query.shape[-1])
    scores = by(matrix_product(query, swapped(key, -2, -1)), scale)
    shares = exp(sub(scores, reshaped(cast(logsum, scores.dtype), (*logsum.shape, 1))))
    rank = len(scores.shape)
    if call.raw("is_causal"):
        row, column = (iota(scores.shape, rank - back) for back in (2, 1))
        shares = select(le(column, row), shares, fill(0.0, shares.dtype))
    away = sub(matrix_product(grad, swapped(value, -2, -1)), total(mul(grad, out), (rank - 1,)))
    steps = by(mul(shares, away), scale)
    found = (
        matrix_product(steps, key),
        matrix_product(swapped(steps, -2, -1), query),
        matrix_product(swapped(shares, -2, -1), grad),
    )
    if is_grouped:  # each head of keys and values serves a whole group
        found = found[0], *(total(each, (rank - 3,)) for each in found[1:])
    return tuple(_result(call, place, each) for place, each in enumerate(found))


# --- Parts of tensors -------------------------------------------------------------------------------------------------


def _within(grad: Tensor, shape: Sequence[Size], dim: int, start: Size) -> Tensor:
    """Return zeros with a gradient written into them, from `start` along a dim."""
    before = [start if place == dim else 0 for place in range(len(shape))]
    rest = minus(shape[dim], plus(start, grad.shape[dim]))
    after = [rest if place == dim else 0 for place in range(len(shape))]
    return padded(grad, before, after, 0.0)


def _slice(call: Call) -> Tensor:
    grad, shape = call.tensor("grad_output"), call.sizes("input_sizes")
    dim = call.raw("dim") % len(shape)
    start = slice_start(call.size("start"), shape[dim])
    return _within(grad, shape, dim, at_most(start, shape[dim]) if start != 0 else 0)


def _select(call: Call) -> Tensor:
    grad, shape = call.tensor("grad_output"), call.sizes("input_sizes")
    dim = call.raw("dim") % len(shape)
    index = call.size("index")
    row = reshaped(grad, (*grad.shape[:dim], 1, *grad.shape[dim:]))
    return _within(row, shape, dim, from_front(index, shape[dim]))


def _embedding(call: Call) -> Tensor:
    """Add up the gradients of rows; those of the padding index are dropped."""
    grad, places = call.tensor("grad_output"), cast(call.tensor("indices"), "i64")
    count, width = product(places.shape), grad.shape[-1]
    rows, places = reshaped(grad, (count, width)), reshaped(places, (count, 1))
    rows = select(ne(places, number(call.number("padding_idx"), places)), rows, fill(0.0, rows.dtype))
    return put("sum", fill(0.0, call.dtype, call.shape), rows, (broadcast(places, rows.shape), along(rows.shape, 1)))


RULES: dict[str, Rule] = {
    "aten.native_layer_norm_backward.default": _layer_norm,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _attention,
    "aten.slice_backward.default": _slice,
    "aten.select_backward.default": _select,
    "aten.embedding_dense_backward.default": _embedding,
}
