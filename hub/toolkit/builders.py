"""Tensor constructors: broadcasting, casts, reductions and views, with constants folded."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hub.toolkit.affine import Affine, Index, composed, identity, linear, variable
from hub.toolkit.functions import single
from hub.toolkit.sizes import Size, at_least_zero, differs, is_static, minus, plus, product, strides_of, times
from hub.toolkit.tensors import (
    COMPUTED,
    IN_MEMORY,
    Fill,
    Iota,
    Join,
    Number,
    Pointwise,
    Product,
    Reduce,
    Reshape,
    Scan,
    Source,
    Tensor,
    View,
)

FLOATS = ("f64", "f32", "f16", "bf16")
HALVES = ("f16", "bf16")
BITS = {"i64": 64, "i32": 32, "i16": 16, "i8": 8, "u8": 8, "i1": 1}
"""Width of each integer dtype."""
COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


def fill(value: float, dtype: str, shape: Sequence[Size] = ()) -> Tensor:
    """Return a constant tensor."""
    return cast(Fill(tuple(shape), "f32", value), dtype) if dtype in HALVES else Fill(tuple(shape), dtype, value)


def _listed(shape: Sequence[Size]) -> str:
    return str(list(shape))


# --- Views ------------------------------------------------------------------------------------------------------------


def view(source: Tensor, shape: Sequence[Size], index: Index) -> Tensor:
    """Return a view of `source` that reads it at `index`, whose variables number the dims of `shape`."""
    shape = tuple(shape)
    if isinstance(source, Fill):
        return Fill(shape, source.dtype, source.value)
    if isinstance(source, Number):
        return Number(shape, source.dtype, source.value)
    if isinstance(source, View):
        source, index = source.source, composed(source.index, index)
    if shape == source.shape and index == identity(shape):
        return source
    return View(shape, source.dtype, source, index)


def broadcast(source: Tensor, shape: Sequence[Size]) -> Tensor:
    """Return a tensor broadcast to a larger shape by PyTorch's rules: dims are added in front, sizes of 1 repeated.

    Raise ValueError for sizes that are known not to fit: a reader would read beyond the tensor.
    """
    shape = tuple(shape)
    lead = len(shape) - len(source.shape)
    if lead < 0 or any(size != 1 and differs(size, new) for size, new in zip(source.shape, shape[lead:], strict=True)):
        raise ValueError(f"{_listed(source.shape)} cannot be broadcast to {_listed(shape)}")
    index = tuple(Affine() if size == 1 else variable(dim + lead) for dim, size in enumerate(source.shape))
    return view(source, shape, index)


def permuted(source: Tensor, dims: Sequence[int]) -> Tensor:
    """Return a tensor with its dims in another order: dim n of the result is dim `dims[n]`."""
    shape = tuple(source.shape[dim] for dim in dims)
    places = {dim: place for place, dim in enumerate(dims)}
    index = tuple(Affine() if size == 1 else variable(places[dim]) for dim, size in enumerate(source.shape))
    return view(source, shape, index)


def swapped(source: Tensor, one: int, other: int) -> Tensor:
    """Return a tensor with two dims swapped."""
    dims = list(range(len(source.shape)))
    dims[one], dims[other] = dims[other], dims[one]
    return permuted(source, dims)


def in_place(memory: Tensor, shape: Sequence[Size], strides: Sequence[Size]) -> Tensor:
    """Return a tensor that lies in flat memory with the given strides, 0 if elements are repeated."""
    place = Affine()
    for dim, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if size != 1:
            place = place + variable(dim, stride)
    return view(memory, shape, (place,))


def extent(shape: Sequence[Size], strides: Sequence[Size]) -> Size:
    """Return the number of elements of memory that a tensor with at least one element spans."""
    result: Size = 1
    for size, stride in zip(shape, strides, strict=True):
        result = plus(result, times(stride, minus(size, 1)))
    return result


def sliced(source: Tensor, dim: int, start: Size, size: Size, step: int = 1) -> Tensor:
    """Return `size` entries along a dim, beginning at `start`, every `step`-th."""
    shape = tuple(size if place == dim else each for place, each in enumerate(source.shape))
    index = list(identity(shape))
    index[dim] = Affine(start) if size == 1 else variable(dim, step, start)
    return view(source, shape, tuple(index))


def reshaped(source: Tensor, shape: Sequence[Size]) -> Tensor:
    """Return the elements in row-major order in another shape: an affine view if dims are only split or added.

    Raise ValueError if the numbers of elements are known to differ.
    """
    shape = tuple(shape)
    if shape == source.shape:
        return source
    if all(map(is_static, (*source.shape, *shape))) and math.prod(source.shape) != math.prod(shape):
        raise ValueError(f"{_listed(source.shape)} cannot be reshaped to {_listed(shape)}")
    if isinstance(source, (Fill, Number)):
        return view(source, shape, ())
    if not isinstance(source, IN_MEMORY):
        index = cut_index(source.shape, shape)
        if index is not None:
            return view(source, shape, index)
    if isinstance(source, Reshape):
        source = source.source
    return Reshape(shape, source.dtype, stored(source))


def stored(source: Tensor) -> Tensor:
    """Return a tensor whose elements can all lie packed in memory."""
    return source if isinstance(source, (*IN_MEMORY, *COMPUTED)) else copied(source)


def copied(source: Tensor) -> Tensor:
    """Return a tensor as a computed one, which therefore has its own memory."""
    return Pointwise(source.shape, source.dtype, "copy", (source,))


def with_own_memory(tensor: Tensor, earlier: Sequence[Tensor]) -> Tensor:
    """Return a tensor that can have its own packed memory, separate from that of other outputs."""
    root = tensor
    while isinstance(root, Reshape):
        root = root.source
    has_own_memory = isinstance(root, (*COMPUTED, *IN_MEMORY)) and not isinstance(root, Source)
    return root if has_own_memory and root not in earlier else copied(tensor)


def cut_index(old: Sequence[Size], new: Sequence[Size]) -> Index | None:
    """Return the index that a reshape reads if every new dim is part of one old dim; None if dims are joined."""
    cuts = _cuts(old, new)
    if cuts is None:
        cuts = _one_cut(old, new)
    return None if cuts is None else tuple(_row_major(dims, new) for dims in cuts)


def _row_major(dims: Sequence[int], sizes: Sequence[Size]) -> Affine:
    part = Affine()
    step: Size = 1
    for dim in reversed(dims):
        part = part + variable(dim, step)
        step = times(step, sizes[dim])
    return part


def _cuts(old: Sequence[Size], new: Sequence[Size]) -> list[list[int]] | None:
    """Return the new dims into which each old dim is split, judged by their sizes."""
    cuts: list[list[int]] = []
    place = 0
    for size in old:
        cuts.append([])
        covered: Size = 1
        while size != 1 and covered != size:
            if place == len(new) or (isinstance(covered, int) and isinstance(size, int) and covered >= size):
                return None
            if new[place] != 1:
                cuts[-1].append(place)
                covered = times(covered, new[place])
            place += 1
    return cuts if all(size == 1 for size in new[place:]) else None


def _one_cut(old: Sequence[Size], new: Sequence[Size]) -> list[list[int]] | None:
    """Return the same if one old dim remains for several new ones: a reshape keeps the number of elements.

    So a symbolic size c can be split into 4 and c // 4.
    """
    ours = [dim for dim, size in enumerate(old) if size != 1]
    theirs = [dim for dim, size in enumerate(new) if size != 1]
    cuts: list[list[int]] = [[] for _ in old]
    for end in (0, -1):
        while len(ours) > 1 and theirs and old[ours[end]] == new[theirs[end]]:
            cuts[ours.pop(end)] = [theirs.pop(end)]
    if len(ours) != 1 or len(theirs) < 2 or all(isinstance(each, int) for each in (*old, *new)):
        return None
    cuts[ours[0]] = theirs
    return cuts


# --- Elements ---------------------------------------------------------------------------------------------------------


def broadcast_shape(*tensors: Tensor) -> tuple[Size, ...]:
    """Return the common broadcast shape of tensors."""
    rank = max(len(tensor.shape) for tensor in tensors)
    sizes: list[Size] = [1] * rank
    for tensor in tensors:
        for place, size in enumerate(tensor.shape, rank - len(tensor.shape)):
            if sizes[place] == 1 or (isinstance(size, int) and size != 1):
                sizes[place] = size
    return tuple(sizes)


def pointwise(function: str, *arguments: Tensor, dtype: str | None = None) -> Tensor:
    """Return a function of the elements of broadcast tensors; the dtype is the first one's, or i1 for a comparison."""
    shape = broadcast_shape(*arguments)
    kind = dtype or ("i1" if function in COMPARISONS else arguments[0].dtype)
    return Pointwise(shape, kind, function, tuple(broadcast(argument, shape) for argument in arguments))


