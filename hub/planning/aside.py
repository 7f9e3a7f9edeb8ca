"""Planning of a graph in a separate process while its model runs in eager; each better plan is handed over.

The process does what a first process would do: in the end its plan, executables and measurements are in the cache. The
user's process then builds the plan from the cache, in a thread, as any later process would; before that, it builds the best
plan so far. One graph is planned at a time, by one process for all that wait: starting it, and importing the compilers'
libraries, takes seconds. Planning runs at lower priority than the user's own work, and ends with the model and with this
process.
"""

from __future__ import annotations

import math
import shutil
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from hub.errors import WorkerError, text_of
from hub.plan import Plan
from hub.planning.chore import LOOK_S, Chore, chores
from hub.planning.later import planning
from hub.planning.news import Planned, stage_of, take_better
from hub.plugin.graph import Graph
from hub.process.forks import freed_in_forks, in_forks
from hub.process.phases import Phase, Phases, Work
from hub.process.scratch import scratch_folder
from hub.process.traffic import COUNTS, TRAFFIC
from hub.report.numbers import megabytes
from hub.report.progress import Progress
from hub.verification.copies import compact_copy
from hub.workers.channel import Worker
from hub.workers.pool import surroundings
from hub.workers.transfer import Sample, write_sample

_MODULE = "hub.planning.aside_worker"
_ANSWER_S = 60.0
MAX_COPIED_BYTES = 1 << 30
"""Maximum bytes of inputs that are copied for all graphs waiting for their plans.

In inference these are the user's inputs; in training they include parameters and activations.
"""


class Waiting(Protocol):
    """Interface of a captured graph that runs in eager until it is planned."""

    def settle(self, values: Sequence[Any], plan: Plan | None, problem: str) -> None:
        """Build a plan for these arguments and use it from the next call on; if there is none, make one first."""
        ...

    def improve(self, values: Sequence[Any], plan: Plan) -> None:
        """Build the best plan so far, and use it from the next call on until a better one arrives. Raise nothing."""
        ...

    def end_waiting(self) -> None:
        """Stop what served only while planning went on: it is over, also if nothing came of it."""
        ...


@dataclass(frozen=True, slots=True)
class _Planner:
    """A process that plans, and its folder of temporary files, which is removed with it: it may be killed at any moment."""

    worker: Worker
    folder: Path
    surroundings: str

    @classmethod
    def started(cls) -> _Planner:
        """Start one. Raise WorkerError or OSError if that fails."""
        folder, now = scratch_folder("planner"), surroundings()
        try:
            return cls(Worker(_MODULE, folder / "log", environment={"TMPDIR": str(folder)}, is_behind=True), folder, now)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def end(self) -> None:
        """End it with all that it started."""
        self.worker.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class _Spare:
    """The process that has planned one graph and waits for the next one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = freed_in_forks(threading.Lock())
        self._planner: _Planner | None = None
        self._n_expected = 0

    def expect(self) -> None:
        """Count a graph that will be planned."""
        with self._lock:
            self._n_expected += 1

    def take(self) -> _Planner | None:
        """Return the process if it can be used; end it if not."""
        with self._lock:
            planner, self._planner = self._planner, None
        if planner is None or (planner.worker.is_alive and planner.surroundings == surroundings()):
            return planner
        planner.end()
        return None

    def give(self, planner: _Planner) -> None:
        """Keep a process for the next graph."""
        with self._lock:
            before, self._planner = self._planner, planner
        if before is not None:
            before.end()

    def one_less(self) -> None:
        """Count a graph whose planning is over, and end the process after the last one."""
        with self._lock:
            self._n_expected -= 1
            planner = None if self._n_expected > 0 else self._planner
            self._planner = self._planner if planner is None else None
        if planner is not None:
            planner.end()

    def let_go(self) -> None:
        """Forget the parent's process. Called in a fork."""
        self._planner, self._n_expected = None, 0


_SPARE = _Spare()
in_forks(_SPARE.let_go)


