"""Samples of operators that move or index data: views, slices, gathers, scatters, joins, casts, new tensors."""

from __future__ import annotations

from math import inf, nan

import torch

from hub.testing.operators.sample import Table, at, b, bf16, call, f, f16, f64, i32, i64, lit, pos, rows, u8

_CPU = torch.device("cpu")
_PLACE = {"device": _CPU, "pin_memory": False}
_BIG_END = 2**63 - 1

_VIEWS: Table = {
    "aten.view.default": (
        call(f(4, 6), [24]),
        call(f(4, 6), [2, 2, 6]),
        call(f(4, 6), [-1, 3]),
        call(f(1), []),
        call(i64(4, 3), [3, 4]),
        call(f(2, 3, 4), [2, -1]),
        call(f(), [1, 1]),
        call(f(2, 3, 1, 1), [2, 3]),
    ),
    "aten.reshape.default": (
        call(f(4, 6), [24]),
        call(f(6, 4).T, [-1]),
        call(f(2, 3, 4), [6, 4]),
        call(b(4), [2, 2]),
        call(f(0, 3), [3, 0]),
        call(f(2, 5, 6), [2, 5, 2, 3]),
        call(f(1), []),
        call(f(2, 3, 1, 1), [2, 3]),
    ),
    "aten._unsafe_view.default": (call(f(4, 6), [24]), call(f(2, 3, 4), [6, 4])),
    "aten.view_as.default": (call(f(4, 6), f(24)),),
    "aten.reshape_as.default": (call(f(6, 4).T, f(24)),),
    "aten.flatten.using_ints": (
        call(f(2, 3, 4)),
        call(f(2, 3, 4), 1),
        call(f(2, 3, 4), 0, 1),
        call(f(2, 3, 4), -2, -1),
        call(f()),
        call(f(2, 3, 1, 1), 1),
    ),
    "aten.ravel.default": (call(f(2, 3)), call(f(2, 3).T), call(f())),
    "aten.unflatten.int": (call(f(2, 6), 1, [2, 3]), call(f(6, 2), 0, [3, -1])),
    "aten.permute.default": (
        call(f(2, 3, 4), [0, 2, 1]),
        call(f(2, 3, 4), [-1, 0, 1]),
        call(f(2, 3, 4, 5), [0, 2, 1, 3]),
        call(i64(2, 3), [1, 0]),
        call(b(2, 3), [1, 0]),
        call(f(), []),
    ),
    "aten.transpose.int": (
        call(f(2, 3, 4), 1, 2),
        call(f(2, 3, 4), -1, -2),
        call(f(2, 3, 4), 0, 2),
        call(i64(2, 3), 0, 1),
        call(bf16(2, 3), 0, 1),
        call(f(2, 3, 4, 2), 1, 2),
    ),
    "aten.t.default": (call(f(2, 3)), call(f(3))),
    "aten.numpy_T.default": (call(f(2, 3)),),
    "aten.mT.default": (call(f(2, 3, 4)),),
    "aten.movedim.int": (call(f(2, 3, 4), 0, 2),),
    "aten.movedim.intlist": (call(f(2, 3, 4), [0, 1], [2, 0]),),
    "aten.swapaxes.default": (call(f(2, 3, 4), 0, 2),),
    "aten.unsqueeze.default": (
        call(f(2, 3), 0),
        call(f(2, 3), -1),
        call(f(2, 3), 1),
        call(f(), 0),
        call(i64(3), -2),
        call(b(3), 0),
    ),
    "aten.squeeze.dim": (call(f(2, 1, 3), 1), call(f(2, 1, 3), 0), call(f(2, 3, 1), -1), call(i64(1, 3), 0)),
    "aten.squeeze.dims": (call(f(2, 1, 1), [1, 2]), call(f(1, 3, 1), [0, 1])),
    "aten.squeeze.default": (call(f(2, 1, 3, 1)), call(f(1, 1))),
    "aten.expand.default": (
        call(f(3, 1), [3, 4]),
        call(f(3, 1), [-1, 4]),
        call(f(3), [2, 3]),
        call(f(1, 1, 3), [2, 4, 3]),
        call(f(), [2, 2]),
        call(b(1, 3), [2, -1]),
        call(i64(1, 3), [5, 3]),
    ),
    "aten.expand_as.default": (call(f(3, 1), f(3, 4)), call(f(3), f(2, 3))),
    "aten.broadcast_to.default": (call(f(3, 1), [2, 3, 4]),),
    "aten.broadcast_tensors.default": (call([f(3, 1), f(4)]), call([bf16(4), i64(2, 1, 4), f()])),
    "aten.as_strided.default": (call(f(4, 6), [2, 3], [6, 2]), call(f(12), [3, 4], [4, 1], 0)),
    "aten.diagonal.default": (call(f(3, 4)), call(f(2, 3, 3), 1, 1, 2)),
    "aten.unfold.default": (call(f(2, 8), 1, 4, 2), call(f(6, 2), 0, 2, 2)),
    "aten.view.dtype": (call(f(2, 4), torch.int32), call(i32(3), torch.float32)),
}

