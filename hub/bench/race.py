"""A race between contenders: each in its own process, with blocks of calls interleaved."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from hub.bench.contenders import HUB, Contender, backend_left_out
from hub.bench.prepared import Block, Prepared
from hub.bench.result import FailureKind, Interval, Result
from hub.errors import AccuracyError, CaptureError, HubError
from hub.pricing.timing import in_turn
from hub.process.scratch import scratch
from hub.report.progress import Progress
from hub.workers.channel import Worker

BLOCK_S = 0.2
"""Seconds of one block: tens of calls for most models, but short compared to the slow phases of a shared machine."""
SETTLE_S = 0.1
"""Seconds between blocks: thread pools busy-wait after their last call, some for tens of milliseconds."""
PREPARE_LIMIT_S = 1800.0
"""Longest time in seconds for building one contender; full tuning of a large model takes minutes."""
BLOCK_LIMIT_S = 300.0
TOLERANCE = 1e-3
"""Largest max|error| / max|reference| with which a contender counts, unless the user allows more."""
SLOW = 3.0
"""Multiple of the fastest contender's time from which a contender is not worth all rounds."""
SLOW_ROUNDS = 4
"""Rounds of a slow contender; the first two decide whether it is one."""


@dataclass(frozen=True, slots=True)
class Task:
    """The task of every contender."""

    model: str
    batch: int | None = None
    given: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options for the hub."""
    threads: int | None = None
    accuracy: float | None = None
    rounds: int = 15
    block_s: float = BLOCK_S
    small: bool = False
    is_fresh: bool = False
    """True if every contender begins with empty caches of the hub and Inductor; those that name the same cache share it."""


@dataclass(slots=True)
class _Runner:
    """One contender during the race."""

    contender: Contender
    worker: Worker | None = None
    prepared: Prepared | None = None
    blocks_s: list[float] = field(default_factory=list[float])
    blocks_cores: list[float] = field(default_factory=list[float])
    calls: int = 0
    failure: str = ""
    failure_kind: FailureKind = FailureKind.NONE
    same_as: str = ""

    def fail(self, kind: FailureKind, reason: str) -> None:
        self.failure, self.failure_kind = reason, kind
        self.end()

    def end(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker = None


@dataclass(frozen=True, slots=True)
class Race:
    """The outcome of a race."""

    results: tuple[Result, ...]
    """Results in the order of the contenders."""
    inputs: tuple[str, ...]
    threads: int


def race(contenders: Sequence[Contender], task: Task, progress: Progress) -> Race:
    """Time all contenders on one task. A contender that fails is in the results with its reason.

    Contenders are started one after the other, each prepared before the next: the hub and autotuners measure during
    preparation, and the time of a first call is a result.
    """
    runners = [_Runner(contender) for contender in contenders]
    with scratch("bench") as folder, _ended(runners):
        progress.stage("building", len(runners))
        for runner in runners:
            progress.advance(runner.contender.name)
            _prepare(runner, runners, task, folder)
        progress.stage("timing", task.rounds)
        for number in range(task.rounds):
            progress.advance()
            for runner in in_turn(_in_round(runners, number), number):
                _time_block(runner, task.block_s)
        progress.done()
        ready = next((one.prepared for one in runners if one.prepared), None)
        return Race(
            tuple(map(_result, runners)), ready.inputs if ready else (), ready.threads if ready else task.threads or 0
        )


@contextlib.contextmanager
def _ended(runners: Sequence[_Runner]) -> Generator[None]:
    """End every process, with its children, even if an error is raised."""
    try:
        yield
    finally:
        for runner in runners:
            runner.end()


def _prepare(runner: _Runner, runners: Sequence[_Runner], task: Task, folder: Path) -> None:
    if runner.contender.unavailable:
        runner.fail(FailureKind.UNAVAILABLE, runner.contender.unavailable)
        return
    if _is_idle_without(runner.contender, runners):
        runner.same_as = HUB
        return
    allowed = max(TOLERANCE, task.accuracy or 0.0)
    try:
        runner.worker = _started(runner.contender, task, folder)
        prepared: Prepared = runner.worker.ask(
            "prepare",
            PREPARE_LIMIT_S,
            contender=runner.contender,
            allowed=allowed,
            **_request(task),
        )
    except AccuracyError as error:
        runner.fail(FailureKind.ACCURACY, error.message)
        return
    except CaptureError as error:
        runner.fail(FailureKind.CAPTURE, error.message)
        return
    except HubError as error:
        runner.fail(FailureKind.COMPILE, error.message)
        return
    runner.prepared = prepared
    if prepared.relative_error > allowed:
        runner.fail(
            FailureKind.ACCURACY, f"wrong by {prepared.relative_error:.1e} of the largest value, {allowed:.0e} allowed"
        )
    elif not runner.contender.is_timed:
        runner.end()


def _is_idle_without(contender: Contender, runners: Sequence[_Runner]) -> bool:
    """Return whether the hub's plan does not use the backend that this contender leaves out: then its plan is the same."""
    left_out = backend_left_out(contender.name)
    hub = next((one.prepared for one in runners if one.contender.name == HUB and not one.failure), None)
    return bool(left_out) and hub is not None and bool(hub.backends) and left_out not in hub.backends


