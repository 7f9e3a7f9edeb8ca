"""Reads and writes of elements in memory, a scalar or a row of lanes at a time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from hub.toolkit.affine import Affine
from hub.toolkit.sizes import Size, is_static, times

from .writer import SCALAR, Value, Writer

_ALIGNED = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "i1": 1}
"""Size of one element in bytes."""
ITEM_BYTES = _ALIGNED
LINE = 64
"""Size of a cache line in bytes."""
FAR_APART = 1024
"""Bytes between rows from which on a walk down them crosses pages too fast for the hardware prefetcher."""
ROWS_AHEAD = 8
"""Number of rows to prefetch ahead. Mean, variance and maximum of columns, 2048 x 4096 elements of float32: 2.9 ms without,
2.5 with 4 or 16, 2.1 with 8."""


@dataclass
class Loops:
    """The loops that are open where code is written now."""

    values: dict[int, Value]
    """The scalar index of each open loop; for the lanes' loop, that of the first lane."""
    lane: int | None
    """The loop that runs along the lanes."""
    mask: Value | None = None
    """The lanes that are in range, in the last, partial step."""
    merged: frozenset[int] = frozenset()
    """Loops that run as part of the next one, whose terms cover theirs."""


def affine(writer: Writer, expression: Affine, loops: Loops, *, with_lane: bool = True) -> Value:
    """Return an index as an i64: the first lane's, or without the term of the lanes' loop."""
    terms = [
        (loops.values[variable], factor)
        for variable, factor in expression.terms
        if variable not in loops.merged and (with_lane or variable != loops.lane)
    ]
    total: Value | None = None if expression.constant == 0 and terms else writer.number(expression.constant)
    for value, factor in sorted(terms, key=lambda term: term[0].level):
        part = value if factor == 1 else writer.scalar("arith.muli", value, writer.number(factor))
        total = part if total is None else writer.scalar("arith.addi", total, part)
    assert total is not None
    return total


def lane_factor(expression: Affine, loops: Loops) -> Size:
    """Return the distance between neighbouring lanes."""
    return 0 if loops.lane is None else expression.factor(loops.lane)


def affine_wide(writer: Writer, expression: Affine, loops: Loops) -> Value:
    """Return an index for each lane; a scalar if all lanes have the same."""
    first = affine(writer, expression, loops)
    factor = lane_factor(expression, loops)
    if factor == 0:
        return first
    steps = _lane_numbers(writer)
    if factor != 1:
        by = writer.wide(writer.number(factor))
        steps = _wide(writer, "arith.muli", steps, by)
    return _wide(writer, "arith.addi", writer.wide(first), steps)


def _lane_numbers(writer: Writer) -> Value:
    kind = writer.vector("i64")
    numbers = ", ".join(map(str, range(writer.lanes)))
    return writer.put(f"arith.constant dense<[{numbers}]> : {kind}", "i64", is_wide=True, level=0)


def _wide(writer: Writer, operation: str, left: Value, right: Value) -> Value:
    level = max(left.level, right.level)
    text = f"{operation} {left.name}, {right.name} : {writer.vector('i64')}"
    return writer.put(text, "i64", is_wide=True, level=level)


def lane_mask(writer: Writer, count: Value) -> Value:
    """Return the mask of the first `count` lanes."""
    limit = writer.wide(count)
    text = f"arith.cmpi slt, {_lane_numbers(writer).name}, {limit.name} : {writer.vector('i64')}"
    return writer.put(text, "i1", is_wide=True, level=limit.level)


def _stored_kind(dtype: str) -> str:
    return "i8" if dtype == "i1" else SCALAR[dtype]


def read_key(base: Value, place: Affine, dtype: str, mask: Value | None) -> Hashable:
    """Return the key of a read's value in the known values."""
    return ("read", base.name, place, dtype, mask.name if mask else "")


def read(writer: Writer, base: Value, place: Affine, dtype: str, loops: Loops) -> Value:
    """Return elements in memory: one scalar if all lanes read the same."""
    key = read_key(base, place, dtype, loops.mask)
    if found := writer.known(key):
        return found
    factor = lane_factor(place, loops)
    kind = _stored_kind(dtype)
    stored = "i8" if dtype == "i1" else dtype
    if factor == 0:
        at = _address(writer, base, affine(writer, place, loops), kind)
        text = f"llvm.load {at.name} {{alignment = {_ALIGNED[dtype]} : i64}} : !llvm.ptr -> {kind}"
        value = writer.put(text, stored, is_wide=False, level=at.level, key=(text, "scalar"))
    elif factor == 1:
        at = _address(writer, base, affine(writer, place, loops), kind)
        if writer.lanes > writer.natural and loops.mask is None:
            _fetch_ahead(writer, base, place, stored, loops)
        value = _row(writer, at, stored, loops)
    elif factor in (2, -1) and loops.mask is None:
        value = _shuffled(writer, base, place, factor, stored, loops)
    else:
        value = _gathered(writer, base, affine_wide(writer, place, loops), stored, loops)
    value = _as_boolean(writer, value) if dtype == "i1" else value
    writer.note(key, value)
    return value


