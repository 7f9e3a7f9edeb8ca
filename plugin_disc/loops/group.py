"""Decides which tensors are computed in one pair of loops, and which have to lie in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..affine import Affine, Index, composed, identity, variable
from ..builders import fill
from ..sizes import Size
from ..tensors import (
    COMPUTED,
    Fill,
    Iota,
    Join,
    Number,
    Pointwise,
    Product,
    Put,
    Reduce,
    Reshape,
    Scan,
    Source,
    Take,
    Tensor,
    View,
    arguments_of,
)

Placement = tuple[int | None, ...]
"""The loop that runs along each dim of a tensor; None for dims of size 1."""


@dataclass(frozen=True, eq=False)
class Store:
    """Writes a member's elements into memory: its own, or a part of a `Join`."""

    member: Tensor
    into: Tensor
    offsets: tuple[Size, ...]


@dataclass(eq=False)
class Group:
    """Tensors computed in one nest of loops. Those over `reduced` loops run inside, once for each phase."""

    domain: tuple[Size, ...]
    reduced: frozenset[int] = frozenset()
    members: dict[Tensor, Placement] = field(default_factory=dict[Tensor, Placement])
    stores: list[Store] = field(default_factory=list[Store])


Stage = Group | Product | Scan | Put


@dataclass(eq=False)
class Schedule:
    """Stages in order, and what lies in memory."""

    stages: list[Stage] = field(default_factory=list[Stage])
    stage_of: dict[Tensor, int] = field(default_factory=dict[Tensor, int])
    """The stage after which a tensor is there; -1 for those from outside."""
    stored: dict[Tensor, None] = field(default_factory=dict[Tensor, None])
    """Tensors with memory of their own that stages write."""


def scheduled(outputs: Sequence[Tensor]) -> Schedule:
    """Gives the stages that compute some tensors, each of which is left in memory."""
    schedule = Schedule()
    for tensor in in_order(outputs):
        _place(tensor, schedule)
    for tensor in outputs:
        keep(tensor, schedule)
    return schedule


def keep(tensor: Tensor, schedule: Schedule) -> None:
    """Has a tensor left in memory."""
    while isinstance(tensor, Reshape):
        tensor = tensor.source
    if isinstance(tensor, COMPUTED) and tensor not in schedule.stored:
        group = schedule.stages[schedule.stage_of[tensor]]
        assert isinstance(group, Group)
        group.stores.append(Store(tensor, tensor, (0,) * len(tensor.shape)))
        schedule.stored[tensor] = None


def reads(tensor: Tensor) -> Iterator[tuple[Tensor, Index | None]]:
    """Gives what a tensor is computed from, behind views, with the index over its loops; None if that depends on data."""
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


def behind(tensor: Tensor, index: Index) -> Iterator[tuple[Tensor, Index]]:
    """Gives what lies behind views, with the index there; nothing for numbers."""
    while isinstance(tensor, View):
        index = composed(tensor.index, index)
        tensor = tensor.source
    if not isinstance(tensor, (Fill, Number, Iota)):
        yield tensor, index


def space_of(tensor: Tensor) -> tuple[Size, ...]:
    """Gives the sizes of the loops in which a tensor is computed."""
    return tensor.source.shape if isinstance(tensor, Reduce) else tensor.shape


# --- Placing ----------------------------------------------------------------------------------------------------------


