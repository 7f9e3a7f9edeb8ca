"""The loops of a group: which one runs along the vector lanes, which ones merge into one, and which phases there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hub.toolkit.affine import Affine, Index, linear, variable
from hub.toolkit.deferral import Placement
from hub.toolkit.groups import Group
from hub.toolkit.reading import through_views
from hub.toolkit.sizes import Size, is_static, strides_of, times
from hub.toolkit.tensors import Iota, Reduce, Take, Tensor, View, arguments_of

STEP_COSTS = {0: 1.0, 1: 1.0, 2: 2.0, -1: 2.0}
"""Cost of lanes by the stride of their elements; strides of 2 and -1 are assembled from contiguous rows."""
FAR = 8.0

PhaseOf = dict[Tensor, int]


@dataclass(frozen=True)
class Nest:
    """The loops of a group in the form in which they run."""

    sizes: tuple[Size, ...]
    """Size of each loop; a merged loop's size counts in the loop that it becomes part of."""
    lane: int
    merged: frozenset[int]
    annex_lanes: tuple[int, ...] = ()
    """The loop that runs along the lanes in each annex."""


def memory_index(tensor: Tensor, index: Index) -> Affine:
    """Return the position of a tensor's element in its memory."""
    return linear(index, strides_of(tensor.shape))


def nest_of(group: Group) -> Nest:
    """Return the loops of a group."""
    stores = list(_store_places(group))
    accesses = [*_read_places(group), *stores, *stores]  # scattered writes cost more: no tile helps
    sizes = list(group.domain)
    merged: set[int] = set()
    kind_of = {loop: kind for kind, loops in enumerate((group.kept, group.reduced, *group.annexes)) for loop in loops}
    for loop in range(len(sizes) - 1):
        following = loop + 1
        is_alike = kind_of[loop] == kind_of[following]
        if is_alike and all(
            access.factor(loop) == times(access.factor(following), group.domain[following]) for access in accesses
        ):
            merged.add(loop)
    for loop in sorted(merged):
        sizes[loop + 1] = times(sizes[loop], sizes[loop + 1])
    lane = _lane(sizes, set(group.spaces[0]) - merged, accesses)
    is_across = lane in group.reduced
    annex_lanes = tuple(_lane(sizes, set(annex) - merged, accesses) if is_across else lane for annex in group.annexes)
    return Nest(tuple(sizes), lane, frozenset(merged), annex_lanes)


def _lane(sizes: list[Size], loops: set[int], accesses: list[Affine]) -> int:
    def cost(loop: int) -> tuple[float, int]:
        steps = sum(STEP_COSTS.get(access.factor(loop), FAR) for access in accesses)
        size = sizes[loop]
        waste = 16 / max(size, 1) if is_static(size) and size < 16 else 1.0
        return steps * waste, -loop

    return min(sorted(loops), key=cost, default=0)


def _read_places(group: Group) -> Iterator[Affine]:
    for tensor, placement in group.members.items():
        index = loop_index(placement)
        if isinstance(tensor, Reduce):
            yield from _behind(tensor.source, inner_index(tensor, group, placement), group)
        elif isinstance(tensor, Take):
            yield from (part.at(index) for part in tensor.index if isinstance(part, Affine))
            for part in tensor.index:
                if isinstance(part, Tensor):
                    yield from _behind(part, index, group)
        else:
            for argument in arguments_of(tensor):
                yield from _behind(argument, index, group)


def _store_places(group: Group) -> Iterator[Affine]:
    for store in group.stores:
        yield linear(loop_index(group.members[store.member]), strides_of(store.into.shape))


def _behind(tensor: Tensor, index: Index, group: Group) -> Iterator[Affine]:
    tensor, index = through_views(tensor, index)
    if isinstance(tensor, Iota):
        yield index[tensor.dim]
    elif tensor not in group.members and tensor.shape and not _is_number(tensor):
        yield memory_index(tensor, index)


def _is_number(tensor: Tensor) -> bool:
    return type(tensor).__name__ in ("Fill", "Number")


def loop_index(placement: Placement) -> Index:
    """Return the index of a member's element over the loops in which it is computed."""
    return tuple(Affine() if loop is None else variable(loop) for loop in placement)


def inner_index(reduce: Reduce, group: Group, placement: Placement) -> Index:
    """Return the index of the element that a reduction reads, over all loops."""
    loops = iter(sorted(group.reduced))
    index: list[Affine] = []
    for dim, size in enumerate(reduce.source.shape):
        loop = next(loops) if dim in reduce.dims else placement[dim]
        index.append(Affine() if loop is None or size == 1 else variable(loop))
    return tuple(index)


def phases_of(group: Group) -> PhaseOf:
    """Return each member's phase: a full member can be computed in it, and a row's value exists after the one before it.

    Members are in an order in which sources come first.
    """
    phase: PhaseOf = {}
    for tensor in group.members:
        before = [phase[source] for source in _sources(tensor) if source in phase]
        phase[tensor] = max(before, default=0) + isinstance(tensor, Reduce)
    return phase


def _sources(tensor: Tensor) -> Iterator[Tensor]:
    for source in arguments_of(tensor):
        while isinstance(source, View):
            source = source.source
        yield source


def is_inner(tensor: Tensor, group: Group) -> bool:
    """Return True for members that have an element for every step of inner loops."""
    kept = group.kept
    return not group.reduced or any(loop is not None and loop not in kept for loop in group.members[tensor])
