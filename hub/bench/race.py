"""Runs contenders against each other: each in its own process, blocks of calls interleaved."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hub.bench.contenders import Contender
from hub.bench.prepared import Prepared
from hub.bench.result import Interval, Result
from hub.compilation.channel import Worker
from hub.errors import HubError
from hub.pricing.timing import median
from hub.report.progress import Progress

BLOCK_S = 0.2
"""Seconds of one block: tens of calls for most models, short against the slow phases of a shared machine."""
SETTLE_S = 0.1
"""Seconds between blocks: thread pools spin on after their last call, some for tens of milliseconds."""
PREPARE_LIMIT_S = 1800.0
"""Seconds that building one contender may take; full tuning of a large model takes minutes."""
BLOCK_LIMIT_S = 300.0
TOLERANCE = 1e-3
"""Largest max|error| / max|reference| with which a contender counts, unless the user allows more."""


@dataclass(frozen=True, slots=True)
class Task:
    """What every contender has to do."""

    model: str
    batch: int | None = None
    given: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options for the hub."""
    threads: int | None = None
    accuracy: float | None = None
    rounds: int = 15
    block_s: float = BLOCK_S
    small: bool = False


@dataclass(slots=True)
class _Runner:
    """One contender under way."""

    contender: Contender
    worker: Worker
    prepared: Prepared | None = None
    blocks_s: list[float] = field(default_factory=list[float])
    calls: int = 0
    failure: str = ""

    def fail(self, reason: str) -> None:
        self.failure = reason
        self.worker.kill()


@dataclass(frozen=True, slots=True)
class Race:
    """What came out."""

    results: tuple[Result, ...]
    """In the order of the contenders."""
    inputs: tuple[str, ...]
    threads: int


def race(contenders: Sequence[Contender], task: Task, progress: Progress) -> Race:
    """Times all contenders on one task. A contender that fails is in the results with its reason.

    They are prepared one after the other, because the hub measures while it plans.
    """
    with tempfile.TemporaryDirectory(prefix="hub-bench-") as folder, _runners(contenders, task, Path(folder)) as runners:
        progress.stage("building", len(contenders))
        for runner in runners:
            progress.advance(runner.contender.name)
            _prepare(runner, task)
        progress.stage("timing", task.rounds)
        for number in range(task.rounds):
            progress.advance()
            for runner in _rotated([one for one in runners if not one.failure], number):
                _time_block(runner, task.block_s)
        progress.done()
        ready = next((one.prepared for one in runners if one.prepared), None)
        return Race(
            tuple(map(_result, runners)), ready.inputs if ready else (), ready.threads if ready else task.threads or 0
        )


@contextlib.contextmanager
def _runners(contenders: Sequence[Contender], task: Task, folder: Path) -> Generator[list[_Runner]]:
    """Starts a process a contender, and ends them all, with their children, whatever happens."""
    environment = {} if task.threads is None else {"OMP_NUM_THREADS": str(task.threads)}
    runners: list[_Runner] = []
    try:
        for number, contender in enumerate(contenders):
            worker = Worker("hub.bench.worker", folder / f"{number}.log", environment=environment)
            runners.append(_Runner(contender, worker))
        yield runners
    finally:
        for runner in runners:
            runner.worker.kill()


def _prepare(runner: _Runner, task: Task) -> None:
    if runner.contender.unavailable:
        runner.fail(runner.contender.unavailable)
        return
    request = {"model": task.model, "batch": task.batch, "given": task.given, "threads": task.threads, "small": task.small}
    try:
        prepared: Prepared = runner.worker.ask("prepare", PREPARE_LIMIT_S, contender=runner.contender, **request)
    except HubError as error:
        runner.fail(error.message)
        return
    runner.prepared = prepared
    allowed = max(TOLERANCE, task.accuracy or 0.0)
    if prepared.relative_error > allowed:
        runner.fail(f"wrong by {prepared.relative_error:.1e} of the largest value, {allowed:.0e} allowed")


def _time_block(runner: _Runner, block_s: float) -> None:
    time.sleep(SETTLE_S)
    try:
        samples_s: Sequence[float] = runner.worker.ask("block", BLOCK_LIMIT_S, at_least_s=block_s)
    except HubError as error:
        runner.fail(error.message)
        return
    runner.blocks_s.append(median(samples_s))
    runner.calls += len(samples_s)


def _rotated(runners: Sequence[_Runner], by: int) -> list[_Runner]:
    """Turns the order from round to round, so that nobody always follows the same neighbour."""
    start = by % len(runners) if runners else 0
    return [*runners[start:], *runners[:start]]


def _result(runner: _Runner) -> Result:
    facts = runner.prepared
    numbers = (
        {}
        if facts is None
        else {key: getattr(facts, key) for key in ("first_call_s", "max_abs_error", "relative_error", "peak_bytes", "note")}
    )
    if runner.failure:
        return Result(name=runner.contender.name, failure=runner.failure, **numbers)
    blocks_s = tuple(runner.blocks_s)
    return Result(
        name=runner.contender.name, blocks_s=blocks_s, call_s=Interval.of(blocks_s), calls=runner.calls, **numbers
    )