def gathered(writer: Writer, base: Value, places: Value, dtype: str, loops: Loops) -> Value:
    """Return elements at computed places, one for each lane."""
    value = _gathered(writer, base, places, "i8" if dtype == "i1" else dtype, loops)
    return _as_boolean(writer, value) if dtype == "i1" else value


def further(writer: Writer, base: Value, place: Value, dtype: str) -> Value:
    """Return the address of an element."""
    return _address(writer, base, place, _stored_kind(dtype))


def _address(writer: Writer, base: Value, place: Value, kind: str) -> Value:
    level = max(base.level, place.level)
    text = f"llvm.getelementptr {base.name}[{place.name}] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}"
    return writer.put(text, "ptr", is_wide=False, level=level)


def _row(writer: Writer, at: Value, dtype: str, loops: Loops) -> Value:
    kind = writer.vector(dtype)
    if loops.mask is None:
        text = f"llvm.load {at.name} {{alignment = {_ALIGNED[dtype]} : i64}} : !llvm.ptr -> {kind}"
        return writer.put(text, dtype, is_wide=True, level=at.level, key=(text, "row"))
    nothing = writer.constant(0, dtype, is_wide=True)
    text = (
        f"llvm.intr.masked.load {at.name}, {loops.mask.name}, {nothing.name} {{alignment = {_ALIGNED[dtype]} : i32}}"
        f" : (!llvm.ptr, {writer.vector('i1')}, {kind}) -> {kind}"
    )
    return writer.put(text, dtype, is_wide=True, level=max(at.level, loops.mask.level))


