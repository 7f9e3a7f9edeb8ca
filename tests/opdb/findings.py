"""Runs sample calls through the hub and through eager, many in one program, and finds the call behind a difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hub.errors import CaptureError, ConstantsRefused
from hub.frontend.ownership import captured_plans
from hub.plan import Event, Plan
from tests.opdb.calls import Call, joined
from tests.opdb.outcome import Outcome, difference, in_eager, perform

TOGETHER = 16
"""Calls in one program: capturing and planning a program costs much more than one more operator in it."""


HARMLESS = ("capture", "verify")
"""Stages at which a fallback is no plugin's fault: PyTorch cannot capture everything, and among equal elements `topk`, say,
may choose others than eager does, which is what executables are verified for."""

REFUSALS = (ConstantsRefused.__name__,)
"""What a plugin may find out only when it compiles: a program's constants are not its operators' to refuse."""


def is_fault(event: Event) -> bool:
    """Return True for an event that says a plugin failed at what it had accepted."""
    return event.kind in ("failed", "fallback") and event.stage not in HARMLESS and event.error not in REFUSALS


@dataclass(frozen=True, slots=True)
class Finding:
    """One call (or some that go wrong only in one program) of which the hub makes something else than eager."""

    call: str
    problem: str
    aot_eager: str = ""
    """What `torch.compile(backend="aot_eager")` makes wrong of it; empty where that is right, and the fault the hub's."""

    def __str__(self) -> str:
        whose = f"aot_eager fails too: {self.aot_eager}" if self.aot_eager else "aot_eager is right"
        return f"{self.call}: {self.problem} ({whose})"


class Examination:
    """An examination of calls one after the other, with counts of what reached the hub."""

    def __init__(self, options: Mapping[str, Any], *, alone: Callable[[Call], bool] = lambda _: False) -> None:
        """Set the hub's `options`. Calls that are `alone` get a program of their own: those that are known to differ."""
        self.options = dict(options)
        self.alone = alone
        self.calls = 0
        self._is_captured = False
        self.ran: Counter[str] = Counter()
        """Operators that each backend ran in the programs so far: none would mean that eager was compared with itself."""
        self.fallbacks: list[str] = []
        """What went wrong inside plugins, by the plans' own events; results are right all the same."""

    @property
    def bought(self) -> int:
        """Return how many operators backends ran, in total."""
        return self.ran.total()

    def findings(self, calls: Sequence[Call]) -> Iterator[Finding]:
        """Yield what the hub gets wrong in calls of one mode, with gradients or without."""
        apart = [call for call in calls if self.alone(call)]
        others = [call for call in calls if not self.alone(call)]
        self.calls += len(calls)
        for call in apart:
            yield from self._found([call])
        for start in range(0, len(others), TOGETHER):
            yield from self._found(others[start : start + TOGETHER])

    def _found(self, calls: Sequence[Call]) -> Iterator[Finding]:
        wanted = in_eager(calls)
        if isinstance(wanted, Exception) and len(calls) > 1:  # of one of them, and the others would not be looked at
            yield from self._halves(calls)
            return
        problem = compared(calls, lambda: self._by_the_hub(calls), wanted)
        if not problem:
            if not self._is_captured and len(calls) > 1:  # one call keeps Dynamo from capturing any, and eager ran them all
                yield from self._halves(calls)
            return
        if len(calls) == 1:
            yield Finding(str(calls[0]), problem, _by_aot_eager(calls, wanted))
            return
        parts = [*self._halves(calls)]
        yield from parts
        if not parts and not _by_aot_eager(calls, wanted):
            yield Finding(f"{calls[0]} and the {len(calls) - 1} calls after it, in one program", problem)

    def _halves(self, calls: Sequence[Call]) -> Iterator[Finding]:
        half = len(calls) // 2
        yield from self._found(calls[:half])
        yield from self._found(calls[half:])

    def _by_the_hub(self, calls: Sequence[Call]) -> Iterator[tuple[Outcome, ...] | Exception]:
        """Yield what two calls of one compiled program leave behind, both before either is checked."""
        compiled: Any = compile_with(joined(calls), backend="hub", options=self.options)
        yield from [perform(calls, compiled) for _ in range(2)]
        plans = _plans(compiled)
        self._is_captured = bool(plans)
        for cluster in (cluster for plan in plans for cluster in plan.clusters if cluster.backend != "eager"):
            self.ran[cluster.backend] += len(cluster.nodes)
        for event in (event for plan in plans for event in plan.events):
            if is_fault(event):
                self.fallbacks.append(f"{calls[0]}: {event.backend}: {event.stage}: {event.message}")


def _plans(compiled: Callable[..., Any]) -> tuple[Plan, ...]:
    """Return the plans in use; none if PyTorch captured nothing, which is PyTorch's concern."""
    try:
        return captured_plans(compiled)
    except CaptureError:
        return ()


def compile_with(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """Compile with nothing left from earlier programs."""
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False, **settings)


def compared(
    calls: Sequence[Call],
    run: Callable[[], Iterator[tuple[Outcome, ...] | Exception]],
    wanted: tuple[Outcome, ...] | Exception,
) -> str:
    """Return how the first run that differs is wrong about the calls; "" if all are as wanted."""
    return next(filter(None, (_difference(calls, got, wanted) for got in run())), "")


def _difference(
    calls: Sequence[Call], got: tuple[Outcome, ...] | Exception, wanted: tuple[Outcome, ...] | Exception
) -> str:
    if isinstance(wanted, Exception):
        if isinstance(got, type(wanted)):
            return ""
        return f"{_named(got) if isinstance(got, Exception) else 'no error'}, {_named(wanted)} expected"
    if isinstance(got, Exception):
        return _named(got)
    for call, mine, eager in zip(calls, got, wanted, strict=True):
        if problem := difference(call, mine, eager):
            return problem if len(calls) == 1 else f"{call}: {problem}"
    return ""


def _named(error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first:.200}"


def _by_aot_eager(calls: Sequence[Call], wanted: tuple[Outcome, ...] | Exception) -> str:
    compiled = compile_with(joined(calls), backend="aot_eager")
    return compared(calls, lambda: iter([perform(calls, compiled)]), wanted)
