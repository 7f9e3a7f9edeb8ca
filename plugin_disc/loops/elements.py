"""The elements of a group's members, written inside the open loops: values, reads at computed places, stores."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from hub.toolkit.affine import Affine, Index, linear
from hub.toolkit.groups import Group, Store
from hub.toolkit.nest import loop_index, memory_index
from hub.toolkit.reading import through_views
from hub.toolkit.sizes import Size, strides_of
from hub.toolkit.tensors import Fill, Iota, Number, Reduce, Reshape, Take, Tensor, View, arguments_of

from .functions import emitted
from .memory import Loops, affine_wide, further, gathered, lane_factor, read, write, write_pair
from .writer import Value, Writer

SlotOf = Callable[[Tensor], int]
"""Function that returns the frame's slot with the address of a tensor in memory."""


class Elements:
    """The computation for one step of the loops that are open now."""

    def __init__(self, group: Group, writer: Writer, loops: Loops, slot_of: SlotOf) -> None:
        self.group = group
        self.writer = writer
        self.loops: Loops = loops
        self._slot_of = slot_of

    @contextmanager
    def at(self, values: Mapping[int, Value], *, lane: int | None, mask: Value | None = None) -> Generator[None]:
        """Open some loops, of which `lane` runs along the lanes, for the time of a `with` block."""
        outer = self.loops
        self.loops = replace(outer, values={**outer.values, **values}, lane=lane, mask=mask)
        yield
        self.loops = outer

    def store(self, stores: Sequence[Store]) -> None:
        """Write members' elements into memory."""
        self.emit([store.member for store in stores])
        left = {store: self._place(store) for store in stores}
        for store in stores:
            if store not in left:
                continue
            place, base, value = left.pop(store), self.base(store.into), self._member(store.member)
            if (other := self._taking_turns(store, place, left)) is not None:
                del left[other]
                write_pair(self.writer, base, place, [value, self._member(other.member)], self.loops)
            else:
                write(self.writer, base, place, value, self.loops)

    def _place(self, store: Store) -> Affine:
        """Return the position that a store writes."""
        index = loop_index(self.group.members[store.member])
        parts = tuple(part + Affine(offset) for part, offset in zip(index, store.offsets, strict=True))
        return linear(parts, strides_of(store.into.shape))

    def _taking_turns(self, store: Store, place: Affine, others: Mapping[Store, Affine]) -> Store | None:
        """Return the store that fills the gaps of this one: it writes one element further, and both with stride 2."""
        if self.loops.mask is not None or lane_factor(place, self.loops) != 2:
            return None
        behind = place + Affine(1)
        return next((each for each, at in others.items() if each.into is store.into and at == behind), None)

    def needed(self, roots: Sequence[Tensor]) -> list[Tensor]:
        """Return the roots among the members and all they need, without those already known here, in order."""
        needed: set[Tensor] = set()
        stack = [root for root in roots if root in self.group.members]
        while stack:
            tensor = stack.pop()
            if tensor in needed or self.writer.known(("member", tensor)):
                continue
            needed.add(tensor)
            for source in arguments_of(tensor):
                stack.extend(members_behind(source, self.group))
        return [member for member in self.group.members if member in needed]

    def emit(self, roots: Sequence[Tensor]) -> None:
        """Compute members, after those that they need."""
        for member in self.needed(roots):
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
            values = [self.value(argument, index) for argument in arguments_of(tensor)]
            value = emitted(self.writer, tensor.function, tensor.dtype, values)  # type: ignore[attr-defined]
        self.writer.note(key, value)
        return value

    def value(self, tensor: Tensor, index: Index) -> Value:
        """Return the element of a tensor at an index over the loops."""
        writer = self.writer
        tensor, index = through_views(tensor, index)
        if isinstance(tensor, Fill):
            return writer.constant(tensor.value, tensor.dtype)
        if isinstance(tensor, Number):
            return self._number(tensor)
        if isinstance(tensor, Iota):
            return affine_wide(writer, index[tensor.dim], self.loops)
        if tensor in self.group.members:
            return self._member(tensor)
        return read(writer, self.base(tensor), memory_index(tensor, index), tensor.dtype, self.loops)

    def _number(self, tensor: Number) -> Value:
        if isinstance(tensor.value, str):
            kind = "f64" if tensor.dtype == "f64" else "i64"
            text = f"{'bits' if kind == 'f64' else 'int'}({tensor.value})"
            value = self.writer.slot(self.writer.frame.slot(text), kind)
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
            place = self._checked(self.value(part, index), size)
            by = writer.number(stride)
            if place.is_wide:
                by = writer.wide(by)
            step = emitted(writer, "mul", "i64", (place, by))
            total = step if total is None else emitted(writer, "add", "i64", (total, step))
        base = self.base(tensor.source)
        assert total is not None
        if not total.is_wide:  # all lanes read from the same row
            return read(writer, further(writer, base, total, tensor.dtype), fixed, tensor.dtype, loops)
        place = emitted(writer, "add", "i64", (total, affine_wide(writer, fixed, loops)))
        return gathered(writer, base, place, tensor.dtype, loops)

    def _checked(self, place: Value, size: Size) -> Value:
        """Return an index clamped to the valid range, and report one that was out of range."""
        writer = self.writer
        zero, last = writer.number(0), writer.scalar("arith.subi", writer.number(size), writer.number(1))
        low = emitted(writer, "min", "i64", (place, last))
        inside = emitted(writer, "max", "i64", (low, zero))  # 0 in an empty tensor, which spare memory replaces
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

    def base(self, tensor: Tensor) -> Value:
        """Return the address of a tensor in memory."""
        while isinstance(tensor, Reshape):
            tensor = tensor.source
        return self.writer.slot(self._slot_of(tensor), "!llvm.ptr")


def members_behind(tensor: Tensor, group: Group) -> list[Tensor]:
    """Return the member of a group behind views, if there is one."""
    while isinstance(tensor, View):
        tensor = tensor.source
    return [tensor] if tensor in group.members else []
