"""Builds and times schedules in this process: MetaSchedule's own workers import TVM and PyTorch again for every batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from tvm import tirx
from tvm.ir.utils import derived_object
from tvm.runtime import cpu
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder
from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerResult

from plugin_tvm.pool import use_threads
from plugin_tvm.runtime import array

_numbers = itertools.count()


@derived_object
class _Done(PyRunnerFuture):
    """A finished measurement."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.found = result

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return self.found


@derived_object
class _Builder(PyBuilder):
    """Builder that compiles and keeps the code in memory."""

    def __init__(self, built: dict[str, Any], problems: list[str]) -> None:
        super().__init__()
        self.built, self.problems = built, problems

    def build(self, build_inputs: Any) -> list[Any]:
        return [self.made(given) for given in build_inputs]

    def made(self, given: Any) -> Any:
        name = f"kernel{next(_numbers)}"
        try:
            self.built[name] = tirx.build(given.mod, target=given.target)
        except Exception as error:  # noqa: BLE001 - a schedule that TVM cannot compile counts as failed
            self.problems.append(f"{type(error).__name__}: {error}")
            return BuilderResult(None, self.problems[-1])
        return BuilderResult(name, None)


@derived_object
class _Runner(PyRunner):
    """Runner that times compiled kernels."""

    def __init__(self, built: dict[str, Any], problems: list[str], threads: int, limit_s: float, measured_s: float) -> None:
        super().__init__()
        self.built, self.problems = built, problems
        self.threads, self.limit_s, self.measured_s = threads, limit_s, measured_s

    def run(self, runner_inputs: Any) -> list[Any]:
        use_threads(self.threads)
        return [_Done(self.timed(given)) for given in runner_inputs]

    def timed(self, given: Any) -> Any:
        library = self.built.pop(str(given.artifact_path))
        try:
            return RunnerResult([seconds_of(library, given.args_info, self.limit_s, self.measured_s)], None)
        except Exception as error:  # noqa: BLE001 - as above
            self.problems.append(f"{type(error).__name__}: {error}")
            return RunnerResult(None, self.problems[-1])


def seconds_of(library: Any, infos: Sequence[Any], limit_s: float, measured_s: float) -> float:
    """Return the least of three times of a kernel; only the first one if that exceeds a limit."""
    arguments = [_filled(info) for info in infos]
    once = float(library.time_evaluator("main", cpu(), number=1, repeat=1)(*arguments).results[0])
    if once > limit_s:
        return once
    number = max(1, min(1000, math.ceil(measured_s / 3 / max(once, 1e-7))))
    return float(min(library.time_evaluator("main", cpu(), number=number, repeat=3)(*arguments).results))


def measured(module: Any, target: Any, threads: int, measured_s: float) -> float:
    """Return the seconds of a scheduled kernel. Any exception of TVM propagates."""
    use_threads(threads)
    library = tirx.build(module, target=target)
    return seconds_of(library, ArgInfo.from_prim_func(module["main"]), measured_s, measured_s)


def _filled(info: Any) -> Any:
    """Return an argument: ones, or zeros if the elements may be indices."""
    dtype = getattr(torch, str(info.dtype).rpartition(".")[2])  # TVM 0.27 shows "T.float32" here, and "float32" elsewhere
    make = torch.ones if dtype.is_floating_point else torch.zeros
    return array(make(tuple(int(size) for size in info.shape), dtype=dtype))


def measurer(threads: int, limit_s: float, measured_s: float) -> tuple[Any, Any, list[str]]:
    """Return a builder and a runner that share compiled kernels, and a list that they fill with errors.

    A schedule that takes longer than a limit is run only once.
    """
    built: dict[str, Any] = {}
    problems: list[str] = []
    return _Builder(built, problems), _Runner(built, problems, threads, limit_s, measured_s), problems
