"""What a tensor is computed from, looking through views, and the resulting order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hub.toolkit.affine import Index, composed, identity
from hub.toolkit.sizes import Size, product
from hub.toolkit.tensors import Fill, Iota, Number, Pointwise, Reduce, Take, Tensor, View, arguments_of


def reads(tensor: Tensor) -> Iterator[tuple[Tensor, Index | None]]:
    """Yield what a tensor is computed from, through views, with the index over its loops; None if that depends on data."""
    if isinstance(tensor, Reduce):
        yield from behind(tensor.source, identity(tensor.source.shape))
    elif isinstance(tensor, Pointwise):
        for argument in tensor.arguments:
            yield from behind(argument, identity(tensor.shape))
    elif isinstance(tensor, Take):
        yield from ((source, None) for source, _ in behind(tensor.source, identity(tensor.source.shape)))
        for part in tensor.index:
            if isinstance(part, Tensor):
                yield from behind(part, identity(tensor.shape))


def through_views(tensor: Tensor, index: Index) -> tuple[Tensor, Index]:
    """Return the tensor behind views, and the index into it."""
    while isinstance(tensor, View):
        index = composed(tensor.index, index)
        tensor = tensor.source
    return tensor, index


def behind(tensor: Tensor, index: Index) -> Iterator[tuple[Tensor, Index]]:
    """Yield the tensor behind views and the index into it; nothing for numbers."""
    tensor, index = through_views(tensor, index)
    if not isinstance(tensor, (Fill, Number, Iota)):
        yield tensor, index


def space_of(tensor: Tensor) -> tuple[Size, ...]:
    """Return the sizes of the loops in which a tensor is computed."""
    return tensor.source.shape if isinstance(tensor, Reduce) else tensor.shape


def never_spread(order: Sequence[Tensor]) -> frozenset[Tensor]:
    """Return the tensors from which nothing with another number of elements is computed; sources come first in `order`."""
    spread: set[Tensor] = set()
    for tensor in reversed(order):
        for source in arguments_of(tensor):
            if tensor in spread or product(tensor.shape) != product(source.shape):
                spread.add(source)
    return frozenset(order) - spread


def in_order(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors and everything that they are computed from, sources first."""
    order: dict[Tensor, None] = {}
    stack: list[tuple[Tensor, bool]] = [(tensor, False) for tensor in reversed(outputs)]
    while stack:
        tensor, is_ready = stack.pop()
        if tensor in order:
            continue
        if is_ready:
            order[tensor] = None
            continue
        stack.append((tensor, True))
        stack.extend((source, False) for source in reversed(arguments_of(tensor)) if source not in order)
    return list(order)
