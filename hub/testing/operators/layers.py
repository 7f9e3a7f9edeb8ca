"""Samples of whole layers: products, convolutions, attention, normalisation, pooling, resizing, recurrence, losses."""

from __future__ import annotations

from math import inf, nan

import torch

from hub.testing.operators.sample import Table, at, b, bf16, call, f, f16, f64, i64, lit, pos, rows, ties, unit

_PRODUCTS: Table = {
    "aten.linear.default": (
        call(f(2, 4), f(3, 4)),
        call(f(2, 4), f(3, 4), f(3)),
        call(f(2, 5, 4), f(3, 4), f(3)),
        call(f(4), f(3, 4), f(3)),
        call(f(2, 2, 5, 4), f(1, 4), f(1)),
        call(f(4, 2).T, f(3, 4), f(3)),
        call(f(2, 4), f(4, 3).T, f(3)),
        call(f(0, 4), f(3, 4), f(3)),
        call(f64(2, 4), f64(3, 4), f64(3)),
        call(bf16(2, 4), bf16(3, 4), bf16(3)),
        call(f16(2, 4), f16(3, 4)),
        call(f(7, 65), f(33, 65), f(33)),
    ),
    "aten.matmul.default": tuple(
        call(left, right)
        for left, right in (
            (f(2, 3), f(3, 4)),
            (f(3), f(3)),
            (f(3), f(3, 4)),
            (f(2, 3), f(3)),
            (f(2, 3, 4), f(4, 5)),
            (f(2, 3, 4), f(2, 4, 5)),
            (f(5, 1, 3, 4), f(2, 4, 3)),
            (f(3, 4), f(2, 4, 5)),
            (f(3, 2).T, f(3, 4)),
            (f(2, 3, 4), f(4)),
            (f64(2, 3), f64(3, 4)),
            (bf16(2, 3), bf16(3, 4)),
            (i64(2, 3), i64(3, 4)),
        )
    ),
    "aten.mm.default": (
        call(f(2, 3), f(3, 4)),
        call(f(3, 2).T, f(3, 4)),
        call(f(2, 3), f(4, 3).T),
        call(f(0, 3), f(3, 4)),
        call(f(17, 65), f(65, 9)),
        call(bf16(2, 3), bf16(3, 4)),
        call(f(1, 3), f(3, 1)),
        call(i64(2, 3), i64(3, 2)),
    ),
    "aten.bmm.default": (
        call(f(2, 3, 4), f(2, 4, 5)),
        call(f(1, 3, 4), f(1, 4, 5)),
        call(f(2, 4, 3).T, f(2, 4, 5)),
        call(bf16(2, 3, 4), bf16(2, 4, 5)),
    ),
    "aten.mv.default": (call(f(3, 4), f(4)),),
    "aten.dot.default": (call(f(5), f(5)), call(i64(3), i64(3))),
    **rows("outer.default ger.default", call(f(3), f(4))),
    "aten.addmm.default": (
        call(f(4), f(2, 3), f(3, 4)),
        call(f(2, 4), f(2, 3), f(3, 4)),
        call(f(4), f(2, 3), f(3, 4), beta=0.5, alpha=2),
        call(f(4), f(2, 3), f(4, 3).T),
        call(f(2, 1), f(2, 3), f(3, 4)),
        call(lit(nan, inf), f(2, 3), f(3, 2), beta=0),
    ),
    "aten.baddbmm.default": (
        call(f(2, 3, 5), f(2, 3, 4), f(2, 4, 5)),
        call(f(1, 5), f(2, 3, 4), f(2, 4, 5), beta=0.5, alpha=0.25),
        call(f(2, 3, 5), f(2, 3, 4), f(2, 4, 5), beta=0),
    ),
    "aten.addbmm.default": (call(f(3, 5), f(2, 3, 4), f(2, 4, 5)),),
    "aten.addmv.default": (call(f(3), f(3, 4), f(4)),),
    "aten.einsum.default": (
        call("ij,jk->ik", [f(2, 3), f(3, 4)]),
        call("bhqd,bhkd->bhqk", [f(2, 2, 3, 4), f(2, 2, 5, 4)]),
        call("bij,bjk", [f(2, 3, 4), f(2, 4, 5)]),
        call("i,j->ij", [f(3), f(4)]),
        call("ii->i", [f(3, 3)]),
        call("...i->...", [f(2, 3, 4)]),
        call("b n d, m d -> b n m", [f(2, 3, 4), f(5, 4)]),
        call("ij->ji", [f(2, 3)]),
    ),
    "aten.tensordot.default": (call(f(2, 3, 4), f(3, 4, 5), [1, 2], [0, 1]),),
    "aten.bilinear.default": (call(f(2, 3), f(2, 4), f(5, 3, 4), f(5)),),
    "aten.cosine_similarity.default": (call(f(3, 4), f(3, 4)), call(f(3, 4), f(1, 4), -1, 1e-6)),
    "aten.cdist.default": (call(f(3, 4), f(5, 4)), call(f(2, 3, 4), f(2, 5, 4), 1.0)),
}