_CUTS: Table = {
    "aten.slice.Tensor": (
        call(f(5, 6)),
        call(f(5, 6), 0, 1, 3),
        call(f(5, 6), 1, 0, _BIG_END),
        call(f(5, 6), 1, 2, _BIG_END),
        call(f(5, 6), 1, -2, _BIG_END),
        call(f(5, 6), 1, 0, -1),
        call(f(5, 6), -1, 1, 6, 2),
        call(f(5, 6), 0, 3, 1),
        call(f(5, 6), 0, 0, 100),
        call(f(5, 6), 0, None, None, 3),
        call(i64(5), 0, 1, 4),
        call(b(2, 5), 1, 1, 4),
        call(f(6, 5).T, 1, 1, 3),
    ),
    "aten.select.int": (
        call(f(3, 4), 0, 1),
        call(f(3, 4), 1, -1),
        call(f(2, 3, 4), -2, 0),
        call(i64(3), 0, 2),
        call(b(2, 3), 0, 1),
    ),
    "aten.narrow.default": (call(f(5, 6), 1, 2, 3), call(f(5, 6), 0, -2, 2)),
    "aten.unsafe_split.Tensor": (call(f(5, 6), 2), call(f(2, 6), 3, -1)),
    "aten.split.Tensor": (
        call(f(5, 6), 2),
        call(f(5, 6), 2, 1),
        call(f(2, 6), 3, -1),
        call(f(6, 2), 2).reads(1),
        call(i64(4), 2),
    ),
    **rows(
        "split_with_sizes.default split.sizes",
        call(f(5, 6), [2, 3]),
        call(f(5, 6), [1, 3, 2], 1),
        call(f(2, 5), [4, 1], -1),
        call(f(2, 6), [2, 4], -1).reads(1),
    ),
    "aten.chunk.default": (call(f(5, 6), 2), call(f(5, 6), 4, 1), call(f(2, 6), 3, -1), call(f(2, 6), 3, -1).reads(0, 2)),
    "aten.tensor_split.sections": (call(f(5, 6), 2), call(f(2, 7), 3, 1)),
    "aten.unbind.int": (call(f(3, 4)), call(f(3, 4), 1), call(f(3, 2, 2), 0), call(f(2, 3), -1).reads(1)),
    **rows(
        "tril.default triu.default", call(f(3, 4)), call(f(4, 3), 1), call(f(2, 3, 3), -1), call(b(3, 3)), call(i64(3, 3))
    ),
    "aten.flip.default": (call(f(3, 4), [0]), call(f(3, 4), [0, -1]), call(i64(4), [0]), call(f(2, 3, 4), [1])),
    "aten.roll.default": (
        call(f(3, 4), [1], [1]),
        call(f(3, 4), [-1, 2], [0, 1]),
        call(f(3, 4), [5]),
        call(f(3, 4), [-4, 1], [1, 0]),
        call(i64(5), [2], [0]),
    ),
    "aten.rot90.default": (call(f(3, 4)),),
}

_JOINS: Table = {
    **rows(
        "cat.default concat.default",
        call([f(2, 3), f(1, 3)]),
        call([f(2, 3), f(2, 2)], 1),
        call([f(2, 3), f(2, 3), f(2, 1)], -1),
        call([i64(2), i64(3)]),
        call([f(3, 2).T, f(2, 3)]),
        call([f(2), i64(2)]),
        call([f(0), f(2, 3)]),
        call([f(2, 3)]),
        call([b(2), b(1)]),
        call([bf16(2), bf16(1)]),
    ),
    "aten.stack.default": (
        call([f(2, 3), f(2, 3)]),
        call([f(2, 3), f(2, 3)], 1),
        call([f(2, 3), f(2, 3)], -1),
        call([f(), f(), f()]),
        call([i64(2), i64(2)], 1),
    ),
    "aten.hstack.default": (call([f(2, 3), f(2, 1)]), call([f(2), f(3)])),
    "aten.vstack.default": (call([f(2, 3), f(1, 3)]), call([f(3), f(3)])),
    "aten.repeat.default": (
        call(f(2, 3), [2, 1]),
        call(f(3), [2, 2]),
        call(f(2, 3), [1, 1, 2]),
        call(i64(2), [3]),
        call(f(2, 3), [1, 1]),
    ),
    "aten.tile.default": (call(f(2, 3), [2]), call(f(2, 3), [2, 1, 2])),
    "aten.repeat_interleave.self_int": (
        call(f(2, 3), 2, 0),
        call(f(2, 3), 3, -1),
        call(i64(3), 2),
        call(f(1, 2, 3, 4), 2, 1),
    ),
    "aten.meshgrid.indexing": (call([f(2), f(3)], indexing="ij"), call([f(2), f(3)], indexing="xy")),
    "aten.atleast_2d.default": (call(f(3)),),
}

