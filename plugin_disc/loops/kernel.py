"""Writes one group as a function over a range of tasks: `@kN(frame, begin, end)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..affine import Affine, Index, composed, linear
from ..sizes import Size, ceil_div, is_static, product, strides_of
from ..tensors import Fill, Iota, Number, Reduce, Reshape, Take, Tensor, View, arguments_of
from .combine import across_lanes, combined, neutral
from .frame import Frame
from .functions import EXPENSIVE, emitted
from .group import Group, Store
from .memory import Loops, affine_wide, further, gathered, lane_mask, read, write
from .nest import inner_index, is_inner, loop_index, nest_of, phases_of
from .writer import Value, Writer

LANE_BLOCK = 4096
"""Elements along the lanes that one task computes, so that a single long row is shared among threads."""
COLUMN_BLOCK = 64
"""The same where each lane reduces a column."""
FEW_ROUNDINGS = 4096
"""Up to so many elements are added in float32, in 64 parts of which each has few; more in float64."""
UNROLLED = 4
COLUMN_ROWS = 4
"""Registers side by side where each lane reduces a column."""


@dataclass(frozen=True)
class Kernel:
    """A group's text, and how much there is to do."""

    name: str
    text: str
    tasks: Size
    work: Size
    """Elements, those of expensive functions counted several times."""
    slots: tuple[str, ...]
    """What its frame holds."""


SlotOf = Callable[[Tensor], int]
"""Gives the frame's slot with the address of a tensor in memory."""


def memory_index(tensor: Tensor, index: Index) -> Affine:
    """Gives where an element of a tensor lies in its memory."""
    return linear(index, strides_of(tensor.shape))


def kernel_of(group: Group, name: str, frame: Frame, lanes: int, slot_of: SlotOf) -> Kernel:
    """Gives a group as a function."""
    return _Kernel(group, name, frame, lanes, slot_of).written()