def _started(contender: Contender, task: Task, folder: Path) -> Worker:
    environment = {} if task.threads is None else {"OMP_NUM_THREADS": str(task.threads)}
    if task.is_fresh:
        caches = _cache(contender, folder)
        environment |= {"TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"), "HUB_CACHE_DIR": str(caches / "hub")}
    return Worker("hub.bench.worker", folder / f"{contender.name}.log", environment=environment)


def _request(task: Task) -> Mapping[str, Any]:
    return {"model": task.model, "batch": task.batch, "given": task.given, "threads": task.threads, "small": task.small}


def _cache(contender: Contender, folder: Path) -> Path:
    return folder / "caches" / (contender.cache or contender.name)


def _in_round(runners: Sequence[_Runner], number: int) -> list[_Runner]:
    """Return the contenders to time in a round: all that run, but from `SLOW_ROUNDS` on only those that are fast enough."""
    running = [one for one in runners if one.worker is not None]
    if number < SLOW_ROUNDS or not running:
        return running
    best_s = min(median(one.blocks_s) for one in running)
    return [one for one in running if one.contender.name == HUB or median(one.blocks_s[:2]) <= SLOW * best_s]


def _time_block(runner: _Runner, block_s: float) -> None:
    assert runner.worker is not None, "only those who run are in a round"
    time.sleep(SETTLE_S)
    try:
        block: Block = runner.worker.ask("block", BLOCK_LIMIT_S, at_least_s=block_s)
    except HubError as error:
        runner.fail(FailureKind.RUNTIME, error.message)
        return
    runner.blocks_s.append(median(block.samples_s))
    runner.blocks_cores.append(round(block.cores, 2))
    runner.calls += len(block.samples_s)


_FACTS = (
    *("first_call_s", "max_abs_error", "relative_error", "tolerance", "wrong_call_s"),
    *("verify_s", "peak_bytes", "note", "plans", "backends", "clusters"),
)


def _result(runner: _Runner) -> Result:
    facts = runner.prepared
    numbers: Mapping[str, Any] = {} if facts is None else {key: getattr(facts, key) for key in _FACTS}
    name = runner.contender.name
    if runner.failure:
        return Result(name=name, failure=runner.failure, failure_kind=runner.failure_kind, **numbers)
    blocks_s, cores = tuple(runner.blocks_s), tuple(runner.blocks_cores)
    call_s = Interval.of(blocks_s) if blocks_s else None
    timed = {"blocks_s": blocks_s, "blocks_cores": cores, "call_s": call_s, "calls": runner.calls}
    return Result(name=name, same_as=runner.same_as, **timed, **numbers)