def in_order(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Gives all tensors that some are computed from, and these, sources first."""
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


def _place(tensor: Tensor, schedule: Schedule) -> None:
    if isinstance(tensor, COMPUTED):
        _place_computed(tensor, schedule)
    elif isinstance(tensor, Join):
        _place_join(tensor, schedule)
    elif isinstance(tensor, (Product, Scan, Put)):
        for source in arguments_of(tensor):
            for read, _ in behind(source, identity(source.shape)):
                keep(read, schedule)
        schedule.stages.append(tensor)
        schedule.stored[tensor] = None
        schedule.stage_of[tensor] = len(schedule.stages) - 1
    elif isinstance(tensor, Reshape):
        keep(tensor, schedule)
        schedule.stage_of[tensor] = schedule.stage_of[tensor.source]
    elif isinstance(tensor, Source):
        schedule.stage_of[tensor] = -1


def _place_join(join: Join, schedule: Schedule) -> None:
    schedule.stored[join] = None
    pieces = join.pieces
    if join.fill is not None:
        background = fill(join.fill, join.dtype, join.shape)
        for tensor in in_order((background,)):  # of a half precision, it is computed
            _place(tensor, schedule)
        pieces = ((background, (0,) * len(join.shape)), *pieces)
    at_least = len(schedule.stages) if join.fill is not None else 0
    for piece, offsets in pieces:
        copy = Pointwise(piece.shape, piece.dtype, "copy", (piece,))
        place = _place_computed(copy, schedule, at_least=at_least)
        group = schedule.stages[place]
        assert isinstance(group, Group)
        group.stores.append(Store(copy, join, offsets))
        schedule.stage_of[join] = max(schedule.stage_of.get(join, 0), place)
        at_least = max(at_least, place + 1) if join.fill is not None else 0


def _place_computed(tensor: Tensor, schedule: Schedule, *, at_least: int = 0) -> int:
    sources = list(reads(tensor))
    latest = max((schedule.stage_of[source] for source, _ in sources), default=-1)
    place = -1
    if latest >= at_least:
        group = schedule.stages[latest]
        if isinstance(group, Group) and _joins(group, tensor, sources, schedule, latest):
            place = latest
    if place < 0:
        space = space_of(tensor)
        group = Group(tuple(size for size in space if size != 1))
        schedule.stages.append(group)
        place = len(schedule.stages) - 1
        _enter(group, tensor, _placed_on(space, range(len(group.domain))))
    for source, _ in sources:
        if schedule.stage_of[source] != place or (isinstance(tensor, Take) and source is tensor.source):
            keep(source, schedule)
    schedule.stage_of[tensor] = place
    return place


def _joins(
    group: Group, tensor: Tensor, sources: Sequence[tuple[Tensor, Index | None]], schedule: Schedule, place: int
) -> bool:
    """Enters a tensor into a group if its loops fit and it reads what is computed there element by element."""
    inside = [(source, index) for source, index in sources if schedule.stage_of[source] == place]
    if any(source not in group.members or index is None for source, index in inside):
        return False
    for placement in _placements(group, tensor, inside):
        on_loops = tuple(Affine() if loop is None else variable(loop) for loop in placement)
        if all(
            index is not None and composed(index, on_loops) == _own_index(group.members[source]) for source, index in inside
        ):
            _enter(group, tensor, placement)
            return True
    return False


def _own_index(placement: Placement) -> Index:
    return tuple(Affine() if loop is None else variable(loop) for loop in placement)


def _placements(group: Group, tensor: Tensor, inside: Sequence[tuple[Tensor, Index | None]]) -> Iterator[Placement]:
    """Gives the loops in which a tensor may run: those of its sizes in order, or those of what it reads, dim by dim."""
    space = space_of(tensor)
    sizes = tuple(size for size in space if size != 1)
    every = tuple(range(len(group.domain)))
    kept = tuple(loop for loop in every if loop not in group.reduced)
    if isinstance(tensor, Reduce):
        if sizes == group.domain:
            placement = _placed_on(space, every)
            reduced = frozenset(placement[dim] for dim in tensor.dims)
            if not group.reduced or group.reduced == reduced:
                yield placement
        return
    if sizes == group.domain:
        yield _placed_on(space, every)
    elif group.reduced and sizes == tuple(group.domain[loop] for loop in kept):
        yield _placed_on(space, kept)
    for source, index in inside[:1]:
        loops: dict[int, int | None] = {}
        for part, loop in zip(index or (), group.members[source], strict=True):
            if loop is not None and len(part.terms) == 1:
                loops[part.terms[0][0]] = loop
        placement = tuple(None if size == 1 else loops.get(dim) for dim, size in enumerate(space))
        placed = tuple(sorted(loop for loop in placement if loop is not None))
        fits = all(loop is None or size == group.domain[loop] for size, loop in zip(space, placement, strict=True))
        if fits and len(placed) == len(sizes) and placed in (every, kept):
            yield placement


def _enter(group: Group, tensor: Tensor, placement: Placement) -> None:
    if isinstance(tensor, Reduce):
        group.reduced = frozenset(loop for dim in tensor.dims if (loop := placement[dim]) is not None)
        placement = tuple(None if dim in tensor.dims else loop for dim, loop in enumerate(placement))
    group.members[tensor] = placement


def _placed_on(space: Sequence[Size], loops: Sequence[int]) -> Placement:
    left = iter(loops)
    return tuple(None if size == 1 else next(left) for size in space)
