"""Lowers views."""

from __future__ import annotations

import torch

from .call import Call, lowers, same_size

_END = 2**63 - 1
"""The end of a slice that runs to the end of its dim."""


@lowers(
    "view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int", "view_as.default",
    "reshape_as.default", "ravel.default",
)  # fmt: skip
def reshape(call: Call) -> str:
    """Return the same elements with other sizes."""
    return call.reshape(call.input("self"), call.shape("self"), call.out_shape)


@lowers("squeeze.default", "squeeze.dim", "squeeze.dims")
def squeeze(call: Call) -> str:
    """Remove dims of size 1: all, one, or the named ones."""
    named = str(call.node.target) != "aten.squeeze.default"
    dims = range(call.rank("self")) if not named else call.dims("dim") if call["dim"] != [] else ()
    shape = call.shape("self")
    return call.squeeze(call.input("self"), *(dim for dim in dims if shape and same_size(shape[dim], 1)))


@lowers("unsqueeze.default")
def unsqueeze(call: Call) -> str:
    """Insert a dim of size 1."""
    return call.unsqueeze(call.input("self"), call["dim"] % (call.rank("self") + 1))


@lowers("permute.default")
def permute(call: Call) -> str:
    """Return the dims in another order."""
    return call.transpose(call.input("self"), call.dims("dims") if call["dims"] else [])


@lowers("transpose.int")
def transpose(call: Call) -> str:
    """Swap two dims."""
    return _swapped(call, call.dim("dim0"), call.dim("dim1"))


@lowers("swapaxes.default")
def swap_axes(call: Call) -> str:
    """Swap two dims, under NumPy's name."""
    return _swapped(call, call.dim("axis0"), call.dim("axis1"))


@lowers("numpy_T.default")
def reversed_dims(call: Call) -> str:
    """Return the dims in opposite order."""
    return call.transpose(call.input("self"), list(reversed(range(call.rank("self")))))


@lowers("t.default", "mT.default")
def matrix_transpose(call: Call) -> str:
    """Swap the last two dims."""
    rank = call.rank("self")
    return call.input("self") if rank < 2 else _swapped(call, rank - 2, rank - 1)


def _swapped(call: Call, one: int, other: int) -> str:
    order = list(range(call.rank("self")))
    if order:
        order[one], order[other] = order[other], order[one]
    return call.transpose(call.input("self"), order)


@lowers("movedim.int", "movedim.intlist")
def move_dims(call: Call) -> str:
    """Move dims to named positions; the others keep their order."""
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
    """Return elements start to end of one dim, every step-th."""
    dim, step = call.dim("dim"), call["step"]
    start, end = call.size(call["start"]), call.size(call["end"])
    start = 0 if start is None else start
    end = _END if end is None else end
    if step == 1 and same_size(start, 0) and same_size(call.shape("self")[dim], call.out_shape[dim]):
        return call.input("self")
    return call.slice(call.input("self"), dim, start, end, step)


@lowers("narrow.default")
def narrow(call: Call) -> str:
    """Return `length` elements of one dim, from `start`."""
    start = call.size(call["start"])
    if isinstance(start, int) and start < 0:
        start += call.shape("self")[call.dim("dim")]
    return call.slice(call.input("self"), call.dim("dim"), start, start + call.size(call["length"]))


@lowers("select.int")
def select(call: Call) -> str:
    """Return one element of a dim, without that dim."""
    index = call["index"]
    name = call.constant(index, torch.int64) if isinstance(index, int) else call.name_of(index)
    return call.op("Gather", call.input("self"), name, axis=call.dim("dim"))
