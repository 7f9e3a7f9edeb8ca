"""Callbacks that apply findings from after the first answer to the running plan."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any, Protocol

from hub.dispatch.assemble import Run, fail_from_now_on, lift_guard, trust_sizes
from hub.errors import text_of
from hub.plan import Event, EventKind, Stage
from hub.planning.later import Later, Outcome
from hub.planning.make import Made
from hub.process.forks import freed_in_forks
from hub.workers.candidate import Candidate
from hub.workers.compilation.build import note_later, note_sure_of_sizes


class Running(Protocol):
    """Interface of a captured graph whose plan runs."""

    def learn_later(self, candidate: Candidate, event: Event, error: BaseException | None = None) -> None:
        """Record a finding; with an error, the candidate no longer serves."""
        ...


class Background:
    """Verification after the first answer of one graph, for each of its plans."""

    def __init__(self, graph: Running) -> None:
        self._graph = weakref.ref(graph)
        self._works: list[Later] = []
        self._lock = freed_in_forks(threading.Lock())

    def begin(self, made: Made, run: Run) -> None:
        """Start the verification of a plan, if there is any. It keeps neither the graph nor the plan's runner alive."""
        if made.later is None:
            return
        graph, later = self._graph(), made.later
        if graph is None:
            return
        weakref.finalize(graph, later.stop)
        guards = {name: weakref.ref(item.guard) for name, item in made.loaded.items() if item.guard is not None}
        with self._lock:
            self._works = [work for work in self._works if not work.wait(0.0)] + [later]
        later.start(_Applied(self._graph, weakref.ref(run), guards))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all verification is done; return False if the timeout expires first."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        return all(work.wait(None if end_s is None else max(0.0, end_s - time.monotonic())) for work in self._works)


class _Applied:
    """Callback that applies the outcome for one executable. It is called from another thread."""

    def __init__(self, graph: weakref.ref[Any], run: weakref.ref[Any], guards: Any) -> None:
        self._graph, self._run, self._guards = graph, run, guards

    def __call__(self, outcome: Outcome) -> None:
        graph, run = self._graph(), self._run()
        candidate, error = outcome.candidate, outcome.failure
        name, backend = candidate.name, candidate.backend
        if graph is None:
            return
        if error is not None:
            if run is not None:
                fail_from_now_on(run, name, error)
            event = Event(
                kind=EventKind.FALLBACK,
                stage=Stage.RUN,
                backend=backend,
                cluster=name,
                message=text_of(error),
                error=type(error).__name__,
            )
            graph.learn_later(candidate, event, error)
            return
        if outcome.is_lifted and name in self._guards and (guard := self._guards[name]()) is not None:
            lift_guard(run, name, guard)
        if outcome.is_sure_of_sizes and run is not None:
            trust_sizes(run, name)
        graph.learn_later(
            candidate, Event(kind=EventKind.NOTE, stage=Stage.LATER, backend=backend, cluster=name, message=outcome.text)
        )
        if (folder := candidate.saved_in) is not None:
            is_guarded = candidate.report.is_finite_only and not outcome.is_lifted
            note_later(folder, outcome.standing, is_finite_only=is_guarded)


def sure_of_sizes(made: Made, name: str) -> None:
    """Record in the cache that an executable has matched eager at enough combinations of sizes."""
    if (folder := made.served[name].saved_in) is not None:
        note_sure_of_sizes(folder)
