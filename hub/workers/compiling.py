"""Compiling one cluster in a worker: in which one, within which limits, and what becomes of it."""

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
from hub.workers.crew import RUN_LIMIT_S, Crew
from hub.workers.limits import Saving

SAVED_PER_WEIGHT = 8
"""Bytes that may be saved for each byte of the graph's weights, beside `output_limit_mb`: four bits may become 32."""


class Compiler:
    """Compiles clusters, one at a time, in workers of a crew."""

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
        """Compile one cluster; with a suffix, in a further worker, which keeps nothing that is to be timed.

        `names` are the inputs of all that the worker will compile. `meanwhile` is called while it compiles. Raise
        WorkerError where no worker can be had.
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
                self._crew.kill(home)  # its weights or its state may not be what they were: the next one gets another
            return failed
        worker.saving = None
        if is_kept or clock is None:
            self._crew.keep(home, compiled)
        return compiled

    def _gone(self, candidate: Candidate, began_s: float) -> Candidate:
        """Return a cluster that is not to be had; nobody tells how much of its time was the compiler's, so all of it is."""
        self._crew.phases.add([Phase(Work.COMPILE, began_s, time.monotonic(), candidate.backend)])
        return candidate

    def take_over(self, candidate: Candidate, clock: Clock) -> Candidate:
        """Have a backend's own worker, where it will be timed, load what another one has compiled and saved."""
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

        A compilation may have to be stopped, which ends its worker. So it is never one that runs a whole plan, and, where
        the cluster only might help, never one that holds what is needed.
        """
        home = self._crew.home_of(candidate.backend)
        if self._crew.is_lent(home):
            return f"{home} anew"
        is_spare = clock is not None and not candidate.is_needed
        return f"{home} spare" if is_spare and any(held.is_needed for held in self._crew.held(home)) else home

    def _failed(self, candidate: Candidate, home: str, error: PluginError) -> Candidate:
        """Return a cluster as one that failed in a worker, which is a suspect from now on."""
        error.backend = error.backend or candidate.backend
        error.cluster = error.cluster or candidate.name
        self._crew.suspect(home)
        return replace(candidate, failure=error)

    @property
    def _most_saved_bytes(self) -> int:
        weights = sum(weight.numel() * weight.element_size() for weight in self._crew.sample.weights.values())
        return self._crew.limits.output_bytes + SAVED_PER_WEIGHT * weights

    def _is_compiled(self, worker: Worker, backend: str, clock: Clock | None) -> bool:
        """Wait for a compilation, and return True; False where the budget ended first, and then the worker is gone.

        Raise LimitExceeded where it takes too long, or too much.
        """
        limit_s = self._crew.limits.compile_s
        last_s = now() + limit_s
        while not worker.is_ready(WATCH_S):
            if reason := worker.excess():
                worker.kill()
                raise LimitExceeded(reason, hint="raise the limit, or exclude the backend")
            if now() > last_s:
                worker.kill()
                text = f"not compiled within {limit_s:.0f} s (`compile_limit_s`)"
                raise LimitExceeded(text, hint="raise the limit, or exclude the backend")
            if clock is not None and now() > clock.compile_until(backend):
                worker.kill()
                return False
        return True
