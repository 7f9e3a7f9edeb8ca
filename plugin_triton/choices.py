"""Which other block sizes of a kernel are worth timing, by a simple model of registers, shared memory and bytes moved."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from hub.toolkit.sizes import Size, is_static

from .blocks import Blocks, power_of_two

CHOICES = 16
"""Sizes of one kernel that are timed: those that move least, and of these those that keep a GPU busiest."""
WARPS = (1, 2, 4, 8, 16)
STAGES = (2, 3, 4)
_HELD_BYTES = 512
"""Of tiles that a thread holds at most: half of its 255 registers, the others are for places and what is on the way."""
_MOVED = 1.5
"""Times as many bytes as the sizes that move least that others may move."""


@dataclass(frozen=True)
class Tile:
    """A part of memory, or of a result, as large as some blocks together."""

    blocks: tuple[str, ...]
    itemsize: int
    """Bytes of an element."""

    def nbytes(self, sizes: Mapping[str, int]) -> int:
        """Return its bytes."""
        return math.prod(sizes[name] for name in self.blocks) * self.itemsize


@dataclass(frozen=True)
class Tiling:
    """What a kernel does with its blocks: enough to say which sizes cannot be good."""

    outer: Mapping[str, Size] = field(default_factory=dict[str, Size])
    """Block -> elements that programs share out in such blocks."""
    inner: Mapping[str, Size] = field(default_factory=dict[str, Size])
    """Block -> elements that each program walks over in such blocks. What is in neither keeps its size."""
    held: tuple[Tile, ...] = ()
    """What a program keeps in registers."""
    staged: tuple[Tile, ...] = ()
    """What a program reads at each step, through shared memory: as many steps ahead as there are stages."""
    least: int = 1
    """Smallest block."""


@dataclass(frozen=True)
class Limits:
    """What one multiprocessor of a GPU has."""

    shared: int = 232448
    """Bytes of shared memory for one program. The defaults are an H100's (compute capability 9.0)."""
    shared_in_all: int = 233472
    registers: int = 65536
    """Of 32 bits."""
    threads: int = 2048


def choices_of(default: Blocks, tiling: Tiling, limits: Limits) -> tuple[Blocks, ...]:
    """Return blocks that are worth timing, the default first: neighbours of it that fit, move little and leave few idle."""
    fitting = [each for each in _neighbours(default, tiling) if each != default and _programs(each, tiling, limits)]
    moved = {place: _moved(each, tiling) for place, each in enumerate(fitting)}
    least = min([*moved.values(), _moved(default, tiling)])
    frugal = [place for place in moved if moved[place] <= least * _MOVED]
    frugal.sort(key=lambda place: (moved[place], -_programs(fitting[place], tiling, limits) * fitting[place].warps))
    return (default, *(fitting[place] for place in frugal[: CHOICES - 1]))


def smaller_than(blocks: Blocks, tiling: Tiling, limits: Limits, needed: int) -> Blocks | None:
    """Return the next choice after blocks with which a kernel needed so many bytes of shared memory; None after the last.

    The largest of those that should fit, as the bytes fall with what is staged; where none should, the smallest one.
    """
    weight = _weight(blocks, tiling)
    others = [
        each
        for each in _neighbours(blocks, tiling)
        if each.warps == blocks.warps
        and all(size <= blocks.sizes[name] for name, size in each.sizes.items())
        and _weight(each, tiling) < weight
    ]
    enough = [each for each in others if _weight(each, tiling) * needed <= weight * limits.shared]
    if enough:
        return max(enough, key=lambda each: (_weight(each, tiling), math.prod(each.sizes.values())))
    return min(others, key=lambda each: _weight(each, tiling), default=None)


def _weight(blocks: Blocks, tiling: Tiling) -> int:
    """Return what shared memory grows with."""
    staged = sum(tile.nbytes(blocks.sizes) for tile in tiling.staged) * blocks.stages
    return staged or math.prod(blocks.sizes.values())


def _neighbours(default: Blocks, tiling: Tiling) -> Iterator[Blocks]:
    """Return blocks of which each is a half, once, or twice the default's, with other warps and stages."""
    free = {**tiling.outer, **tiling.inner}
    ranges = {
        name: [each for each in (size // 2, size, size * 2) if tiling.least <= each <= _end(free[name], size)]
        for name, size in default.sizes.items()
        if name in free
    }
    warps = [each for each in WARPS if default.warps // 2 <= each <= default.warps * 2]
    stages = STAGES if tiling.staged else (default.stages,)
    for sizes in itertools.product(*ranges.values()):
        chosen = {**default.sizes, **dict(zip(ranges, sizes, strict=True))}
        for warp, stage in itertools.product(warps, stages):
            yield replace(default, sizes=chosen, warps=warp, stages=stage)


def _end(size: Size, default: int) -> int:
    return max(default, power_of_two(size)) if is_static(size) else default * 2


def _programs(blocks: Blocks, tiling: Tiling, limits: Limits) -> int:
    """Return how many programs a multiprocessor runs at once; 0 where one does not fit."""
    threads = 32 * blocks.warps
    held = sum(tile.nbytes(blocks.sizes) for tile in tiling.held)
    staged = sum(tile.nbytes(blocks.sizes) for tile in tiling.staged) * blocks.stages
    if held > _HELD_BYTES * threads or staged > limits.shared or threads > limits.threads:
        return 0
    by_registers = 4 * limits.registers // (2 * max(held, 64 * threads))
    by_memory = limits.shared_in_all // staged if staged else by_registers
    return max(1, min(by_registers, by_memory, limits.threads // threads))


def _moved(blocks: Blocks, tiling: Tiling) -> float:
    """Return the bytes that all programs read, as far as block sizes change them; 1 where sizes are symbolic."""
    extents = {**tiling.outer, **tiling.inner}
    if not tiling.staged or not all(map(is_static, extents.values())):
        return 1.0
    steps = math.prod(-(-int(extents[name]) // blocks.sizes[name]) for name in extents)
    return float(steps * sum(tile.nbytes(blocks.sizes) for tile in tiling.staged))


def tiling_of(kind: str, rows: Size, columns: Size) -> Tiling:
    """Return what a kernel of one group does with its blocks; it holds two tiles of 32 bits at a time, say."""
    if kind == "pointwise":
        return Tiling({"XBLOCK": rows}, held=(Tile(("XBLOCK",), 8),))
    held = (Tile(("XBLOCK", "RBLOCK"), 8),)
    return Tiling({"XBLOCK": rows}, {} if kind == "persistent" else {"RBLOCK": columns}, held)
