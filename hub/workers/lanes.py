"""Whole plans that run in workers of their own, to be timed against one another."""

from __future__ import annotations

from collections.abc import Sequence

from hub.dispatch.codegen import Step
from hub.workers.crew import RUN_LIMIT_S, Crew
from hub.workers.orders import Block, Lane, Offer


class Lanes:
    """Builds, times and ends whole plans in workers of a crew."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def build(self, name: str, steps: Sequence[Step], offers: Sequence[Offer], home: str | None, *, spin: bool) -> Lane:
        """Build a whole plan in the worker `home`, which compiled all of it, or in a new one from saved clusters.

        Raise PluginError with the cause.
        """
        if home is not None and not self._crew.is_lent(home):
            self._crew.living(home)  # a new one in place of one that ended holds what is needed only
        if home is None or self._crew.is_lent(home) or not self._holds(home, offers):
            home = self._new_home(name, offers)
        lane = Lane(name, tuple(steps), tuple(offers), spin, self._crew.lend(home))
        _build(lane)
        return lane

    def revive(self, lane: Lane) -> None:
        """Build a whole plan again, in a new worker, after its own has gone. Raise PluginError, or WorkerError."""
        self.end(lane)
        lane.worker = self._crew.lend(self._new_home(lane.name, lane.offers))
        _build(lane)

    def time_lane(self, lane: Lane, at_least_s: float) -> Block:
        """Time one block of calls of a whole plan. Raise PluginError if it fails."""
        timing, laps = lane.worker.ask("time_plan", RUN_LIMIT_S + at_least_s, at_least_s=at_least_s)
        return Block(timing.median_s, tuple(laps), len(timing.samples_s), timing.beside)

    def end(self, lane: Lane) -> None:
        """End a plan's worker, so that it takes no memory or cores from those that are still timed."""
        self._crew.end(lane.worker)

    def end_all(self) -> None:
        """End the workers of all plans, so that they take no memory or cores from what comes now."""
        self._crew.end_lent()

    def _new_home(self, name: str, offers: Sequence[Offer]) -> str:
        """Return the name of a new worker that holds these clusters."""
        home = f"plan {name}"
        self._crew.start([home])
        self._crew.await_start(home)
        self._crew.load_into(home, offers)
        return home

    def _holds(self, home: str, offers: Sequence[Offer]) -> bool:
        """Return whether a worker holds these clusters."""
        held = {offer.order.name for offer in self._crew.held(home)}
        return held >= {offer.order.name for offer in offers}


def _build(lane: Lane) -> None:
    lane.worker.ask("build_plan", RUN_LIMIT_S, steps=list(lane.steps), spin=lane.spin)