_GATHERS: Table = {
    "aten.index_select.default": (
        call(f(4, 3), 0, at(3, below=4)),
        call(f(3, 4), 1, at(2, below=4)),
        call(f(2, 3, 4), -1, at(5, below=4)),
        call(i64(4), 0, at(2, below=4)),
        call(f(4), 0, at(3, below=4, dtype=torch.int32)),
        call(f(4, 3), 0, at(0, below=4)),
    ),
    "aten.gather.default": (
        call(f(3, 4), 1, at(3, 2, below=4)),
        call(f(3, 4), 0, at(2, 4, below=3)),
        call(f(3, 4), -1, at(2, 1, below=4)),
        call(i64(5), 0, at(7, below=5)),
        call(f(2, 3, 4), 1, at(2, 5, 4, below=3)),
    ),
    "aten.take_along_dim.default": (call(f(3, 4), at(3, 2, below=4), 1),),
    "aten.take.default": (call(f(3, 4), at(5, below=12)),),
    "aten.embedding.default": (
        call(f(7, 4), at(3, below=7)),
        call(f(7, 4), at(2, 5, below=7)),
        call(f(7, 4), at(2, 3, below=7), 0),
        call(f(7, 4), at(below=7)),
        call(bf16(7, 4), at(3, below=7)),
        call(f(7, 4), at(3, below=7, dtype=torch.int32)),
        call(f(7, 4), lit(0, 6, 6)),
        call(f(7, 4), at(3, below=7), -1, True),
        call(f(7, 4), at(3, below=7), -1, False, True),
    ),
    "aten.index.Tensor": (
        call(f(4, 3), [at(2, below=4)]),
        call(f(4, 3), [None, at(2, below=3)]),
        call(f(4, 3), [at(2, below=4), at(2, below=3)]),
        call(f(4, 3), [at(2, 1, below=4), at(3, below=3)]),
        call(f(2, 3, 4), [at(2, below=2), None, at(2, below=4)]),
        call(f(2, 3, 4), [None, at(2, 2, below=3)]),
        call(f(4), [lit(-1, 0, -4)]),
        call(i64(4, 3), [at(below=4)]),
        call(f(4, 3), [at(2, 2, below=4)]),
        call(b(4), [at(3, below=4)]),
    ),
    "aten._unsafe_index.Tensor": (
        call(f(4, 3), [at(2, below=4)]),
        call(f(1, 2, 4, 3), [None, None, at(2, 1, below=4), at(3, below=3)]),
    ),
    "aten.one_hot.default": (call(at(3, below=4), 4), call(at(2, 3, below=5), 5), call(at(below=3), 3)),
}

