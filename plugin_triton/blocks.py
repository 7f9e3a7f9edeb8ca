"""Block sizes and warps of a kernel, by rules: how much one program computes. See `choices` for other sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from hub.toolkit.sizes import Size, is_static

TILE = 4096
"""Number of elements of a tile of a reducing kernel: 32 for each thread of 4 warps."""
POINTWISE = 1024
INTERPRETED = 1 << 18
"""Number of elements of a tile in the interpreter, where a program costs milliseconds and an element next to nothing."""


@dataclass(frozen=True)
class Blocks:
    """Block sizes by name, the number of warps of 32 threads, and the number of pipeline stages."""

    sizes: Mapping[str, int]
    warps: int = 4
    stages: int = 3

    def to_json(self) -> str:
        """Return the JSON form."""
        return json.dumps({"sizes": dict(self.sizes), "warps": self.warps, "stages": self.stages})

    @classmethod
    def from_json(cls, text: str) -> Blocks:
        """Parse the JSON form. Raise ValueError, KeyError or TypeError for anything else."""
        found = json.loads(text)
        sizes = {str(name): int(size) for name, size in found["sizes"].items()}
        return cls(sizes, int(found["warps"]), int(found["stages"]))


def blocks_of(kind: str, rows: Size, columns: Size, *, is_down: bool, is_interpreted: bool) -> Blocks:
    """Return the blocks of a kernel of one group: `rows` elements along x, `columns` along r.

    `is_down` is True if neighbours in memory lie along x.
    """
    if kind == "pointwise":
        return Blocks({"XBLOCK": _within(rows, INTERPRETED if is_interpreted else POINTWISE)})
    tile = INTERPRETED if is_interpreted else TILE
    if kind == "persistent":
        columns_block = power_of_two(columns)
        at_most = max(1, tile // columns_block)
        return Blocks({"XBLOCK": _within(rows, at_most), "RBLOCK": columns_block}, warps=_warps(columns_block))
    if is_down:
        return Blocks({"XBLOCK": _within(rows, 512 if is_interpreted else 64), "RBLOCK": 512 if is_interpreted else 64})
    wide = 16384 if is_interpreted else 2048
    return Blocks({"XBLOCK": _within(rows, max(1, tile // wide)), "RBLOCK": wide}, warps=8)


def power_of_two(size: int) -> int:
    """Return the smallest power of two that is at least a size."""
    return 1 << max(0, size - 1).bit_length()


def _within(size: Size, most: int) -> int:
    return min(most, power_of_two(max(1, size))) if is_static(size) else most


def _warps(columns: int) -> int:
    return 4 if columns <= 2048 else 8 if columns <= 8192 else 16
