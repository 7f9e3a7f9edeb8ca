"""The split of a group's loops into numbered tasks and loops inside a task: divisions recover indices from the number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hub.toolkit.sizes import Size, ceil_div, is_static, plus, product

from .writer import Value, Writer

TASK_WORK = 4096
"""Number of elements that make a task worthwhile: about 1 us, a hundred times the cost of splitting its number."""

Loop = tuple[int, Size]
"""A loop and its size."""


@dataclass(frozen=True)
class Tasks:
    """Loops from outermost to innermost."""

    numbered: tuple[Loop, ...]
    """The loops of which each step is in one task; of the blocked loop, each block."""
    block: tuple[Loop, Size] | None
    """The numbered loop whose steps are split into blocks, and the number of steps in a block; None if there is none."""
    inside: tuple[Loop, ...]
    """The loops of which each task runs all steps."""

    @property
    def count(self) -> Size:
        """The number of tasks."""
        return product(size for _, size in self.numbered)


def tasks_of(loops: Sequence[Loop], work: Size, shared: int = -1) -> Tasks:
    """Return the tasks of loops whose innermost step computes `work` elements.

    If that number is symbolic, tasks split the steps of the loop at the place `shared`, by default the last one.
    """
    inside: list[Loop] = []
    outer = list(loops)
    if outer and not is_static(work):
        loop, size = outer[shared]
        steps = ceil_div(TASK_WORK, plus(work, 1))  # the work may be 0
        outer[shared] = (loop, ceil_div(size, steps))
        return Tasks(tuple(outer), ((loop, size), steps), ())
    while outer and is_static(work) and work < TASK_WORK:
        loop, size = outer[-1]
        if not is_static(size) or size * work > TASK_WORK:
            steps = ceil_div(TASK_WORK, max(work, 1))
            numbered = (*outer[:-1], (loop, ceil_div(size, steps)))
            return Tasks(numbered, ((loop, size), steps), tuple(inside))
        inside.insert(0, outer.pop())
        work = size * work
    return Tasks(tuple(outer), None, tuple(inside))


def run_tasks(writer: Writer, tasks: Tasks, values: dict[int, Value], task: Value, body: Callable[[], None]) -> None:
    """Write one task: set the value of each loop, and write the body in the loops inside the task."""
    for place, (loop, size) in reversed(list(enumerate(tasks.numbered))):
        if place == 0:
            values[loop] = task
        else:
            by = writer.number(size)
            values[loop] = writer.scalar("arith.remsi", task, by)
            task = writer.scalar("arith.divsi", task, by)
    zero = writer.number(0)
    ranges = [(loop, zero, writer.number(size)) for loop, size in tasks.inside]
    if tasks.block is not None:
        (loop, size), steps = tasks.block
        begin = writer.scalar("arith.muli", values[loop], writer.number(steps))
        end = writer.scalar("arith.addi", begin, writer.number(steps))
        ranges.insert(0, (loop, begin, writer.scalar("arith.minsi", end, writer.number(size))))
    _nested(writer, ranges, values, body)


def _nested(
    writer: Writer, ranges: Sequence[tuple[int, Value, Value]], values: dict[int, Value], body: Callable[[], None]
) -> None:
    if not ranges:
        body()
        return
    (loop, begin, end), *inner = ranges

    def step(index: Value, _: list[str]) -> list[str]:
        values[loop] = index
        _nested(writer, inner, values, body)
        return []

    writer.loop(begin, end, writer.number(1), [], step)
