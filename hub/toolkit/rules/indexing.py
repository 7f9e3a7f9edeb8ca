"""Operators that read at positions given by other tensors."""

from __future__ import annotations

from collections.abc import Sequence

from hub.toolkit.affine import Affine, variable
from hub.toolkit.builders import broadcast, broadcast_shape, cast, copied, fill, iota, pointwise, reshaped, select
from hub.toolkit.rules.call import Call, Rule
from hub.toolkit.sizes import Size, product
from hub.toolkit.tensors import COMPUTED, IN_MEMORY, Number, Take, Tensor


def take(source: Tensor, shape: tuple[Size, ...], index: tuple[Affine | Tensor, ...]) -> Tensor:
    """Return elements of a tensor in memory, at positions some of which are given by tensors."""
    source = source if isinstance(source, (*IN_MEMORY, *COMPUTED)) else copied(source)
    return Take(shape, source.dtype, source, index)


def along(shape: Sequence[Size], dim: int) -> Affine:
    """Return the index that runs along a dim."""
    return Affine() if shape[dim] == 1 else variable(dim)


def _embedding(call: Call) -> Tensor:
    table, places = call.tensor("weight"), cast(call.tensor("indices"), "i64")
    rows = broadcast(reshaped(places, (*places.shape, 1)), call.shape)
    return take(table, call.shape, (rows, along(call.shape, len(call.shape) - 1)))


def _index_select(call: Call) -> Tensor:
    source, places = call.tensor("self"), cast(call.tensor("index"), "i64")
    rank = len(source.shape)
    dim = call.raw("dim") % rank
    spread = reshaped(places, tuple(call.shape[place] if place == dim else 1 for place in range(rank)))
    index = tuple(broadcast(spread, call.shape) if place == dim else along(call.shape, place) for place in range(rank))
    return take(source, call.shape, index)


def _gather(call: Call) -> Tensor:
    source, places = call.tensor("self"), cast(call.tensor("index"), "i64")
    if product(places.shape) == 0:  # an index without elements may have any rank
        return fill(0, call.dtype, call.shape)
    dim = call.raw("dim") % len(source.shape)
    index = tuple(places if place == dim else along(call.shape, place) for place in range(len(source.shape)))
    return take(source, call.shape, index)


def counted_from_end(places: Tensor, size: Size) -> Tensor:
    """Return indices with negative ones counted from the end."""
    last = fill(size, "i64") if isinstance(size, int) else Number((), "i64", size)
    return select(pointwise("lt", places, fill(0, "i64")), pointwise("add", places, last), places)


def places_of(
    call: Call, source: Tensor, whole: tuple[Size, ...] | None = None
) -> tuple[tuple[Affine | Tensor, ...], tuple[Size, ...]]:
    """Return the positions that integer indices of some dims select together, and the shape of the selection.

    The selected dims take the place of the first index if the indices are adjacent, otherwise they come first. `whole` is
    the shape, if known.
    """
    given = list(call.raw("indices"))
    given += [None] * (len(source.shape) - len(given))
    tensors = {dim: cast(call.as_tensor(value), "i64") for dim, value in enumerate(given) if value is not None}
    dims = list(tensors)
    shape = broadcast_shape(*tensors.values())
    start = dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0
    others = [dim for dim in range(len(source.shape)) if dim not in tensors]
    front, back = others[:start], others[start:]
    if whole is None:
        whole = (*(source.shape[dim] for dim in front), *shape, *(source.shape[dim] for dim in back))
    order: list[int | None] = [*front, *([None] * len(shape)), *back]
    index: list[Affine | Tensor] = []
    for dim, size in enumerate(source.shape):
        if dim in tensors:
            spread = reshaped(tensors[dim], (*tensors[dim].shape, *([1] * len(back))))
            index.append(broadcast(counted_from_end(spread, size), whole))
        else:
            index.append(along(whole, order.index(dim)))
    return tuple(index), whole


def _index(call: Call) -> Tensor:
    source = call.tensor("self")
    index, _ = places_of(call, source, call.shape)
    return take(source, call.shape, index)


def _one_hot(call: Call) -> Tensor:
    """Return 1 at each class, which is read from a list of all classes: this checks that it is one, as in eager."""
    places = cast(call.tensor("self"), "i64")
    classes = take(iota(call.shape[-1:], 0), places.shape, (places,))
    spread = reshaped(classes, (*places.shape, 1))
    return cast(pointwise("eq", spread, iota(call.shape, len(call.shape) - 1)), call.dtype)


RULES: dict[str, Rule] = {
    "aten.embedding.default": _embedding,
    "aten.index_select.default": _index_select,
    "aten.gather.default": _gather,
    "aten.index.Tensor": _index,
    "aten._unsafe_index.Tensor": _index,
    "aten.one_hot.default": _one_hot,
}
