"""Deferred tensors: computed from memory alone, they run in the loops of their readers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hub.toolkit.affine import Affine, Index, composed, identity, variable
from hub.toolkit.functions import TRANSCENDENTAL
from hub.toolkit.reading import behind, reads, space_of
from hub.toolkit.sizes import product
from hub.toolkit.tensors import IN_MEMORY, Join, Pointwise, Take, Tensor, arguments_of

Placement = tuple[int | None, ...]
"""The loop that runs along each dim of a tensor; None for dims of size 1."""
MAX_IN_A_CHAIN = 16
"""Largest number of functions in a chain that is deferred."""
MAX_REPEATED = 4
"""Largest number of functions that are recomputed, for another reader or another row."""


@dataclass(eq=False)
class Waiting:
    """Deferred tensors, which have no loops yet."""

    readers: Mapping[Tensor, int]
    """Number of tensors that read each tensor."""
    kept: Collection[Tensor]
    """Tensors that must be in memory for some reader."""
    functions: dict[Tensor, int] = field(default_factory=dict[Tensor, int])
    """Deferred tensors, with the number of functions behind each."""

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor in self.functions

    def add(self, tensor: Tensor) -> None:
        """Defer a tensor."""
        self.functions[tensor] = _functions(tensor, self)

    def remove(self, tensor: Tensor) -> None:
        """End a tensor's deferral."""
        del self.functions[tensor]

    def reads(self, tensor: Tensor) -> Iterator[tuple[Tensor, Index | None]]:
        """Yield what a tensor is computed from, looking through deferred tensors, with the index over its loops."""
        for source, index in reads(tensor):
            if source in self.functions and index is not None:
                yield from ((each, None if inner is None else composed(inner, index)) for each, inner in self.reads(source))
            else:
                yield source, index


def nobody_waits(order: Sequence[Tensor], outputs: Sequence[Tensor]) -> Waiting:
    """Return the initial state of deferral, before any tensor is placed."""
    readers: dict[Tensor, int] = {}
    kept = set(outputs)
    for tensor in order:
        arguments = arguments_of(tensor)
        needs_memory = isinstance(tensor, IN_MEMORY) and not isinstance(tensor, Join)
        for source in dict.fromkeys(each for part in arguments for each, _ in behind(part, identity(part.shape))):
            readers[source] = readers.get(source, 0) + 1
            if needs_memory or (isinstance(tensor, Take) and source is tensor.source):
                kept.add(source)
    return Waiting(readers, kept)


def may_wait(tensor: Tensor, waiting: Waiting) -> bool:
    """Return whether reading what a tensor is computed from costs no more than reading the tensor itself from memory."""
    if not isinstance(tensor, Pointwise) or tensor in waiting.kept:
        return False
    sources = list(dict.fromkeys(source for source, _ in waiting.reads(tensor)))
    if not all(isinstance(source, IN_MEMORY) and not isinstance(source, Join) for source in sources):
        return False
    functions = _functions(tensor, waiting)
    if not sources:  # of numbers alone, such as a symbolic size
        return functions <= MAX_REPEATED and not _is_expensive(tensor, waiting)
    if waiting.readers.get(tensor, 0) <= 1:
        return functions <= MAX_IN_A_CHAIN
    whole = [source for source in sources if source.shape == tensor.shape]
    return functions <= MAX_REPEATED and len(whole) <= 1 and not _is_expensive(tensor, waiting)


def _functions(tensor: Tensor, waiting: Waiting) -> int:
    return 1 + sum(waiting.functions.get(source, 0) for source, _ in reads(tensor))


def _is_expensive(tensor: Tensor, waiting: Waiting) -> bool:
    if getattr(tensor, "function", "") in TRANSCENDENTAL:
        return True
    return any(_is_expensive(source, waiting) for source, _ in reads(tensor) if source in waiting)


def fits_in(source: Tensor, index: Index | None, reader: Tensor, waiting: Waiting) -> bool:
    """Return whether a deferred tensor can run in the loops of a reader, which reads it at an index over these loops."""
    if index is None or not _is_plain(index, source, reader):
        return False
    is_repeated = product(source.shape) != product(space_of(reader))
    if is_repeated and (waiting.functions[source] > MAX_REPEATED or _is_expensive(source, waiting)):
        return False
    return all(fits_in(each, inner, source, waiting) for each, inner in reads(source) if each in waiting)


def _is_plain(index: Index, source: Tensor, reader: Tensor) -> bool:
    """Return whether each dim of a tensor is read from end to end along its own dim of the reader's loops."""
    space = space_of(reader)
    used: set[int] = set()
    for part, size in zip(index, source.shape, strict=True):
        if size == 1:
            continue
        if len(part.terms) != 1 or part.constant != 0 or part.terms[0][1] != 1:
            return False
        dim = part.terms[0][0]
        if dim in used or space[dim] != size:
            return False
        used.add(dim)
    return True


def joining(tensor: Tensor, placement: Placement, waiting: Waiting) -> dict[Tensor, Placement] | None:
    """Return the deferred tensors that join a reader's loops, sources first; None if one would run in two ways."""
    found: dict[Tensor, Placement] = {}
    for source, index in reads(tensor):
        if source not in waiting or index is None:
            continue
        own = tuple(_loop(part, size, placement) for part, size in zip(index, source.shape, strict=True))
        inner = joining(source, own, waiting)
        if inner is None or found.get(source, own) != own or any(found.get(each, at) != at for each, at in inner.items()):
            return None
        found |= {**inner, source: own}
    return found


def _loop(part: Affine, size: object, placement: Placement) -> int | None:
    return None if size == 1 else placement[part.terms[0][0]]


def own_index(placement: Placement) -> Index:
    """Return the index of an element over its loops."""
    return tuple(Affine() if loop is None else variable(loop) for loop in placement)
