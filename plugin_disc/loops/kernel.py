"""One group, written as a function over a range of tasks: `@kN(frame, begin, end)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce

from hub.toolkit.functions import TRANSCENDENTAL
from hub.toolkit.groups import Group, Store
from hub.toolkit.nest import Nest, is_inner, nest_of, phases_of
from hub.toolkit.sizes import Size, ceil_div, is_static, plus, product, times
from hub.toolkit.tensors import Reduce

from .elements import Elements, SlotOf
from .frame import Frame
from .memory import Loops, lane_mask
from .rows import Rows, passes_of
from .tasks import Loop, run_tasks, tasks_of
from .tiles import Tile, columns_of, note_column, tile_of
from .versions import ANY, COLUMN_ROWS, Version, choice, versions_of
from .writer import Value, Writer

LANE_BLOCK = 4096
"""Number of elements along the lanes that one task computes, so that threads share a single long row."""
COLUMN_BLOCK = 64
"""The same if each lane reduces a column."""


@dataclass(frozen=True)
class Kernel:
    """A group's text and amount of work."""

    name: str
    text: str
    tasks: Size
    work: Size
    """The number of elements; those of expensive functions count several times."""
    slots: tuple[str, ...]
    """The texts of its frame's slots."""


def kernel_of(group: Group, name: str, frame: Frame, lanes: int, slot_of: SlotOf) -> Kernel:
    """Return a group as a function; if there are several versions, it chooses among them by the length of rows."""
    nest = nest_of(group) if group.domain else None
    versions = versions_of(group, nest, lanes) if nest is not None else (ANY,)
    if len(versions) == 1:
        return _Kernel(group, nest, versions[0], frame, lanes, slot_of).written(name)
    kernels = [_Kernel(group, nest, each, frame, lanes, slot_of).written(f"{name}_{each.name}") for each in versions]
    texts = [*(kernel.text for kernel in kernels), choice(name, versions, frame, lanes)]
    return replace(kernels[-1], name=name, text="\n".join(texts), slots=tuple(frame.slots))


