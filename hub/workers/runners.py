"""Whole plans that run in workers of their own, to be timed against one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub.dispatch.codegen import Step
from hub.errors import PluginError
from hub.workers.candidate import Candidate
from hub.workers.channel import Worker
from hub.workers.crew import Crew
from hub.workers.limits import RUN_LIMIT_S


@dataclass(frozen=True, slots=True)
class Block:
    """Times of a block of consecutive calls of a whole plan."""

    seconds: float
    """Median seconds of a call."""
    laps_s: tuple[float, ...]
    """Seconds of each step."""
    calls: int
    disturbed: int = 0
    """Number of these calls during which other work took cores."""

    @property
    def is_calm(self) -> bool:
        """Return whether no other work took cores during most of its calls."""
        return 2 * self.disturbed < self.calls


@dataclass(slots=True)
class PlanRunner:
    """A whole plan in a worker of its own."""

    name: str
    steps: tuple[Step, ...]
    candidates: tuple[Candidate, ...]
    """Its compiled clusters."""
    busy_wait: bool
    worker: Worker


class PlanRunners:
    """Whole plans in workers of a crew: builds, times and ends them."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.tries_new_sizes = False
        """Whether the times of calls include a share of what the first call of new sizes costs."""

    def build(
        self, name: str, steps: Sequence[Step], candidates: Sequence[Candidate], home: str | None, *, busy_wait: bool
    ) -> PlanRunner:
        """Build a whole plan in the worker `home`, which compiled all of it, or in a new one from saved clusters.

        Raise PluginError, with the cause, if that fails.
        """
        if home is not None and not self._crew.is_lent(home):
            self._crew.living(home)  # if the worker ended, the new one holds needed clusters only
        if home is None or self._crew.is_lent(home) or not self._holds(home, candidates):
            home = self._new_home(name, candidates)
        runner = PlanRunner(name, tuple(steps), tuple(candidates), busy_wait, self._crew.lend(home))
        self._build(runner)
        return runner

    def revive(self, runner: PlanRunner) -> None:
        """Build a whole plan again in a new worker, after its own has ended. Raise PluginError or WorkerError."""
        self.end(runner)
        runner.worker = self._crew.lend(self._new_home(runner.name, runner.candidates))
        self._build(runner)

    def time_runner(self, runner: PlanRunner, at_least_s: float) -> Block:
        """Time one block of calls of a whole plan. Raise PluginError if it fails."""
        timing, laps = runner.worker.ask("time_plan", RUN_LIMIT_S + at_least_s, at_least_s=at_least_s)
        return Block(timing.median_s, tuple(laps), len(timing.samples_s), timing.disturbed)

    def end(self, runner: PlanRunner) -> None:
        """End a plan's worker, so that it takes no memory or cores from plans that are still timed."""
        self._crew.end(runner.worker)

    def end_all(self) -> None:
        """End the workers of all plans, so that they take no memory or cores from the next steps."""
        self._crew.end_lent()

    def _new_home(self, name: str, candidates: Sequence[Candidate]) -> str:
        """Return the name of a new worker that holds these clusters. If it cannot, end it."""
        home = f"plan {name}"
        self._crew.start([home])
        self._crew.await_start(home)
        try:
            self._crew.load_into(home, candidates)
        except PluginError:
            self._crew.kill(home)
            raise
        return home

    def _holds(self, home: str, candidates: Sequence[Candidate]) -> bool:
        """Return whether a worker holds these clusters."""
        held = {candidate.name for candidate in self._crew.held(home)}
        return held >= {candidate.name for candidate in candidates}

    def _build(self, runner: PlanRunner) -> None:
        form = {"busy_wait": runner.busy_wait, "tries_new_sizes": self.tries_new_sizes}
        try:
            runner.worker.ask("build_plan", RUN_LIMIT_S, steps=list(runner.steps), **form)
        except PluginError:
            self.end(runner)  # it would take memory from the plans that are timed
            raise
