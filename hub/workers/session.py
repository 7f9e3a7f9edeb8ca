"""A planning session: worker processes outside the user's process answer all requests of planning to plugins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType, TracebackType
from typing import Any

from hub.config.options import Options
from hub.errors import PluginError, WorkerError
from hub.partition.group import EAGER, Group
from hub.partition.proposals import Offered
from hub.partition.verdicts import Answers
from hub.plugin.backend import CompileSettings
from hub.pricing.roofline import peaks, settled_accelerators
from hub.pricing.timing import measured_cost
from hub.process.phases import Work
from hub.process.state import Said
from hub.workers.batches import Batches
from hub.workers.candidate import Candidate, Done
from hub.workers.clock import Clock
from hub.workers.compiling import Compiler
from hub.workers.crew import SHARED, Crew
from hub.workers.limits import ASK_LIMIT_S, ESTIMATE_LIMIT_S, MIN_ASK_S, RUN_LIMIT_S, Limits
from hub.workers.runners import PlanRunners
from hub.workers.transfer import Sample

ALONE_S = 0.2
"""Seconds for which a cluster is timed alone: that only has to show which whole plans are worth timing."""
DEFAULTS = Options()
"""Options of workers if the caller passes none."""


class Session:
    """Implementation of `Workers` in worker processes. Leaving its context releases all workers."""

    def __init__(
        self,
        sample: Sample,
        threads: int,
        limits: Limits,
        *,
        options: Options = DEFAULTS,
        is_timed: bool = True,
    ) -> None:
        """Create a session without starting a process. With `is_timed`, each backend will have a worker of its own."""
        self.crew = Crew(sample, threads, limits, options, is_timed=is_timed)
        self.runners = PlanRunners(self.crew)
        """The runners of whole plans."""
        self._compiler = Compiler(self.crew)
        self._batches = Batches(self.crew, self._compiler)
        self._abilities: dict[str, frozenset[str]] = {}
        """Optional methods of the backends that were asked."""
        self.is_disturbed = False
        """True once other work took cores during a measurement, which may not hold at other times."""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self.crew.kill_all()  # Ctrl-C: do not wait for workers to tidy up
        self.crew.leave()

    @property
    def is_apart(self) -> bool:
        """Return True: plugins run outside the user's process."""
        return True

    @property
    def is_unreadable(self) -> bool:
        """Return whether this graph cannot be sent to workers, because it holds objects that only this process knows."""
        return self.crew.is_unreadable

    # --- Requests -----------------------------------------------------------------------------------------------------

    def ask_early(self, backends: Iterable[str], options: Options) -> None:
        """Start what `answers` will need, all at once. Raise WorkerError if the graph cannot be sent to a worker."""
        if not self.crew.is_timed:
            self.crew.start([SHARED])
            return
        names = tuple(backends)
        self.crew.start([*names, EAGER] if len(names) > 1 else names)
        for name in names:
            self.crew.ask_early(name, "answers", backend=name, options=options.for_workers())

    def answers(self, backend: str, options: Options) -> Answers:
        """Return a backend's verdicts on the graph's nodes. Raise HubError if it cannot be loaded, or dies."""
        home = self.crew.home_of(backend)
        facts = {"backend": backend, "options": options.for_workers()}
        with self.crew.phases.during(Work.ASK, backend):
            early: Answers | None = self.crew.early_answer(home, self._ask_limit_s)
            found: Answers = early or self.crew.ask(home, "answers", self._ask_limit_s, **facts)
        self._abilities[backend] = found.abilities
        return found

    def overrides(self, backend: str, method: str) -> bool:
        """Return whether a backend that was asked about the graph has an optional method of its own."""
        return method in self._abilities.get(backend, ())

    def estimate(self, found: Group, settings: CompileSettings) -> Said:
        """Return a backend's estimate for a cluster, None if it makes none. Raise HubError if it fails."""
        if not self.overrides(found.backend, "estimate"):
            return Said(None)
        facts = {"backend": found.backend, "nodes": found.nodes, "settings": settings}
        facts |= {"peaks": peaks(settings.threads), "accelerators": settled_accelerators()}
        return self.crew.ask(self.crew.home_of(found.backend), "estimate", ESTIMATE_LIMIT_S, **facts)

    def explain(self, found: Group, name: str, settings: CompileSettings) -> Said:
        """Return a backend's explanation of a cluster on the sample. Raise HubError if it fails, or takes too long."""
        facts = {"backend": found.backend, "nodes": found.nodes, "settings": settings}
        return self.crew.ask(self.crew.home_of(found.backend), "explain", RUN_LIMIT_S, name=name, **facts)

    def offered(self) -> tuple[Offered, ...]:
        """Return the clusters that plugins propose. If one plugin ends the worker, or hangs, return only the fault."""
        try:
            with self.crew.phases.during(Work.PROPOSE):
                return self.crew.ask(SHARED, "offered", self._ask_limit_s)
        except PluginError as error:
            return (Offered("unknown", fault=f"failed: {error.message}"),)

    @property
    def _ask_limit_s(self) -> float:
        return min(ASK_LIMIT_S, max(MIN_ASK_S, self.crew.limits.compile_s))

    def values(self, names: Iterable[str]) -> Mapping[str, Any]:
        """Return the named values of one run of the graph in eager. Raise HubError if that fails."""
        found: Mapping[str, Any] = self.crew.ask(SHARED, "values", RUN_LIMIT_S, names=sorted(names))
        return found

    # --- Compiling ----------------------------------------------------------------------------------------------------

    def tried(self, candidate: Candidate) -> Candidate | None:
        """Return the candidate as compiled and verified in this session, preferably saved; None if it was not."""
        held = [one for one in self.crew.all_held() if one.key == candidate.key]
        return next((one for one in held if one.folder is not None), held[0] if held else None)

    def try_out(self, candidate: Candidate, meanwhile: Callable[[], None] = lambda: None) -> Candidate:
        """Compile, run, verify and, if possible, save one cluster, outside any budget.

        `meanwhile` is called while the worker compiles. Raise WorkerError if no worker is available.
        """
        return self._compiler.compile(candidate, sorted(candidate.inputs), None, meanwhile)

    def try_out_all(
        self,
        candidates: Sequence[Candidate],
        most: Mapping[str, int],
        done: Done,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Sequence[Candidate]:
        """Do for several clusters at once what `try_out` does for one. See `Batches`."""
        return self._batches.try_out_all(candidates, most, done, meanwhile)

    def compile_all(
        self,
        candidates: Mapping[str, Sequence[Candidate]],
        done: Done,
        clock: Clock,
        most: Mapping[str, int] = MappingProxyType({}),
        *,
        first: Collection[str] = (),
        alone_s: float = 0.0,
    ) -> tuple[Candidate, ...]:
        """Compile and verify each backend's candidates in its own worker, within a budget. See `Batches`."""
        return self._batches.compile_all(candidates, done, clock, most, first=first, alone_s=alone_s)

    # --- Timing -------------------------------------------------------------------------------------------------------

    def price(self, candidate: Candidate, at_least_s: float = ALONE_S) -> Candidate:
        """Time a compiled cluster alone, in the worker that compiled it. Return it with its cost, or with the failure."""
        try:
            home = self.crew.holder(candidate)
            if home is not None:
                self.crew.living(home)
            if home is None or home != self.crew.holder(candidate):
                return candidate.late()  # it was lost with a worker that died, and is not worth compiling again
            facts = {"name": candidate.name, "busy_wait": candidate.settings.busy_wait}
            with self.crew.phases.during(Work.TIME, candidate.backend):
                timing = self.crew.ask_present(home, "time_cluster", RUN_LIMIT_S, **facts, at_least_s=at_least_s)
        except PluginError as error:
            return replace(candidate, failure=error)
        except WorkerError:
            return candidate.late()  # no new worker could be started to load it
        self.is_disturbed |= timing.disturbed > 0
        return replace(candidate, cost=measured_cost(timing, candidate.settings.threads))

    def eager_prices(self) -> dict[str, float]:
        """Measure the cost of each node in eager, in seconds. Raise PluginError if the worker fails."""
        with self.crew.phases.during(Work.TIME, EAGER):
            seconds, disturbed = self.crew.ask(self.crew.home_of(EAGER), "profile", RUN_LIMIT_S)
        self.is_disturbed |= disturbed > 0
        return seconds
