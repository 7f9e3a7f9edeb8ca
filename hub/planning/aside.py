"""Plans a graph in a process of its own while its model runs in eager, and hands over each better plan.

The process does what a first process would do in the same place: its plan, executables and measurements are in the cache in
the end. The user's process then builds the plan from there, in a thread, as any later process would; before the end, the
best of what was tried so far. One graph is planned
at a time; planning steps back behind the user's own work, and ends with the model, and with this process.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from hub.errors import WorkerError, text_of
from hub.plan import Plan
from hub.planning.chore import LOOK_S, Chore, chores
from hub.planning.later import planning
from hub.planning.news import Planned, stage_of, take_better
from hub.plugin.graph import Graph
from hub.process.forks import freed_in_forks
from hub.process.phases import Phase, Phases, Work
from hub.process.scratch import scratch_folder
from hub.process.traffic import COUNTS, TRAFFIC
from hub.report.numbers import megabytes
from hub.report.progress import Progress
from hub.workers.channel import Worker
from hub.workers.transfer import Sample, write_sample

_MODULE = "hub.planning.aside_worker"
_ANSWER_S = 60.0
MAX_COPIED_BYTES = 1 << 30
"""Bytes of inputs that are copied for all graphs that wait for their plans. In inference they are the user's inputs; in
training parameters and activations are among them."""


class Waiting(Protocol):
    """A captured graph that runs in eager until it is planned."""

    def settle(self, values: Sequence[Any], plan: Plan | None, problem: str) -> None:
        """Build a plan for these arguments and use it from the next call on; make one first where there is none."""
        ...

    def improve(self, values: Sequence[Any], plan: Plan) -> None:
        """Build the best plan so far, and use it from the next call on until a better one comes. Raise nothing."""
        ...


class Aside(Chore):
    """The planning of one graph, outside the user's process."""

    name = "hub-aside"
    turn = freed_in_forks(threading.Lock())
    join_s = 10.0  # a plan may be being built: threads must not be cut off in a library

    def __init__(
        self, target: Waiting, graph: Graph, args: Sequence[Any], facts: Mapping[str, Any], phases: Phases | None = None
    ) -> None:
        """`facts` is what the process is told beside the sample; `phases` hears what planning took.

        Nothing here keeps the target or its weights alive.
        """
        super().__init__()
        self.stage = ""
        """Where planning stands, in words."""
        self._target = weakref.ref(target)
        self._graph, self._facts, self._phases = graph, dict(facts), phases or Phases()
        self._values: _Values | None = _Values(graph, args)
        weakref.finalize(target, self.stop)

    @property
    def n_copied_bytes(self) -> int:
        """Return the bytes of the copies that are kept until the plan is there."""
        values = self._values
        return 0 if values is None else values.n_bytes

    def start(self) -> None:
        """Begin, and return at once."""
        self._thread.start()

    def wait_with(self, progress: Progress, timeout_s: float | None = None) -> bool:
        """Wait as `wait` does, and show where planning stands meanwhile."""
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
        """Drop the copies as soon as nobody needs them."""
        self._values = None

    def _arguments(self) -> list[Any] | None:
        """Return the arguments of the first call; None where a weight is gone."""
        return None if self._values is None else self._values.now()

    def _hand_over(self, plan: Plan | None, problem: str) -> None:
        target, values = self._target(), self._arguments()
        if target is not None and values is not None and not self._is_stopped:
            with torch.no_grad():
                target.settle(values, plan, problem)

    def _planned(self) -> tuple[Plan | None, str]:
        """Return the plan that the process made; None, and the reason, where it made none."""
        folder, began_s = scratch_folder("aside"), time.monotonic()
        try:
            with planning():
                values = self._arguments()
                if values is None:
                    return None, "the model is gone"
                write_sample(folder, Sample(self._graph, tuple(values)))
                del values
                planned = self._asked(folder)
            self._phases.add((Phase(Work.PROCESS, began_s, planned.began_s), *planned.phases))
            return planned.plan, ""
        except Exception as error:  # noqa: BLE001 - whatever it was, planning in this process meets it, or does without
            return None, text_of(error)
        finally:
            TRAFFIC.hide()
            self._end_worker()
            shutil.rmtree(folder, ignore_errors=True)

    def _asked(self, folder: Path) -> Planned:
        with self._lock:
            if self._is_stopped:
                raise WorkerError("the model is gone")
            # Its temporary files go there, too, and are removed with it: it may be killed at any moment.
            place = {"TMPDIR": str(folder)}
            self._worker = worker = Worker(_MODULE, folder / "log", environment=place, is_behind=True)
        TRAFFIC.show(folder / COUNTS)
        worker.post("plan", folder=str(folder), **self._facts)
        while not worker.is_ready(LOOK_S):
            if self._is_stopped:
                raise WorkerError("the model is gone")
            self.stage = stage_of(folder)
            if (better := take_better(folder)) is not None:
                self._improve(better)
        return worker.result(_ANSWER_S)

    def _improve(self, plan: Plan) -> None:
        target, values = self._target(), self._arguments()
        if target is not None and values is not None:
            with torch.no_grad():
                target.improve(values, plan)


def too_large_to_copy(graph: Graph, args: Sequence[Any]) -> str:
    """Return why there is no room for copies of these arguments; an empty text where there is."""
    needed = sum(value.nbytes for value in _inputs(graph, args) if isinstance(value, torch.Tensor))
    waiting = (chore for chore in chores() if isinstance(chore, Aside) and chore.is_pending)  # in a fork, none is
    if sum(chore.n_copied_bytes for chore in waiting) + needed <= MAX_COPIED_BYTES:
        return ""
    return f"for planning beside the model {megabytes(needed)} of inputs would be copied"


def _inputs(graph: Graph, args: Sequence[Any]) -> list[Any]:
    """Return the arguments with None in the place of each weight."""
    weights = frozenset(graph.weights)
    return [None if node.name in weights else value for node, value in zip(graph.placeholders, args, strict=True)]


class _Values:
    """The arguments of the first call: copies of inputs, since the user may write to them, and the weights as they are."""

    def __init__(self, graph: Graph, args: Sequence[Any]) -> None:
        weights = frozenset(graph.weights)
        self._inputs = [_copied(value) for value in _inputs(graph, args)]
        self._weights = {at: weakref.ref(args[at]) for at, node in enumerate(graph.placeholders) if node.name in weights}
        self.n_bytes = sum(value.nbytes for value in self._inputs if isinstance(value, torch.Tensor))

    def now(self) -> list[Any] | None:
        """Return them; None where a weight is gone."""
        weights = {at: reference() for at, reference in self._weights.items()}
        if any(weight is None for weight in weights.values()):
            return None
        return [weights.get(at, value) for at, value in enumerate(self._inputs)]


def _copied(value: Any) -> Any:
    """Return a copy that lies in memory as the tensor does, repeated elements included; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    with torch.inference_mode(False), torch.no_grad():  # copies of the user's mode could not be written to outside it
        plain = value.detach()
        once = plain
        for dim, stride in enumerate(plain.stride() if plain.layout is torch.strided else ()):
            if stride == 0 and plain.shape[dim] > 1:
                once = once.narrow(dim, 0, 1)
        with contextlib.suppress(RuntimeError):  # elements overlap in another way, or there are no strides
            copy = torch.empty_strided(once.size(), once.stride(), dtype=once.dtype, device=once.device)
            return copy.copy_(once).expand(plain.size())
        return plain.clone()
