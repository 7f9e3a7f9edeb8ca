"""Operators that read at places given by other tensors."""

from __future__ import annotations

from hub.lowering.affine import Affine, variable
from hub.lowering.builders import broadcast, broadcast_shape, cast, copied, fill, pointwise, reshaped, select
from hub.lowering.rules.call import Call, Rule
from hub.lowering.rules.casts import one_hot
from hub.lowering.sizes import Size
from hub.lowering.tensors import COMPUTED, IN_MEMORY, Take, Tensor


def take(source: Tensor, shape: tuple[Size, ...], index: tuple[Affine | Tensor, ...]) -> Tensor:
    source = source if isinstance(source, (*IN_MEMORY, *COMPUTED)) else copied(source)
    return Take(shape, source.dtype, source, index)


def _along(shape: tuple[Size, ...], dim: int) -> Affine:
    return Affine() if shape[dim] == 1 else variable(dim)


def _embedding(call: Call) -> Tensor:
    table, places = call.tensor("weight"), cast(call.tensor("indices"), "i64")
    rows = broadcast(reshaped(places, (*places.shape, 1)), call.shape)
    return take(table, call.shape, (rows, _along(call.shape, len(call.shape) - 1)))


def _index_select(call: Call) -> Tensor:
    source, places = call.tensor("self"), cast(call.tensor("index"), "i64")
    rank = len(source.shape)
    dim = call.raw("dim") % rank
    spread = reshaped(places, tuple(call.shape[place] if place == dim else 1 for place in range(rank)))
    index = tuple(broadcast(spread, call.shape) if place == dim else _along(call.shape, place) for place in range(rank))
    return take(source, call.shape, index)


def _gather(call: Call) -> Tensor:
    source, places = call.tensor("self"), cast(call.tensor("index"), "i64")
    dim = call.raw("dim") % len(source.shape)
    index = tuple(places if place == dim else _along(call.shape, place) for place in range(len(source.shape)))
    return take(source, call.shape, index)


def _index(call: Call) -> Tensor:
    """Integer indices for some dims. What they give stands where the first was if they are neighbours, else in front."""
    source = call.tensor("self")
    given = list(call.raw("indices"))
    given += [None] * (len(source.shape) - len(given))
    tensors = {dim: cast(call.as_tensor(value), "i64") for dim, value in enumerate(given) if value is not None}
    dims = list(tensors)
    shape = broadcast_shape(*tensors.values())
    start = dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0
    others = [dim for dim in range(len(source.shape)) if dim not in tensors]
    order: list[int | None] = [*others[:start], *([None] * len(shape)), *others[start:]]
    index: list[Affine | Tensor] = []
    for dim, size in enumerate(source.shape):
        if dim in tensors:
            places = tensors[dim]
            last = _size_tensor(size)
            places = select(pointwise("lt", places, fill(0, "i64")), pointwise("add", places, last), places)
            lead = [1] * (len(shape) - len(places.shape))
            spread = reshaped(places, (*([1] * start), *lead, *places.shape, *([1] * (len(order) - start - len(shape)))))
            index.append(broadcast(spread, call.shape))
        else:
            index.append(_along(call.shape, order.index(dim)))
    return take(source, call.shape, tuple(index))


def _size_tensor(size: Size) -> Tensor:
    from hub.lowering.tensors import Number

    return fill(size, "i64") if isinstance(size, int) else Number((), "i64", size)


RULES: dict[str, Rule] = {
    "aten.embedding.default": _embedding,
    "aten.index_select.default": _index_select,
    "aten.gather.default": _gather,
    "aten.index.Tensor": _index,
    "aten._unsafe_index.Tensor": _index,
    "aten.one_hot.default": one_hot,
}
