"""Samples of operators that reduce, accumulate or sort along dims."""

from __future__ import annotations

from math import inf, nan

import torch

from hub.testing.operators.sample import (
    Table,
    b,
    bf16,
    blocks,
    call,
    distinct,
    f,
    f16,
    f64,
    i32,
    i64,
    lit,
    pos,
    rows,
    ties,
    unit,
)

_SPECIAL = lit(1.0, nan, inf, -inf)
_WHOLE_TENSOR = (call(f(3, 4)), call(f(2, 3, 5)), call(f()), call(f(4, 3).T), call(f(1)))
_ALONG = (
    call(f(2, 3, 4), [1]),
    call(f(2, 3, 4), [-1]),
    call(f(2, 3, 4), [0, 2]),
    call(f(2, 3, 4), [-1, -2]),
    call(f(2, 3, 4), [1], True),
    call(f(2, 3, 4), [-2, -1], True),
    call(f(4, 3).T, [0]),
    call(f(5, 1, 2), [1]),
    call(f64(3, 4), [1]),
    call(bf16(3, 4), [1]),
    call(f16(3, 4), [1]),
    call(f(3, 257), [-1]),
)
_ONE_DIM = (
    call(f(2, 3, 4), 1),
    call(f(2, 3, 4), -1),
    call(f(3, 4), 0),
    call(f(5), 0),
    call(f(4, 3).T, -1),
    call(f64(3, 4), 1),
    call(bf16(3, 4), 1),
    call(lit(-1e4, 0.0, 1e4), 0),
    call(f(2, 1), 1),
)

_SUMS: Table = {
    "aten.sum.default": (
        *_WHOLE_TENSOR,
        call(i64(3, 4)),
        call(i32(3, 4)),
        call(b(3, 4)),
        call(f(3), dtype=torch.float64),
        call(bf16(300)),
        call(f(0, 3)),
    ),
    "aten.sum.dim_IntList": (
        *_ALONG,
        call(i64(3, 4), [0]),
        call(b(3, 4), [1]),
        call(f(2, 3), None),
        call(f(2, 3), [1], dtype=torch.float64),
        call(f(2, 3), []),
        call(i32(3, 4), [1]),
    ),
    "aten.mean.default": (*_WHOLE_TENSOR, call(bf16(300))),
    "aten.mean.dim": (
        *_ALONG,
        call(f(2, 3), None),
        call(f(2, 3, 4, 4), [2, 3], True),
        call(f16(3), [0], dtype=torch.float32),
    ),
    "aten.prod.default": (call(f(3, 4)), call(i64(5)), call(bf16(3, 4))),
    "aten.prod.dim_int": (
        call(f(3, 4), 1),
        call(f(2, 3, 4), -2, True),
        call(f(), 0),
        call(i64(3, 4), 0),
        call(f16(3, 4), 1),
    ),
    "aten.var.correction": (
        *(
            call(f(2, 3, 4), dims, correction=correction, keepdim=keepdim)
            for dims, correction, keepdim in (
                ([1], 1, False),
                ([-1], 0, True),
                ([0, 2], 1, True),
                (None, 1, False),
                ([-1], None, False),
            )
        ),
        call(f(), [0], correction=0),
        call(bf16(3, 4), [1], correction=1),
        call(f16(3, 4), [1], correction=0, keepdim=True),
    ),
    "aten.std.correction": (
        call(f(3, 4), [1], correction=1),
        call(f(3, 4), [-1], correction=0, keepdim=True),
        call(f(2, 3, 4), [1, 2], correction=1),
        call(bf16(3, 4), [1], correction=1),
    ),
    **rows(
        "var.dim std.dim",
        call(f(3, 4), [1]),
        call(f(3, 4), [-1], False, True),
        call(f(2, 3, 4), [0, 1], True),
        call(f16(3, 4), [1]),
    ),
    **rows("var.default std.default", call(f(3, 4)), call(f(3, 4), False), call(bf16(3, 4))),
    **rows(
        "var_mean.correction std_mean.correction",
        call(f(2, 3, 4), [1], correction=0, keepdim=True),
        call(f(3, 4), [-1], correction=1),
        call(bf16(3, 4), [-1], correction=1),
        call(f16(3, 4), [-1], correction=0),
    ),
    "aten.norm.ScalarOpt_dim": (
        call(f(3, 4), 2, [1]),
        call(f(3, 4), None, [1]),
        call(f(3, 4), 1, [-1], True),
        call(f(3, 4), inf, [0]),
    ),
    "aten.norm.Scalar": (call(f(3, 4)), call(f(3, 4), 1)),
    "aten.linalg_vector_norm.default": (
        *(
            call(f(2, 3, 4), order, dims, keepdim)
            for order, dims, keepdim in (
                (2, [1], False),
                (1, [-1], True),
                (inf, [0], False),
                (2, None, False),
                (3, [1, 2], True),
                (0, [1], False),
                (-inf, [2], False),
            )
        ),
        call(f(), 2, [0]),
        call(bf16(3, 4), 2, [1]),
        call(f16(3, 4), 1, [-1], True),
    ),
    "aten.linalg_norm.default": (call(f(3)), call(f(3, 4), None, [1]), call(f(3, 4), 2, [-1], True)),
    "aten.frobenius_norm.dim": (call(f(3, 4), [1]), call(f(2, 3, 4), [1, 2], True)),
    "aten.logsumexp.default": (
        call(f(3, 4), [1]),
        call(f(3, 4), [-1], True),
        call(f(2, 3, 4), [0, 2]),
        call(lit(-1e4, 1e4), [0]),
        call(lit(-inf, -inf), [0]),
        call(f(), [0]),
        call(bf16(3, 4), [1]),
        call(f16(3, 4), [-1], True),
    ),
    "aten.count_nonzero.default": (call(i64(3, 4)), call(f(3, 4)), call(i64(3, 4), 1)),
    "aten.count_nonzero.dim_IntList": (call(i64(3, 4), [1]), call(b(3, 4), [0])),
    "aten.nansum.default": (call(_SPECIAL),),
    "aten.trace.default": (call(f(3, 4)),),
}

