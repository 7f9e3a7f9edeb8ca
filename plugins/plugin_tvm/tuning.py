"""Searches for schedules of kernels with MetaSchedule, the most expensive kernel first, until a budget is spent."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from hub.plugin import Peaks
from plugin_tvm.compiler import calls_in
from plugin_tvm.database import FAILED_S, Database
from plugin_tvm.plain import alone, has_root, plain_schedule

BATCH = 16
"""Number of schedules that are measured between two checks of the clock."""
NAIVE_S = 5e-10
"""Seconds of one step of a product's default loops: 1.8e9 of them take 0.88 s (a BERT of 2 layers, 2 cores, 2026-11)."""
MEASURED_S = 0.01
"""Seconds for which each schedule runs."""
HOPELESS = 8.0
"""Ratio to the best schedule's time from which a schedule is not measured further."""
WEARY = 3
"""Number of batches without a gain after which a kernel waits for all others."""
GAIN = 0.98
NEAR = 2.0
"""Ratio to the lower bound within which a kernel is not tuned further."""
CALL_S = 3e-6
"""Seconds of one kernel's call that no schedule can reduce."""
DEAR_S = 2e-4
"""Seconds from which an untuned kernel makes an estimate impossible."""


@dataclass
class Task:
    """One kernel to tune."""

    name: str
    module: Any
    count: int
    """Number of times that the model runs it."""
    steps: float
    """Number of steps of its loops."""
    least_s: float = 0.0
    """Lower bound on its time, in seconds."""
    best_s: float = math.inf
    trials: int = 0
    idle: int = 0
    """Number of batches since its last gain."""
    is_stuck: bool = False
    """True if TVM cannot search for schedules of it."""
    problem: str = ""
    """First error of the last batch."""
    model: Any = field(default=None, repr=False)

    @property
    def price_s(self) -> float:
        """Seconds that the model spends in it, as far as known."""
        return self.count * (self.best_s if math.isfinite(self.best_s) else self.steps * NAIVE_S)

    @property
    def hope_s(self) -> float:
        """Largest number of seconds of the model that a better schedule could save; 0 if the best is near the bound."""
        is_near = self.best_s < NEAR * self.least_s + CALL_S
        return 0.0 if is_near else self.price_s - self.count * self.least_s


def tasks_of(modules: Iterable[Any]) -> list[Task]:
    """Return the kernels of some Relax modules that can be tuned, each structure once."""
    found: dict[str, Task] = {}
    for module in modules:
        for name, count in calls_in(module).items():
            kernel = alone(module[name])
            steps = steps_of(kernel)
            if steps is None:
                continue
            text = kernel.script()
            if text in found:
                found[text].count += count
            else:
                found[text] = Task(str(name.name_hint), kernel, count, steps)
    return list(found.values())


def steps_of(kernel: Any) -> float | None:
    """Return the number of steps of a kernel's loops; None if a size is symbolic or its loops cannot be scheduled."""
    from plugin_tvm.library import s_tir

    if not has_root(kernel["main"]):
        return None
    schedule = s_tir.Schedule(kernel)
    total = 0.0
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        extents = [schedule.get(loop).extent for loop in schedule.get_loops(block)]
        if not schedule.get(block).iter_vars and extents == []:
            return None
        if not all(hasattr(extent, "value") for extent in extents):
            return None
        total += math.prod(int(extent.value) for extent in extents)
    return total or None


def bounded(tasks: Sequence[Task], limits: Peaks) -> Sequence[Task]:
    """Return the tasks with lower bounds on their times, in seconds."""
    return [replace(task, least_s=_least_s(task.module, task.steps, limits)) for task in tasks]


def _least_s(kernel: Any, steps: float, limits: Peaks) -> float:
    """Return a lower bound in seconds: at peak FLOPS for sums, at peak memory bandwidth for other kernels."""
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    from plugin_tvm.library import s_tir

    schedule = s_tir.Schedule(kernel)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    if any(int(variable.iter_type) != 0 for block in blocks for variable in schedule.get(block).iter_vars):
        return 2 * steps / limits.flops_s
    found: Any = ArgInfo.from_prim_func(kernel["main"])
    return sum(math.prod(map(int, info.shape)) * info.dtype.itemsize for info in found) / limits.bytes_s


