"""Assignment of tensors to nests of loops, and the choice of tensors that must lie in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hub.toolkit.affine import Index, composed, identity, variable
from hub.toolkit.builders import fill
from hub.toolkit.deferral import Placement, Waiting, fits_in, joining, may_wait, nobody_waits, own_index
from hub.toolkit.functions import TRANSCENDENTAL
from hub.toolkit.reading import behind, in_order, never_spread, reads, space_of
from hub.toolkit.sizes import Size, is_static, product
from hub.toolkit.tensors import (
    COMPUTED,
    Join,
    Pointwise,
    Product,
    Put,
    Reduce,
    Reshape,
    Scan,
    Source,
    Take,
    Template,
    Tensor,
    arguments_of,
)


@dataclass(frozen=True, eq=False)
class Store:
    """A store of a member's elements to memory: its own, or a part of a `Join`."""

    member: Tensor
    into: Tensor
    offsets: tuple[Size, ...]


@dataclass(eq=False)
class Group:
    """Tensors computed in one nest of loops. Those over `reduced` loops run inside, once for each phase."""

    domain: tuple[Size, ...]
    reduced: frozenset[int] = frozenset()
    annexes: list[frozenset[int]] = field(default_factory=list[frozenset[int]])
    """Further inner loops, each for members whose sizes differ from the reduced ones: halves of a row, for example."""
    members: dict[Tensor, Placement] = field(default_factory=dict[Tensor, Placement])
    stores: list[Store] = field(default_factory=list[Store])

    @property
    def kept(self) -> tuple[int, ...]:
        """The outermost loops, which contain all others."""
        inner = self.reduced.union(*self.annexes)
        return tuple(loop for loop in range(len(self.domain)) if loop not in inner)

    @property
    def spaces(self) -> list[tuple[int, ...]]:
        """The loops over which members may have elements: the outer ones plus one set of inner ones each, in order."""
        return [tuple(sorted((*self.kept, *inner))) for inner in (self.reduced, *self.annexes)]


Stage = Group | Product | Scan | Put | Template


@dataclass(eq=False)
class Schedule:
    """Stages in order, and the tensors that lie in memory."""

    waiting: Waiting
    has_annexes: bool
    narrow: int
    final: frozenset[Tensor]
    """Tensors whose values are not read by any rows again."""
    stages: list[Stage] = field(default_factory=list[Stage])
    stage_of: dict[Tensor, int] = field(default_factory=dict[Tensor, int])
    """The stage after which a tensor is available; -1 for tensors from outside."""
    stored: dict[Tensor, None] = field(default_factory=dict[Tensor, None])
    """Tensors with their own memory that stages write."""


def scheduled(outputs: Sequence[Tensor], *, has_annexes: bool = True, narrow: int = 0) -> Schedule:
    """Return the stages that compute some tensors, each of which ends up in memory.

    `has_annexes` allows groups to have further inner loops in addition to the reduced ones. Expensive functions of the
    values of rows up to `narrow` elements get loops of their own: next to so little work, the lanes that they leave idle
    count. For rows of unknown length, this holds only for functions whose values no rows read again.
    """
    order = in_order(outputs)
    schedule = Schedule(nobody_waits(order, outputs), has_annexes, narrow, never_spread(order))
    for tensor in order:
        _place(tensor, schedule)
    for tensor in outputs:
        keep(tensor, schedule)
    return schedule


def keep(tensor: Tensor, schedule: Schedule) -> None:
    """Ensure that a tensor is stored in memory."""
    while isinstance(tensor, Reshape):
        tensor = tensor.source
    if tensor in schedule.waiting:
        _end_wait(tensor, schedule)
    if isinstance(tensor, COMPUTED) and tensor not in schedule.stored:
        group = schedule.stages[schedule.stage_of[tensor]]
        assert isinstance(group, Group)
        group.stores.append(Store(tensor, tensor, (0,) * len(tensor.shape)))
        schedule.stored[tensor] = None


# --- Placing ----------------------------------------------------------------------------------------------------------


