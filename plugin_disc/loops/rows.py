"""The inner loops of a group: reductions with their totals, and the stores for every element of a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hub.toolkit.functions import TRANSCENDENTAL, neutral
from hub.toolkit.groups import Group, Store
from hub.toolkit.nest import Nest, inner_index, is_inner
from hub.toolkit.sizes import is_static, product
from hub.toolkit.tensors import Reduce

from .combine import across_lanes, combined
from .elements import Elements, members_behind
from .functions import emitted
from .memory import lane_mask
from .versions import Version, half_of
from .writer import Value, Writer

FEW_ROUNDINGS = 4096
"""Number of elements along the lanes that are summed in float32, in 64 parts of few elements; longer sums use float64."""
FEW_IN_A_COLUMN = 512
"""The same if each lane has its own total."""
UNROLLED = 4
MANY_FUNCTIONS = 24
"""Number of functions above which a loop keeps the registers busy without unrolling."""


@dataclass(frozen=True)
class Pass:
    """One run of inner loops: its reductions and its stores."""

    loops: tuple[int, ...]
    """The loops from outermost to innermost."""
    lane: int
    reduces: tuple[Reduce, ...]
    stores: tuple[Store, ...]
    has_few: bool = False
    """Whether each total is known to be of few elements."""

    @property
    def kinds(self) -> list[str]:
        """The dtypes of the totals."""
        return [sum_dtype(reduce, has_few=self.has_few) for reduce in self.reduces]

    @property
    def stretch_kinds(self) -> list[str]:
        """The dtypes of the totals of stretches, which are short enough for float32."""
        return [
            "f32" if reduce.source.dtype == "f32" else kind for reduce, kind in zip(self.reduces, self.kinds, strict=True)
        ]

    @property
    def is_across(self) -> bool:
        """Return whether lanes run along the innermost loop."""
        return self.lane in self.loops


def passes_of(group: Group, nest: Nest, reduces: Sequence[Reduce], stores: Sequence[Store], version: Version) -> list[Pass]:
    """Return the passes of a phase: one over the reduced loops, and one over each annex in which it stores."""
    found: list[Pass] = []
    lanes = (nest.lane, *nest.annex_lanes)
    for place, (inner, lane) in enumerate(zip((group.reduced, *group.annexes), lanes, strict=True)):
        own = tuple(store for store in stores if inner & set(group.members[store.member]))
        adds = tuple(reduces) if place == 0 else ()
        if own or adds:
            order = [loop for loop in sorted(inner) if loop not in nest.merged and loop != lane]
            found.append(Pass((*order, *([lane] if lane in inner else [])), lane, adds, own, version.has_few))
    return found


class Rows:
    """A writer of passes inside the open loops."""

    def __init__(self, elements: Elements, nest: Nest, version: Version) -> None:
        self.elements = elements
        self.nest = nest
        self.version = version

    @property
    def _writer(self) -> Writer:
        return self.elements.writer

    def run(self, each: Pass) -> None:
        """Write one pass of inner loops; afterwards the values of its reductions are known."""
        writer = self._writer
        is_wide = not self._has_scalars(each)
        names = self._nested(each, each.loops, _neutral_totals(writer, each, each.kinds, is_wide=is_wide))
        for reduce, kind, name in zip(each.reduces, each.kinds, names, strict=True):
            value = Value(name, kind, is_wide, writer.level)
            if each.is_across and is_wide:
                value = across_lanes(writer, reduce.function, value)
            writer.note(("member", reduce), emitted(writer, "cast", reduce.dtype, (value,)))

    def _has_stretches(self, each: Pass) -> bool:
        """Return whether totals are wider than elements and the innermost loop is long enough for narrow ones."""
        return each.kinds != each.stretch_kinds and not self._is_short(each.loops[-1])

    def _is_short(self, loop: int) -> bool:
        """Return whether a loop is known to be too short for several registers at once."""
        known = self.nest.sizes[loop]
        if loop == self.nest.lane and self.version.is_short:
            return True
        return is_static(known) and known < 2 * UNROLLED * self._writer.lanes

    def _has_scalars(self, each: Pass) -> bool:
        """Return whether each stretch is reduced across the lanes into scalar totals."""
        return each.is_across and self._has_stretches(each)

    def _nested(self, each: Pass, order: Sequence[int], carried: list[str]) -> list[str]:
        loop, *inner = order
        if not inner:
            return self._innermost(each, loop, carried)
        ends = self._writer.number(0), self._writer.number(self.nest.sizes[loop])
        pairs = _typed(self._writer, each.kinds, carried, is_wide=not self._has_scalars(each))
        return self._one_by_one(each, loop, ends, pairs, lambda names: self._nested(each, inner, names))

    def _one_by_one(
        self,
        each: Pass,
        loop: int,
        ends: tuple[Value, Value],
        carried: Sequence[tuple[str, str]],
        step: Callable[[list[str]], list[str]],
    ) -> list[str]:
        """Write a loop that does not run along the lanes."""
        writer = self._writer
        lane, mask = (each.lane, None) if each.is_across else (self.elements.loops.lane, self.elements.loops.mask)

        def body(index: Value, names: list[str]) -> list[str]:
            with self.elements.at({loop: index}, lane=lane, mask=mask):
                return step(names)

        return writer.loop(*ends, writer.number(1), carried, body)

    def _innermost(self, each: Pass, loop: int, carried: list[str]) -> list[str]:
        """Write the innermost loop; if totals are wider than elements, in stretches with their own narrow totals."""
        writer, is_wide = self._writer, not self._has_scalars(each)
        start, size = writer.number(0), writer.number(self.nest.sizes[loop])
        if not self._has_stretches(each):
            return self._stretch(each, loop, (start, size), each.kinds, carried)
        step = writer.number(FEW_ROUNDINGS if each.is_across else FEW_IN_A_COLUMN)
        narrow = each.stretch_kinds

        def stretch(begin: Value, names: list[str]) -> list[str]:
            end = writer.scalar("arith.minsi", writer.scalar("arith.addi", begin, step), size)
            found = self._stretch(each, loop, (begin, end), narrow, _neutral_totals(writer, each, narrow))
            following: list[str] = []
            for place, (reduce, kind) in enumerate(zip(each.reduces, each.kinds, strict=True)):
                total = Value(names[place], kind, is_wide, writer.level)
                part = Value(found[place], narrow[place], True, writer.level)
                part = part if is_wide else across_lanes(writer, reduce.function, part)
                part = emitted(writer, "cast", kind, (part,))
                following.append(combined(writer, reduce.function, total, part).name)
            return following

        return writer.loop(start, size, step, _typed(writer, each.kinds, carried, is_wide=is_wide), stretch)

    def _stretch(
        self, each: Pass, loop: int, ends: tuple[Value, Value], kinds: Sequence[str], carried: list[str]
    ) -> list[str]:
        """Write the innermost loop from one end to the other, with totals of the given dtypes."""
        if loop == each.lane:
            return self._along_lanes(each, ends, kinds, carried)
        pairs = _typed(self._writer, kinds, carried)
        return self._one_by_one(each, loop, ends, pairs, lambda names: self._step(each, names, kinds))

    def _along_lanes(self, each: Pass, ends: tuple[Value, Value], kinds: Sequence[str], carried: list[str]) -> list[str]:
        """Write the lanes along the innermost loop: several registers at once with their own totals, then the rest."""
        writer = self._writer
        known, lanes = self.nest.sizes[each.lane], writer.lanes
        start, size = ends
        if self.version.registers is not None:
            registers = self.version.registers if each.lane == self.nest.lane else half_of(self.version.registers)
            return self._written_out(each, size, registers, kinds, carried)
        if each.reduces and not self._is_short(each.lane) and not self._is_costly(each):
            start, carried = self._unrolled(each, ends, kinds, carried)
        width = writer.number(lanes)
        rest_size = writer.scalar("arith.remsi", writer.scalar("arith.subi", size, start), width)
        whole = writer.scalar("arith.subi", size, rest_size)
        pairs = _typed(writer, kinds, carried)
        carried = writer.loop(start, whole, width, pairs, lambda first, names: self._at(each, first, names, kinds))
        if is_static(known) and known % lanes == 0:
            return carried

        def rest(names: list[str]) -> list[str]:
            first = replace(whole, level=writer.level)
            return self._at(each, first, names, kinds, lane_mask(writer, writer.scalar("arith.subi", size, first)))

        return writer.branch(writer.is_less(whole, size), _typed(writer, kinds, carried), rest)

    def _written_out(self, each: Pass, size: Value, registers: int, kinds: Sequence[str], carried: list[str]) -> list[str]:
        """Write a row of that many registers without a loop; the last register may be partial."""
        writer = self._writer
        for place in range(registers):
            first = writer.number(place * writer.lanes)

            def step(names: list[str], mask: Value | None = None, first: Value = first) -> list[str]:
                return self._at(each, replace(first, level=writer.level), names, kinds, mask)

            if place < registers - 1:
                writer.begin_part()
                carried = step(carried)
                writer.end_part()
                continue
            is_whole = writer.is_less(writer.number((place + 1) * writer.lanes - 1), size)
            left = lane_mask(writer, writer.scalar("arith.subi", size, first))
            carried = writer.branch(
                is_whole, _typed(writer, kinds, carried), step, lambda names, step=step, left=left: step(names, left)
            )
        return carried

    def _at(self, each: Pass, first: Value, names: list[str], kinds: Sequence[str], mask: Value | None = None) -> list[str]:
        with self.elements.at({each.lane: first}, lane=each.lane, mask=mask):
            return self._step(each, names, kinds)

    def _unrolled(
        self, each: Pass, ends: tuple[Value, Value], kinds: Sequence[str], carried: list[str]
    ) -> tuple[Value, list[str]]:
        """Write a loop over several registers at a time; return where it ends, and the combined totals."""
        writer = self._writer
        start, size = ends
        width = writer.number(UNROLLED * writer.lanes)
        rest = writer.scalar("arith.remsi", writer.scalar("arith.subi", size, start), width)
        whole = writer.scalar("arith.subi", size, rest)
        count = len(each.reduces)
        begun = [*carried, *(_neutral_totals(writer, each, kinds) * (UNROLLED - 1))]
        pairs = _typed(writer, kinds, begun)

        def registers(first: Value, names: list[str]) -> list[str]:
            following: list[str] = []
            for part in range(UNROLLED):
                writer.begin_part()
                at = writer.scalar("arith.addi", first, writer.number(part * writer.lanes)) if part else first
                own = names[part * count : (part + 1) * count]
                following += self._at(each, replace(at, level=writer.level), own, kinds)
                writer.end_part()
            return following

        totals = writer.loop(start, whole, width, pairs, registers)
        result: list[str] = []
        for place, (reduce, kind) in enumerate(zip(each.reduces, kinds, strict=True)):
            total, *others = (Value(name, kind, True, writer.level) for name in totals[place::count])
            for other in others:
                total = combined(writer, reduce.function, total, other)
            result.append(total.name)
        return whole, result

    def _is_costly(self, each: Pass) -> bool:
        group = self.elements.group
        needed = self.elements.needed([*each.reduces, *(store.member for store in each.stores)])
        inner = [member for member in needed if is_inner(member, group)]
        return len(inner) > MANY_FUNCTIONS or any(getattr(member, "function", "") in TRANSCENDENTAL for member in inner)

    def _step(self, each: Pass, names: Sequence[str], kinds: Sequence[str]) -> list[str]:
        """Write the reduction of one row of lanes into the totals, and the stores of that row."""
        writer, elements = self._writer, self.elements
        following: list[str] = []
        elements.emit([store.member for store in each.stores])
        for reduce, kind, name in zip(each.reduces, kinds, names, strict=True):
            elements.emit(members_behind(reduce.source, elements.group))
            index = inner_index(reduce, elements.group, elements.group.members[reduce])
            value = writer.wide(emitted(writer, "cast", kind, (elements.value(reduce.source, index),)))
            if elements.loops.mask is not None and each.is_across:
                nothing = writer.constant(neutral(reduce.function, kind), kind, is_wide=True)
                value = emitted(writer, "select", kind, (elements.loops.mask, value, nothing))
            total = Value(name, kind, True, writer.level)
            following.append(combined(writer, reduce.function, total, value).name)
        elements.store(each.stores)
        return following


def _neutral_totals(writer: Writer, each: Pass, kinds: Sequence[str], *, is_wide: bool = True) -> list[str]:
    return [
        writer.constant(neutral(reduce.function, kind), kind, is_wide=is_wide).name
        for reduce, kind in zip(each.reduces, kinds, strict=True)
    ]


def _typed(writer: Writer, kinds: Sequence[str], totals: Sequence[str], *, is_wide: bool = True) -> list[tuple[str, str]]:
    """Return totals with their types; there may be several totals of each type."""
    types = [writer.type_of(kind, is_wide=is_wide) for kind in kinds]
    return [(total, types[place % len(types)]) for place, total in enumerate(totals)]


def sum_dtype(reduce: Reduce, *, has_few: bool = False) -> str:
    """Return the dtype of a reduction's totals; `has_few` means that the number of elements is known to be small."""
    kind = reduce.source.dtype
    if reduce.function not in ("sum", "prod") or kind != "f32":
        return kind if kind not in ("f16", "bf16") else "f32"
    count = product(reduce.source.shape[dim] for dim in reduce.dims)
    return "f32" if has_few or (is_static(count) and count <= FEW_ROUNDINGS) else "f64"
