"""Lowers views, rearrangements, and joining and splitting of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hub.support import argument, value_of

from .call import Call, lowers, same_size, used_outputs

_END = 2**63 - 1


@lowers(
    "view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int", "view_as.default",
    "reshape_as.default", "ravel.default",
)  # fmt: skip
def reshape(call: Call) -> str:
    """The same elements under other sizes."""
    return call.reshape(call.input("self"), call.shape("self"), call.out_shape)


@lowers("squeeze.default", "squeeze.dim", "squeeze.dims")
def squeeze(call: Call) -> str:
    """Dims of size 1 removed: all, one, or the named ones."""
    named = str(call.node.target) != "aten.squeeze.default"
    dims = call.dims("dim") if named else range(call.rank("self"))
    shape = call.shape("self")
    return call.squeeze(call.input("self"), *(dim for dim in dims if shape and same_size(shape[dim], 1)))


@lowers("unsqueeze.default")
def unsqueeze(call: Call) -> str:
    """A dim of size 1 inserted."""
    return call.unsqueeze(call.input("self"), call["dim"] % (call.rank("self") + 1))


@lowers("permute.default")
def permute(call: Call) -> str:
    """Dims in another order."""
    return call.transpose(call.input("self"), call.dims("dims") if call["dims"] else [])


@lowers("transpose.int")
def transpose(call: Call) -> str:
    """Two dims swapped."""
    return _swapped(call, call.dim("dim0"), call.dim("dim1"))


@lowers("t.default", "mT.default", "numpy_T.default")
def matrix_transpose(call: Call) -> str:
    """The last two dims swapped."""
    rank = call.rank("self")
    return call.input("self") if rank < 2 else _swapped(call, rank - 2, rank - 1)


def _swapped(call: Call, one: int, other: int) -> str:
    order = list(range(call.rank("self")))
    if order:
        order[one], order[other] = order[other], order[one]
    return call.transpose(call.input("self"), order)


@lowers("movedim.int", "movedim.intlist")
def move_dims(call: Call) -> str:
    """Dims moved to named places, the others in their order around them."""
    places = dict(zip(call.dims("destination"), call.dims("source"), strict=True))
    others = iter(dim for dim in range(call.rank("self")) if dim not in places.values())
    return call.transpose(
        call.input("self"), [places[dim] if dim in places else next(others) for dim in range(call.rank("self"))]
    )


@lowers("expand.default", "expand_as.default", "broadcast_to.default")
def expand(call: Call) -> str:
    """Broadcast to larger sizes."""
    return call.expand(call.input("self"), call.shape("self"), call.out_shape)


@lowers("slice.Tensor")
def slice_dim(call: Call) -> str:
    """Elements start to end of one dim, every step-th."""
    dim, step = call.dim("dim"), call["step"]
    start, end = call.size(call["start"]), call.size(call["end"])
    start = 0 if start is None else start
    end = _END if end is None else end
    if step == 1 and same_size(start, 0) and same_size(call.shape("self")[dim], call.out_shape[dim]):
        return call.input("self")
    return call.slice(call.input("self"), dim, start, end, step)


@lowers("narrow.default")
def narrow(call: Call) -> str:
    """`length` elements of one dim, from `start`."""
    start = call.size(call["start"])
    if isinstance(start, int) and start < 0:
        start += call.shape("self")[call.dim("dim")]
    return call.slice(call.input("self"), call.dim("dim"), start, start + call.size(call["length"]))


@lowers("select.int")
def select(call: Call) -> str:
    """One element of a dim, the dim removed."""
    index = call["index"]
    name = call.constant(index, torch.int64) if isinstance(index, int) else call.name_of(index)
    return call.op("Gather", call.input("self"), name, axis=call.dim("dim"))


@lowers("cat.default")
def concatenate(call: Call) -> str:
    """Tensors end to end along one dim; empty 1-d tensors are left out, as PyTorch does."""
    nodes = [node for node in call["tensors"] if tuple(value_of(node).shape) != (0,)] or call["tensors"][:1]
    names = [call.as_dtype(node, call.out_dtype) for node in nodes]
    axis = call["dim"] % max(len(call.out_shape), 1)
    return names[0] if len(names) == 1 else call.op("Concat", *names, axis=axis)


@lowers("stack.default")
def stack(call: Call) -> str:
    """Tensors of equal sizes along a new dim."""
    axis = call["dim"] % len(call.out_shape)
    return call.op(
        "Concat", *(call.unsqueeze(call.as_dtype(node, call.out_dtype), axis) for node in call["tensors"]), axis=axis
    )


@lowers("split.Tensor", "split_with_sizes.default", "chunk.default", "tensor_split.sections", "unsafe_split.Tensor")
def split(call: Call) -> tuple[str, ...]:
    """Pieces of one dim."""
    axis = call.dim("dim")
    pieces = [piece.shape[axis] for piece in call.outs]
    if len(pieces) == 1:
        return (call.input("self"),)
    return call.ops("Split", call.input("self"), call.builder.sizes(pieces), n_outputs=len(pieces), axis=axis)


@lowers("unbind.int")
def unbind(call: Call) -> tuple[str, ...]:
    """Every element of a dim, the dim removed."""
    axis, count, used = call.dim("dim"), len(call.outs), used_outputs(call.node)
    if len(used) == count > 1:
        parts = call.ops("Split", call.input("self"), n_outputs=count, axis=axis, num_outputs=count)
        return tuple(call.squeeze(part, axis) for part in parts)
    indices = (call.constant(index, torch.int64) if index in used else "" for index in range(count))
    return tuple(name and call.op("Gather", call.input("self"), name, axis=axis) for name in indices)


@lowers("repeat.default", "tile.default")
def repeat(call: Call) -> str:
    """The tensor tiled along every dim."""
    counts = [call.size(count) for count in call["repeats" if "repeat" in str(call.node.target) else "dims"]]
    rank, shape = len(call.out_shape), call.shape("self")
    value = call.reshape(call.input("self"), shape, (*[1] * (rank - len(shape)), *shape))
    return call.op("Tile", value, call.builder.sizes([*[1] * (rank - len(counts)), *counts]))


@lowers("repeat_interleave.self_int")
def repeat_interleave(call: Call) -> str:
    """Every element (of one dim, or of all) repeated in place."""
    shape, times = call.shape("self"), call.size(call["repeats"])
    value = call.input("self")
    if call["dim"] is None:
        value, dim, sizes = call.op("Reshape", value, call.ints(-1)), 0, (value_of(call["self"]).numel(),)
    else:
        dim, sizes = call.dim("dim"), shape
    wide = call.unsqueeze(value, dim + 1)
    between = (*sizes[: dim + 1], times, *sizes[dim + 1 :])
    wide = call.expand(wide, (*sizes[: dim + 1], 1, *sizes[dim + 1 :]), between)
    return call.reshape(wide, between, call.out_shape)


@lowers("roll.default")
def roll(call: Call) -> str:
    """Elements shifted along dims, those pushed out coming back in front; without dims, of the flat tensor."""
    value = call.input("self")
    if not call["dims"]:
        flat = _rolled(call, call.op("Reshape", value, call.ints(-1)), 0, call["shifts"][0], value_of(call["self"]).numel())
        return call.op("Reshape", flat, call.builder.sizes(call.out_shape))
    for shift, dim in zip(call["shifts"], call.dims("dims"), strict=True):
        value = _rolled(call, value, dim, shift, call.shape("self")[dim])
    return value


def _rolled(call: Call, value: str, dim: int, shift: Any, size: Any) -> str:
    if isinstance(shift, int) and isinstance(size, int):
        shift = shift % size if size else 0
        if shift == 0:
            return value
        return call.op(
            "Concat", call.slice(value, dim, size - shift, _END), call.slice(value, dim, 0, size - shift), axis=dim
        )
    cut = call.op("Neg", call.builder.size(call.size(shift)))
    axis, one = call.ints(dim), call.ints(1)
    tail = call.op("Slice", value, cut, call.ints(_END), axis, one)
    return call.op("Concat", tail, call.op("Slice", value, call.ints(0), cut, axis, one), axis=dim)


@lowers("flip.default")
def flip(call: Call) -> str:
    """Dims in reverse."""
    dims = call.dims("dims") if call["dims"] else []
    count = len(dims)
    if not count:
        return call.input("self")
    return call.op(
        "Slice",
        call.input("self"),
        call.ints(*[-1] * count),
        call.ints(*[-_END] * count),
        call.ints(*dims),
        call.ints(*[-1] * count),
    )


@lowers("unfold.default")
def unfold(call: Call) -> str:
    """Windows of `size` elements, `step` apart, of one dim; the window becomes the last dim."""
    dim = call["dimension"] % max(call.rank("self"), 1)
    count, size, step = call.out_shape[dim], call["size"], call["step"]
    windows = [[start * step + offset for offset in range(size)] for start in range(count)]
    value = call.op("Gather", call.input("self"), call.constant(windows, torch.int64), axis=dim)
    rank = len(call.out_shape)
    return call.transpose(value, [axis for axis in range(rank) if axis != dim + 1] + [dim + 1])


# --- Padding ----------------------------------------------------------------------------------------------------------

_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@lowers("pad.default", "constant_pad_nd.default")
def pad(call: Call) -> str:
    """Elements added around the last dims; negative amounts cut."""
    names = {declared.name for declared in call.node.target._schema.arguments}  # pyright: ignore
    mode = call["mode"] if "mode" in names else "constant"
    return _padded(call, call["pad"], mode, call["value"] or 0)


@lowers("reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default")
def reflection_pad(call: Call) -> str:
    """Elements mirrored at the edges, the edge itself not repeated."""
    return _padded(call, call["padding"], "reflect", 0)


@lowers("replication_pad1d.default", "replication_pad2d.default", "replication_pad3d.default")
def replication_pad(call: Call) -> str:
    """Edge elements repeated."""
    return _padded(call, call["padding"], "replicate", 0)


def _padded(call: Call, amounts: Sequence[Any], mode: str, fill: Any) -> str:
    amounts = [call.size(amount) for amount in amounts]
    if all(same_size(amount, 0) for amount in amounts):
        return call.input("self")
    rank = call.rank("self")
    begins, ends = [0] * rank, [0] * rank
    for position in range(len(amounts) // 2):
        begins[rank - 1 - position], ends[rank - 1 - position] = amounts[2 * position], amounts[2 * position + 1]
    extra = (call.as_dtype(fill, call.out_dtype),) if mode == "constant" else ()
    return call.op("Pad", call.input("self"), call.builder.sizes([*begins, *ends]), *extra, mode=_PAD_MODES[mode])


@lowers("pixel_shuffle.default")
def pixel_shuffle(call: Call) -> str:
    """[B, C r r, H, W] to [B, C, H r, W r]."""
    return call.op("DepthToSpace", call.input("self"), blocksize=call["upscale_factor"], mode="CRD")


@lowers("pixel_unshuffle.default")
def pixel_unshuffle(call: Call) -> str:
    """[B, C, H r, W r] to [B, C r r, H, W]."""
    batch, channels, height, width = call.shape("self")
    factor = call["downscale_factor"]
    split = (batch, channels, height // factor, factor, width // factor, factor)
    value = call.reshape(call.input("self"), call.shape("self"), split)
    moved = call.transpose(value, [0, 1, 3, 5, 2, 4])
    return call.reshape(moved, tuple(split[dim] for dim in (0, 1, 3, 5, 2, 4)), call.out_shape)


@lowers("channel_shuffle.default")
def channel_shuffle(call: Call) -> str:
    """Channels [groups, C / groups] transposed."""
    batch, channels, *rest = call.shape("self")
    groups = argument(call.node, "groups")
    split = (batch, groups, channels // groups, *rest)
    value = call.transpose(call.reshape(call.input("self"), call.shape("self"), split), [0, 2, 1, *range(3, len(split))])
    return call.reshape(value, (batch, split[2], groups, *rest), call.out_shape)


@lowers("diff.default")
def difference(call: Call) -> str:
    """Differences of neighbours along one dim, n times."""
    dim = call.dim("dim")
    parts = [call.typed(name) for name in ("prepend", "self", "append") if call[name] is not None]
    value = parts[0] if len(parts) == 1 else call.op("Concat", *parts, axis=dim)
    kind = "Xor" if call.out_dtype == torch.bool else "Sub"
    for _ in range(call["n"]):
        value = call.op(kind, call.slice(value, dim, 1, _END), call.slice(value, dim, 0, -1))
    return value
