"""Which views and joins may be swapped with functions: how much that recomputes, and where seams are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hub.toolkit.affine import Affine, Index, composed, identity
from hub.toolkit.builders import cut_index, reshaped, sliced
from hub.toolkit.functions import TRANSCENDENTAL
from hub.toolkit.sizes import Size, is_static, plus, product
from hub.toolkit.tensors import COMPUTED, Iota, Join, Pointwise, Reduce, Reshape, Take, Tensor, View

MAX_FUNCTIONS = 16
"""Largest number of functions that are recomputed behind a view."""
MAX_REPEATS = 4
"""Largest number of times an element is computed, as for overlapping windows; expensive functions only once."""
MAX_PIECES = 8


def seam_dim(join: Join) -> int | None:
    """Return the dim along which pieces lie one after the other without gaps; None if there is no such dim."""
    if join.fill is not None or not 1 < len(join.pieces) <= MAX_PIECES:
        return None
    dims = {dim for _, offsets in join.pieces for dim, offset in enumerate(offsets) if offset != 0}
    if len(dims) != 1:
        return None
    (dim,) = dims
    end: Size = 0
    for piece, offsets in join.pieces:
        if offsets[dim] != end:
            return None
        end = plus(end, piece.shape[dim])
    return dim if end == join.shape[dim] else None


def seams_of(dim: int, joins: Sequence[Join]) -> list[tuple[Size, Size]] | None:
    """Return start and size of the stretches between all seams; None if symbolic seams differ."""
    along = [join for join in joins if seam_dim(join) == dim]
    each = [[(offsets[dim], piece.shape[dim]) for piece, offsets in join.pieces] for join in along]
    if all(one == each[0] for one in each):
        return each[0]
    starts = {start for one in each for start, _ in one}
    if not all(is_static(number) for one in each for pair in one for number in pair):
        return None
    ends = sorted(starts | {joins[0].shape[dim]})
    found: list[tuple[Size, Size]] = [(start, end - start) for start, end in pairwise(ends)]
    return found if len(found) <= MAX_PIECES else None


def is_moved(source: Tensor, tensor: View) -> bool:
    """Return whether computing elements behind a view is cheap: few functions, few elements more than once.

    A permutation of dims stays a view, because it runs in the same loops.
    """
    if _is_reordered(tensor) or changes_rows(source, tensor.index, tensor.shape, identity(source.shape)):
        return False
    functions = _functions_of(source)
    if functions is None:
        return False
    counts = [product(each.shape) for each in (source, tensor)]
    if not all(map(is_static, counts)):
        used = [variable for part in tensor.index for variable, _ in part.terms]
        return sorted(used) == [dim for dim, size in enumerate(tensor.shape) if size != 1]
    most = 1 if functions.intersection(TRANSCENDENTAL) else MAX_REPEATS
    return counts[1] <= most * counts[0]


def _is_reordered(tensor: View) -> bool:
    used = [part.terms[0] for part in tensor.index if len(part.terms) == 1 and part.constant == 0]
    sizes = [size for size in tensor.source.shape if size != 1]
    return (
        all(len(part.terms) == 1 or (not part.terms and part.constant == 0) for part in tensor.index)
        and [tensor.shape[variable] for variable, _ in used] == sizes
        and all(factor == 1 for _, factor in used)
        and len({variable for variable, _ in used}) == len(used)
    )


def has_few_functions(tensor: Tensor) -> bool:
    """Return whether what is computed behind a tensor, up to memory and reductions, is small enough to be duplicated."""
    return _functions_of(tensor) is not None


def _functions_of(tensor: Tensor) -> set[str] | None:
    """Return the functions computed behind a tensor, up to memory and reductions; None if there are many."""
    found: dict[Tensor, str] = {}
    stack = [tensor]
    while stack:
        each = stack.pop()
        if each in found:
            continue
        if isinstance(each, Take):
            found[each] = "take"
            stack.extend(part for part in each.index if isinstance(part, Tensor))
        elif isinstance(each, Pointwise):
            found[each] = each.function
            stack.extend(each.arguments)
        elif isinstance(each, View):
            stack.append(each.source)
        if len(found) > MAX_FUNCTIONS:
            return None
    return set(found.values())


def changes_rows(tensor: Tensor, index: Index, shape: Sequence[Size], inner: Index) -> bool:
    """Return whether moving a view would read a reduction at other positions than its own."""
    stack, seen = [(tensor, inner)], set[tuple[Tensor, Index]]()
    while stack:
        if (pair := stack.pop()) in seen:
            continue
        seen.add(pair)
        each, inner = pair
        if isinstance(each, View):
            stack.append((each.source, composed(each.index, inner)))
        elif isinstance(each, Reduce) and not _is_own_row(each, composed(inner, index), shape):
            return True
        elif isinstance(each, (Pointwise, Take)):
            arguments = each.arguments if isinstance(each, Pointwise) else each.index
            stack.extend((argument, inner) for argument in arguments if isinstance(argument, Tensor))
    return False


def _is_own_row(tensor: Reduce, index: Index, shape: Sequence[Size]) -> bool:
    """Return whether every dim of a reduction is read along one dim of a shape, from end to end."""
    return all(
        size == 1 or (len(part.terms) == 1 and part.constant == 0 and shape[part.terms[0][0]] == size)
        for part, size in zip(index, tensor.shape, strict=True)
    )


def slices_reduction(tensor: Tensor, dim: int) -> bool:
    """Return whether a slice along a dim would slice a reduction."""
    part = sliced(Iota(tensor.shape, "i64", dim), dim, 1, -1)
    assert isinstance(part, View)
    return changes_rows(tensor, part.index, part.shape, identity(tensor.shape))


def span_of(part: Affine, shape: Sequence[Size]) -> tuple[int, int] | None:
    """Return the lowest and highest value of an index; None if it is symbolic."""
    low = high = part.constant
    for variable, factor in part.terms:
        size = shape[variable]
        if not is_static(factor) or not is_static(size):
            return None
        low, high = low + min(0, factor * (size - 1)), high + max(0, factor * (size - 1))
    return (low, high) if is_static(low) else None


def is_joined_dims(tensor: Tensor) -> bool:
    """Return whether a tensor is a reshape of a computed one that only joins dims."""
    if not isinstance(tensor, Reshape) or not isinstance(tensor.source, (*COMPUTED, Join)):
        return False
    return cut_index(tensor.shape, tensor.source.shape) is not None


def finest(joined_dims: Sequence[Tensor], shape: tuple[Size, ...]) -> tuple[Size, ...] | None:
    """Return the unjoined dims into which all others can be split; None if there are none."""
    if any(each.shape != shape for each in joined_dims):
        return None
    finer = sorted((each.source.shape for each in joined_dims if isinstance(each, Reshape)), key=len)
    if not finer or any(cut_index(each, finer[-1]) is None for each in finer[:-1]):
        return None
    return finer[-1]


def in_dims(tensor: Tensor, shape: tuple[Size, ...]) -> Tensor:
    """Return a tensor in finer dims."""
    return reshaped(tensor.source if is_joined_dims(tensor) else tensor, shape)  # type: ignore[attr-defined]


def splits_reduction(tensor: Tensor, shape: tuple[Size, ...]) -> bool:
    """Return whether finer dims would read a reduction, unless itself joined, with more than one index per dim."""
    if is_joined_dims(tensor):
        return False
    index = cut_index(tensor.shape, shape)
    return index is None or changes_rows(tensor, index, shape, identity(tensor.shape))