_SCATTERS: Table = {
    "aten.index_put.default": (
        call(f(4, 3), [lit(0, 2)], f(2, 3)),
        call(f(4, 3), [lit(0, 2)], f()),
        call(f(4, 3), [lit(0, 2), lit(1, 2)], f(2)),
        call(f(4, 3), [None, lit(0, 2)], f(4, 2)),
        call(f(4, 3), [lit(1, 1, 3)], f(3, 3), True),
        call(f(4), [lit(-1)], f(1)),
        call(i64(4), [lit(3, 0)], i64(2)),
        call(f(2, 3), [b(2, 3)], f()),
    ),
    "aten.index_add.default": (call(f(4, 3), 0, lit(0, 2, 0), f(3, 3)), call(f(4, 3), 1, lit(2, 1), f(4, 2), alpha=2)),
    "aten.index_copy.default": (call(f(4, 3), 0, lit(3, 0), f(2, 3)), call(f(4, 3), 1, lit(2), f(4, 1))),
    "aten._unsafe_index_put.default": (call(f(4, 3), [None, lit(0, 2)], f(4, 2)), call(f(4), [lit(1, 1)], f(2), True)),
    "aten.index_fill.int_Scalar": (call(f(4, 3), 0, lit(3, 0), 1.5), call(f(4, 3).T, 0, lit(2, 0), 1.5)),
    "aten.index_fill.int_Tensor": (call(f(4, 3), 1, lit(-1, 0), f()), call(i64(4), 0, lit(2), i64())),
    "aten.scatter.reduce": (
        call(f(3, 4), 1, at(3, 5, below=4), f(3, 5), reduce="add"),
        call(f(4), 0, lit(1, 1, 0), f(3), reduce="multiply"),
    ),
    "aten.scatter.value_reduce": tuple(
        call(f(3, 4), 0, at(2, 4, below=3), 1.5, reduce=reduce) for reduce in ("multiply", "add")
    ),
    "aten.scatter.src": (
        call(f(3, 4), 1, at(3, 1, below=4), f(3, 1)),
        call(f(3, 4), 0, at(1, 4, below=3), f(1, 4)),
        call(f(4), 0, lit(3, 1), f(2)),
        call(f(), 0, at(below=1), f()),
    ),
    "aten.scatter.value": (
        call(f(3, 4), 1, at(3, 2, below=4), 1.0),
        call(f(3, 4), 0, at(2, 4, below=3), -2.5),
        call(i64(4), 0, lit(0, 2), 9),
    ),
    "aten.scatter_add.default": (
        call(f(3, 4), 1, at(3, 5, below=4), f(3, 5)),
        call(f(4), 0, lit(1, 1, 0), f(3)),
        call(i64(4), 0, lit(1, 1), i64(2)),
    ),
    "aten.scatter_reduce.two": (
        *(call(f(4), 0, lit(1, 1, 0), f(3), how) for how in ("sum", "prod", "amax", "amin", "mean")),
        *(call(f(4), 0, lit(1, 1, 0), f(3), how, include_self=False) for how in ("sum", "prod", "amax", "amin", "mean")),
        *(call(f(3, 4), 1, at(3, 5, below=4), f(3, 5), how) for how in ("prod", "amax", "mean")),
        *(call(i64(4), 0, lit(1, 1, 0), i64(3), how) for how in ("prod", "amin", "mean")),
        call(i64(4), 0, lit(1, 1, 0), i64(3), "amax", include_self=False),
        call(lit(1.0, nan, 2.0), 0, lit(0, 1, 2, 2), lit(nan, 3.0, nan, 1.0), "amin"),
        call(lit(1.0, nan, 2.0), 0, lit(0, 1, 2, 2), lit(nan, 3.0, inf, 1.0), "amax", include_self=False),
    ),
    "aten.slice_scatter.default": (
        call(f(4, 3), f(2, 3), 0, 1, 3),
        call(f(4, 6), f(4, 2), 1, 1, 4, 2),
        call(f(4, 3), f(4, 3), 0, 0, _BIG_END),
    ),
    "aten.select_scatter.default": (call(f(4, 3), f(3), 0, 1), call(f(4, 3), f(4), 1, -1)),
    "aten.diagonal_scatter.default": (call(f(3, 3), f(3)),),
    "aten.masked_scatter.default": (call(f(2, 3), b(2, 3), f(6)),),
    "aten.copy.default": (call(f(2, 3), f(2, 3)), call(f(2, 3), i64(3)), call(i64(2), lit(1.7, -1.7)), call(f(2, 3), f())),
}

_TO = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool, torch.uint8)
_CASTS: Table = {
    "aten.to.dtype": (
        *(call(source, to) for source in (pos(3, 4), at(5, below=9), b(4)) for to in _TO),
        call(lit(-1.7, 1.7, -0.5, 2.5), torch.int64),
        call(lit(-3e9, 3e9, 2.0**40), torch.int64),
        call(lit(0.0, -0.0, nan, inf), torch.bool),
        call(lit(1e6, -1e6, 1e-9, inf), torch.float16),
        call(bf16(4), torch.float32),
        call(f16(4), torch.float32),
        call(f64(4), torch.float32),
        call(i64(4), torch.int32),
        call(f(4, 3).T, torch.float64),
    ),
    "aten._to_copy.default": (
        *(call(f(3, 4), dtype=to) for to in _TO[:7]),
        call(i64(3), dtype=torch.float32),
        call(b(3), dtype=torch.float32),
        call(f(3, 4).T, dtype=torch.float64),
        call(b(3), dtype=torch.int64),
        call(u8(4), dtype=torch.float32),
    ),
    "aten.to.dtype_layout": (
        call(f(3), dtype=torch.float64, layout=torch.strided, device=_CPU),
        call(i64(3), dtype=torch.float32, layout=torch.strided, device=_CPU),
    ),
    "aten.to.device": (call(i64(3), _CPU, torch.float32), call(f(3), _CPU, torch.float32)),
    "aten.to.other": (call(i64(3), f(1)), call(f(3), i64(1))),
    "aten.type_as.default": (call(i64(3), f(1)), call(f(3), f64(1))),
}

