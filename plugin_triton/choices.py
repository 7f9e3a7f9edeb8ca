"""The block sizes of a kernel that are worth timing, by a simple model of registers, shared memory and bytes moved."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from hub.toolkit.sizes import Size, is_static

from .blocks import Blocks, power_of_two

CHOICES = 16
"""Number of choices of one kernel that are timed: those that move the fewest bytes, and of these the busiest on a GPU."""
WARPS = (1, 2, 4, 8, 16)
STAGES = (2, 3, 4)
_HELD_BYTES = 512
"""Most bytes of tiles per thread: half of its 255 registers; the others are for offsets and intermediate values."""
_MOVED = 1.5
"""Most bytes that a timed choice may move, as a multiple of the fewest that any choice moves."""


@dataclass(frozen=True)
class Tile:
    """A part of memory, or of a result, whose dims are some of the blocks."""

    blocks: tuple[str, ...]
    itemsize: int
    """Bytes of an element."""

    def nbytes(self, sizes: Mapping[str, int]) -> int:
        """Return its size in bytes."""
        return math.prod(sizes[name] for name in self.blocks) * self.itemsize


@dataclass(frozen=True)
class Tiling:
    """How a kernel uses its blocks: enough to exclude sizes that cannot be good."""

    outer: Mapping[str, Size] = field(default_factory=dict[str, Size])
    """Block -> number of elements that are divided among programs in such blocks."""
    inner: Mapping[str, Size] = field(default_factory=dict[str, Size])
    """Block -> number of elements that each program loops over in such blocks. Blocks in neither mapping are fixed."""
    held: tuple[Tile, ...] = ()
    """The tiles that a program keeps in registers."""
    staged: tuple[Tile, ...] = ()
    """The tiles that a program reads in each step, through shared memory: as many steps ahead as there are stages."""
    least: int = 1
    """The smallest block size."""


@dataclass(frozen=True)
class Limits:
    """The resources of one multiprocessor of a GPU."""

    shared: int = 232448
    """Bytes of shared memory for one program. The defaults are an H100's (compute capability 9.0)."""
    shared_in_all: int = 233472
    registers: int = 65536
    """Number of 32-bit registers."""
    threads: int = 2048


def choices_of(default: Blocks, tiling: Tiling, limits: Limits) -> tuple[Blocks, ...]:
    """Return blocks worth timing: the default, then its neighbours that fit, move few bytes and keep a GPU busy."""
    fitting = [each for each in _neighbours(default, tiling) if each != default and _programs(each, tiling, limits)]
    moved = {place: _moved(each, tiling) for place, each in enumerate(fitting)}
    least = min([*moved.values(), _moved(default, tiling)])
    frugal = [place for place in moved if moved[place] <= least * _MOVED]
    frugal.sort(key=lambda place: (moved[place], -_programs(fitting[place], tiling, limits) * fitting[place].warps))
    return (default, *(fitting[place] for place in frugal[: CHOICES - 1]))


def smaller_than(blocks: Blocks, tiling: Tiling, limits: Limits, needed: int) -> Blocks | None:
    """Return the next smaller blocks if a kernel `needed` too many bytes of shared memory; None after the smallest.

    They are the largest that should fit, if the bytes fall in proportion to the staged tiles; if none should, the smallest.
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
    """Return a number that shared memory is taken to be proportional to."""
    staged = sum(tile.nbytes(blocks.sizes) for tile in tiling.staged) * blocks.stages
    return staged or math.prod(blocks.sizes.values())


def _neighbours(default: Blocks, tiling: Tiling) -> Iterator[Blocks]:
    """Yield blocks with each size half, once or twice the default, and with other warps and stages."""
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
    """Return how many programs a multiprocessor runs at once; 0 if not even one fits."""
    threads = 32 * blocks.warps
    held = sum(tile.nbytes(blocks.sizes) for tile in tiling.held)
    staged = sum(tile.nbytes(blocks.sizes) for tile in tiling.staged) * blocks.stages
    if held > _HELD_BYTES * threads or staged > limits.shared or threads > limits.threads:
        return 0
    by_registers = 4 * limits.registers // (2 * max(held, 64 * threads))
    by_memory = limits.shared_in_all // staged if staged else by_registers
    return max(1, min(by_registers, by_memory, limits.threads // threads))


def _moved(blocks: Blocks, tiling: Tiling) -> float:
    """Return the bytes that all programs read, as far as block sizes change them; 1 if sizes are symbolic."""
    extents = {**tiling.outer, **tiling.inner}
    if not tiling.staged or not all(map(is_static, extents.values())):
        return 1.0
    steps = math.prod(-(-int(extents[name]) // blocks.sizes[name]) for name in extents)
    return float(steps * sum(tile.nbytes(blocks.sizes) for tile in tiling.staged))


def tiling_of(kind: str, rows: Size, columns: Size) -> Tiling:
    """Return how a kernel of one group uses its blocks, on the assumption that it holds two tiles of 32 bits at a time."""
    if kind == "pointwise":
        return Tiling({"XBLOCK": rows}, held=(Tile(("XBLOCK",), 8),))
    held = (Tile(("XBLOCK", "RBLOCK"), 8),)
    return Tiling({"XBLOCK": rows}, {} if kind == "persistent" else {"RBLOCK": columns}, held)
