"""Lowers scaled dot product attention.

As FusedMatMul, mask, Softmax, MatMul. On 2 cores this took 0.4 to 0.9 of the time of com.microsoft.MultiHeadAttention,
which requires another layout, and 0.6 to 1.4 (mostly under 0.9) of that of ONNX 23's Attention, for 128 to 512 tokens in
float32 (ORT 1.31, November 2026).
"""

from __future__ import annotations

import math

import torch

from .builder import MICROSOFT
from .call import Call, all_static, lowers, same_size

_MINUS_INFINITY = float("-inf")


@lowers("scaled_dot_product_attention.default", "_scaled_dot_product_flash_attention_for_cpu.default")
def attention(call: Call) -> str | tuple[str, ...]:
    """Return softmax(scale Q K^T + mask) V, over [..., heads, tokens, size]; rows without any key are 0."""
    size = call.shape("query")[-1]
    scale = call["scale"] if call["scale"] is not None else 1.0 / math.sqrt(size)
    key, value = _grouped(call, "key"), _grouped(call, "value")
    scores = call.op("FusedMatMul", call.input("query"), key, domain=MICROSOFT, alpha=float(scale), transB=1)
    mask, gate = _mask(call)
    if mask:
        scores = call.op("Add", scores, mask)
    result = call.op("MatMul", call.op("Softmax", scores, axis=-1), value)
    if gate:
        result = call.op("Where", gate, result, call.constant(0.0))
    return result if len(call.outs) == 1 else (result, *[""] * (len(call.outs) - 1))


def _grouped(call: Call, name: str) -> str:
    """Return keys or values, with each head repeated for the query heads of its group."""
    shape, heads = call.shape(name), call.shape("query")[-3] if call.rank("query") > 2 else 1
    if len(shape) < 3 or same_size(shape[-3], heads) or same_size(shape[-3], 1):
        return call.input(name)
    each = heads // shape[-3]
    wide = (*shape[:-2], each, *shape[-2:])
    spread = call.expand(call.unsqueeze(call.input(name), len(shape) - 2), (*shape[:-2], 1, *shape[-2:]), wide)
    return call.reshape(spread, wide, (*shape[:-3], heads, *shape[-2:]))


def _mask(call: Call) -> tuple[str, str]:
    """Return the additive mask, and, if it may mask a whole row, a flag for rows with an unmasked key; "" if absent."""
    if call["attn_mask"] is None:
        return (_causal(call), "") if call["is_causal"] else ("", "")
    name = call.input("attn_mask")
    builder = call.builder
    if call.dtype("attn_mask") == torch.bool:
        closed = call.constant(torch.finfo(call.out_dtype).min)
        mask = builder.shared(("open", name), lambda: call.op("Where", name, call.constant(0.0), closed))
        return mask, builder.shared(("gate", name), lambda: call.op("ReduceMax", name, call.ints(-1), keepdims=1))
    mask = builder.cast(name, call.dtype("attn_mask"), call.out_dtype)
    gate = builder.shared(("gate", mask), lambda: _any_open(call, mask))
    return builder.shared(("finite", mask), lambda: _without_closed_rows(call, mask, gate)), gate


def _without_closed_rows(call: Call, mask: str, gate: str) -> str:
    """Return the mask with zeros in rows that are all minus infinity, for which softmax would return NaN.

    Other rows keep minus infinity: next to the lowest number, which masks also hold, it still masks a key.
    """
    return call.op("Where", gate, mask, call.constant(0.0))


def _any_open(call: Call, mask: str) -> str:
    return call.op("Greater", call.op("ReduceMax", mask, call.ints(-1), keepdims=1), call.constant(_MINUS_INFINITY))


def _causal(call: Call) -> str:
    """Return the [L, S] mask in which query i attends to keys 0 to i."""
    rows, columns = call.shape("query")[-2], call.shape("key")[-2]
    if all_static((rows, columns)):
        allowed = torch.ones(rows, columns, dtype=torch.bool).tril()
        key = ("causal", rows, columns, call.out_dtype)
        return call.builder.shared(
            key,
            lambda: call.builder.weight(
                torch.zeros(rows, columns, dtype=call.out_dtype).masked_fill(~allowed, _MINUS_INFINITY)
            ),
        )
    zero, one = call.constant(0, torch.int64), call.constant(1, torch.int64)
    row, column = (call.op("Range", zero, call.builder.scalar_size(size), one) for size in (rows, columns))
    allowed = call.op("GreaterOrEqual", call.unsqueeze(row, 1), column)
    return call.op("Where", allowed, call.constant(0.0), call.constant(_MINUS_INFINITY))
