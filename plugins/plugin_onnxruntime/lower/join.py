"""Lowers joining, splitting, repeating and shifting."""

from __future__ import annotations

from typing import Any

import torch

from hub.plugin import value_of

from .call import Call, lowers, used_outputs

_END = 2**63 - 1
"""The end of a slice that runs to the end of its dim."""


@lowers("cat.default", "concat.default")
def concatenate(call: Call) -> str:
    """Return tensors end to end along one dim; empty 1-d tensors among others are left out, as in PyTorch.

    Their ranks identify them: a size that depends on data must not be compared with 0.
    """
    nodes = [node for node in call["tensors"] if value_of(node).dim() == len(call.out_shape)]
    names = [call.as_dtype(node, call.out_dtype) for node in nodes]
    axis = call["dim"] % max(len(call.out_shape), 1)
    return names[0] if len(names) == 1 else call.op("Concat", *names, axis=axis)


@lowers("stack.default")
def stack(call: Call) -> str:
    """Return tensors of equal sizes along a new dim."""
    axis = call["dim"] % len(call.out_shape)
    return call.op(
        "Concat", *(call.unsqueeze(call.as_dtype(node, call.out_dtype), axis) for node in call["tensors"]), axis=axis
    )


@lowers(
    "split.Tensor",
    "split_with_sizes.default",
    "split.sizes",
    "chunk.default",
    "tensor_split.sections",
    "unsafe_split.Tensor",
)
def split(call: Call) -> tuple[str, ...]:
    """Return the pieces of one dim."""
    axis = call.dim("dim")
    pieces = [piece.shape[axis] for piece in call.outs]
    if len(pieces) == 1:
        return (call.input("self"),)
    return call.ops("Split", call.input("self"), call.builder.sizes(pieces), n_outputs=len(pieces), axis=axis)


@lowers("unbind.int")
def unbind(call: Call) -> tuple[str, ...]:
    """Return every element of a dim, without that dim."""
    axis, count, used = call.dim("dim"), len(call.outs), used_outputs(call.node)
    if len(used) == count > 1:
        parts = call.ops("Split", call.input("self"), n_outputs=count, axis=axis, num_outputs=count)
        return tuple(call.squeeze(part, axis) for part in parts)
    indices = (call.constant(index, torch.int64) if index in used else "" for index in range(count))
    return tuple(name and call.op("Gather", call.input("self"), name, axis=axis) for name in indices)


@lowers("repeat.default", "tile.default")
def repeat(call: Call) -> str:
    """Return the tensor tiled along every dim."""
    counts = [call.size(count) for count in call["repeats" if "repeat" in str(call.node.target) else "dims"]]
    rank, shape = len(call.out_shape), call.shape("self")
    value = call.reshape(call.input("self"), shape, (*[1] * (rank - len(shape)), *shape))
    return call.op("Tile", value, call.builder.sizes([*[1] * (rank - len(counts)), *counts]))


@lowers("repeat_interleave.self_int")
def repeat_interleave(call: Call) -> str:
    """Return every element (of one dim, or of all) repeated in place."""
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
    """Return elements shifted along dims, in a circle; without dims, those of the flat tensor."""
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
    cut = call.op("Neg", call.op("Mod", call.builder.size(call.size(shift)), call.builder.size(size)))
    axis, one = call.ints(dim), call.ints(1)
    tail = call.op("Slice", value, cut, call.ints(_END), axis, one)
    return call.op("Concat", tail, call.op("Slice", value, call.ints(0), cut, axis, one), axis=dim)


@lowers("flip.default")
def flip(call: Call) -> str:
    """Return the tensor with dims reversed."""
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
    """Return windows of `size` elements at intervals of `step` along one dim; the window becomes the last dim."""
    dim = call["dimension"] % max(call.rank("self"), 1)
    count, size, step = call.out_shape[dim], call["size"], call["step"]
    windows = [[start * step + offset for offset in range(size)] for start in range(count)]
    value = call.op("Gather", call.input("self"), call.constant(windows, torch.int64), axis=dim)
    rank = len(call.out_shape)
    return call.transpose(value, [axis for axis in range(rank) if axis != dim + 1] + [dim + 1])


@lowers("diff.default")
def difference(call: Call) -> str:
    """Return the differences of neighbours along one dim, n times."""
    dim = call.dim("dim")
    parts = [call.typed(name) for name in ("prepend", "self", "append") if call[name] is not None]
    value = parts[0] if len(parts) == 1 else call.op("Concat", *parts, axis=dim)
    kind = "Xor" if call.out_dtype == torch.bool else "Sub"
    for _ in range(call["n"]):
        value = call.op(kind, call.slice(value, dim, 1, _END), call.slice(value, dim, 0, -1))
    return value