def _place(tensor: Tensor, schedule: Schedule) -> None:
    if may_wait(tensor, schedule.waiting):
        schedule.waiting.add(tensor)
    elif isinstance(tensor, COMPUTED):
        _place_computed(tensor, schedule)
    elif isinstance(tensor, Join):
        _place_join(tensor, schedule)
    elif isinstance(tensor, (Product, Scan, Put, Template)):
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
        for tensor in in_order((background,)):  # in half precision, it is computed
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


def _end_wait(tensor: Tensor, schedule: Schedule) -> None:
    """Place a tensor that was deferred in loops of its own."""
    schedule.waiting.remove(tensor)
    _place_computed(tensor, schedule)


def _end_waits_for(tensor: Tensor, schedule: Schedule) -> None:
    """Compute a tensor's deferred sources beforehand if they cannot run in its loops."""
    waiting = schedule.waiting
    for source, index in reads(tensor):
        if source in waiting and not fits_in(source, index, tensor, waiting):
            _end_wait(source, schedule)
    if joining(tensor, tuple(range(len(space_of(tensor)))), waiting) is None:
        for source, _ in reads(tensor):
            if source in waiting:
                _end_wait(source, schedule)


def _place_computed(tensor: Tensor, schedule: Schedule, *, at_least: int = 0) -> int:
    _end_waits_for(tensor, schedule)
    sources = list(schedule.waiting.reads(tensor))
    latest = max((schedule.stage_of[source] for source, _ in sources), default=-1)
    place = -1
    for stage in range(max(latest, at_least, 0), len(schedule.stages)):
        group = schedule.stages[stage]
        if isinstance(group, Group) and _joins(group, tensor, sources, schedule, stage):
            place = stage
            break
    if place < 0:
        space = space_of(tensor)
        group = Group(tuple(size for size in space if size != 1))
        schedule.stages.append(group)
        place = len(schedule.stages) - 1
        is_entered = _enter(group, tensor, _placed_on(space, range(len(group.domain))), schedule.waiting)
        assert is_entered, "what waits for a tensor runs in its loops"
    for source, _ in sources:
        if schedule.stage_of[source] != place or (isinstance(tensor, Take) and source is tensor.source):
            keep(source, schedule)
    schedule.stage_of[tensor] = place
    return place


def _joins(
    group: Group, tensor: Tensor, sources: Sequence[tuple[Tensor, Index | None]], schedule: Schedule, place: int
) -> bool:
    """Add a tensor to a group if its loops fit and it reads what is computed there element by element.

    A tensor that reads nothing computed there has to read the same memory in the same loops. Return whether it was added.
    """
    inside = [(source, index) for source, index in sources if schedule.stage_of[source] == place]
    if any(source not in group.members or index is None for source, index in inside):
        return False
    if not inside and not _is_alike(group, tensor, sources):
        return False
    for placement in _placements(group, tensor, inside):
        if _leaves_lanes_idle(group, tensor, placement, schedule):
            return False
        on_loops = own_index(placement)
        if all(
            index is not None and composed(index, on_loops) == own_index(group.members[source]) for source, index in inside
        ) and _enter(group, tensor, placement, schedule.waiting):
            return True
    return schedule.has_annexes and bool(inside) and _opens_annex(group, tensor, inside, schedule.waiting)


def _leaves_lanes_idle(group: Group, tensor: Tensor, placement: Placement, schedule: Schedule) -> bool:
    """Return True for an expensive function of the values of rows that are, or probably are, narrow."""
    if not isinstance(tensor, Pointwise) or tensor.function not in TRANSCENDENTAL:
        return False
    size = product(group.domain[loop] for loop in group.reduced)
    is_narrow = size <= schedule.narrow if is_static(size) else schedule.narrow > 0 and tensor in schedule.final
    return bool(group.reduced) and is_narrow and set(placement) <= {*group.kept, None}