def cast(source: Tensor, dtype: str) -> Tensor:
    """Return the elements converted to another dtype."""
    if source.dtype == dtype:
        return source
    if source.dtype in HALVES and dtype in HALVES:
        source = cast(source, "f32")  # f32 holds both; neither holds the other
    if isinstance(source, Fill):
        number = source if source.dtype in FLOATS else Fill(source.shape, "f32", float(source.value))
        if dtype in HALVES:
            return Pointwise(source.shape, dtype, "cast", (number,))
        value = single(source.value) if source.dtype == "f32" else source.value
        return Fill(source.shape, dtype, _cast_number(value, dtype, is_float=source.dtype in FLOATS))
    return Pointwise(source.shape, dtype, "cast", (source,))


def _cast_number(value: float, dtype: str, *, is_float: bool) -> float:
    """Return a number in another dtype. Floats beyond integers become what processors, and so eager, make of them."""
    if dtype == "i1":
        return bool(value)
    if dtype in FLOATS:
        return float(value)
    bits = BITS[dtype]
    least = -(2**63) if bits == 64 else -(2**31)  # narrower integers are cut off from int32
    if is_float and not least - 1 < value < -least:
        value = least
    wrapped = int(value) & (1 << bits) - 1
    return wrapped - (1 << bits) if dtype != "u8" and wrapped >> bits - 1 else wrapped


