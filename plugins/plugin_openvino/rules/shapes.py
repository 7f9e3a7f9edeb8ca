"""Rules for operators that move elements without computing: views, slices, joins, padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from openvino import Output

from hub.plugin import declared_arguments
from plugin_openvino.call import Call
from plugin_openvino.library import ops
from plugin_openvino.operands import INT32_MAX, constant, indices, output, size_of
from plugin_openvino.rules.elementwise import Rule

_I64 = torch.int64
_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}


def _view(call: Call) -> Any:
    return call.reshaped(call.tensor("self"), call.raw("shape" if "reshape" in str(call.node.target) else "size"))


def _flatten(call: Call) -> Any:
    rank = call.fake("self").dim()
    if rank == 0:
        return ops.reshape(call.tensor("self"), indices([1]), False)
    start, end = call.dim("start_dim"), call.dim("end_dim")
    value = call.tensor("self")
    return _joined_reshape(
        value, [*(size_of(value, dim) for dim in range(start)), indices([-1]), *_sizes(value, end + 1, rank)]
    )


def _unflatten(call: Call) -> Any:
    value, dim, rank = call.tensor("self"), call.dim("dim"), call.fake("self").dim()
    return _joined_reshape(value, [*_sizes(value, 0, dim), call.vector(call.raw("sizes")), *_sizes(value, dim + 1, rank)])


def _sizes(value: Output, start: int, end: int) -> list[Output]:
    return [size_of(value, dim) for dim in range(start, end)]


def _joined_reshape(value: Output, sizes: Sequence[Output]) -> Any:
    return ops.reshape(value, ops.concat(list(sizes), 0) if len(sizes) > 1 else sizes[0], False)


def transposed(value: Output, order: Sequence[int]) -> Output:
    """Return the value with its dims in another order."""
    return value if list(order) == list(range(len(order))) else output(ops.transpose(value, indices(order)))


def _permute(call: Call) -> Any:
    return transposed(call.tensor("self"), call.dims("dims"))


def _transpose(call: Call) -> Any:
    order = list(range(call.fake("self").dim()))
    left, right = call.dim("dim0"), call.dim("dim1")
    if order:
        order[left], order[right] = order[right], order[left]
    return transposed(call.tensor("self"), order)


def _t(call: Call) -> Any:
    return transposed(call.tensor("self"), list(reversed(range(call.fake("self").dim()))))


def _unsqueeze(call: Call) -> Any:
    return ops.unsqueeze(call.tensor("self"), indices([call.dim("dim", rank=call.result.dim())]))


def _squeeze(call: Call) -> Any:
    """Drop the named dims of size 1; ATen ignores other dims, OpenVINO would raise."""
    name = "dim" if any(declared.name == "dim" for declared in declared_arguments(call.node)) else None
    shape = call.fake("self").shape
    if not shape:
        return call.tensor("self")
    dims = [
        dim for dim in (call.dims(name) if name else range(len(shape))) if isinstance(shape[dim], int) and shape[dim] == 1
    ]
    return ops.squeeze(call.tensor("self"), indices(dims)) if dims else call.tensor("self")


def _expand(call: Call) -> Any:
    """Broadcast; unchanged sizes are written as 1, so that unknown ones need not be computed."""
    source, wanted = call.fake("self").shape, call.result.shape
    if not wanted:
        return call.tensor("self")
    lead = len(wanted) - len(source)
    raw = call.raw("size")
    sizes = [1 if dim >= lead and _is_same(source[dim - lead], wanted[dim]) else raw[dim] for dim in range(len(wanted))]
    return ops.broadcast(call.tensor("self"), call.vector(sizes), broadcast_spec="BIDIRECTIONAL")


def _expand_as(call: Call) -> Any:
    value = call.tensor("self")
    shape = ops.shape_of(call.tensor("other"))
    return ops.broadcast(value, shape, broadcast_spec="BIDIRECTIONAL") if call.result.dim() else value


def _view_as(call: Call) -> Any:
    return ops.reshape(call.tensor("self"), ops.shape_of(call.tensor("other")), False)


def _is_same(left: Any, right: Any) -> bool:
    """Return whether two sizes are equal as written: equal ints, or the same expression of symbols. Adds no guard."""
    if isinstance(left, int) or isinstance(right, int):
        return isinstance(left, int) and isinstance(right, int) and left == right
    return left.node.expr == right.node.expr


def _slice(call: Call) -> Any:
    start = 0 if call.raw("start") is None else call.raw("start")
    end = INT32_MAX if call.raw("end") is None else call.raw("end")
    bounds = [call.vector([bound]) for bound in (start, end, call.raw("step"))]
    return ops.slice(call.tensor("self"), *bounds, indices([call.dim("dim")]))


def _narrow(call: Call) -> Any:
    given, dim = call.raw("start"), call.dim("dim")
    start, length = call.vector([given]), call.vector([call.raw("length")])
    if isinstance(given, int) and given < 0:
        start = output(ops.add(start, size_of(call.tensor("self"), dim)))
    return ops.slice(call.tensor("self"), start, ops.add(start, length), indices([1]), indices([dim]))


def _select(call: Call) -> Any:
    index = call.value(call.raw("index"), _I64)
    return ops.gather(call.tensor("self"), index, constant(call.dim("dim"), _I64))


def _cat(call: Call) -> Any:
    dim = int(call.raw("dim")) % max(1, call.result.dim())
    return ops.concat([call.value(item, call.dtype) for item in call.raw("tensors")], dim)


def _stack(call: Call) -> Any:
    dim = int(call.raw("dim")) % call.result.dim()
    parts = [ops.unsqueeze(call.value(item, call.dtype), indices([dim])) for item in call.raw("tensors")]
    return ops.concat(parts, dim)


def _split(call: Call) -> Any:
    """Split into the sizes of the fake results, known at compile time."""
    dim = call.dim("dim")
    lengths = [int(part.shape[dim]) for part in call.node.meta["val"]]
    if len(lengths) == 1:
        return (call.tensor("self"),)
    return tuple(ops.variadic_split(call.tensor("self"), constant(dim, _I64), indices(lengths)).outputs())


def _unbind(call: Call) -> Any:
    dim, count = call.dim("dim"), len(call.node.meta["val"])
    parts = ops.split(call.tensor("self"), constant(dim, _I64), count).outputs()
    return tuple(output(ops.squeeze(part, indices([dim]))) for part in parts)


def _repeat(call: Call) -> Any:
    if not call.result.dim():
        return call.tensor("self")
    return ops.tile(call.tensor("self"), call.vector(call.raw("repeats")))


def _repeat_interleave(call: Call) -> Any:
    """Repeat each element along a dim, or of the flat tensor: side by side in a new dim, which joins the one before."""
    value, is_flat = call.tensor("self"), call.raw("dim") is None
    value = output(ops.reshape(value, indices([-1]), False)) if is_flat else value
    dim, dims = (0, 1) if is_flat else (call.dim("dim"), call.fake("self").dim())
    repeats = [1] * (dims + 1)
    repeats[dim + 1] = int(call.raw("repeats"))
    beside = ops.tile(ops.unsqueeze(value, indices([dim + 1])), indices(repeats))
    sizes = [*_sizes(value, 0, dim), indices([-1]), *_sizes(value, dim + 1, dims)]
    return _joined_reshape(output(beside), sizes)


def _roll(call: Call) -> Any:
    return ops.roll(call.tensor("self"), call.vector(call.raw("shifts")), indices(call.dims("dims")))


def _flip(call: Call) -> Any:
    dims = call.dims("dims")
    start, end, step = ([value] * len(dims) for value in (-1, -INT32_MAX, -1))
    return ops.slice(call.tensor("self"), indices(start), indices(end), indices(step), indices(dims))


def padded(call: Call, pairs: Sequence[Any], mode: str, value: float) -> Any:
    """Return `self` padded; `pairs` holds (before, after) from the last dim backwards, as in ATen."""
    missing = call.fake("self").dim() - len(pairs) // 2
    before = [0] * missing + list(pairs[::2])[::-1]
    after = [0] * missing + list(pairs[1::2])[::-1]
    return ops.pad(
        call.tensor("self"), call.vector(before), call.vector(after), _PAD_MODES[mode], constant(value, call.dtype)
    )


def _pad(call: Call) -> Any:
    return padded(call, call.raw("pad"), call.raw("mode"), call.raw("value") or 0)


def _constant_pad(call: Call) -> Any:
    return padded(call, call.raw("pad"), "constant", call.raw("value"))


def _pixel_shuffle(call: Call) -> Any:
    return ops.depth_to_space(call.tensor("self"), "depth_first", int(call.raw("upscale_factor")))


def _pixel_unshuffle(call: Call) -> Any:
    return ops.space_to_depth(call.tensor("self"), "depth_first", int(call.raw("downscale_factor")))


def _channel_shuffle(call: Call) -> Any:
    return ops.shuffle_channels(call.tensor("self"), 1, int(call.raw("groups")))


def _slice_scatter(call: Call) -> Any:
    start = 0 if call.raw("start") is None else call.raw("start")
    end = INT32_MAX if call.raw("end") is None else call.raw("end")
    bounds = [call.vector([bound]) for bound in (start, end, call.raw("step"))]
    return ops.slice_scatter(call.tensor("self"), call.tensor("src", call.dtype), *bounds, indices([call.dim("dim")]))


def _select_scatter(call: Call) -> Any:
    dim, index = call.dim("dim"), int(call.raw("index"))
    bounds = (indices([index]), indices([INT32_MAX if index == -1 else index + 1]), indices([1]))
    source = ops.unsqueeze(call.tensor("src", call.dtype), indices([dim]))
    return ops.slice_scatter(call.tensor("self"), source, *bounds, indices([dim]))


def _triangle(keeps: Any) -> Rule:
    """Return a rule for triu and tril: a constant mask selects between the value and 0."""

    def rule(call: Call) -> Any:
        rows, columns = (int(size) for size in call.fake("self").shape[-2:])
        mask = keeps(torch.ones(rows, columns, dtype=torch.bool), int(call.raw("diagonal")))
        return ops.select(constant(mask.numpy(), torch.bool), call.tensor("self"), constant(0, call.dtype))

    return rule


RULES: Mapping[str, Rule] = {
    "aten.view.default": _view,
    "aten.reshape.default": _view,
    "aten._unsafe_view.default": _view,
    "aten.flatten.using_ints": _flatten,
    "aten.unflatten.int": _unflatten,
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose,
    "aten.t.default": _t,
    "aten.unsqueeze.default": _unsqueeze,
    "aten.squeeze.default": _squeeze,
    "aten.squeeze.dim": _squeeze,
    "aten.squeeze.dims": _squeeze,
    "aten.expand.default": _expand,
    "aten.expand_as.default": _expand_as,
    "aten.view_as.default": _view_as,
    "aten.numpy_T.default": _t,
    "aten.slice.Tensor": _slice,
    "aten.narrow.default": _narrow,
    "aten.select.int": _select,
    "aten.cat.default": _cat,
    "aten.concat.default": _cat,
    "aten.stack.default": _stack,
    "aten.split.Tensor": _split,
    "aten.split_with_sizes.default": _split,
    "aten.chunk.default": _split,
    "aten.unbind.int": _unbind,
    "aten.repeat.default": _repeat,
    "aten.repeat_interleave.self_int": _repeat_interleave,
    "aten.roll.default": _roll,
    "aten.flip.default": _flip,
    "aten.pad.default": _pad,
    "aten.constant_pad_nd.default": _constant_pad,
    "aten.pixel_shuffle.default": _pixel_shuffle,
    "aten.pixel_unshuffle.default": _pixel_unshuffle,
    "aten.channel_shuffle.default": _channel_shuffle,
    "aten.slice_scatter.default": _slice_scatter,
    "aten.select_scatter.default": _select_scatter,
    "aten.triu.default": _triangle(torch.triu),
    "aten.tril.default": _triangle(torch.tril),
}