class _Kernel:
    def __init__(self, group: Group, name: str, frame: Frame, lanes: int, slot_of: SlotOf) -> None:
        self.group = group
        self.name = name
        self.slot_of = slot_of
        self.nest = nest_of(group, memory_index) if group.domain else None
        self.writer = Writer(frame, lanes, rows=COLUMN_ROWS if self._is_wide_column(COLUMN_ROWS * lanes) else 1)
        self.phase = phases_of(group)
        lane = self.nest.lane if self.nest else None
        self.loops = Loops({}, lane, merged=self.nest.merged if self.nest else frozenset())

    # --- the loops around ---

    def written(self) -> Kernel:
        writer = self.writer
        writer.open(f"llvm.func @{self.name}(%frame: !llvm.ptr, %begin: i64, %end: i64)")
        begin, end = (Value(name, "i64", False, 0) for name in ("%begin", "%end"))
        sizes = self._task_sizes()
        writer.loop(begin, end, writer.number(1), [], lambda task, _: self._task(task, sizes))
        weight = 1 + 7 * sum(getattr(member, "function", "") in EXPENSIVE for member in self.group.members)
        work = product((*self.group.domain, weight))
        slots = tuple(writer.frame.slots)
        return Kernel(self.name, writer.finish(), product(size for _, size in sizes), work, slots)

    def _is_wide_column(self, width: int) -> bool:
        """True where each lane reduces a column and there are enough columns for several registers.

        A walk down the columns then reads whole stretches of memory.
        """
        if self.nest is None or not self.group.reduced or self.nest.lane in self.group.reduced:
            return False
        size = self.nest.sizes[self.nest.lane]
        return is_static(size) and size >= width

    def _is_across(self) -> bool:
        """True where lanes run along a reduced loop."""
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
        return [
            loop for loop in range(len(self.nest.sizes)) if loop not in self.group.reduced and loop not in self.nest.merged
        ]

    def _task_sizes(self) -> list[tuple[int, Size]]:
        """Loops that tasks number, with their sizes; the lanes' loop by blocks."""
        if self.nest is None:
            return []
        if self._is_across():
            return [(loop, self.nest.sizes[loop]) for loop in self._kept()]
        lane = self.nest.lane
        return [
            *((loop, self.nest.sizes[loop]) for loop in self._kept() if loop != lane),
            (lane, ceil_div(self.nest.sizes[lane], self._block())),
        ]

    def _task(self, task: Value, sizes: Sequence[tuple[int, Size]]) -> list[str]:
        writer = self.writer
        for place, (loop, size) in reversed(list(enumerate(sizes))):
            if place == 0:
                self.loops.values[loop] = task
            else:
                by = writer.number(size)
                self.loops.values[loop] = writer.scalar("arith.remsi", task, by)
                task = writer.scalar("arith.divsi", task, by)
        if self.nest is None or self._is_across():
            self._phases()
        else:
            self._along_lanes(self.nest.lane)
        return []

    def _along_lanes(self, lane: int) -> None:
        """Runs the lanes over one block, whole rows of lanes first."""
        writer = self.writer
        assert self.nest is not None
        block = writer.number(self._block())
        size = writer.number(self.nest.sizes[lane])
        start = writer.scalar("arith.muli", self.loops.values[lane], block)
        end = writer.scalar("arith.minsi", writer.scalar("arith.addi", start, block), size)
        width = writer.number(writer.lanes)
        rest = writer.scalar("arith.remsi", writer.scalar("arith.subi", end, start), width)
        whole = writer.scalar("arith.subi", end, rest)
        writer.loop(start, whole, width, [], lambda first, _: self._lanes(first, None))
        is_rest = writer.is_less(whole, end)
        writer.branch(is_rest, [], lambda _: self._lanes(replace(whole, level=writer.level), end))

    def _lanes(self, first: Value, end: Value | None) -> list[str]:
        assert self.nest is not None
        outer = self.loops
        mask = None if end is None else lane_mask(self.writer, self.writer.scalar("arith.subi", end, first))
        self.loops = replace(outer, values={**outer.values, self.nest.lane: first}, mask=mask)
        self._phases()
        self.loops = outer
        return []

    # --- phases ---

    def _phases(self) -> None:
        last = max(self.phase.values(), default=0)
        for phase in range(last + 1):
            rows = [store for store in self._stores(phase) if not is_inner(store.member, self.group)]
            self._emit_stores(rows)
            inner = [store for store in self._stores(phase) if is_inner(store.member, self.group)]
            reduces = [
                member for member in self.group.members if isinstance(member, Reduce) and self.phase[member] == phase + 1
            ]
            if reduces or (inner and self.group.reduced):
                self._inner_loops(reduces, inner)
            elif inner:
                self._emit_stores(inner)

    def _stores(self, phase: int) -> Iterator[Store]:
        return (store for store in self.group.stores if self.phase[store.member] == phase)

    def _inner_loops(self, reduces: Sequence[Reduce], stores: Sequence[Store]) -> None:
        """Runs the reduced loops once."""
        writer = self.writer
        kinds = [_sum_dtype(reduce) for reduce in reduces]
        is_wide = self._is_across() or (self.nest is not None and self.loops.lane is not None)
        first = [
            writer.constant(neutral(reduce.function, kind), kind, is_wide=is_wide).name
            for reduce, kind in zip(reduces, kinds, strict=True)
        ]
        assert self.nest is not None
        order = [loop for loop in sorted(self.group.reduced) if loop not in self.nest.merged]
        if self._is_across():
            order.remove(self.nest.lane)
            order.append(self.nest.lane)
        names = self._nested(order, reduces, kinds, stores, first)
        for reduce, kind, name in zip(reduces, kinds, names, strict=True):
            value = Value(name, kind, is_wide, writer.level)
            if self._is_across():
                value = across_lanes(writer, reduce.function, value)
            writer.note(("member", reduce), emitted(writer, "cast", reduce.dtype, (value,)))

    def _nested(
        self,
        order: Sequence[int],
        reduces: Sequence[Reduce],
        kinds: Sequence[str],
        stores: Sequence[Store],
        carried: list[str],
    ) -> list[str]:
        writer = self.writer
        assert self.nest is not None
        loop, *inner = order
        size = writer.number(self.nest.sizes[loop])
        types = [writer.vector(kind) for kind in kinds]
        if loop == self.nest.lane:
            return self._lane_loop(size, reduces, kinds, stores, carried)

        def body(index: Value, names: list[str]) -> list[str]:
            outer = self.loops
            self.loops = replace(outer, values={**outer.values, loop: index})
            if inner:
                following = self._nested(inner, reduces, kinds, stores, names)
            else:
                following = self._step(reduces, kinds, stores, names)
            self.loops = outer
            return following

        pairs = list(zip(carried, types, strict=True))
        return writer.loop(writer.number(0), size, writer.number(1), pairs, body)

    def _lane_loop(
        self,
        size: Value,
        reduces: Sequence[Reduce],
        kinds: Sequence[str],
        stores: Sequence[Store],
        carried: list[str],
    ) -> list[str]:
        """Runs the lanes along the innermost reduced loop: several rows at once with totals of their own, then the rest."""
        writer = self.writer
        assert self.nest is not None
        lane, known = self.nest.lane, self.nest.sizes[self.nest.lane]
        lanes = writer.lanes
        types = [writer.vector(kind) for kind in kinds]

        def step(first: Value, names: list[str], mask: Value | None) -> list[str]:
            outer = self.loops
            self.loops = replace(outer, values={**outer.values, lane: first}, mask=mask)
            following = self._step(reduces, kinds, stores, names)
            self.loops = outer
            return following

        start = writer.number(0)
        is_long = not is_static(known) or known >= 2 * UNROLLED * lanes
        if reduces and is_long and not self._is_costly(reduces, stores):
            width = writer.number(UNROLLED * lanes)
            whole = writer.scalar("arith.subi", size, writer.scalar("arith.remsi", size, width))
            begun = [*carried]
            for reduce, kind in zip(reduces, kinds, strict=True):
                begun += [writer.constant(neutral(reduce.function, kind), kind, is_wide=True).name] * (UNROLLED - 1)
            # totals in order: one for each reduction, then the further ones of each
            count = len(reduces)
            pairs = [
                (name, types[place] if place < count else types[(place - count) // (UNROLLED - 1)])
                for place, name in enumerate(begun)
            ]

            def rows(first: Value, names: list[str]) -> list[str]:
                following = list(names)
                for part in range(UNROLLED):
                    writer.begin_part()
                    at = writer.scalar("arith.addi", first, writer.number(part * lanes)) if part else first
                    at = replace(at, level=writer.level)
                    places = [place if part == 0 else count + place * (UNROLLED - 1) + part - 1 for place in range(count)]
                    found = step(at, [names[place] for place in places], None)
                    for place, name in zip(places, found, strict=True):
                        following[place] = name
                    writer.end_part()
                return following

            totals = writer.loop(start, whole, width, pairs, rows)
            carried = []
            for place, (reduce, kind) in enumerate(zip(reduces, kinds, strict=True)):
                total = Value(totals[place], kind, True, writer.level)
                further = totals[count + place * (UNROLLED - 1) : count + (place + 1) * (UNROLLED - 1)]
                for name in further:
                    total = combined(writer, reduce.function, total, Value(name, kind, True, writer.level))
                carried.append(total.name)
            start = whole
        width = writer.number(lanes)
        whole = writer.scalar("arith.subi", size, writer.scalar("arith.remsi", size, width))
        pairs = list(zip(carried, types, strict=True))
        carried = writer.loop(start, whole, width, pairs, lambda first, names: step(first, names, None))
        if is_static(known) and known % lanes == 0:
            return carried
        pairs = list(zip(carried, types, strict=True))

        def rest(names: list[str]) -> list[str]:
            first = replace(whole, level=writer.level)
            return step(first, names, lane_mask(writer, writer.scalar("arith.subi", size, first)))

        return writer.branch(writer.is_less(whole, size), pairs, rest)

    def _is_costly(self, reduces: Sequence[Reduce], stores: Sequence[Store]) -> bool:
        needed = self._needed([*reduces, *(store.member for store in stores)])
        inner = [member for member in needed if is_inner(member, self.group)]
        return len(inner) > 24 or any(getattr(member, "function", "") in EXPENSIVE for member in inner)

    def _step(
        self, reduces: Sequence[Reduce], kinds: Sequence[str], stores: Sequence[Store], names: Sequence[str]
    ) -> list[str]:
        """Takes one row of lanes into the totals, and writes what is stored on the way."""
        writer = self.writer
        following: list[str] = []
        self._emit([store.member for store in stores])
        for reduce, kind, name in zip(reduces, kinds, names, strict=True):
            self._emit(_members_behind(reduce.source, self.group))
            value = self._value(reduce.source, inner_index(reduce, self.group, self.group.members[reduce]))
            value = writer.wide(emitted(writer, "cast", kind, (value,)))
            if self.loops.mask is not None and self._is_across():
                nothing = writer.constant(neutral(reduce.function, kind), kind, is_wide=True)
                value = emitted(writer, "select", kind, (self.loops.mask, value, nothing))
            total = Value(name, kind, True, writer.level)
            following.append(combined(writer, reduce.function, total, value).name)
        self._emit_stores(stores)
        return following

    # --- elements ---

    def _emit_stores(self, stores: Sequence[Store]) -> None:
        self._emit([store.member for store in stores])
        for store in stores:
            place = linear(
                tuple(
                    part + Affine(offset)
                    for part, offset in zip(loop_index(self.group.members[store.member]), store.offsets, strict=True)
                ),
                strides_of(store.into.shape),
            )
            write(self.writer, self._base(store.into), place, self._member(store.member), self.loops)

    def _needed(self, roots: Sequence[Tensor]) -> list[Tensor]:
        """Members that others need and that are not known here, in order."""
        needed: set[Tensor] = set()
        stack = [root for root in roots if root in self.group.members]
        while stack:
            tensor = stack.pop()
            if tensor in needed or self.writer.known(("member", tensor)):
                continue
            needed.add(tensor)
            for source in arguments_of(tensor):
                stack.extend(_members_behind(source, self.group))
        return [member for member in self.group.members if member in needed]

    def _emit(self, roots: Sequence[Tensor]) -> None:
        for member in self._needed(roots):
            self._member(member)

    def _member(self, tensor: Tensor) -> Value:
        key = ("member", tensor)
        if found := self.writer.known(key):
            return found
        assert not isinstance(tensor, Reduce), "a reduction is read before its loops have run"
        index = loop_index(self.group.members[tensor])
        if isinstance(tensor, Take):
            value = self._taken(tensor, index)
        else:
            values = [self._value(argument, index) for argument in arguments_of(tensor)]
            value = emitted(self.writer, tensor.function, tensor.dtype, values)  # type: ignore[attr-defined]
        self.writer.note(key, value)
        return value

    def _value(self, tensor: Tensor, index: Index) -> Value:
        writer = self.writer
        while isinstance(tensor, View):
            index = composed(tensor.index, index)
            tensor = tensor.source
        if isinstance(tensor, Fill):
            return writer.constant(tensor.value, tensor.dtype)
        if isinstance(tensor, Number):
            return self._number(tensor)
        if isinstance(tensor, Iota):
            return affine_wide(writer, index[tensor.dim], self.loops)
        if tensor in self.group.members:
            return self._member(tensor)
        return read(writer, self._base(tensor), memory_index(tensor, index), tensor.dtype, self.loops)

    def _number(self, tensor: Number) -> Value:
        if isinstance(tensor.value, str):
            kind = {"f64": "f64", "i64": "i64", "i1": "i64"}[tensor.dtype]
            value = self.writer.slot(self.writer.frame.slot(tensor.value), kind)
            return emitted(self.writer, "cast", "i1", (value,)) if tensor.dtype == "i1" else value
        return self.writer.number(tensor.value)

    def _taken(self, tensor: Take, index: Index) -> Value:
        writer, loops = self.writer, self.loops
        fixed = Affine()
        total: Value | None = None
        for part, size, stride in zip(tensor.index, tensor.source.shape, strides_of(tensor.source.shape), strict=True):
            if isinstance(part, Affine):
                fixed = fixed + part.at(index).scaled(stride)
                continue
            place = self._checked(self._value(part, index), size)
            by = writer.number(stride)
            if place.is_wide:
                by = writer.wide(by)
            step = emitted(writer, "mul", "i64", (place, by))
            total = step if total is None else emitted(writer, "add", "i64", (total, step))
        base = self._base(tensor.source)
        assert total is not None
        if not total.is_wide:  # all lanes read from one row
            return read(writer, further(writer, base, total, tensor.dtype), fixed, tensor.dtype, loops)
        place = emitted(writer, "add", "i64", (total, affine_wide(writer, fixed, loops)))
        return gathered(writer, base, place, tensor.dtype, loops)

    def _checked(self, place: Value, size: Size) -> Value:
        """Gives an index that is in range, and reports one that was not."""
        writer = self.writer
        zero, last = writer.number(0), writer.scalar("arith.subi", writer.number(size), writer.number(1))
        low = emitted(writer, "min", "i64", (place, last))
        inside = emitted(writer, "max", "i64", (low, zero))  # 0 in an empty tensor, in whose place spare memory stands
        wrong = emitted(writer, "ne", "i1", (place, inside))
        if wrong.is_wide:
            if self.loops.mask is not None:
                wrong = emitted(writer, "and", "i1", (wrong, self.loops.mask))
            text = f"vector.reduction <or>, {wrong.name} : {writer.vector('i1')} into i1"
            wrong = writer.put(text, "i1", is_wide=False, level=wrong.level)
        block = writer.blocks[wrong.level]
        one = writer.number(1)
        block.lines.append(f"scf.if {wrong.name} {{\nllvm.store {one.name}, %frame : i64, !llvm.ptr\n}}")
        return inside

    def _base(self, tensor: Tensor) -> Value:
        while isinstance(tensor, Reshape):
            tensor = tensor.source
        return self.writer.slot(self.slot_of(tensor), "!llvm.ptr")


def _members_behind(tensor: Tensor, group: Group) -> list[Tensor]:
    while isinstance(tensor, View):
        tensor = tensor.source
    return [tensor] if tensor in group.members else []


def _sum_dtype(reduce: Reduce) -> str:
    """In which dtype a reduction's totals are kept."""
    kind = reduce.source.dtype
    if reduce.function not in ("sum", "prod") or kind != "f32":
        return kind if kind not in ("f16", "bf16") else "f32"
    count = product(reduce.source.shape[dim] for dim in reduce.dims)
    return "f32" if is_static(count) and count <= FEW_ROUNDINGS else "f64"
