"""Operators that write at positions given by other tensors."""

from __future__ import annotations

from collections.abc import Sequence

from hub.toolkit.affine import Affine
from hub.toolkit.builders import (
    FLOATS,
    HALVES,
    broadcast,
    cast,
    copied,
    fill,
    joined,
    reshaped,
    sliced,
    stored,
)
from hub.toolkit.functions import neutral
from hub.toolkit.rules.call import Call, Rule
from hub.toolkit.rules.elementwise import by, div, floor_divided, maximum, number
from hub.toolkit.rules.indexing import along, counted_from_end, places_of
from hub.toolkit.sizes import Size, at_most, from_front, plus, product, slice_start, times
from hub.toolkit.tensors import Put, Tensor

_REDUCTIONS = {
    "add": "sum",
    "sum": "sum",
    "multiply": "prod",
    "prod": "prod",
    "amax": "max",
    "amin": "min",
    "mean": "sum",
}
_Places = tuple[Affine | Tensor, ...]


def put(function: str, source: Tensor, values: Tensor, index: Sequence[Affine | Tensor]) -> Tensor:
    """Return `source` with values written at positions; a number of a shape has become a tensor by then."""
    kept = tuple(stored(part) if isinstance(part, Tensor) else part for part in index)
    return Put(source.shape, source.dtype, function, stored(source), stored(values), kept)


def _scattered(function: str | None = None) -> Rule:
    """Return the rule that writes values at index[i][j][k] along one dim, ignoring values without an index."""

    def rule(call: Call) -> Tensor:
        if _goes_nowhere(call):
            return copied(call.tensor("self"))
        found = function or (_REDUCTIONS[call.raw("reduce")] if call.has("reduce") else "set")
        return reshaped(put(found, *_along_a_dim(call)), call.shape)

    return rule


def _goes_nowhere(call: Call) -> bool:
    """Return whether there are no indices, which may then have any rank."""
    return product(call.tensor("index").shape) == 0


def _along_a_dim(call: Call) -> tuple[Tensor, Tensor, _Places]:
    """Return the tensor to write to, as many values as there are indices, and the position of each."""
    source, places = call.tensor("self"), cast(call.tensor("index"), "i64")
    if not source.shape:
        source, places = reshaped(source, (1,)), reshaped(places, (1,))
    rank = len(source.shape)
    dim = call.raw("dim") % rank
    name = "src" if call.has("src") else "value"
    values = cast(call.tensor(name), call.dtype)
    if values.shape or name == "src":
        values = values if len(values.shape) == rank else reshaped(values, (1,))
        for place, size in enumerate(places.shape):
            values = sliced(values, place, 0, size) if values.shape[place] != size else values
    else:
        values = broadcast(values, places.shape)
    return source, values, tuple(places if place == dim else along(places.shape, place) for place in range(rank))


def _scatter_reduced(call: Call) -> Tensor:
    """Combine the values that meet at a position, with or without the previous one; a mean is their sum over their count.

    Half precision is combined in float32 and rounded once.
    """
    if _goes_nowhere(call):
        return copied(call.tensor("self"))
    source, values, index = _along_a_dim(call)
    if call.dtype in HALVES:
        source, values = cast(source, "f32"), cast(values, "f32")
    function = _REDUCTIONS[call.raw("reduce")]
    counts_self = bool(call.raw("include_self"))
    if not counts_self:
        nothing = fill(neutral(function, source.dtype), source.dtype, values.shape)
        source = put("set", source, nothing, index)
    total = put(function, source, values, index)
    if call.raw("reduce") == "mean":
        before = fill(float(counts_self), source.dtype, source.shape)
        count = put("sum", before, fill(1.0, source.dtype, values.shape), index)
        total = (div if source.dtype in FLOATS else floor_divided)(total, maximum(count, number(1.0, count)))
    return reshaped(cast(total, call.dtype), call.shape)


def _at_rows(function: str, *, from_end: bool = False) -> Rule:
    """Return the rule that writes whole slices at the indices of one dim; negative ones are errors unless `from_end`."""

    def rule(call: Call) -> Tensor:
        source, places = call.tensor("self"), cast(call.tensor("index"), "i64")
        values = cast(call.tensor("source" if call.has("source") else "value"), call.dtype)
        if not source.shape:
            source, values = reshaped(source, (1,)), reshaped(values, (1,))
        dim = call.raw("dim") % len(source.shape)
        count = places.shape[0] if places.shape else 1
        shape = tuple(count if place == dim else size for place, size in enumerate(source.shape))
        values = broadcast(values, shape) if not values.shape or values.shape != shape else values
        if call.has("alpha") and call.number("alpha") != 1:
            values = cast(
                by(cast(values, "f32" if values.dtype in ("f16", "bf16") else values.dtype), call.number("alpha")),
                call.dtype,
            )
        spread = broadcast(reshaped(places, tuple(count if place == dim else 1 for place in range(len(shape)))), shape)
        spread = counted_from_end(spread, source.shape[dim]) if from_end else spread
        index = [spread if place == dim else along(shape, place) for place in range(len(shape))]
        return reshaped(put(function, source, values, index), call.shape)

    return rule


def _index_put(call: Call) -> Tensor:
    """Write values at positions selected by integer indices of some dims together; the layout is that of `index`."""
    source = call.tensor("self")
    index, whole = places_of(call, source)
    values = broadcast(cast(call.tensor("values"), call.dtype), whole)
    function = "sum" if call.has("accumulate") and call.raw("accumulate") else "set"
    return put(function, source, values, index)


def _sliced_in(call: Call) -> Tensor:
    """Return the elements before and after a slice, with new elements in between."""
    source, values = call.tensor("self"), cast(call.tensor("src"), call.dtype)
    dim = call.raw("dim") % len(source.shape)
    size = source.shape[dim]
    start = slice_start(call.size("start") if call.has("start") else 0, size)
    return _between(source, values, dim, at_most(start, size) if start != 0 else 0)


def _between(source: Tensor, values: Tensor, dim: int, start: Size) -> Tensor:
    end = plus(start, values.shape[dim])
    left = plus(source.shape[dim], times(end, -1))
    pieces = [(start, sliced(source, dim, 0, start)), (1, values), (left, sliced(source, dim, end, left))]
    kept = [piece for size, piece in pieces if size != 0]
    return joined(kept, dim) if len(kept) > 1 else kept[0]


def _selected_in(call: Call) -> Tensor:
    source, values = call.tensor("self"), cast(call.tensor("src"), call.dtype)
    dim = call.raw("dim") % len(source.shape)
    index = from_front(call.size("index"), source.shape[dim])
    shape = tuple(1 if place == dim else size for place, size in enumerate(source.shape))
    return _between(source, reshaped(values, shape), dim, index)


RULES: dict[str, Rule] = {
    **{f"aten.scatter.{form}": _scattered() for form in ("src", "value", "reduce", "value_reduce")},
    "aten.scatter_add.default": _scattered("sum"),
    "aten.scatter_reduce.two": _scatter_reduced,
    "aten.index_add.default": _at_rows("sum"),
    "aten.index_copy.default": _at_rows("set"),
    **{f"aten.index_fill.int_{form}": _at_rows("set", from_end=True) for form in ("Scalar", "Tensor")},
    **{f"aten.{name}.default": _index_put for name in ("index_put", "_unsafe_index_put")},
    "aten.slice_scatter.default": _sliced_in,
    "aten.select_scatter.default": _selected_in,
}