_X1, _X2, _X3 = f(2, 4, 9), f(2, 4, 9, 8), f(1, 2, 5, 6, 4)
_W2 = f(6, 4, 3, 3)
_CONVOLUTIONS: Table = {
    "aten.conv1d.default": (
        call(_X1, f(6, 4, 3)),
        call(_X1, f(6, 4, 3), f(6), [2], [1]),
        call(_X1, f(6, 4, 3), f(6), [1], [2], [2]),
        call(_X1, f(4, 1, 3), f(4), [1], [1], [1], 4),
        call(f(4, 9), f(6, 4, 3), f(6)),
        call(_X1, f(6, 4, 1)),
    ),
    "aten.conv1d.padding": (
        call(_X1, f(6, 4, 3), f(6), [1], "same"),
        call(_X1, f(6, 4, 4), f(6), [1], "same"),
        call(_X1, f(6, 4, 3), None, [2], "valid"),
    ),
    "aten.conv2d.default": (
        call(_X2, _W2),
        call(_X2, _W2, f(6)),
        call(_X2, _W2, f(6), [2, 2], [1, 1]),
        call(_X2, _W2, f(6), [1, 2], [1, 0], [2, 1]),
        call(_X2, _W2, f(6), [9, 2]),
        call(_X2, f(4, 1, 3, 3), f(4), [1, 1], [1, 1], [1, 1], 4),
        call(_X2, f(6, 2, 3, 3), f(6), [1, 1], [1, 1], [1, 1], 2),
        call(_X2, f(6, 4, 1, 1), None),
        call(f(4, 9, 8), _W2, f(6)),
        call(_X2.last, _W2.last, f(6), [1, 1], [1, 1]),
        call(_X2, f(6, 4, 3, 2), f(6), [3, 1], [0, 1]),
        call(f64(1, 4, 5, 5), f64(6, 4, 3, 3), f64(6)),
        call(bf16(1, 4, 5, 5), bf16(6, 4, 3, 3), bf16(6)),
        call(f(1, 3, 12, 12), f(8, 3, 4, 4), f(8), [4, 4]),
    ),
    "aten.conv2d.padding": (
        call(_X2, _W2, f(6), [1, 1], "same"),
        call(_X2, f(6, 4, 2, 3), f(6), [1, 1], "same", [2, 1]),
        call(_X2, _W2, None, [2, 2], "valid"),
    ),
    "aten.conv3d.default": (
        call(_X3, f(3, 2, 2, 3, 2), f(3)),
        call(_X3, f(3, 2, 3, 3, 3), None, [2, 1, 1], [1, 1, 1]),
        call(_X3, f(2, 1, 2, 2, 2), f(2), [1, 1, 1], [0, 0, 0], [1, 1, 1], 2),
    ),
    "aten.conv3d.padding": (call(_X3, f(3, 2, 3, 3, 3), f(3), [1, 1, 1], "same"),),
    "aten.conv_transpose1d.default": (
        call(_X1, f(4, 3, 3)),
        call(_X1, f(4, 3, 3), f(3), [2], [1], [1]),
        call(_X1, f(4, 2, 3), f(4), [1], [0], [0], 2, [2]),
    ),
    "aten.conv_transpose2d.input": (
        call(_X2, f(4, 3, 3, 3)),
        call(_X2, f(4, 3, 2, 2), f(3), [2, 2]),
        call(_X2, f(4, 3, 3, 3), f(3), [2, 2], [1, 1], [1, 1]),
        call(_X2, f(4, 2, 3, 3), f(4), [1, 2], [1, 0], [0, 1], 2, [1, 1]),
        call(_X2, f(4, 3, 3, 3), f(3), [1, 1], [0, 0], [0, 0], 1, [2, 2]),
    ),
    "aten.conv_transpose3d.input": (call(_X3, f(2, 3, 2, 2, 2), f(3), [2, 2, 2]),),
    "aten.convolution.default": (
        call(_X2, _W2, f(6), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        call(_X2, f(4, 1, 3, 3), None, [2, 2], [1, 1], [1, 1], False, [0, 0], 4),
        call(_X1, f(6, 4, 3), f(6), [1], [1], [1], False, [0], 1),
        call(_X2, f(4, 3, 3, 3), f(3), [2, 2], [1, 1], [1, 1], True, [1, 1], 1),
        call(_X3, f(3, 2, 3, 3, 3), None, [1, 1, 1], [1, 1, 1], [1, 1, 1], False, [0, 0, 0], 1),
    ),
    "aten.im2col.default": (call(_X2, [3, 2], [1, 1], [1, 0], [2, 1]),),
    "aten.col2im.default": (call(f(1, 12, 12), [5, 4], [2, 2], [1, 1], [0, 0], [1, 1]),),
}

_Q, _K, _V = f(2, 4, 3, 8), f(2, 4, 5, 8), f(2, 4, 5, 8)
_K2, _V2 = f(2, 2, 5, 8), f(2, 2, 5, 8)
_ATTENTION: Table = {
    "aten.scaled_dot_product_attention.default": (
        call(_Q, _K, _V),
        call(_Q, _K, f(2, 4, 5, 6)),
        call(_Q, _K, _V, f(3, 5)),
        call(_Q, _K, _V, f(2, 1, 3, 5)),
        call(_Q, _K, _V, b(2, 1, 1, 5)),
        call(_Q, _Q, _Q, None, 0.0, True),
        call(_Q, _K, _V, None, 0.0, True),
        call(_Q, _K, _V, None, 0.0, False, scale=0.3),
        call(_Q, _K2, _V2, None, 0.0, False, enable_gqa=True),
        call(_Q, f(2, 2, 3, 8), f(2, 2, 3, 8), None, 0.0, True, scale=0.5, enable_gqa=True),
        call(_Q, _K2, _V2, f(2, 4, 3, 5), 0.0, False, enable_gqa=True),
        call(_Q, _K, _V2, None, 0.0, False, enable_gqa=True),
        call(_Q, _K2, _V, None, 0.0, False, enable_gqa=True),
        call(f(2, 3, 8), f(2, 5, 8), f(2, 5, 8)),
        call(f(3, 8), f(5, 8), f(5, 8)),
        call(f(2, 4, 8, 3).T, _K, _V),
        call(bf16(1, 2, 3, 8), bf16(1, 2, 3, 8), bf16(1, 2, 3, 8)),
        call(f64(1, 2, 3, 8), f64(1, 2, 3, 8), f64(1, 2, 3, 8)),
    ),
    "aten._scaled_dot_product_flash_attention_for_cpu.default": (
        call(_Q, _K, _V).reads(0),
        call(_Q, _Q, _Q, 0.0, True).reads(0),
        call(_Q, _K, _V),
        call(_Q, _K, _V, 0.0, False, attn_mask=f(3, 5), scale=0.3).reads(0),
        # Grouped heads, which only the sizes reveal.
        call(_Q, _K2, _V2).reads(0),
        call(_Q, _K2, _V2),
        call(_Q, f(2, 2, 3, 8), f(2, 2, 3, 8), 0.0, True, scale=0.5).reads(0),
        call(_Q, f(2, 1, 5, 8), f(2, 1, 5, 8)).reads(0),
        call(_Q, _K2, _V2, 0.0, False, attn_mask=f(2, 1, 3, 5)).reads(0),
        call(_Q, _K2, _V2, 0.0, False, attn_mask=f(2, 4, 3, 5)).reads(0),
    ),
    "aten._safe_softmax.default": (call(f(3, 4), -1), call(lit(-inf, -inf), 0)),
}

_IMAGE = f(2, 6, 3, 4)
_NORMS: Table = {
    "aten.layer_norm.default": (
        call(f(3, 8), [8], f(8), f(8)),
        call(f(2, 3, 8), [8], f(8), f(8), 1e-6),
        call(f(2, 3, 8), [8]),
        call(f(2, 3, 8), [3, 8], f(3, 8), f(3, 8)),
        call(f(2, 3, 8), [8], f(8)),
        call(f(8, 3).T, [8], f(8), f(8)),
        call(bf16(3, 8), [8], bf16(8), bf16(8)),
        call(f64(3, 8), [8], f64(8), f64(8)),
        call(f(2, 1), [1], f(1), f(1)),
    ),
    "aten.native_layer_norm.default": (
        call(f(2, 3, 8), [8], f(8), f(8), 1e-5),
        call(f(2, 3, 8), [8], f(8), f(8), 1e-5).reads(0),
        call(f(2, 3, 8), [3, 8], None, None, 1e-6).reads(0),
    ),
    "aten.rms_norm.default": (
        call(f(3, 8), [8], f(8)),
        call(f(3, 8), [8], f(8), 1e-6),
        call(f(2, 3, 8), [8]),
        call(f(2, 3, 8), [3, 8], f(3, 8), 1e-5),
        call(bf16(3, 8), [8], bf16(8), 1e-6),
        call(f64(3, 8), [8], f64(8)),
    ),
    "aten.group_norm.default": (
        call(_IMAGE, 2, f(6), f(6)),
        call(_IMAGE, 3),
        call(_IMAGE, 6, f(6), f(6), 1e-3),
        call(f(2, 6), 2, f(6), f(6)),
        call(f(2, 6, 5), 1, f(6), f(6)),
        call(_IMAGE.last, 2, f(6), f(6)),
        call(bf16(2, 6, 3, 4), 2, bf16(6), bf16(6)),
        call(f16(2, 6, 5), 3),
    ),
    "aten.native_group_norm.default": (
        call(_IMAGE, f(6), f(6), 2, 6, 12, 2, 1e-5),
        call(_IMAGE, f(6), f(6), 2, 6, 12, 2, 1e-5).reads(0),
        call(bf16(2, 6, 3, 4), bf16(6), bf16(6), 2, 6, 12, 2, 1e-5),
        call(f16(2, 6, 3, 4), f16(6), f16(6), 2, 6, 12, 2, 1e-5).reads(0),
    ),
    "aten.instance_norm.default": (
        call(_IMAGE, f(6), f(6), None, None, True, 0.1, 1e-5, False),
        call(_IMAGE, None, None, f(6), pos(6), False, 0.1, 1e-5, False),
    ),
    "aten.batch_norm.default": (
        call(_IMAGE, f(6), f(6), f(6), pos(6), False, 0.1, 1e-5, False),
        call(f(3, 6), f(6), f(6), f(6), pos(6), False, 0.1, 1e-3, False),
        call(f(2, 6, 4), None, None, f(6), pos(6), False, 0.1, 1e-5, True),
        call(_IMAGE.last, f(6), f(6), f(6), pos(6), False, 0.1, 1e-5, False),
        call(bf16(2, 6, 3, 4), bf16(6), bf16(6), bf16(6), pos(6, dtype=torch.bfloat16), False, 0.1, 1e-5, False),
        call(bf16(2, 6, 3, 4), f(6), f(6), f(6), pos(6), False, 0.1, 1e-5, False),
        call(f16(2, 6), None, None, f16(6), pos(6, dtype=torch.float16), False, 0.1, 1e-5, False),
    ),
    "aten._native_batch_norm_legit_no_training.default": (
        call(_IMAGE, f(6), f(6), f(6), pos(6), 0.1, 1e-5).reads(0),
        call(f(3, 6), None, None, f(6), pos(6), 0.1, 1e-3).reads(0),
        call(bf16(2, 6, 3, 4), f(6), f(6), f(6), pos(6), 0.1, 1e-5).reads(0),
        call(f16(3, 6), None, None, f16(6), pos(6, dtype=torch.float16), 0.1, 1e-3).reads(0),
    ),
    "aten.native_batch_norm.default": (
        call(_IMAGE, f(6), f(6), f(6), pos(6), False, 0.1, 1e-5).reads(0),
        call(bf16(3, 6), bf16(6), bf16(6), bf16(6), pos(6, dtype=torch.bfloat16), False, 0.1, 1e-5).reads(0),
    ),
    "aten._native_batch_norm_legit.no_stats": (
        call(_IMAGE, f(6), f(6), True, 0.1, 1e-5),
        call(_IMAGE, None, None, True, 0.1, 1e-5).reads(0),
    ),
    "aten._native_batch_norm_legit_functional.default": (
        call(_IMAGE, f(6), f(6), f(6), pos(6), True, 0.1, 1e-5),
        call(_IMAGE, f(6), f(6), f(6), pos(6), True, 0.1, 1e-5).reads(0, 3, 4),
    ),
    "aten._batch_norm_with_update_functional.default": (call(_IMAGE, f(6), f(6), f(6), pos(6), 0.1, 1e-5).reads(0, 4, 5),),
    "aten._weight_norm_interface.default": (call(f(4, 3), f(4, 1)), call(f(4, 3, 2), f(4, 1, 1), 0).reads(0)),
    "aten._weight_norm.default": (call(f(4, 3), f(4, 1)), call(f(4, 3, 2), f(1, 1, 2), 2), call(f(4, 3), f(4, 1), 0)),
}

_POOLS: Table = {
    "aten.max_pool1d.default": (call(_X1, [3]), call(_X1, [3], [2], [1]), call(_X1, [2], [2], [0], [2], True)),
    "aten.max_pool2d.default": (
        call(_X2, [2, 2]),
        call(_X2, [3, 3], [2, 2], [1, 1]),
        call(_X2, [3, 2], [1, 2], [1, 0], [2, 1]),
        call(_X2, [3, 2], [9, 2]),
        call(_X2, [2, 2], [2, 2], [0, 0], [1, 1], True),
        call(f(4, 9, 8), [2, 2]),
        call(_X2.last, [3, 3], [2, 2], [1, 1]),
        call(i64(1, 2, 4, 4), [2, 2]),
    ),
    "aten.max_pool3d.default": (
        call(_X3, [2, 2, 2]),
        call(_X3, [3, 3, 3], [2, 2, 2], [1, 1, 1]),
        call(_X3, [2, 3, 2], [2, 2, 3], [0, 1, 1], [1, 2, 1], True),
    ),
    "aten.max_pool2d_with_indices.default": (
        call(_X2, [2, 2]),
        call(_X2, [3, 3], [2, 2], [1, 1]).reads(0),
        call(_X2, [2, 2], [2, 2]).reads(0),
        call(_X2, [3, 3], [2, 2], [1, 1]),
        call(_X2, [3, 2], [2, 3], [1, 0], [2, 1], True),
        call(i64(2, 3, 9, 8), [3, 3], [1, 2], [1, 1]),
        call(f(4, 9, 8), [2, 2]),
        call(ties(2, 3, 9, 8), [3, 3], [2, 2], [1, 1]),
        call(ties(1, 2, 9, 8, kinds=1), [3, 2], [2, 3], [1, 0], [2, 1], True),
    ),
    "aten.max_pool3d_with_indices.default": (
        call(_X3, [2, 2, 2]),
        call(_X3, [3, 3, 3], [2, 2, 2], [1, 1, 1], [1, 1, 1], True),
        call(ties(1, 2, 5, 6, 7), [3, 3, 3], [2, 2, 2], [1, 1, 1]),
    ),
    "aten.avg_pool1d.default": (
        call(_X1, [3]),
        call(_X1, [3], [2], [1]),
        call(_X1, [3], [9]),
        call(_X1, [3], [2], [1], False, False),
        call(_X1, [2], [2], [0], True),
        call(bf16(2, 4, 9), [3], [2], [1]),
        call(f16(2, 4, 9), [2]),
    ),
    "aten.avg_pool2d.default": (
        call(_X2, [2, 2]),
        call(_X2, [3, 3], [2, 2], [1, 1]),
        call(_X2, [3, 3], [2, 2], [1, 1], False, False),
        call(_X2, [2, 2], [2, 2], [0, 0], True),
        call(_X2, [3, 3], [2, 2], [1, 1], True),
        call(_X2, [2, 2], [1, 1], [0, 0], False, True, 3),
        call(f(4, 9, 8), [3, 2]),
        call(bf16(2, 4, 9, 8), [3, 3], [2, 2], [1, 1]),
        call(f16(2, 4, 9, 8), [2, 2]),
    ),
    "aten.avg_pool3d.default": (call(_X3, [2, 2, 2]), call(_X3, [3, 3, 3], [2, 2, 2], [1, 1, 1], False, False)),
    "aten.adaptive_avg_pool1d.default": (call(_X1, [1]), call(_X1, [3]), call(_X1, [4]), call(bf16(2, 4, 9), [3])),
    **rows(
        "adaptive_avg_pool2d.default _adaptive_avg_pool2d.default",
        call(_X2, [1, 1]),
        call(_X2, [3, 4]),
        call(_X2, [2, 3]),
        call(_X2, [7, 7]),
        call(f(4, 9, 8), [1, 1]),
        call(bf16(2, 4, 9, 8), [1, 1]),
        call(f16(2, 4, 9, 8), [3, 4]),
    ),
    "aten.adaptive_avg_pool3d.default": (
        call(_X3, [1, 1, 1]),
        call(_X3, [5, 3, 2]),
        call(bf16(1, 2, 5, 6, 4), [1, 1, 1]),
    ),
    "aten.adaptive_max_pool1d.default": (call(_X1, [3]).reads(0),),
    "aten.adaptive_max_pool2d.default": (call(_X2, [1, 1]).reads(0), call(_X2, [3, 2]).reads(0), call(_X2, [2, 3])),
}

_RESIZED: Table = {
    **rows("reflection_pad1d.default replication_pad1d.default", call(_X1, [2, 3]), call(f(4, 9), [1, 0])),
    **rows("reflection_pad2d.default replication_pad2d.default", call(_X2, [1, 2, 3, 0]), call(f(4, 9, 8), [1, 1, 1, 1])),
    **rows("replication_pad3d.default reflection_pad3d.default", call(_X3, [1, 0, 1, 1, 0, 2])),
    "aten.pad.default": (
        call(_X2, [1, 2, 0, 1]),
        call(_X2, [1, 2], "constant", -1.0),
        call(_X2, [1, 2, 0, 1], "reflect"),
        call(_X2, [1, 2, 0, 1], "replicate"),
        call(_X2, [1, 2, 0, 1], "circular"),
        call(_X1, [2, 1], "reflect"),
        call(f(3, 4), [-1, 1]),
        call(i64(3), [1, 1], "constant", 2.0),
    ),
    "aten.upsample_nearest1d.vec": (call(_X1, [18], None), call(_X1, None, [2.0]), call(bf16(2, 4, 9), [18], None)),
    "aten.upsample_nearest1d.default": (call(_X1, [18]), call(_X1, [5]), call(f16(2, 4, 9), [18])),
    "aten.upsample_nearest3d.vec": (
        call(_X3, None, [2.0, 2.0, 2.0]),
        call(_X3, [5, 7, 2], None),
        call(bf16(1, 2, 3, 2, 2), [6, 4, 4], None),
    ),
    "aten.upsample_bicubic2d.default": (call(_X2, [18, 16], False), call(_X2, [5, 3], True)),
    "aten.upsample_nearest2d.vec": (
        call(_X2, None, [2.0, 2.0]),
        call(_X2, [5, 13], None),
        call(_X2, None, [0.5, 1.5]),
        call(bf16(2, 4, 9, 8), [18, 16], None),
    ),
    "aten.upsample_nearest2d.default": (call(_X2, [18, 16]), call(_X2, [4, 5]), call(f16(2, 4, 9, 8), [18, 16])),
    "aten._upsample_nearest_exact2d.vec": (call(_X2, None, [2.0, 2.0]), call(_X2, [5, 13], None)),
    "aten.upsample_bilinear2d.vec": (
        call(_X2, None, False, [2.0, 2.0]),
        call(_X2, [5, 13], False, None),
        call(_X2, [18, 16], True, None),
        call(_X2, None, False, [0.5, 1.5]),
    ),
    "aten.upsample_bilinear2d.default": (call(_X2, [18, 16], False), call(_X2, [5, 3], True)),
    "aten._upsample_bilinear2d_aa.vec": (call(_X2, [5, 4], False, None),),
    "aten.upsample_bicubic2d.vec": (
        call(_X2, None, False, [2.0, 2.0]),
        call(_X2, [5, 13], False, None),
        call(_X2, [18, 16], True, None),
    ),
    "aten.upsample_linear1d.vec": (call(_X1, None, False, [2.0]), call(_X1, [5], True, None)),
    "aten.upsample_trilinear3d.vec": (call(_X3, None, False, [2.0, 2.0, 2.0]),),
    "aten.pixel_shuffle.default": (call(f(2, 8, 3, 4), 2), call(f(9, 2, 2), 3)),
    "aten.pixel_unshuffle.default": (call(f(2, 3, 4, 6), 2),),
    "aten.channel_shuffle.default": (call(f(2, 6, 3, 3), 2),),
    "aten.grid_sampler.default": (call(_X2, f(2, 3, 4, 2), 0, 0, False), call(_X2, f(2, 3, 4, 2), 1, 1, True)),
    "aten.grid_sampler_2d.default": (call(_X2, f(2, 3, 4, 2), 0, 0, False), call(_X2, f(2, 3, 4, 2), 0, 2, True)),
    "aten.affine_grid_generator.default": (call(f(2, 2, 3), [2, 1, 4, 5], False),),
}

_LSTM_2 = [f(12, 4), f(12, 3), f(12), f(12)]
_LSTM_BOTH = [*_LSTM_2, *_LSTM_2]
_LSTM_DEEP = [*_LSTM_2, f(12, 3), f(12, 3), f(12), f(12)]
_GRU = [f(9, 4), f(9, 3), f(9), f(9)]
_RECURRENT: Table = {
    "aten.lstm.input": (
        call(f(5, 2, 4), [f(1, 2, 3), f(1, 2, 3)], _LSTM_2, True, 1, 0.0, False, False, False),
        call(f(2, 5, 4), [f(1, 2, 3), f(1, 2, 3)], _LSTM_2, True, 1, 0.0, False, False, True),
        call(f(2, 5, 4), [f(2, 2, 3), f(2, 2, 3)], _LSTM_BOTH, True, 1, 0.0, False, True, True),
        call(f(5, 2, 4), [f(2, 2, 3), f(2, 2, 3)], _LSTM_DEEP, True, 2, 0.0, False, False, False),
        call(f(5, 2, 4), [f(1, 2, 3), f(1, 2, 3)], _LSTM_2[:2], False, 1, 0.0, False, False, False),
        call(f(2, 5, 4), [f(1, 2, 3), f(1, 2, 3)], _LSTM_2, True, 1, 0.0, False, False, True).reads(0),
    ),
    "aten.gru.input": (
        call(f(5, 2, 4), f(1, 2, 3), _GRU, True, 1, 0.0, False, False, False),
        call(f(2, 5, 4), f(1, 2, 3), _GRU, True, 1, 0.0, False, False, True),
        call(f(2, 5, 4), f(2, 2, 3), [*_GRU, *_GRU], True, 1, 0.0, False, True, True),
    ),
    **rows(
        "rnn_tanh.input rnn_relu.input",
        call(f(5, 2, 4), f(1, 2, 3), [f(3, 4), f(3, 3), f(3), f(3)], True, 1, 0.0, False, False, False),
    ),
    "aten.lstm_cell.default": (call(f(2, 4), [f(2, 3), f(2, 3)], *_LSTM_2),),
    "aten.gru_cell.default": (call(f(2, 4), f(2, 3), *_GRU),),
}

_HOW = (0, 1, 2)
_HALF_PAIRS = tuple(call(made(3, 4), made(3, 4), how) for made in (f16, bf16) for how in (0, 1))
_CLASSES = (
    call(f(4, 5), at(4, below=5)),
    call(f(4, 5), at(4, below=5), f(5), 2),
    call(f(4, 5), lit(0, -100, 4, 2)),
    call(f(4, 5), lit(0, 3, 4, 3), pos(5), 1, 3),
    call(f(4, 5), at(4, below=5), None, 0),
    call(f(5), at(below=5)),
    call(f(2, 5, 3), at(2, 3, below=5)),
    call(f(2, 5, 3, 4), at(2, 3, 4, below=5), pos(5)),
    call(f16(4, 5), at(4, below=5)),
    call(bf16(4, 5), at(4, below=5), bf16(5), 0),
    call(f64(4, 5), at(4, below=5)),
)
_LOSSES: Table = {
    "aten.cross_entropy_loss.default": (
        *_CLASSES,
        call(f(4, 5), at(4, below=5), None, 1, -100, 0.1),
        call(f(4, 5), lit(0, 3, 4, 3), pos(5), 1, 3, 0.2),
        call(bf16(2, 5, 3), at(2, 3, below=5), None, 0, -100, 0.1),
        call(f(4, 5), pos(4, 5)),
        call(f(2, 5, 3), pos(2, 5, 3), pos(5), 0, -100, 0.1),
        call(f16(4, 5), pos(4, 5, dtype=torch.float16), None, 2),
    ),
    "aten.nll_loss_nd.default": _CLASSES,
    "aten.nll_loss_forward.default": (
        call(f(4, 5), at(4, below=5), None, 1, -100),
        call(f(4, 5), at(4, below=5), None, 2, -100).reads(0),
        call(f(4, 5), lit(0, 3, 4, 3), None, 1, 3),
        call(f(4, 5), lit(0, 3, 4, 3), pos(5), 1, 3),
        call(f(4, 5), at(4, below=5), None, 0, -100).reads(0),
        call(f(5), at(below=5), None, 1, -100),
        call(f(5), at(below=5), None, 0, -100),
        call(f(5), at(below=5), pos(5), 0, -100),
        call(f16(4, 5), at(4, below=5), None, 1, -100),
        call(bf16(4, 5), at(4, below=5), bf16(5), 2, -100).reads(0),
    ),
    "aten.nll_loss2d_forward.default": (
        call(f(2, 5, 3, 4), at(2, 3, 4, below=5), None, 1, -100),
        call(f(2, 5, 3, 4), at(2, 3, 4, below=5), pos(5), 1, 3),
        call(f(2, 5, 3, 4), at(2, 3, 4, below=5), None, 0, 2).reads(0),
    ),
    **rows(
        "mse_loss.default l1_loss.default smooth_l1_loss.default huber_loss.default",
        *(call(f(3, 4), f(3, 4), how) for how in _HOW),
        *_HALF_PAIRS,
        call(f64(3, 4), f64(3, 4), 1),
    ),
    "aten.binary_cross_entropy.default": (call(lit(0.2, 0.5, 0.9), lit(0.0, 1.0, 0.5)),),
    "aten.binary_cross_entropy_with_logits.default": (
        call(f(3, 4), pos(3, 4)),
        call(f(3, 4), pos(3, 4), pos(3, 4), pos(4), 0),
        call(f(3, 4), pos(3, 4), None, pos(4), 2),
        call(lit(-100.0, 0.0, 100.0), lit(0.0, 1.0, 1.0), None, None, 0),
        call(f16(3, 4), unit(3, 4, dtype=torch.float16)),
        call(bf16(3, 4), unit(3, 4, dtype=torch.bfloat16), None, None, 0),
    ),
    "aten.kl_div.default": (
        call(f(3, 4), pos(3, 4)),
        call(f(3, 4), pos(3, 4), 2),
        call(f(3, 4), f(3, 4), 0, log_target=True),
        call(f(3), lit(0.0, 1.0, -1.0), 0),
        call(f16(3, 4), pos(3, 4, dtype=torch.float16)),
        call(bf16(3, 4), bf16(3, 4), 1, log_target=True),
    ),
    "aten.dropout.default": (call(f(3, 4), 0.5, False), call(f(3, 4), 0.0, True)),
    "aten.native_dropout.default": (call(f(3, 4), 0.5, False).reads(0),),
}

TABLE: Table = {**_PRODUCTS, **_CONVOLUTIONS, **_ATTENTION, **_NORMS, **_POOLS, **_RESIZED, **_RECURRENT, **_LOSSES}