def _fetch_ahead(writer: Writer, base: Value, place: Affine, dtype: str, loops: Loops) -> None:
    """Prefetch the rows that a walk down columns reads later, if they are too far apart for the hardware prefetcher."""
    steps = [
        (loops.values[loop].level, factor) for loop, factor in place.terms if loop in loops.values and loop != loops.lane
    ]
    level, step = max(steps, key=lambda each: each[0], default=(-1, 0))
    bytes_ = _ALIGNED[dtype]
    if level != writer.level or (is_static(step) and step * bytes_ < FAR_APART):
        return
    row = writer.scalar("arith.addi", affine(writer, place, loops), writer.number(times(step, ROWS_AHEAD)))
    for offset in range(0, writer.lanes, LINE // bytes_):
        at = writer.scalar("arith.addi", row, writer.number(offset)) if offset else row
        address = _address(writer, base, at, _stored_kind(dtype))
        hints = "{rw = 0 : i32, hint = 3 : i32, cache = 1 : i32}"  # for reading, into all caches, data
        writer.line(f'"llvm.intr.prefetch"({address.name}) {hints} : (!llvm.ptr) -> ()')


def _shuffled(writer: Writer, base: Value, place: Affine, factor: int, dtype: str, loops: Loops) -> Value:
    """Return every second element, or elements in reverse, shuffled from rows that reach no further than the elements."""
    lanes = writer.lanes
    if factor == 2:
        picked = [*range(0, lanes, 2), *range(lanes + 1, 2 * lanes, 2)]
        offsets = (0, lanes - 1)
    else:
        picked = [*range(lanes - 1, -1, -1)]
        offsets = (1 - lanes, 1 - lanes)
    rows = [
        _row(writer, _address(writer, base, affine(writer, place + Affine(offset), loops), SCALAR[dtype]), dtype, loops)
        for offset in offsets
    ]
    return _put_together(writer, rows, picked)


def _put_together(writer: Writer, rows: Sequence[Value], picked: Sequence[int]) -> Value:
    """Return the lanes of two rows that are picked by number."""
    one, other = rows
    kind = writer.vector(one.dtype)
    text = f"vector.shuffle {one.name}, {other.name} {list(picked)} : {kind}, {kind}"
    return writer.put(text, one.dtype, is_wide=True, level=max(one.level, other.level))


def _gathered(writer: Writer, base: Value, places: Value, dtype: str, loops: Loops) -> Value:
    kind = writer.vector(dtype)
    level = max(base.level, places.level)
    pointers = f"vector<{writer.lanes}x!llvm.ptr>"
    kinds = f"(!llvm.ptr, {writer.vector('i64')}) -> {pointers}, {SCALAR[dtype]}"
    at = writer.put(
        f"llvm.getelementptr {base.name}[{places.name}] : {kinds}",
        "ptr",
        is_wide=True,
        level=level,
    )
    mask = loops.mask or writer.constant(True, "i1", is_wide=True)
    nothing = writer.constant(0, dtype, is_wide=True)
    text = (
        f"llvm.intr.masked.gather {at.name}, {mask.name}, {nothing.name} {{alignment = {_ALIGNED[dtype]} : i32}}"
        f" : ({pointers}, {writer.vector('i1')}, {kind}) -> {kind}"
    )
    return writer.put(text, dtype, is_wide=True, level=max(level, mask.level))


def _as_boolean(writer: Writer, value: Value) -> Value:
    zero = writer.constant(0, "i8", is_wide=value.is_wide)
    kind = writer.type_of("i8", is_wide=value.is_wide)
    text = f"arith.cmpi ne, {value.name}, {zero.name} : {kind}"
    return writer.put(text, "i1", is_wide=value.is_wide, level=value.level)


def write(writer: Writer, base: Value, place: Affine, value: Value, loops: Loops) -> None:
    """Write elements: neighbouring lanes to neighbouring or scattered places, or one scalar."""
    dtype = value.dtype
    kind = _stored_kind(dtype)
    factor = lane_factor(place, loops)
    if factor == 0:
        at = _address(writer, base, affine(writer, place, loops), kind)
        if value.is_wide:
            text = f"vector.extract {value.name}[0] : {SCALAR[dtype]} from {writer.vector(dtype)}"
            value = writer.put(text, dtype, is_wide=False, level=value.level)
        name = _as_stored(writer, value)
        writer.line(f"llvm.store {name}, {at.name} {{alignment = {_ALIGNED[dtype]} : i64}} : {kind}, !llvm.ptr")
        return
    value = writer.wide(value)
    name = _as_stored(writer, value)
    rows = f"vector<{writer.lanes}x{kind}>"
    if factor == 1:
        at = _address(writer, base, affine(writer, place, loops), kind)
        if loops.mask is None:
            writer.line(f"llvm.store {name}, {at.name} {{alignment = {_ALIGNED[dtype]} : i64}} : {rows}, !llvm.ptr")
        else:
            writer.line(
                f"llvm.intr.masked.store {name}, {at.name}, {loops.mask.name} {{alignment = {_ALIGNED[dtype]} : i32}}"
                f" : {rows}, {writer.vector('i1')} into !llvm.ptr"
            )
        return
    places = affine_wide(writer, place, loops)
    pointers = f"vector<{writer.lanes}x!llvm.ptr>"
    at = writer.put(
        f"llvm.getelementptr {base.name}[{places.name}] : (!llvm.ptr, {writer.vector('i64')}) -> {pointers}, {kind}",
        "ptr",
        is_wide=True,
        level=places.level,
    )
    mask = loops.mask or writer.constant(True, "i1", is_wide=True)
    writer.line(
        f"llvm.intr.masked.scatter {name}, {at.name}, {mask.name} {{alignment = {_ALIGNED[dtype]} : i32}}"
        f" : {rows}, {writer.vector('i1')} into {pointers}"
    )


def write_pair(writer: Writer, base: Value, place: Affine, values: Sequence[Value], loops: Loops) -> None:
    """Write two rows of interleaved elements, all lanes of both: the second row's lie one place after the first's."""
    dtype, lanes = values[0].dtype, writer.lanes
    wide = [writer.wide(value) for value in values]
    stored = [replace(value, name=_as_stored(writer, value), dtype="i8" if dtype == "i1" else dtype) for value in wide]
    kind = _stored_kind(dtype)
    turns = [each for lane in range(lanes) for each in (lane, lanes + lane)]
    for offset in (0, lanes):
        row = _put_together(writer, stored, turns[offset : offset + lanes])
        at = _address(writer, base, affine(writer, place + Affine(offset), loops), kind)
        rows = f"vector<{lanes}x{kind}>"
        writer.line(f"llvm.store {row.name}, {at.name} {{alignment = {_ALIGNED[dtype]} : i64}} : {rows}, !llvm.ptr")


def _as_stored(writer: Writer, value: Value) -> str:
    if value.dtype != "i1":
        return value.name
    kinds = f"{writer.type_of('i1', is_wide=value.is_wide)} to {writer.type_of('i8', is_wide=value.is_wide)}"
    return writer.put(f"arith.extui {value.name} : {kinds}", "i8", is_wide=value.is_wide, level=value.level).name
