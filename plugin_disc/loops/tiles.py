"""Transposed reads by tiles: contiguous rows are loaded, transposed in registers, and used as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hub.toolkit.affine import Affine
from hub.toolkit.groups import Group
from hub.toolkit.nest import Nest, loop_index, memory_index
from hub.toolkit.reading import through_views
from hub.toolkit.sizes import is_static
from hub.toolkit.tensors import Fill, Iota, Number, Pointwise, Tensor, arguments_of

from .elements import Elements
from .memory import read, read_key
from .writer import Value

MAX_MEMBERS = 12
"""Maximum number of functions in a group with a tile: they are written once for each column of it."""
TURNED = ("f32", "i32")


@dataclass(frozen=True)
class Tile:
    """Reads that are strided along the lanes, but contiguous along another loop."""

    loop: int
    reads: tuple[tuple[Tensor, Affine], ...]


def tile_of(group: Group, nest: Nest, lanes: int) -> Tile | None:
    """Return the tile for a group's transposed reads; None if there are none, or if they are along several loops."""
    if group.reduced or len(group.members) > MAX_MEMBERS:
        return None
    apart = tuple(
        dict.fromkeys((tensor, place) for tensor, place in _reads(group) if place.factor(nest.lane) not in (0, 1))
    )
    if not apart or any(tensor.dtype not in TURNED for tensor, _ in apart):
        return None
    for loop in range(len(nest.sizes)):
        size = nest.sizes[loop]
        is_fit = loop != nest.lane and loop not in nest.merged and (not is_static(size) or size >= lanes)
        if is_fit and all(place.factor(loop) == 1 for _, place in apart):
            return Tile(loop, apart)
    return None


def _reads(group: Group) -> Iterator[tuple[Tensor, Affine]]:
    for member, placement in group.members.items():
        for argument in arguments_of(member) if isinstance(member, Pointwise) else ():
            source, index = through_views(argument, loop_index(placement))
            if source not in group.members and not isinstance(source, (Fill, Number, Iota)):
                yield source, memory_index(source, index)


def columns_of(elements: Elements, tile: Tile, lane: int, first: Value, begin: Value) -> list[list[Value]]:
    """Return the columns of each read of a square tile.

    `first` is the lanes' first index, `begin` that of the tile's loop.
    """
    writer = elements.writer
    found: list[list[Value]] = []
    for tensor, place in tile.reads:
        rows: list[Value] = []
        for row in range(writer.lanes):
            writer.begin_part()
            at = writer.scalar("arith.addi", first, writer.number(row)) if row else first
            values = {lane: replace(at, level=writer.level), tile.loop: replace(begin, level=writer.level)}
            with elements.at(values, lane=tile.loop):
                rows.append(read(writer, elements.base(tensor), place, tensor.dtype, elements.loops))
            writer.end_part()
        found.append([replace(each, level=writer.level) for each in _turned(elements, rows)])
    return found


def _turned(elements: Elements, rows: Sequence[Value]) -> list[Value]:
    """Return the transpose of a square of rows: off-diagonal blocks are swapped, first halves, then quarters and so on."""
    writer, lanes = elements.writer, elements.writer.lanes
    kind = writer.vector(rows[0].dtype)
    values = list(rows)
    step = lanes // 2
    while step:
        for place in (place for place in range(lanes) if not place & step):
            one, other = values[place], values[place + step]
            low = [each if not each & step else lanes + each - step for each in range(lanes)]
            high = [each + step if not each & step else lanes + each for each in range(lanes)]
            for target, mask in ((place, low), (place + step, high)):
                text = f"vector.shuffle {one.name}, {other.name} {mask} : {kind}, {kind}"
                values[target] = writer.put(text, one.dtype, is_wide=True, level=writer.level)
        step //= 2
    return values


def note_column(elements: Elements, tile: Tile, columns: Sequence[Sequence[Value]], place: int) -> None:
    """Register one column of each read as known, so that it is not read again."""
    for (tensor, index), each in zip(tile.reads, columns, strict=True):
        column = replace(each[place], level=elements.writer.level)
        elements.writer.note(read_key(elements.base(tensor), index, tensor.dtype, None), column)
