"""Lowers gathering and scattering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hub.plugin import value_of

from .call import Call, lowers, same_sizes


@lowers("embedding.default")
def embedding(call: Call) -> str:
    """Return rows of a table."""
    return call.op("Gather", call.input("weight"), call.input("indices"), axis=0)


@lowers("index_select.default")
def index_select(call: Call) -> str:
    """Return elements of one dim, by position."""
    index = call.input("index")
    if call.rank("index") == 0:
        index = call.unsqueeze(index, 0)
    return call.op("Gather", call.input("self"), index, axis=call.dim("dim"))


@lowers("gather.default", "take_along_dim.default")
def gather(call: Call) -> str:
    """Return one element of a dim for each index."""
    if call["dim"] is None:
        return call.op(
            "Gather",
            call.op("Reshape", call.input("self"), call.ints(-1)),
            call.op("Reshape", call.input("indices"), call.ints(-1)),
        )
    if call.rank("self") == 0:
        return call.input("self")
    name = "index" if ".gather." in str(call.node.target) else "indices"
    value, index = call.input("self"), call.input(name)
    if name == "indices":
        dim = call.dim("dim")
        shape = (*call.out_shape[:dim], call.shape("self")[dim], *call.out_shape[dim + 1 :])
        value, index = call.expand(value, call.shape("self"), shape), call.expand(index, call.shape(name), call.out_shape)
    return call.op("GatherElements", value, index, axis=call.dim("dim"))


@lowers("scatter.src", "scatter.value", "scatter_add.default", "scatter_reduce.two")
def scatter(call: Call) -> str:
    """Return self with elements of one dim replaced, or added to, at the given positions."""
    target = str(call.node.target)
    index, shape = call.input("index"), call.shape("index")
    if target == "aten.scatter.value":
        update = call.expand(call.typed("value"), (), shape)
    else:
        update = _cut(call, call.typed("src"), call.shape("src"), shape)
    reduction = {"aten.scatter_add.default": "add", "aten.scatter_reduce.two": ""}.get(target, "none")
    reduction = reduction or {"sum": "add", "prod": "mul"}[call["reduce"]]
    return call.op("ScatterElements", call.input("self"), index, update, axis=call.dim("dim"), reduction=reduction)


def _cut(call: Call, value: str, source: Sequence[Any], target: Sequence[Any]) -> str:
    """Return the leading block of `value` in the index's sizes: PyTorch reads no more of it, and ONNX accepts no more."""
    if same_sizes(source, target):
        return value
    rank = len(target)
    return call.op("Slice", value, call.ints(*[0] * rank), call.builder.sizes(target), call.ints(*range(rank)))


@lowers("slice_scatter.default")
def slice_scatter(call: Call) -> str:
    """Return self with a slice of one dim replaced; the slice's positions are plain numbers."""
    dim = call.dim("dim")
    size = call.shape("self")[dim]
    start, end, step = slice(call["start"], call["end"], call["step"]).indices(size)
    positions = torch.arange(start, max(start, end), step)
    return _replaced(call, dim, positions, call.typed("src"), call.shape("src"))


@lowers("select_scatter.default")
def select_scatter(call: Call) -> str:
    """Return self with one element of a dim replaced."""
    dim = call.dim("dim")
    position = torch.tensor([call["index"] % call.shape("self")[dim]])
    shape = call.shape("src")
    return _replaced(call, dim, position, call.unsqueeze(call.typed("src"), dim), (*shape[:dim], 1, *shape[dim:]))


def _replaced(call: Call, dim: int, positions: torch.Tensor, update: str, shape: Sequence[Any]) -> str:
    column = positions.reshape(-1, *[1] * (len(shape) - dim - 1))
    index = call.expand(call.builder.weight(column), tuple(column.shape), shape)
    return call.op("ScatterElements", call.input("self"), index, update, axis=dim)


# --- Advanced indexing ------------------------------------------------------------------------------------------------


@lowers("index.Tensor", "_unsafe_index.Tensor")
def index(call: Call) -> str:
    """Return the elements at the positions that the index tensors form together, along the dims that have one."""
    given = {dim: node for dim, node in enumerate(call["indices"]) if node is not None}
    if len(given) == 1:
        (dim, node), = given.items()  # fmt: skip
        return call.op("Gather", call.input("self"), call.as_dtype(node, torch.int64), axis=dim)
    return _gather_nd(call, list(given), list(given.values()))


def _gather_nd(call: Call, dims: list[int], nodes: list[Any]) -> str:
    """Move indexed dims to the front, apply GatherND, and move the index dims to the first one if all were adjacent."""
    rank, shape = call.rank("self"), _joint_shape(nodes)
    value = call.transpose(call.input("self"), [*dims, *(dim for dim in range(rank) if dim not in dims)])
    found = call.op("GatherND", value, joint_index(call, nodes, shape))
    if dims != list(range(dims[0], dims[0] + len(dims))):
        return found
    before, width = dims[0], len(shape)
    count = rank - len(dims) + width
    return call.transpose(found, [*range(width, width + before), *range(width), *range(width + before, count)])


def _joint_shape(nodes: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(torch.broadcast_shapes(*(value_of(node).shape for node in nodes)))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def joint_index(call: Call, nodes: Sequence[Any], shape: Sequence[Any]) -> str:
    """Return index tensors broadcast to one shape and stacked along a new last dim, as GatherND and ScatterND require."""
    columns = (call.expand(call.as_dtype(node, torch.int64), value_of(node).shape, shape) for node in nodes)
    return call.op("Concat", *(call.unsqueeze(column, len(shape)) for column in columns), axis=-1)


@lowers("index_put.default")
def index_put(call: Call) -> str:
    """Return self with elements replaced, or added to, at positions along its leading dims."""
    nodes = list(call["indices"])
    shape = _joint_shape(nodes)
    update_shape = (*shape, *call.shape("self")[len(nodes) :])
    update = call.expand(call.typed("values"), call.shape("values"), update_shape)
    if call["accumulate"]:
        return add_rows(call, call.input("self"), call.as_dtype(nodes[0], torch.int64), update, update_shape[1:])
    return call.op("ScatterND", call.input("self"), joint_index(call, nodes, shape), update)


def add_rows(call: Call, table: str, rows: str, update: str, row_shape: Sequence[Any]) -> str:
    """Return a table with updates added to the rows at a vector of positions.

    ScatterND would lose updates: its threads add to one row without waiting for each other.
    """
    column = call.op("Reshape", rows, call.ints(-1, *[1] * len(row_shape)))
    index = call.op("Expand", column, call.builder.sizes((1, *row_shape)))
    return call.op("ScatterElements", table, index, update, axis=0, reduction="add")


@lowers("index_add.default")
def index_add(call: Call) -> str:
    """Return self with slices of `source` added at positions of one dim."""
    dim, shape = call.dim("dim"), call.shape("source")
    column = call.reshape(call.input("index"), call.shape("index"), (shape[dim], *[1] * (len(shape) - dim - 1)))
    positions = call.expand(column, (shape[dim], *[1] * (len(shape) - dim - 1)), shape)
    update = call.typed("source")
    if call["alpha"] != 1:
        update = call.op("Mul", update, call.typed("alpha"))
    return call.op("ScatterElements", call.input("self"), positions, update, axis=dim, reduction="add")
