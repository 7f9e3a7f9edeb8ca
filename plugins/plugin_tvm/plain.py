"""Default schedules of untuned kernels: loops in order, parallel if there is enough work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

LARGE = 1 << 15
"""Number of elementwise functions from which a kernel runs in parallel: for fewer, waking the threads costs more."""


def alone(function: Any) -> Any:
    """Return a kernel as a module of its own, under a fixed name, so that equal kernels are equal modules."""
    import tvm

    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def plain(function: Any, threads: int) -> Any:
    """Return a kernel with its default schedule."""
    if not has_root(function):
        return function
    return plain_schedule(alone(function), threads).mod["main"].without_attr("global_symbol")


def plain_schedule(module: Any, threads: int) -> Any:
    """Return the default schedule of a kernel's module: outer loops run in parallel, inner ones are fused if possible."""
    from tvm import s_tir

    schedule = s_tir.Schedule(module)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        _order(schedule, block, threads)
    return schedule


def has_root(function: Any) -> bool:
    """Return whether a kernel's loops can be scheduled; False for a scan, one block whose loops are already parallel."""
    return str(function.body.block.name_hint) == "root"


def _order(schedule: Any, block: Any, threads: int) -> None:
    """Schedule the outermost loops of one block."""
    loops = schedule.get_loops(block)
    kinds = [int(variable.iter_type) for variable in schedule.get(block).iter_vars]
    if not loops or len(loops) != len(kinds):
        return
    outer = next((place for place, kind in enumerate(kinds) if kind != 0), len(kinds))  # 0: independent of the order
    extents = [_extent(schedule, loop) for loop in loops]
    inner = _inner(schedule, block, loops, extents) if outer == len(loops) else 1
    first = max(0, outer - inner)
    if inner > 1:
        loops[first:outer] = [schedule.fuse(*loops[first:outer])]
    if outer and threads > 1 and math.prod(extents) >= LARGE:
        shared = loops[: max(1, first)]
        schedule.parallel(schedule.fuse(*shared) if len(shared) > 1 else shared[0])


def _inner(schedule: Any, block: Any, loops: Sequence[Any], extents: Sequence[int]) -> int:
    """Return the number of inner loops that visit memory as one fused loop would: rows that are contiguous."""
    found = schedule.get(block)
    variables = [variable.var for variable in found.iter_vars]
    regions = [*found.reads, *found.writes]
    count = 1
    while count < len(loops) and all(
        _follow(region, variables[-count - 1], variables[-count], extents[-count]) for region in regions
    ):
        count += 1
    return count


def _follow(region: Any, row: Any, place: Any, length: int) -> bool:
    """Return whether two loops visit a region row by row, or neither is used in it."""
    where = [part.min for part in region.region]
    dims = [dim for dim, index in enumerate(where) if _uses(index, row) or _uses(index, place)]
    if not dims:
        return True
    if len(dims) != 2 or not where[dims[0]].same_as(row) or not where[dims[1]].same_as(place):
        return False
    sizes = [int(getattr(size, "value", 0)) for size in region.source.shape]
    row_step, step = (math.prod(sizes[dim + 1 :]) for dim in dims)
    return row_step == length * step > 0


def _uses(expression: Any, variable: Any) -> bool:
    from tvm.tirx.analysis import undefined_vars

    return any(found.same_as(variable) for found in undefined_vars(expression))


def _extent(schedule: Any, loop: Any) -> int:
    extent = schedule.get(loop).extent
    return int(extent.value) if hasattr(extent, "value") else LARGE