def select(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Return `yes` where the condition holds, else `no`."""
    return pointwise("select", condition, yes, no, dtype=yes.dtype)


def iota(shape: Sequence[Size], dim: int) -> Tensor:
    """Return the index along a dim as a tensor."""
    return Iota(tuple(shape), "i64", dim)


# --- Along dims -------------------------------------------------------------------------------------------------------


def normal_dims(dims: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return dims as non-negative numbers, sorted and without duplicates."""
    return tuple(sorted({dim % rank for dim in dims})) if rank else ()


def reduced(function: str, source: Tensor, dims: Sequence[int], dtype: str | None = None) -> Tensor:
    """Return the reduction of a tensor along dims, which are kept with size 1."""
    dims = tuple(dim for dim in dims if source.shape[dim] != 1)
    if not dims:
        return source if dtype is None else cast(source, dtype)
    shape = tuple(1 if dim in dims else size for dim, size in enumerate(source.shape))
    return Reduce(shape, dtype or source.dtype, function, source, dims)


def without(source: Tensor, dims: Sequence[int]) -> Tensor:
    """Return a tensor without some of its dims of size 1."""
    kept = [dim for dim in range(len(source.shape)) if dim not in dims]
    index = [Affine() for _ in source.shape]
    for place, dim in enumerate(kept):
        index[dim] = Affine() if source.shape[dim] == 1 else variable(place)
    return view(source, [source.shape[dim] for dim in kept], tuple(index))


def joined(pieces: Sequence[Tensor], dim: int) -> Tensor:
    """Return the concatenation of tensors along a dim."""
    offset: Size = 0
    placed: list[tuple[Tensor, tuple[Size, ...]]] = []
    for piece in pieces:
        placed.append((piece, tuple(offset if place == dim else 0 for place in range(len(piece.shape)))))
        offset = plus(offset, piece.shape[dim])
    shape = tuple(offset if place == dim else size for place, size in enumerate(pieces[0].shape))
    return Join(shape, pieces[0].dtype, tuple(placed))


def padded(
    source: Tensor, before: Sequence[Size], after: Sequence[Size], value: float, shape: Sequence[Size] | None = None
) -> Tensor:
    """Return a tensor padded with a constant; negative widths crop. `shape` is the result's, if sizes are symbolic."""
    found = tuple(plus(plus(size, low), high) for size, low, high in zip(source.shape, before, after, strict=True))
    for dim, widths in enumerate(zip(before, after, strict=True)):
        left, right = (at_least_zero(times(width, -1)) for width in widths)  # the sign may be known only at the call
        if left != 0 or right != 0:
            source = sliced(source, dim, left, at_least_zero(minus(source.shape[dim], plus(left, right))))
    starts, ends = tuple(map(at_least_zero, before)), tuple(map(at_least_zero, after))
    if all(width == 0 for width in (*starts, *ends)):
        return source
    return Join(found if shape is None else tuple(shape), source.dtype, ((source, starts),), value)


def scanned(function: str, source: Tensor, dim: int) -> Tensor:
    """Return cumulative results along a dim."""
    return Scan(source.shape, source.dtype, function, stored(source), dim)


def matrix_product(left: Tensor, right: Tensor, dtype: str | None = None) -> Tensor:
    """Return left [..., M, K] times right [..., K, N]; leading dims are broadcast. bfloat16 gives float32 only.

    Raise ValueError for sizes that are known not to fit.
    """
    if differs(left.shape[-1], right.shape[-2]):
        raise ValueError(f"{_listed(left.shape)} cannot be multiplied by {_listed(right.shape)}")
    lead = broadcast_shape(Fill(left.shape[:-2], "f32", 0), Fill(right.shape[:-2], "f32", 0))
    left = broadcast(left, (*lead, *left.shape[-2:]))
    right = broadcast(right, (*lead, *right.shape[-2:]))
    return Product((*lead, left.shape[-2], right.shape[-1]), dtype or left.dtype, _as_operand(left), _as_operand(right))


def _as_operand(source: Tensor) -> Tensor:
    """Return a matrix that the library can read in place, with contiguous rows or columns; otherwise a packed copy."""
    if not isinstance(source, View):
        return stored(source)
    if isinstance(source.source, (*IN_MEMORY, *COMPUTED)) and matrix_layout(source) is not None:
        return source
    return copied(source)


def matrix_layout(source: Tensor) -> tuple[bool, Size] | None:
    """Return whether columns (otherwise rows) are contiguous, and the stride between them; None if neither are."""
    rows, columns = source.shape[-2:]
    if not isinstance(source, View):
        return False, columns
    place = linear(source.index, strides_of(source.source.shape))
    down, along = (place.factor(len(source.shape) - back) for back in (2, 1))
    if (along == 1 or columns == 1) and (rows == 1 or _reaches(down, columns)):
        return False, columns if rows == 1 else down
    if (down == 1 or rows == 1) and (columns == 1 or _reaches(along, rows)):
        return True, rows if columns == 1 else along
    return None


def _reaches(step: Size, count: Size) -> bool:
    """Return whether rows that lie `step` apart do not overlap."""
    return step >= count if isinstance(step, int) and isinstance(count, int) else step != 0


def count_of(source: Tensor, dims: Sequence[int]) -> Size:
    """Return the number of elements combined by a reduction along dims."""
    return product(source.shape[dim] for dim in dims)