class Aside(Chore):
    """Planning of one graph, outside the user's process."""

    name = "hub-aside"
    turn = freed_in_forks(threading.Lock())
    join_s = 10.0  # a plan may be under construction: threads must not be cut off inside a library

    def __init__(
        self, target: Waiting, graph: Graph, args: Sequence[Any], facts: Mapping[str, Any], phases: Phases | None = None
    ) -> None:
        """Prepare to plan a graph for `target`, and copy its inputs.

        `facts` is passed to the process in addition to the sample; `phases` collects what planning took. Neither the target
        nor its weights are kept alive.
        """
        super().__init__()
        self.stage = ""
        """Current stage of planning, in words."""
        self._target = weakref.ref(target)
        self._graph, self._facts, self._phases = graph, dict(facts), phases or Phases()
        self._values: _Values | None = _Values(graph, args)
        self._planner: _Planner | None = None
        weakref.finalize(target, self.stop)

    @property
    def n_copied_bytes(self) -> int:
        """Return the bytes of the copies that are kept until the plan is ready."""
        values = self._values
        return 0 if values is None else values.n_bytes

    def start(self) -> None:
        """Start the thread, and return at once."""
        _SPARE.expect()
        try:
            self._thread.start()
        except BaseException:
            _SPARE.one_less()
            raise

    def wait_with(self, progress: Progress, timeout_s: float | None = None) -> bool:
        """Wait as `wait` does, and show the current stage of planning meanwhile."""
        end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        shown = ""
        try:
            while not self.wait(max(0.0, min(LOOK_S, end_s - time.monotonic()))):
                if time.monotonic() >= end_s:
                    return False
                if self.stage != shown:
                    shown = self.stage
                    progress.stage(shown)
            return True
        finally:
            progress.done()

    def work(self) -> None:
        """Plan, and hand the plan over."""
        plan, problem = self._planned()
        self._hand_over(plan, problem)

    def clean_up(self) -> None:
        """Drop the copies, which are no longer needed, and end the process if no other graph waits for it."""
        self._values = None
        _SPARE.one_less()

    def when_over(self) -> None:
        """Tell the graph, which may have got no plan: a weight was freed meanwhile."""
        if (target := self._target()) is not None:
            target.end_waiting()

    def _arguments(self) -> list[Any] | None:
        """Return the arguments of the first call; None if a weight is gone."""
        return None if self._values is None else self._values.now()

    def _hand_over(self, plan: Plan | None, problem: str) -> None:
        target, values = self._target(), self._arguments()
        if target is not None and values is not None and not self._is_stopped:
            with torch.no_grad():
                target.settle(values, plan, problem)

    def _planned(self) -> tuple[Plan | None, str]:
        """Return the plan that the process made, or None with the reason if it made none."""
        folder, began_s = scratch_folder("aside"), time.monotonic()
        try:
            with planning():
                values = self._arguments()
                if values is None:
                    return None, "the model no longer exists"
                write_sample(folder, Sample(self._graph, tuple(values)))
                del values
                planned = self._asked(folder)
            self._phases.add((Phase(Work.PROCESS, began_s, planned.began_s), *planned.phases))
            return planned.plan, ""
        except Exception as error:  # noqa: BLE001 - planning in this process meets the same error, or does without
            return None, text_of(error)
        finally:
            TRAFFIC.hide()
            self._end_planner()
            shutil.rmtree(folder, ignore_errors=True)

    def _asked(self, folder: Path) -> Planned:
        with self._lock:
            if self._is_stopped:
                raise WorkerError("the model no longer exists")
            self._planner = _SPARE.take() or _Planner.started()
            self._worker = worker = self._planner.worker
        TRAFFIC.show(folder / COUNTS)
        worker.post("plan", folder=str(folder), **self._facts)
        while not worker.is_ready(LOOK_S):
            if self._is_stopped:
                raise WorkerError("the model no longer exists")
            self.stage = stage_of(folder)
            if (better := take_better(folder)) is not None:
                self._improve(better)
        planned: Planned = worker.result(_ANSWER_S)
        with self._lock:
            if not self._is_stopped:  # else it is being ended
                _SPARE.give(self._planner)
                self._planner = self._worker = None
        return planned

    def _end_planner(self) -> None:
        """End the process unless it waits for the next graph."""
        with self._lock:
            planner, self._planner, self._worker = self._planner, None, None
        if planner is not None:
            planner.end()

    def _improve(self, plan: Plan) -> None:
        target, values = self._target(), self._arguments()
        if target is not None and values is not None:
            with torch.no_grad():
                target.improve(values, plan)


def too_large_to_copy(graph: Graph, args: Sequence[Any]) -> str:
    """Return why the memory limit does not allow copies of these arguments; "" if it does."""
    needed = sum(value.nbytes for value in _inputs(graph, args) if isinstance(value, torch.Tensor))
    waiting = (chore for chore in chores() if isinstance(chore, Aside) and chore.is_pending)  # in a fork, none is
    if sum(chore.n_copied_bytes for chore in waiting) + needed <= MAX_COPIED_BYTES:
        return ""
    return f"planning while the model runs would copy {megabytes(needed)} of inputs"


def _inputs(graph: Graph, args: Sequence[Any]) -> list[Any]:
    """Return the arguments with None in place of each weight."""
    weights = frozenset(graph.weights)
    return [None if node.name in weights else value for node, value in zip(graph.placeholders, args, strict=True)]


class _Values:
    """Arguments of the first call: copies of inputs, since the user may write to them, and references to the weights."""

    def __init__(self, graph: Graph, args: Sequence[Any]) -> None:
        weights = frozenset(graph.weights)
        self._inputs = [compact_copy(value) for value in _inputs(graph, args)]
        self._weights = {at: weakref.ref(args[at]) for at, node in enumerate(graph.placeholders) if node.name in weights}
        self.n_bytes = sum(value.nbytes for value in self._inputs if isinstance(value, torch.Tensor))

    def now(self) -> list[Any] | None:
        """Return the arguments; None if a weight is gone."""
        weights = {at: reference() for at, reference in self._weights.items()}
        if any(weight is None for weight in weights.values()):
            return None
        return [weights.get(at, value) for at, value in enumerate(self._inputs)]
