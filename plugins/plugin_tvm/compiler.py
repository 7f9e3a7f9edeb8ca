"""Compiles a Relax module: tuned kernels from a database, plain schedules for the others, then machine code."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LARGE = 1 << 15
"""Functions of elements from which on a kernel is shared between threads: below, waking them costs more."""

Schedules = Callable[[Any], "Any | None"]
"""Gives the scheduled function for a kernel's module, as tuning found it; None where it was not tuned."""


@dataclass(frozen=True)
class Built:
    """Machine code, and the programs that it came from as text."""

    executable: Any
    scheduled: str
    tuned: int
    """Kernels that tuning had found a schedule for."""
    kernels: int


def built(module: Any, target: Any, *, threads: int, tuned: Schedules | None = None) -> Built:
    """Compiles a module for a target. Raises whatever TVM raises."""
    import tvm
    from tvm import relax
    from tvm.relax.backend.cpu_generic import pipeline

    found = 0
    names = kernel_names(module)
    for name in names:
        function = module[name]
        schedule = tuned(alone(function)) if tuned is not None else None
        found += schedule is not None
        module.update_func(name, schedule if schedule is not None else plain(function, threads))
    text = module.script()
    with target, tvm.transform.PassContext(opt_level=3):
        passes = [*_lowering(), *pipeline.finalize_passes(target)]
        lowered = tvm.transform.Sequential(passes)(module)
        executable = relax.build(lowered, target, relax_pipeline=None)
    return Built(executable, text, found, len(names))


def _lowering() -> list[Any]:
    """Gives the pipeline's passes less `RewriteDataflowReshape`, which makes two tensors of one memory of every copy."""
    from tvm.relax import transform

    return [transform.ToNonDataflow(), transform.RemovePurityChecking(), transform.CallTIRRewrite()]


def kernel_names(module: Any) -> list[Any]:
    """Gives the kernels of a module, in order of their names."""
    from tvm import tirx

    names = [name for name, function in module.functions.items() if isinstance(function, tirx.PrimFunc)]
    return sorted(names, key=lambda name: str(name.name_hint))


def alone(function: Any) -> Any:
    """Gives a kernel as a module of its own, under one name, so that equal kernels are equal modules."""
    import tvm

    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


# --- Kernels that nobody tuned ------------------------------------------------------------------------------------------


def plain(function: Any, threads: int) -> Any:
    """Gives a kernel whose outermost loops are shared between threads, where there is enough to do."""
    from tvm import s_tir

    if threads == 1 or not has_root(function):
        return function
    schedule = s_tir.Schedule(alone(function))
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        _share(schedule, block)
    scheduled = schedule.mod["main"]
    return scheduled.without_attr("global_symbol")


def has_root(function: Any) -> bool:
    """False for a scan: one block is all of it, whose loops are inside and shared already."""
    return str(function.body.block.name_hint) == "root"


def _share(schedule: Any, block: Any) -> None:
    """Shares the loops of one block that lie around all others."""
    loops = schedule.get_loops(block)
    kinds = [int(variable.iter_type) for variable in schedule.get(block).iter_vars]
    if not loops or len(loops) != len(kinds):
        return
    outer = next((place for place, kind in enumerate(kinds) if kind != 0), len(kinds))  # 0: nothing depends on the order
    extents = [_extent(schedule, loop) for loop in loops]
    work = math.prod(extents)
    if outer == 0 or work < LARGE:
        return
    shared = loops[: max(1, outer - 1)]
    schedule.parallel(schedule.fuse(*shared) if len(shared) > 1 else shared[0])


def _extent(schedule: Any, loop: Any) -> int:
    extent = schedule.get(loop).extent
    return int(extent.value) if hasattr(extent, "value") else LARGE
