"""Times whole plans against each other, blocks interleaved, until one is clearly the fastest or the budget ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from hub.errors import PluginError
from hub.plan import Contender
from hub.pricing.session import Lane, Session
from hub.pricing.timing import in_turn, median, median_interval

BLOCK_S = 0.15
"""Seconds of one block: long enough for tens of calls, short against the slow phases of a shared machine."""
LEAST_ROUNDS = 5
HOPELESS = 1.5
"""A plan this many times slower than the best after two rounds is timed no further."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What whole-plan timing showed."""

    winner: Lane
    contenders: tuple[Contender, ...]
    failures: tuple[tuple[str, PluginError], ...]

    @property
    def laps_s(self) -> tuple[float, ...]:
        """Median seconds of each step of the winner, inside the whole plan."""
        return tuple(median(laps) for laps in zip(*self.winner.laps_s, strict=True))


def prove(
    session: Session, lanes: Sequence[Lane], budget_s: float, most_rounds: int = 40, *, favourite: Lane | None = None
) -> Proof | None:
    """Gives the fastest lane by paired blocks, with every contender's figures. None if all lanes failed.

    The order changes from round to round, so that no lane always follows the same neighbour. A `favourite` that no lane
    clearly beats wins over lanes of as many clusters.
    """
    running = list(lanes)
    failures: list[tuple[str, PluginError]] = []
    end = time.monotonic() + budget_s
    for number in range(most_rounds):
        for lane in in_turn(running, number):
            try:
                session.time_lane(lane, BLOCK_S)
            except PluginError as error:
                failures.append((lane.name, error))
                running.remove(lane)
        running = _still_hopeful(session, running, number)
        if not running or (number + 1 >= LEAST_ROUNDS and (_is_decided(running) or time.monotonic() > end)):
            break
    if not running:
        return None
    winner = _winner(running, favourite)
    failed = {name for name, _ in failures}
    timed = [lane for lane in lanes if lane.blocks_s and lane.name not in failed]
    return Proof(winner, tuple(_contender(lane, won=lane is winner) for lane in timed), tuple(failures))


def _still_hopeful(session: Session, lanes: list[Lane], number: int) -> list[Lane]:
    if number < 1 or not lanes:
        return lanes
    best = min(median(lane.blocks_s) for lane in lanes)
    hopeful = [lane for lane in lanes if median(lane.blocks_s) <= HOPELESS * best]
    for lane in lanes:
        if lane not in hopeful:
            session.end(lane)
    return hopeful


def _is_decided(lanes: Sequence[Lane]) -> bool:
    best = min(lanes, key=lambda lane: median(lane.blocks_s))
    return all(median_interval(_ratios(other, best))[0] > 1.0 for other in lanes if other is not best)


def _winner(lanes: Sequence[Lane], favourite: Lane | None) -> Lane:
    """The fastest lane; among those it does not clearly beat, the one with fewest clusters, then the favourite."""
    best = min(lanes, key=lambda lane: median(lane.blocks_s))
    tied = [lane for lane in lanes if lane is best or median_interval(_ratios(lane, best))[0] <= 1.0]
    return min(tied, key=lambda lane: (_n_clusters(lane), lane is not favourite, median(lane.blocks_s)))


def _ratios(other: Lane, best: Lane) -> list[float]:
    """Ratio of times round by round: slow phases of the machine cancel out."""
    return [slow / fast for slow, fast in zip(other.blocks_s, best.blocks_s, strict=False)]


def _n_clusters(lane: Lane) -> int:
    return sum(not step.is_eager for step in lane.steps)


def _contender(lane: Lane, *, won: bool) -> Contender:
    low, high = median_interval(lane.blocks_s)
    return Contender(
        name=lane.name,
        median_s=median(lane.blocks_s),
        spread_s=(high - low) / 2,
        calls=lane.calls,
        n_clusters=_n_clusters(lane),
        won=won,
    )
