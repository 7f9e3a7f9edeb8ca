"""Compile one cluster in a worker: choose the worker, enforce the limits, and handle the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from hub.errors import ContractError, LimitExceeded, PluginError
from hub.process.family import WATCH_S
from hub.process.phases import Phase, Work
from hub.process.working import now
from hub.workers.candidate import Candidate
from hub.workers.channel import Worker
from hub.workers.clock import Clock
from hub.workers.crew import Crew
from hub.workers.limits import RUN_LIMIT_S, Saving

SAVED_PER_WEIGHT = 8
"""Bytes that may be saved per byte of the graph's weights, on top of `workers.output_limit_mb`: four bits may become 32."""


class Compiler:
    """Compilation of single clusters in the workers of a crew."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def compile(
        self,
        candidate: Candidate,
        names: Sequence[str],
        clock: Clock | None,
        meanwhile: Callable[[], None] = lambda: None,
        *,
        suffix: str = "",
    ) -> Candidate:
        """Compile one cluster. With a suffix, use a further worker, which keeps nothing for timing.

        `names` are the inputs of all clusters that the worker will compile. `meanwhile` is called while it compiles. Raise
        WorkerError if no worker is available.
        """
        home, most_bytes = self._home(candidate, clock) + suffix, self._most_saved_bytes
        is_kept = self._crew.is_timed and not suffix
        began_s = time.monotonic()
        try:
            worker = self._crew.living(home)
            with self._crew.phases.during(Work.SAMPLE):
                worker.ask("prepare", RUN_LIMIT_S, names=names)
            worker.saving = None if candidate.folder is None else Saving(candidate.folder, most_bytes)
            began_s = time.monotonic()
            worker.post("compile_cluster", candidate=candidate, is_kept=is_kept, most_saved_bytes=most_bytes)
            meanwhile()
            if not self._is_compiled(worker, candidate.backend, clock):
                return self._gone(candidate.late(), began_s)
            compiled = replace(candidate, report=worker.result(RUN_LIMIT_S))
            self._crew.phases.add(compiled.report.phases)
        except PluginError as error:
            failed = self._gone(self._failed(candidate, home, error), began_s)
            if isinstance(error, ContractError):
                self._crew.kill(home)  # its weights or state may have changed: the next cluster gets another worker
            return failed
        worker.saving = None
        if is_kept or clock is None:
            self._crew.keep(home, compiled)
        return compiled

    def _gone(self, candidate: Candidate, began_s: float) -> Candidate:
        """Return an unavailable candidate. Record all its time as compile time: the compiler's own share is unknown."""
        self._crew.phases.add([Phase(Work.COMPILE, began_s, time.monotonic(), candidate.backend)])
        return candidate

    def take_over(self, candidate: Candidate, clock: Clock) -> Candidate:
        """Make the backend's own worker, which will time the cluster, load what another worker has compiled and saved."""
        if candidate.failure is not None:
            return candidate
        home = self._home(candidate, clock)
        try:
            self._crew.living(home)
            self._crew.load_into(home, [candidate])
        except PluginError as error:
            return self._failed(candidate, home, error)
        self._crew.keep(home, candidate)
        return candidate

    def _home(self, candidate: Candidate, clock: Clock | None) -> str:
        """Return the name of the worker that compiles for a backend.

        A compilation may have to be stopped, which ends its worker. So it never uses a worker that runs a whole plan, and
        an optional cluster never uses a worker that holds needed ones.
        """
        home = self._crew.home_of(candidate.backend)
        if self._crew.is_lent(home):
            return f"{home} anew"
        is_spare = clock is not None and not candidate.is_needed
        return f"{home} spare" if is_spare and any(held.is_needed for held in self._crew.held(home)) else home

    def _failed(self, candidate: Candidate, home: str, error: PluginError) -> Candidate:
        """Return a candidate with its failure, and mark the worker as a suspect."""
        error.backend = error.backend or candidate.backend
        error.cluster = error.cluster or candidate.name
        self._crew.suspect(home)
        return replace(candidate, failure=error)

    @property
    def _most_saved_bytes(self) -> int:
        weights = sum(weight.numel() * weight.element_size() for weight in self._crew.sample.weights.values())
        return self._crew.limits.output_bytes + SAVED_PER_WEIGHT * weights

    def _is_compiled(self, worker: Worker, backend: str, clock: Clock | None) -> bool:
        """Wait for a compilation and return True. If the budget ends first, kill the worker and return False.

        Raise LimitExceeded if it exceeds its time or its limits.
        """
        limit_s = self._crew.limits.compile_s
        last_s = now() + limit_s
        while not worker.is_ready(WATCH_S):
            if reason := worker.excess():
                worker.kill()
                raise LimitExceeded(reason, hint="raise the limit, or exclude the backend")
            if now() > last_s:
                worker.kill()
                text = f"not compiled within {limit_s:.0f} s (`workers.compile_limit_s`)"
                raise LimitExceeded(text, hint="raise the limit, or exclude the backend")
            if clock is not None and now() > clock.compile_until(backend):
                worker.kill()
                return False
        return True