def tune(
    tasks: Sequence[Task],
    target: Any,
    database: Database,
    *,
    budget_s: float,
    threads: int,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Tune kernels until the budget is spent; results are in the database after each batch."""
    end_s = clock() + budget_s
    for task in tasks:
        kept = database.best(task.module)
        if kept is None and clock() < end_s:
            _measure_plain(task, target, database, threads)
            kept = database.best(task.module)
        if kept is not None:
            task.best_s = kept.run_s
    while clock() < end_s and (task := next_task(tasks)) is not None:
        before_s = task.best_s
        _tune_batch(task, target, database, threads)
        task.idle = 0 if task.best_s < before_s * GAIN else task.idle + 1
        say(
            f"{task.name}: {shown(task.best_s)} after {task.trials} schedules; model {shown(sum(t.price_s for t in tasks))}"
        )


def next_task(tasks: Sequence[Task]) -> Task | None:
    """Return the next kernel to tune: an untried one, else that with the largest possible saving; None if there is none."""
    able = [task for task in tasks if not task.is_stuck and task.hope_s > 0]
    if not able:
        return None
    untried = [task for task in able if task.trials == 0 and not math.isfinite(task.best_s)]
    eager = untried or [task for task in able if task.idle < WEARY] or able
    return max(eager, key=lambda task: task.hope_s / (1 + task.idle))


def _measure_plain(task: Task, target: Any, database: Database, threads: int) -> None:
    """Measure the default schedule of a kernel: for elementwise functions there is often none better."""
    from plugin_tvm.measuring import measured

    try:
        schedule = plain_schedule(task.module, threads)
        database.keep(task.module, schedule.trace, measured(schedule.mod, target, threads, MEASURED_S))
    except Exception as error:  # noqa: BLE001 - an exception of TVM costs only this kernel
        task.problem = f"{type(error).__name__}: {error}"


def _tune_batch(task: Task, target: Any, database: Database, threads: int) -> None:
    """Measure some schedules of one kernel. An exception of TVM costs only this kernel."""
    from tvm.s_tir.meta_schedule.tune import tune_tasks

    from plugin_tvm.library import meta_schedule as ms
    from plugin_tvm.measuring import measurer

    try:
        task.model = task.model or ms.CostModel.create("xgb", num_tuning_cores=threads, tree_method="auto")
        strategy = ms.search_strategy.EvolutionarySearch(
            population_size=64, init_measured_ratio=0.3, init_min_unmeasured=BATCH, max_fail_count=4, genetic_num_iters=2
        )
        with _without_intrinsics():
            context = ms.TuneContext(
                mod=task.module,
                target=target,
                space_generator=_space(),
                search_strategy=strategy,
                task_name=task.name,
                num_threads=threads,
            ).clone()
        builder, runner, problems = measurer(threads, task.best_s * HOPELESS, MEASURED_S)
        tune_tasks(
            tasks=[context],
            task_weights=[1.0],
            work_dir=str(database.folder(task.module)),
            max_trials_global=BATCH,
            num_trials_per_iter=BATCH,
            builder=builder,
            runner=runner,
            database=database.opened(task.module),
            cost_model=task.model,
            measure_callbacks=[ms.measure_callback.AddToDatabase(), ms.measure_callback.UpdateCostModel()],
        )
        task.problem = problems[0] if problems else ""
    except Exception as error:  # noqa: BLE001 - TVM raises anything for kernels that its rules do not fit
        task.is_stuck, task.problem = True, f"{type(error).__name__}: {error}"
    task.trials += BATCH
    kept = database.best(task.module)
    if kept is None:
        task.is_stuck = True
    elif kept.run_s < FAILED_S:
        task.best_s = min(task.best_s, kept.run_s)


_INTRINSICS = "tvm.s_tir.tensor_intrin"


@contextmanager
def _without_intrinsics() -> Generator[None]:
    """Keep MetaSchedule from importing tensor intrinsics, which takes minutes (TVM 0.27 parses all of CUDA's).

    On CPUs they only serve int8 products, which do not occur here.
    """
    is_there = _INTRINSICS in sys.modules
    sys.modules.setdefault(_INTRINSICS, ModuleType(_INTRINSICS))
    try:
        yield
    finally:
        if not is_there:
            del sys.modules[_INTRINSICS]


def _space() -> Any:
    """Return the rules that all CPUs share; those for AVX-512 differ in int8 products."""
    from plugin_tvm.library import meta_schedule as ms

    return ms.space_generator.PostOrderApply(sch_rules="llvm", postprocs="llvm", mutator_probs="llvm")


def price_s(tasks: Sequence[Task], database: Database) -> float | None:
    """Return the seconds of a model's kernels as tuning measured them; None if an expensive one was not tuned."""
    total_s = 0.0
    for task in tasks:
        kept = database.best(task.module)
        if kept is None and task.steps * NAIVE_S > DEAR_S:
            return None
        total_s += task.count * (task.steps * NAIVE_S if kept is None else kept.run_s)
    return total_s


def summary(tasks: Sequence[Task]) -> str:
    """Return the results of tuning as one line."""
    done = [task for task in tasks if math.isfinite(task.best_s)]
    trials = sum(task.trials for task in tasks)
    price = shown(sum(task.price_s for task in tasks))
    text = f"{len(done)} of {len(tasks)} kernels tuned, {trials} schedules tried; the model's kernels take {price}"
    problem = next((f"{task.name}: {task.problem[:200]}" for task in tasks if task.is_stuck and task.problem), "")
    return f"{text}; no schedule for {problem}" if problem else text


def shown(seconds: float) -> str:
    """Return seconds as milliseconds."""
    return f"{seconds * 1e3:.3g} ms" if math.isfinite(seconds) else "nothing yet"