_NEW: Table = {
    "aten.full.default": (
        call([2, 3], 1.5, dtype=torch.float32, **_PLACE),
        call([2], 7, dtype=torch.int64, **_PLACE),
        call([2, 2], True, dtype=torch.bool, **_PLACE),
        call([], -inf, dtype=torch.float32, **_PLACE),
        call([3], 2.0),
        call([3], torch.finfo(torch.float32).min, dtype=torch.float32),
    ),
    **rows(
        "zeros.default ones.default",
        call([2, 3], **_PLACE),
        call([2], dtype=torch.int64, **_PLACE),
        call([2, 2], dtype=torch.bool, **_PLACE),
        call([0, 2]),
    ),
    **rows(
        "zeros_like.default ones_like.default",
        call(f(2, 3)),
        call(i64(3)),
        call(f(3, 2).T),
        call(f(3), dtype=torch.int64, pin_memory=False),
        call(b(2)),
    ),
    "aten.full_like.default": (
        call(f(2, 3), 1.5),
        call(i64(3), 4),
        call(f(3), True, dtype=torch.bool),
        call(i64(2), 0.5, dtype=torch.float32, pin_memory=False),
    ),
    **rows(
        "new_zeros.default new_ones.default", call(f(2, 3), [3, 2]), call(f(1), [2], dtype=torch.int64, pin_memory=False)
    ),
    "aten.new_full.default": (
        call(f(2), [3, 2], 2.5),
        call(i64(2), [3], 7),
        call(f(1), [2], 1, dtype=torch.bool, pin_memory=False),
    ),
    "aten.arange.default": (call(5), call(5, dtype=torch.float32), call(5, **_PLACE), call(2.5)),
    "aten.arange.start": (call(2, 7), call(0, 4, dtype=torch.float32, **_PLACE), call(-3, 2)),
    "aten.arange.start_step": (
        call(0, 8, 2),
        call(5, 0, -2),
        call(0.0, 1.0, 0.25),
        call(0, 6, 2, dtype=torch.float32, **_PLACE),
        call(0, 7, 3, dtype=torch.int64, **_PLACE),
    ),
    "aten.linspace.default": (call(0.0, 1.0, 5), call(-1, 1, 4, dtype=torch.float32, **_PLACE), call(0.0, 1.0, 1)),
    "aten.empty.memory_format": (call([2, 3], **_PLACE).without_values, call([2], dtype=torch.int64).without_values),
    "aten.empty_like.default": (call(f(2, 3)).without_values, call(f(3, 2).T).without_values, call(i64(3)).without_values),
    "aten.new_empty.default": (call(f(2), [3, 2]).without_values, call(f(1), [2], dtype=torch.int64).without_values),
    "aten.eye.default": (call(3), call(2, dtype=torch.int64, **_PLACE)),
    "aten.eye.m": (call(2, 3),),
    "aten.scalar_tensor.default": (call(1.5), call(2, dtype=torch.int64), call(-inf, dtype=torch.float32, device=_CPU)),
    "aten.tril_indices.default": (call(3, 3),),
    "aten.triu_indices.default": (call(3, 4, 1),),
    **rows("detach.default lift_fresh_copy.default", call(f(2, 3)), call(i64(3)), call(f()), call(f(3, 2).T)),
    "aten.fill.Scalar": (call(f(2, 3), 1.5), call(i64(3), 2), call(b(3), True)),
    "aten.fill.Tensor": (call(f(2, 3), f()),),
    "aten.constant_pad_nd.default": (
        call(f(2, 3), [1, 2]),
        call(f(2, 3), [1, 0, 0, 2], -1.5),
        call(f(2, 5), [-1, -2]),
        call(i64(3), [1, 1], 7),
        call(b(2, 3), [1, 1], True),
        call(f(1, 2, 3, 3), [1, 1, 1, 1], -inf),
        call(f(2, 3), [0, 0]),
    ),
}

TABLE: Table = {**_VIEWS, **_CUTS, **_JOINS, **_GATHERS, **_SCATTERS, **_CASTS, **_NEW}
