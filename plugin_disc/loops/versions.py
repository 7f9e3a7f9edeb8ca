"""Versions of one kernel: for symbolic lengths, there is code for short rows or wide columns in addition to that for any.

Short rows need no loops along them, no partial totals and no stretches: the tests and combinations of those take longer
than the row itself. Each thread of a call chooses once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hub.toolkit.groups import Group
from hub.toolkit.nest import Nest
from hub.toolkit.sizes import Size, ceil_div, is_static, minus

from .frame import Frame
from .writer import Writer

WRITTEN_OUT = 4
"""Maximum number of registers of a row that are written without a loop; each number has its own version."""
LANES_WRITTEN_OUT = 2
"""The same if nothing is reduced."""
SHORT = 8
"""Maximum number of registers of a row that is one loop, not unrolled."""
COLUMN_ROWS = 4
"""Number of registers side by side if each lane reduces a column."""

Bound = tuple[Size, int]
"""A size, and its maximum."""


@dataclass(frozen=True)
class Version:
    """The assumptions of a kernel's code."""

    name: str = ""
    bounds: tuple[Bound, ...] = ()
    """The conditions under which the code may be called."""
    registers: int | None = None
    """The exact number of registers that cover a row, the loop along the lanes; None if unknown. The last one may be
    partial, and a single one even empty. Parts of a row are halves."""
    is_short: bool = False
    """Whether a row is too short for several registers at once."""
    has_few: bool = False
    """Whether the sum of a row has few enough elements for totals in float32."""
    is_wide: bool = False
    """Whether there are enough columns for several registers side by side."""


ANY = Version("any")


def versions_of(group: Group, nest: Nest, lanes: int) -> tuple[Version, ...]:
    """Return the versions of a group's kernel, the best first; the last may always be called."""
    if not group.reduced:
        return (*_lanes(group, nest, lanes), ANY)
    return (*(_rows(group, nest, lanes) if nest.lane in group.reduced else _columns(nest, lanes)), ANY)


def _lanes(group: Group, nest: Nest, lanes: int) -> Iterator[Version]:
    """Yield the versions of a group without reductions: of several loops, the one along the lanes may be short."""
    size = nest.sizes[nest.lane]
    if is_static(size) or len(set(group.kept) - nest.merged) == 1:
        return
    for count in range(1, LANES_WRITTEN_OUT + 1):
        yield Version(f"of{count}", _exactly(ceil_div(size, lanes), count), count)


def _rows(group: Group, nest: Nest, lanes: int) -> Iterator[Version]:
    """Yield the versions of a group whose lanes run along the reduced loop."""
    size = nest.sizes[nest.lane]
    if is_static(size):
        return
    has_few = len(group.reduced - nest.merged) == 1
    registers = ceil_div(size, lanes)
    parts = [ceil_div(nest.sizes[lane], lanes) for lane in nest.annex_lanes]
    if all(not is_static(part) and part.free_symbols <= registers.free_symbols for part in parts):
        for count in range(1, WRITTEN_OUT + 1):
            bounds = (*_exactly(registers, count), *(bound for part in parts for bound in _exactly(part, half_of(count))))
            yield Version(f"of{count}", bounds, count, is_short=True, has_few=has_few)
    yield Version(f"to{SHORT}", ((registers, SHORT),), is_short=True, has_few=has_few)


def _exactly(registers: Size, count: int) -> tuple[Bound, ...]:
    """Return the bounds of an exact number of registers; an empty row takes one empty register."""
    return ((registers, count),) if count == 1 else ((registers, count), (minus(0, registers), -count))


def half_of(registers: int) -> int:
    """Return how many registers cover half a row."""
    return (registers + 1) // 2


def _columns(nest: Nest, lanes: int) -> Iterator[Version]:
    """Yield the versions of a group in which each lane reduces a column."""
    columns = nest.sizes[nest.lane]
    if not is_static(columns):
        yield Version("wide", ((minus(0, columns), -COLUMN_ROWS * lanes),), is_wide=True)


def choice(name: str, versions: Sequence[Version], frame: Frame, lanes: int) -> str:
    """Write the function that calls the first version that fits."""
    writer = Writer(frame, lanes)
    writer.open(f"llvm.func @{name}(%frame: !llvm.ptr, %begin: i64, %end: i64)")
    for version in versions[:-1]:
        fits = [writer.is_less(writer.number(size), writer.number(most + 1)) for size, most in version.bounds]
        condition = fits[0].name
        for each in fits[1:]:
            text = f"arith.andi {condition}, {each.name} : i1"
            condition = writer.put(text, "i1", is_wide=False, level=0).name
        writer.line(f"scf.if {condition} {{")
        writer.line(_called(name, version))
        writer.line("} else {")
    writer.line(_called(name, versions[-1]))
    writer.line("}" * (len(versions) - 1))
    return writer.finish()


def _called(name: str, version: Version) -> str:
    return f"llvm.call @{name}_{version.name}(%frame, %begin, %end) : (!llvm.ptr, i64, i64) -> ()"
