"""Compiles a Relax module: tuned kernels from a database, plain schedules for the others, then machine code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from plugin_tvm.plain import alone, plain
from plugin_tvm.program import MAIN

Schedules = Callable[[Any], "Any | None"]
"""Function that returns tuning's scheduled function for a kernel's module; None if it was not tuned."""


@dataclass(frozen=True)
class Built:
    """Machine code, and its source programs as text."""

    executable: Any
    scheduled: str
    tuned: int
    """Number of kernels with a schedule from tuning."""
    kernels: int
    """Number of kernels that calls run."""


def built(module: Any, target: Any, *, threads: int, tuned: Schedules | None = None) -> Built:
    """Compile a module for a target. Any exception of TVM propagates."""
    from tvm.relax.backend.cpu_generic import pipeline

    from plugin_tvm.library import relax, tvm

    found = 0
    called = {str(name.name_hint) for name in calls_in(module)}
    for name in kernel_names(module):
        function = module[name]
        schedule = tuned(alone(function)) if tuned is not None else None
        found += schedule is not None and str(name.name_hint) in called
        module.update_func(name, schedule if schedule is not None else plain(function, threads))
    text = module.script()
    with target, tvm.transform.PassContext(opt_level=3):
        passes = [*_lowering(), *pipeline.finalize_passes(target)]
        lowered = tvm.transform.Sequential(passes)(module)
        executable = relax.build(lowered, target, relax_pipeline=None)
    return Built(executable, text, found, len(called))


def _lowering() -> list[Any]:
    """Return the pipeline's passes but `RewriteDataflowReshape`, which turns a copy into two tensors on one memory."""
    from tvm.relax import transform

    return [transform.ToNonDataflow(), transform.RemovePurityChecking(), transform.CallTIRRewrite()]


def kernel_names(module: Any) -> list[Any]:
    """Return the kernels of a module, sorted by name."""
    from plugin_tvm.library import tirx

    names = [name for name, function in module.functions.items() if isinstance(function, tirx.PrimFunc)]
    return sorted(names, key=lambda name: str(name.name_hint))


def calls_in(module: Any) -> Mapping[Any, int]:
    """Return the number of times that `main` calls each kernel."""
    found: dict[Any, int] = {}
    for block in module[MAIN].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if getattr(getattr(value, "op", None), "name", "") == "relax.call_tir":
                found[value.args[0]] = found.get(value.args[0], 0) + 1
    return found