_ZEROS = lit(0.0, -0.0, 0.0, -0.0, 0.0, -0.0)
_TIED = (
    call(ties(84, kinds=1), 0),
    call(ties(3, 40), 1),
    call(ties(40, 3), 0, True),
    call(ties(3, 40).T, -1),
    call(ties(2, 3000), 1),
    call(ties(70, dtype=torch.int64), 0),
    call(blocks(100, 7), 0),
    call(_ZEROS, 0),
    call(lit(1.0, nan, 3.0, nan, 3.0), 0),
)
"""Equal elements along one dim: all of them, many, in blocks, in both signs of 0, next to NaN."""
_RUN_TIES = tuple(call(*sample.arguments[:2]) for sample in _TIED)
_SORTED_TIES = (
    call(ties(84, kinds=1)),
    call(ties(3, 40), -1, True),
    call(ties(40, 3), 0),
    call(ties(300, dtype=torch.int64)),
    call(blocks(100, 7), 0, True),
    call(_ZEROS),
    call(lit(1.0, nan, 3.0, nan, 3.0)),
)
_STABLE_TIES = tuple(
    call(made, stable=True, dim=0, descending=descending)
    for made in (ties(84, kinds=1), ties(40, 3), ties(300, dtype=torch.int64), blocks(100, 7), _ZEROS)
    for descending in (False, True)
)

_EXTREMES: Table = {
    **rows(
        "amax.default amin.default",
        *_ALONG,
        call(i64(3, 4), [1]),
        call(_SPECIAL, [0]),
        call(f(3, 4), []),
        call(f(), [0], True),
        call(lit(inf, -inf, 2.0), [0], True),
    ),
    **rows("max.default min.default", *_WHOLE_TENSOR, call(i64(3, 4)), call(_SPECIAL), call(i32(5))),
    **rows(
        "max.dim min.dim",
        call(distinct(3, 4), 1),
        call(distinct(2, 3, 4), -2, True),
        call(distinct(4, 3).T, 0),
        call(distinct(3, 4), 1).reads(0),
        call(distinct(3, 4), -1).reads(1),
        call(distinct(6, dtype=torch.int64), 0),
        call(_SPECIAL, 0),
        call(lit(2.0, 5.0, 5.0, 1.0), 0),
        call(distinct(3, 4, dtype=torch.bfloat16), 1),
        call(distinct(3, 4, dtype=torch.float16), -1).reads(1),
        *_TIED,
        call(ties(2, 70, 3), 1, True).reads(1),
    ),
    **rows(
        "argmax.default argmin.default",
        call(distinct(3, 4)),
        call(distinct(3, 4), 1),
        call(distinct(2, 3, 4), -1, True),
        call(distinct(4, 3).T, 0),
        call(distinct(6, dtype=torch.int64), 0),
        call(lit(1.0, 3.0, 3.0), 0),
        call(lit(1.0, nan, 3.0), 0),
        call(f()),
        call(distinct(3, 4, dtype=torch.bfloat16), 1),
        *_TIED,
        call(ties(5, 40)),
        call(ties(40, 5).T),
    ),
    "aten.aminmax.default": (call(f(3, 4), dim=1), call(f(3, 4))),
    **rows("any.default all.default", call(b(3, 4)), call(i64(3, low=0)), call(f(3)), call(b(0))),
    **rows(
        "any.dim all.dim", call(b(3, 4), 1), call(b(2, 3, 4), -1, True), call(i64(3, 4, low=0, high=2), 0), call(b(), 0)
    ),
    **rows("any.dims all.dims", call(b(2, 3, 4), [0, 2]), call(b(3, 4), [1], True)),
}