class _Kernel:
    def __init__(
        self, group: Group, nest: Nest | None, version: Version, frame: Frame, lanes: int, slot_of: SlotOf
    ) -> None:
        self.group = group
        self.nest = nest
        self.version = version
        self.writer = Writer(frame, lanes, rows=COLUMN_ROWS if self._is_wide_column(COLUMN_ROWS * lanes) else 1)
        self.phase = phases_of(group)
        merged = self.nest.merged if self.nest else frozenset[int]()
        loops = Loops({}, self.nest.lane if self.nest else None, merged=merged)
        self.elements = Elements(group, self.writer, loops, slot_of)
        self.tile = tile_of(group, self.nest, lanes) if self.nest else None

    # --- the loops around ---

    def written(self, name: str) -> Kernel:
        writer = self.writer
        writer.open(f"llvm.func @{name}(%frame: !llvm.ptr, %begin: i64, %end: i64)")
        begin, end = (Value(name, "i64", False, 0) for name in ("%begin", "%end"))
        weight = 1 + 7 * sum(getattr(member, "function", "") in TRANSCENDENTAL for member in self.group.members)
        loops = self._outer_loops()
        is_column = self.nest is not None and bool(self.group.reduced) and not self._is_across()
        tasks = tasks_of(loops, times(weight, self._step_elements()), -2 if is_column and len(loops) > 1 else -1)

        def run(task: Value, _: list[str]) -> list[str]:
            run_tasks(writer, tasks, self.elements.loops.values, task, self._step)
            return []

        writer.loop(begin, end, writer.number(1), [], run)
        spaces = (product(self.group.domain[loop] for loop in space) for space in self.group.spaces)
        work = times(weight, reduce(plus, spaces))
        return Kernel(name, writer.finish(), tasks.count, work, tuple(writer.frame.slots))

    def _is_wide_column(self, width: int) -> bool:
        """Return whether each lane reduces a column and there are enough columns for several registers.

        A walk down the columns then reads contiguous memory.
        """
        if self.nest is None or not self.group.reduced or self.nest.lane in self.group.reduced:
            return False
        size = self.nest.sizes[self.nest.lane]
        return self.version.is_wide or (is_static(size) and size >= width)

    def _is_across(self) -> bool:
        """Return whether lanes run along a reduced loop."""
        return self.nest is not None and self.nest.lane in self.group.reduced

    def _block(self) -> int:
        assert self.nest is not None
        if self.group.reduced:
            return COLUMN_BLOCK
        others = product(self.nest.sizes[loop] for loop in self._kept() if loop != self.nest.lane)
        size = self.nest.sizes[self.nest.lane]
        is_whole = is_static(others) and is_static(size) and others >= 64 and size <= 16 * LANE_BLOCK
        return size if is_whole else LANE_BLOCK

    def _kept(self) -> list[int]:
        assert self.nest is not None
        return [loop for loop in self.group.kept if loop not in self.nest.merged]

    def _outer_loops(self) -> list[Loop]:
        """Return the outer loops; of the lanes' loop the blocks, of a tile's loop the rows of tiles."""
        if self.nest is None:
            return []
        if self._is_across():
            return [(loop, self.nest.sizes[loop]) for loop in self._kept()]
        lane, lanes = self.nest.lane, self.writer.lanes
        sizes = [(loop, self.nest.sizes[loop]) for loop in self._kept() if loop != lane]
        if self.tile is not None:
            sizes = [(loop, ceil_div(size, lanes) if loop == self.tile.loop else size) for loop, size in sizes]
        blocks = (lane, ceil_div(self.nest.sizes[lane], self._block()))
        # Tasks split the steps of the last loop; an unknown number of lanes may well be one block. A block of columns is a
        # few lanes of each row: the next block reads the memory next to it.
        return [*sizes, blocks] if is_static(self.nest.sizes[lane]) or self.group.reduced else [blocks, *sizes]

    def _step_elements(self) -> Size:
        """Return how many elements one step of the outer loops computes, assuming a whole block."""
        if self.nest is None:
            return 1
        inner = product(self.nest.sizes[loop] for loop in self.group.reduced if loop not in self.nest.merged)
        if self._is_across():
            return inner
        size = self.nest.sizes[self.nest.lane]
        along = min(size, self._block()) if is_static(size) else size
        return product((inner, along, self.writer.lanes if self.tile is not None else 1))

    def _step(self) -> None:
        """Write one step of the outer loops."""
        if self.nest is None or self._is_across():
            self._phases()
        elif self.tile is None:
            self._along_lanes(self.nest.lane, self._lanes)
        else:
            self._tiled(self.nest, self.tile)

    def _tiled(self, nest: Nest, tile: Tile) -> None:
        """Write one row of tiles; if the loop's rest is smaller than a tile, its elements one by one."""
        writer, values = self.writer, self.elements.loops.values
        height, size = writer.number(writer.lanes), nest.sizes[tile.loop]
        begin = writer.scalar("arith.muli", values[tile.loop], height)
        end = writer.scalar("arith.addi", begin, height)

        def whole(_: list[str]) -> list[str]:
            self._along_lanes(nest.lane, lambda first, last: self._tile(tile, first, last, begin, end))
            return []

        def each(index: Value, _: list[str]) -> list[str]:
            values[tile.loop] = index
            self._along_lanes(nest.lane, self._lanes)
            return []

        last = writer.number(size)
        writer.branch(writer.is_less(begin, writer.scalar("arith.subi", last, writer.number(writer.lanes - 1))), [], whole)
        if not is_static(size) or size % writer.lanes:
            start = writer.scalar("arith.subi", last, writer.scalar("arith.remsi", last, height))
            writer.loop(
                writer.scalar("arith.maxsi", begin, start),
                writer.scalar("arith.minsi", end, last),
                writer.number(1),
                [],
                each,
            )

    def _tile(self, tile: Tile, first: Value, last: Value | None, begin: Value, end: Value) -> list[str]:
        """Write one tile, column by column; a tile that the lanes do not fill reads single elements."""
        assert self.nest is not None
        writer, lane = self.writer, self.nest.lane
        if last is not None:

            def each(index: Value, _: list[str]) -> list[str]:
                with self.elements.at({tile.loop: index}, lane=lane):
                    return self._lanes(first, last)

            writer.loop(begin, end, writer.number(1), [], each)
            return []
        columns = columns_of(self.elements, tile, lane, first, begin)
        for place in range(writer.lanes):
            writer.begin_part()
            index = writer.scalar("arith.addi", begin, writer.number(place)) if place else begin
            with self.elements.at({lane: first, tile.loop: replace(index, level=writer.level)}, lane=lane):
                note_column(self.elements, tile, columns, place)
                self._phases()
            writer.end_part()
        return []

    def _along_lanes(self, lane: int, step: Callable[[Value, Value | None], list[str]]) -> None:
        """Write the loop of the lanes over one block, whole rows of lanes first."""
        writer = self.writer
        assert self.nest is not None
        if self.version.registers is not None:
            self._written_out(self.version.registers, step)
            return
        block = writer.number(self._block())
        size = writer.number(self.nest.sizes[lane])
        start = writer.scalar("arith.muli", self.elements.loops.values[lane], block)
        end = writer.scalar("arith.minsi", writer.scalar("arith.addi", start, block), size)
        width = writer.number(writer.lanes)
        rest = writer.scalar("arith.remsi", writer.scalar("arith.subi", end, start), width)
        whole = writer.scalar("arith.subi", end, rest)
        writer.loop(start, whole, width, [], lambda first, _: step(first, None))
        is_rest = writer.is_less(whole, end)
        writer.branch(is_rest, [], lambda _: step(replace(whole, level=writer.level), end))

    def _written_out(self, registers: int, step: Callable[[Value, Value | None], list[str]]) -> None:
        """Write a row of that many registers without a loop; the last register may be partial."""
        writer = self.writer
        assert self.nest is not None
        size = writer.number(self.nest.sizes[self.nest.lane])
        for place in range(registers):
            first = writer.number(place * writer.lanes)
            if place < registers - 1:
                writer.begin_part()
                step(replace(first, level=writer.level), None)
                writer.end_part()
                continue

            def whole(_: list[str], first: Value = first) -> list[str]:
                return step(replace(first, level=writer.level), None)

            def partial(_: list[str], first: Value = first) -> list[str]:
                return step(replace(first, level=writer.level), size)

            is_whole = writer.is_less(writer.number((place + 1) * writer.lanes - 1), size)
            writer.branch(is_whole, [], whole, partial)

    def _lanes(self, first: Value, end: Value | None) -> list[str]:
        assert self.nest is not None
        mask = None if end is None else lane_mask(self.writer, self.writer.scalar("arith.subi", end, first))
        with self.elements.at({self.nest.lane: first}, lane=self.nest.lane, mask=mask):
            self._phases()
        return []

    # --- phases ---

    def _phases(self) -> None:
        for phase in range(max(self.phase.values(), default=0) + 1):
            stores = list(self._stores(phase))
            self.elements.store([store for store in stores if not is_inner(store.member, self.group)])
            inner = [store for store in stores if is_inner(store.member, self.group)]
            if self.nest is None or not self.group.reduced:
                self.elements.store(inner)
                continue
            rows = Rows(self.elements, self.nest, self.version)
            for each in passes_of(self.group, self.nest, self._reduces(phase + 1), inner, self.version):
                rows.run(each)

    def _stores(self, phase: int) -> Iterator[Store]:
        return (store for store in self.group.stores if self.phase[store.member] == phase)

    def _reduces(self, phase: int) -> list[Reduce]:
        return [each for each in self.group.members if isinstance(each, Reduce) and self.phase[each] == phase]
