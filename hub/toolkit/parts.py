"""Reductions to few values in two steps, so that threads can share them: first parts of a dim, then their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hub.toolkit.affine import Index, identity, variable
from hub.toolkit.builders import HALVES, reduced, without
from hub.toolkit.functions import TRANSCENDENTAL
from hub.toolkit.movable import changes_rows
from hub.toolkit.sizes import Size, is_static, product
from hub.toolkit.tensors import Pointwise, Reduce, Reshape, Take, Tensor, View, arguments_of

MAX_PARTS = 64
PART = 4096
"""Number of elements from which a part is worth a task."""

SHORTEST_ROW = 64
"""Number of elements from which a row of known length is worth a result of its own."""

MAX_REPEATED = 4
"""Largest number of cheap functions that may be computed twice if others also read their values."""

Readers = Mapping[Tensor, frozenset[Tensor | None]]
"""The tensors that each tensor of a program directly defines; None stands for the program's results."""


@dataclass(frozen=True)
class Parts:
    """The split of a dim into parts."""

    dim: int
    count: int
    shape: tuple[Size, ...]
    """Shape of the source, with the dim as two: the parts, and the elements of one part."""
    index: Index
    """Positions in the source of elements of that shape."""

    def joined(self, tensor: Reduce, cut: Tensor) -> Tensor:
        """Return a reduction as a reduction of the results of parts; `cut` is its source in the parts' shape."""
        inner = [dim if dim < self.dim else dim + 1 for dim in tensor.dims]
        results = reduced(tensor.function, cut, inner, tensor.dtype)
        return without(reduced(tensor.function, results, (self.dim,), tensor.dtype), (self.dim,))


def readers_of(outputs: Sequence[Tensor], order: Sequence[Tensor]) -> Readers:
    """Return the readers of each tensor of a program."""
    found: dict[Tensor, set[Tensor | None]] = {tensor: set() for tensor in order}
    for tensor in order:
        for argument in arguments_of(tensor):
            found[argument].add(tensor)
    for tensor in outputs:
        found[tensor].add(None)
    return {tensor: frozenset(readers) for tensor, readers in found.items()}


def parts_of(tensor: Reduce, threads: int) -> Parts | None:
    """Return how to split a reduction; None if it has enough rows for the threads, few elements, or unknown sizes."""
    source = tensor.source
    results, elements = product(tensor.shape), product(source.shape)
    if not is_static(results) or not is_static(elements) or results >= threads or tensor.dtype in HALVES:
        return None
    counts = {dim: _count(source.shape[dim], elements) for dim in tensor.dims}
    dim = max(counts, key=lambda each: counts[each])
    if counts[dim] < 2:
        return None
    count = counts[dim]
    size = source.shape[dim] // count
    shape = (*source.shape[:dim], count, size, *source.shape[dim + 1 :])
    index = (
        *identity(shape[:dim]),
        variable(dim, size) + variable(dim + 1),
        *(variable(place + 1) for place in range(dim + 1, len(source.shape))),
    )
    return None if changes_rows(source, index, shape, identity(source.shape)) else Parts(dim, count, shape, index)


def by_rows(tensor: Reduce, threads: int) -> Tensor | None:
    """Return a reduction of unknown sizes to few values as a reduction of its rows' results; None for any other."""
    results, elements = product(tensor.shape), product(tensor.source.shape)
    if is_static(elements) or not is_static(results) or results >= threads or tensor.dtype in HALVES:
        return None
    *outer, row = (dim for dim in tensor.dims if tensor.source.shape[dim] != 1)
    length = tensor.source.shape[row]
    if not outer or (is_static(length) and length < SHORTEST_ROW):
        return None
    rows = reduced(tensor.function, tensor.source, (row,), tensor.dtype)
    return reduced(tensor.function, rows, outer, tensor.dtype)


def _count(size: int, elements: int) -> int:
    """Return the largest number of equal parts that are each worth a task."""
    counts = (count for count in range(2, MAX_PARTS + 1) if size % count == 0 and elements // count >= PART)
    return max(counts, default=1)


def may_be_cut(tensor: Reduce, readers: Readers) -> bool:
    """Return whether what is computed for a reduction, up to memory, is read only by it or may be computed twice."""
    behind: set[Tensor] = set()
    stack = [tensor.source]
    while stack:
        each = stack.pop()
        if each not in behind and isinstance(each, (Pointwise, Take, View, Reshape)):
            behind.add(each)
            stack.extend(arguments_of(each))
    functions = [each for each in behind if isinstance(each, (Pointwise, Take))]
    if all(readers[each] <= behind | {tensor} for each in functions):
        return True
    names = [each.function if isinstance(each, Pointwise) else "take" for each in functions]
    return len(names) <= MAX_REPEATED and not set(names).intersection(TRANSCENDENTAL)
