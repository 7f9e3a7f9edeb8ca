"""Operations that move elements: shapes, slices, joins, gathers."""

from __future__ import annotations

from collections.abc import Sequence

from hub.toolkit.affine import Affine, identity, variable
from hub.toolkit.builders import cast, copied, fill, iota, joined, padded, permuted, pointwise, reshaped, sliced, view
from hub.toolkit.sizes import Size, ceil_div, plus, product, times
from hub.toolkit.tensors import COMPUTED, IN_MEMORY, Number, Take, Tensor

from ..bindings import bindings
from .values import Op, Rule, Sizes, Value, padding_of, same_size


def _known(op: Op) -> tuple[Size, ...]:
    """Return the result's sizes. Raise CompileError if one is dynamic."""
    if any(size is None for size in op.sizes):
        raise op.refused("a result of open size, which only the dynamic form of it gives")
    return tuple(size for size in op.sizes if size is not None)


def _reshaped(op: Op) -> Value:
    value = op.operands[0]
    shape = _known(op)
    if isinstance(value, Sizes):
        return Sizes(value.values, shape, value.kind) if len(shape) < 2 else reshaped(op.tensor(0), shape)
    return _checked(op, value, shape)


def _checked(op: Op, source: Tensor, shape: Sequence[Size]) -> Tensor:
    """Return a reshaped tensor; the number of elements may determine at most one size of the new shape."""
    old, new = product(source.shape), product(shape)
    if isinstance(old, int) and isinstance(new, int) and old != new:
        raise op.refused(f"{list(source.shape)} to {list(shape)}")
    return reshaped(source, shape)


def _dynamic_reshape(op: Op) -> Tensor:
    return _checked(op, op.tensor(0), op.shape(1))


def _spread(op: Op, shape: Sequence[Size]) -> Tensor:
    """Map each dim of the operand to a given one of the result; repeat dims of size 1."""
    source = op.tensor(0)
    dims = op.integers("broadcast_dimensions")
    index: list[Affine] = []
    for size, dim in zip(source.shape, dims, strict=True):
        if size != 1:
            same_size(size, shape[dim])
        index.append(Affine() if size == 1 else variable(dim))
    return view(source, shape, tuple(index))


def _broadcast(op: Op) -> Tensor:
    return _spread(op, _known(op))


def _dynamic_broadcast(op: Op) -> Tensor:
    return _spread(op, op.shape(1))


def _transposed(op: Op) -> Tensor:
    return permuted(op.tensor(0), op.integers("permutation"))


def _reversed(op: Op) -> Tensor:
    source = op.tensor(0)
    index = list(identity(source.shape))
    for dim in op.integers("dimensions"):
        if source.shape[dim] != 1:
            index[dim] = variable(dim, -1, plus(source.shape[dim], -1))
    return view(source, source.shape, tuple(index))


def _cut(source: Tensor, starts: Sequence[Size], limits: Sequence[Size], steps: Sequence[Size]) -> Tensor:
    for dim, (start, limit, step) in enumerate(zip(starts, limits, steps, strict=True)):
        size = ceil_div(plus(limit, times(start, -1)), int(step))
        source = sliced(source, dim, start, size, int(step))
    return source


def _sliced(op: Op) -> Value:
    bounds = [op.integers(name) for name in ("start_indices", "limit_indices", "strides")]
    value = op.operands[0]
    if isinstance(value, Sizes):
        (start,), (limit,), (step,) = bounds
        kept = value.values[start:limit:step]
        return Sizes(kept, (len(kept),), value.kind)
    return _cut(value, *bounds)


def _dynamic_slice(op: Op) -> Tensor:
    return _cut(op.tensor(0), op.shape(1), op.shape(2), op.shape(3))


def _joined(op: Op) -> Value:
    if all(isinstance(each, Sizes) for each in op.operands):
        values = tuple(size for place in range(len(op.operands)) for size in op.shape(place))
        return Sizes(values, (len(values),), op.kind)
    pieces = op.tensors()
    dim = int(op.attribute("dimension"))
    for piece in pieces[1:]:
        for place, (one, other) in enumerate(zip(pieces[0].shape, piece.shape, strict=True)):
            if place != dim:
                same_size(one, other)
    return joined(pieces, dim) if len(pieces) > 1 else pieces[0]