def _is_alike(group: Group, tensor: Tensor, sources: Sequence[tuple[Tensor, Index | None]]) -> bool:
    """Return whether a tensor runs in the loops of a group, and both read a common tensor in memory."""
    space = space_of(tensor)
    if tuple(size for size in space if size != 1) != group.domain or group.annexes:
        return False
    placement = _placed_on(space, range(len(group.domain)))
    reduced = tensor.dims if isinstance(tensor, Reduce) else ()
    if frozenset(placement[dim] for dim in reduced) != group.reduced:
        return False
    theirs = {source for member in group.members for source, _ in reads(member)} - set(group.members)
    return any(source in theirs for source, _ in sources)


def _opens_annex(group: Group, tensor: Tensor, inside: Sequence[tuple[Tensor, Index | None]], waiting: Waiting) -> bool:
    """Add a tensor that reads the values of rows, in its own loops inside the rows; return whether that worked."""
    if isinstance(tensor, Reduce) or not group.reduced:
        return False
    kept = group.kept
    rows: dict[int, int] = {}
    for source, index in inside:
        for part, loop in zip(index or (), group.members[source], strict=True):
            if loop is None:
                continue
            if loop not in kept or len(part.terms) != 1 or part != variable(part.terms[0][0]):
                return False
            if rows.setdefault(part.terms[0][0], loop) != loop:
                return False
    # Two dims along one loop: a pair of rows, of which one has not been computed yet.
    if sorted(rows.values()) != list(kept) or any(tensor.shape[dim] != group.domain[loop] for dim, loop in rows.items()):
        return False
    others = [dim for dim, size in enumerate(tensor.shape) if size != 1 and dim not in rows]
    first = len(group.domain)
    own = dict(zip(others, range(first, first + len(others)), strict=True))
    if not _enter(group, tensor, tuple(rows.get(dim, own.get(dim)) for dim in range(len(tensor.shape))), waiting):
        return False
    group.domain = (*group.domain, *(tensor.shape[dim] for dim in others))
    group.annexes.append(frozenset(own.values()))
    return True


def _placements(group: Group, tensor: Tensor, inside: Sequence[tuple[Tensor, Index | None]]) -> Iterator[Placement]:
    """Yield the loops in which a tensor may run: those of its sizes in order, or those of what it reads, dim by dim."""
    space = space_of(tensor)
    sizes = tuple(size for size in space if size != 1)
    spaces = group.spaces
    if isinstance(tensor, Reduce):
        if sizes == tuple(group.domain[loop] for loop in spaces[0]):
            placement = _placed_on(space, spaces[0])
            reduced = frozenset(placement[dim] for dim in tensor.dims)
            if not group.reduced or group.reduced == reduced:
                yield placement
        return
    if group.reduced:
        spaces.append(group.kept)
    for loops in spaces:
        if sizes == tuple(group.domain[loop] for loop in loops):
            yield _placed_on(space, loops)
    for source, index in inside[:1]:
        found: dict[int, int | None] = {}
        for part, loop in zip(index or (), group.members[source], strict=True):
            if loop is not None and len(part.terms) == 1:
                found[part.terms[0][0]] = loop
        placement = tuple(None if size == 1 else found.get(dim) for dim, size in enumerate(space))
        placed = tuple(sorted(loop for loop in placement if loop is not None))
        fits = all(loop is None or size == group.domain[loop] for size, loop in zip(space, placement, strict=True))
        if fits and len(placed) == len(sizes) and placed in spaces:
            yield placement


def _enter(group: Group, tensor: Tensor, placement: Placement, waiting: Waiting) -> bool:
    """Add a tensor and the deferred tensors behind it; return False if one of these already runs there in another way."""
    along = joining(tensor, placement, waiting)
    if along is None or any(group.members.get(each, at) != at for each, at in along.items()):
        return False
    for each, at in along.items():
        group.members.setdefault(each, at)
    if isinstance(tensor, Reduce):
        group.reduced = frozenset(loop for dim in tensor.dims if (loop := placement[dim]) is not None)
        placement = tuple(None if dim in tensor.dims else loop for dim, loop in enumerate(placement))
    group.members[tensor] = placement
    return True


def _placed_on(space: Sequence[Size], loops: Sequence[int]) -> Placement:
    left = iter(loops)
    return tuple(None if size == 1 else next(left) for size in space)