_EXPONENTIALS: Table = {
    **rows(
        "softmax.int log_softmax.int",
        *_ONE_DIM,
        call(f(2, 3), -1, torch.float64),
        call(f(), 0),
        call(lit(-inf, 0.0, 1.0), 0),
    ),
    **rows("_softmax.default _log_softmax.default", *(call(*sample.arguments, False) for sample in _ONE_DIM)),
}

_RUNNING: Table = {
    "aten.cumsum.default": (
        *_ONE_DIM[:7],
        call(i64(3, 4), 1),
        call(b(3, 4), 1),
        call(i32(4), 0),
        call(f(3), 0, dtype=torch.float64),
        call(f(), 0),
    ),
    "aten.cumprod.default": (call(f(3, 4), 1), call(unit(5), 0), call(i64(4), -1), call(bf16(3, 4), 1), call(f16(5), 0)),
    **rows("cummax.default cummin.default", call(distinct(3, 4), 1), call(distinct(6), 0).reads(0), *_RUN_TIES),
    "aten.logcumsumexp.default": (call(f(3, 4), 1),),
    "aten.diff.default": (call(f(3, 4)), call(f(3, 4), 1, 0), call(i64(5), 2)),
}

_ORDER: Table = {
    "aten.topk.default": (
        call(distinct(3, 6), 2),
        call(distinct(3, 6), 2).reads(0),
        call(distinct(6, 3), 3, 0),
        call(distinct(2, 6), 2, -1, False, True),
        call(distinct(6, dtype=torch.int64), 4),
        call(distinct(6, 5).T, 1).reads(1),
        call(distinct(5), 5),
        call(ties(84, kinds=1), 12, 0),
        call(ties(3, 40), 12, 1),
        call(ties(40, 3), 5, 0, False),
        call(ties(2, 300, dtype=torch.int64), 4),  # from 64 times as many elements as requested, eager sorts in another way
        call(blocks(100, 7), 30, 0),
        call(_ZEROS, 3, 0),
        call(ties(3, 40), 12, 1).reads(0),
    ),
    "aten.sort.default": (
        call(distinct(3, 5)),
        call(distinct(5, 3), 0, True),
        call(distinct(6, dtype=torch.int64)),
        call(distinct(3, 5)).reads(0),
        call(lit(nan, 1.0, inf, -inf)),
        *_SORTED_TIES,
        call(ties(3, 40)).reads(0),
    ),
    "aten.sort.stable": (
        call(distinct(3, 5), stable=True),
        call(lit(2.0, 1.0, 2.0, 1.0), stable=True, dim=0),
        call(i64(9), stable=True, dim=-1, descending=True),
        *_STABLE_TIES,
    ),
    "aten.argsort.default": (call(distinct(3, 5)), call(distinct(5, 3), 0, True), *_SORTED_TIES),
    "aten.argsort.stable": (call(distinct(3, 5), stable=True), call(i64(8), stable=True, dim=0), *_STABLE_TIES),
    "aten.median.default": (call(distinct(5)),),
    "aten.median.dim": (call(distinct(3, 5), 1), *_TIED),
    "aten.nanmedian.dim": (call(distinct(3, 5), 1), *_TIED),
    "aten.mode.default": (call(ties(3, 9), 1), *_TIED),
    "aten.kthvalue.default": (
        call(distinct(3, 5), 2),
        call(distinct(5, 3), 1, 0),
        call(ties(84, kinds=1), 12, 0),
        call(ties(3, 40), 20),
        call(blocks(100, 7), 50),
    ),
    "aten.searchsorted.Tensor": (call(lit(1.0, 2.0, 4.0), f(3)), call(lit(1.0, 2.0, 4.0), lit(2.0, 4.0), right=True)),
    "aten.bucketize.Tensor": (call(f(3, 4), lit(-1.0, 0.0, 1.0)), call(i64(5), lit(-2, 0, 3), right=True)),
    "aten.histc.default": (call(pos(9), 4, 0, 2),),
}

TABLE: Table = {**_SUMS, **_EXTREMES, **_EXPONENTIALS, **_RUNNING, **_ORDER}