def _padded(op: Op) -> Tensor:
    source, value = op.tensor(0), op.tensor(1)
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    if op.name == "stablehlo.dynamic_pad":
        low, high, inside = (list(op.shape(place)) for place in (2, 3, 4))
    else:
        low, high, inside = ([*op.integers(name)] for name in names)
    if any(width != 0 for width in inside):
        raise op.refused("padding between elements")
    return padded(source, low, high, padding_of(op, value))


def _numbered(op: Op) -> Tensor:
    shape = _known(op) if op.name == "stablehlo.iota" else op.shape(0)
    return cast(iota(shape, int(op.attribute("iota_dimension"))), op.kind)


def _gathered(op: Op) -> Tensor:
    """Return slices at the indices in a tensor; as in StableHLO, slices that would be out of bounds are moved inside."""
    numbers = bindings("_mlir_libs._stablehlo").GatherDimensionNumbers(op.attribute("dimension_numbers"))
    if list(numbers.operand_batching_dims):
        raise op.refused("batching dims")
    source, places = op.tensor(0), cast(op.tensor(1), "i64")
    is_dynamic = op.name == "stablehlo.dynamic_gather"
    widths = list(op.shape(2)) if is_dynamic else op.integers("slice_sizes")
    vector = numbers.index_vector_dim
    batch = [size for dim, size in enumerate(places.shape) if dim != vector]
    kept = [dim for dim in range(len(source.shape)) if dim not in list(numbers.collapsed_slice_dims)]
    offsets = list(numbers.offset_dims)
    rank = len(batch) + len(offsets)
    batch_dims = [dim for dim in range(rank) if dim not in offsets]
    sizes = dict(zip(offsets, (widths[dim] for dim in kept), strict=True)) | dict(zip(batch_dims, batch, strict=True))
    shape = tuple(sizes[dim] for dim in range(rank))
    along = {dim: Affine() if widths[dim] == 1 else variable(place) for dim, place in zip(kept, offsets, strict=True)}
    index: list[Affine | Tensor] = [along.get(dim, Affine()) for dim in range(len(source.shape))]
    for number, dim in enumerate(numbers.start_index_map):
        start = places if vector == len(places.shape) else sliced(places, vector, number, 1)
        start = _at_dims(reshaped(start, batch), shape, batch_dims)
        index[dim] = _inside(start, source.shape[dim], widths[dim], along.get(dim), shape, kept, offsets, dim)
    source = source if isinstance(source, (*IN_MEMORY, *COMPUTED)) else copied(source)
    if not any(isinstance(part, Tensor) for part in index):
        raise op.refused("no index")
    return Take(shape, source.dtype, source, tuple(index))


def _at_dims(source: Tensor, shape: Sequence[Size], dims: Sequence[int]) -> Tensor:
    index = tuple(Affine() if size == 1 else variable(dim) for size, dim in zip(source.shape, dims, strict=True))
    return view(source, shape, index)


def _inside(
    start: Tensor,
    size: Size,
    width: Size,
    along: Affine | None,
    shape: Sequence[Size],
    kept: Sequence[int],
    offsets: Sequence[int],
    dim: int,
) -> Tensor:
    last = plus(size, times(width, -1))
    limit = fill(last, "i64") if isinstance(last, int) else Number((), "i64", last)
    start = pointwise("max", pointwise("min", start, limit), fill(0, "i64"))
    if along is None or width == 1:
        return start
    return pointwise("add", start, iota(shape, offsets[list(kept).index(dim)]))


RULES: dict[str, Rule] = {
    "stablehlo.reshape": _reshaped,
    "stablehlo.dynamic_reshape": _dynamic_reshape,
    "tensor.reshape": _dynamic_reshape,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.dynamic_broadcast_in_dim": _dynamic_broadcast,
    "stablehlo.transpose": _transposed,
    "stablehlo.reverse": _reversed,
    "stablehlo.slice": _sliced,
    "stablehlo.real_dynamic_slice": _dynamic_slice,
    "stablehlo.concatenate": _joined,
    **{f"stablehlo.{name}": _padded for name in ("pad", "dynamic_pad")},
    **{f"stablehlo.{name}": _numbered for name in ("iota", "dynamic_iota")},
    **{f"stablehlo.{name}": _gathered for name in ("gather", "dynamic_gather")},
}
