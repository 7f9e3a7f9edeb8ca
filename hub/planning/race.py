"""Times whole plans against each other, blocks interleaved, heat after heat; what any of them showed counts in the end.

The rules that hold whatever dies, hangs or comes late (`tests/planning/test_race.py` tries them on ten thousand schedules):

- The winner is the plan with the best paired measurements of all that were ever proven, eager among them.
- A plan is out only if it fails by itself. One whose worker is gone is built again; where that cannot be done, it counts
  with what it showed.
- A plan that is faster by less than noise can make does not take the place of one with fewer clusters, or of the
  incumbent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hub.errors import PluginError, WorkerDied, WorkerError, WorkerGone
from hub.plan import Contender
from hub.pricing.timing import in_turn, median, median_interval
from hub.process.working import now
from hub.workers.runners import Block, PlanRunner

BLOCK_S = 0.15
"""Seconds of one block: long enough for tens of calls, short against the slow phases of a shared machine."""
MIN_ROUNDS = 5
"""Rounds that two plans have to share."""
MAX_ROUNDS = 40
"""Rounds of one heat."""
PROVEN_ROUNDS = 2
"""Blocks after which a plan counts with what it showed."""
HOPELESS = 1.5
"""A plan this many times slower than the best in each of two or more rounds is timed no further."""
SAME = 1.01
"""A plan that is slower than another one by less than this is tied with it, however sure the difference is."""
EQUAL = 1.02
"""A plan that is surely slower than the best by less than this, if at all, is not timed on to tell which is faster."""
TIE = 1.05
"""A plan this many times slower than the best is not tied with it, however noisy both are."""
PATIENCE_S = 30.0
"""Seconds after the end of its budget at which a heat stops with fewer than `MIN_ROUNDS`: a machine may slow down."""
N_BRIDGES = 2
"""Plans of earlier heats that run beside new ones."""
MAX_DEATHS = 2
"""Deaths of a plan's worker while it is timed that are held against the plan; the first may be the machine's."""
MAX_REVIVALS = 4


class Timer(Protocol):
    """What a race needs of whoever runs whole plans: `PlanRunners` does, in workers."""

    def time_runner(self, runner: PlanRunner, at_least_s: float) -> Block:
        """Time one block. Raise PluginError where the plan fails, WorkerGone where there was nobody to ask."""
        ...

    def revive(self, runner: PlanRunner) -> None:
        """Build a plan again in a new worker. Raise PluginError where it fails, WorkerError for want of a worker."""
        ...

    def end(self, runner: PlanRunner) -> None:
        """End a runner's worker, so that it takes nothing from those that are still timed."""
        ...


@dataclass(slots=True)
class Entrant:
    """One plan in the race, with everything it has shown."""

    runner: PlanRunner
    blocks: dict[int, Block] = field(default_factory=dict[int, Block])
    """By round; rounds are counted through all heats."""
    deaths: int = 0
    revivals: int = 0
    is_alive: bool = True
    error: PluginError | None = None
    """Why it is out."""

    @property
    def name(self) -> str:
        """The plan's name."""
        return self.runner.name

    @property
    def is_proven(self) -> bool:
        """Return whether it counts."""
        return self.error is None and len(self.blocks) >= PROVEN_ROUNDS

    @property
    def n_clusters(self) -> int:
        """Clusters that backends run."""
        return sum(not step.is_eager for step in self.runner.steps)

    @property
    def by_round(self) -> dict[int, float]:
        """Median seconds of a call, block by block."""
        return {number: block.seconds for number, block in self.blocks.items()}

    @property
    def seconds(self) -> list[float]:
        """The same without the rounds."""
        return [block.seconds for block in self.blocks.values()]


@dataclass(frozen=True, slots=True)
class Proof:
    """What timing whole plans showed."""

    winner: Entrant
    contenders: tuple[Contender, ...]

    @property
    def laps_s(self) -> tuple[float, ...]:
        """Median seconds of each step of the winner, inside the whole plan."""
        return tuple(median(laps) for laps in zip(*(block.laps_s for block in self.winner.blocks.values()), strict=True))


class Race:
    """Whole plans timed against each other, in as many heats as planning has."""

    def __init__(self, timer: Timer, now: Callable[[], float] = now) -> None:
        """`now` gives seconds."""
        self._timer, self._now = timer, now
        self.entrants: list[Entrant] = []
        """All plans that ever took part."""
        self._round = 0
        self._incumbent: Entrant | None = None

    def heat(self, runners: Sequence[PlanRunner], budget_s: float) -> None:
        """Time new runners beside all that may still be the fastest, until one clearly is or the budget ends.

        The order changes from round to round, so that no runner always follows the same neighbour.
        """
        earlier = self._still_in_it()
        new = [Entrant(runner) for runner in runners]
        self.entrants += new
        running = [*earlier, *new]
        end = self._now() + budget_s
        for number in range(MAX_ROUNDS):
            for entrant in in_turn(running, number):
                self._time(entrant)
            self._round += 1
            running = self._hopeful([entrant for entrant in running if entrant.is_alive])
            over_s = self._now() - end
            if not running or (over_s > PATIENCE_S and number + 1 >= PROVEN_ROUNDS):
                break
            if self._is_comparable(running) and (over_s > 0 or self._is_decided(running)):
                break
        self._incumbent = self._winner()

    def proof(self) -> Proof | None:
        """Return who won, with every contender's figures; None where no plan was proven."""
        winner = self._winner()
        if winner is None:
            return None
        entrants = {entrant.name: entrant for entrant in self.entrants}
        seconds = self._seconds().items()
        contenders = tuple(_contender(entrants[name], median_s, won=entrants[name] is winner) for name, median_s in seconds)
        return Proof(winner, contenders)

    @property
    def failures(self) -> tuple[tuple[str, PluginError], ...]:
        """Plan that are out, and why."""
        return tuple((entrant.name, entrant.error) for entrant in self.entrants if entrant.error is not None)

    @property
    def revived(self) -> tuple[str, ...]:
        """Plan that were built again because their worker was gone."""
        return tuple(entrant.name for entrant in self.entrants if entrant.revivals)

    def _time(self, entrant: Entrant) -> None:
        try:
            entrant.blocks[self._round] = self._timer.time_runner(entrant.runner, BLOCK_S)
        except (WorkerDied, WorkerGone) as error:
            entrant.deaths += not isinstance(error, WorkerGone)
            if entrant.deaths >= MAX_DEATHS:
                entrant.error, entrant.is_alive = error, False
            else:
                self._revive(entrant)
        except PluginError as error:
            entrant.error, entrant.is_alive = error, False

    def _revive(self, entrant: Entrant) -> None:
        entrant.revivals += 1
        entrant.is_alive = entrant.revivals <= MAX_REVIVALS
        if not entrant.is_alive:
            return
        try:
            self._timer.revive(entrant.runner)
        except WorkerError:
            entrant.is_alive = False  # nobody can time it any more: it counts with what it showed
        except PluginError as error:
            entrant.error, entrant.is_alive = error, False

    def _hopeful(self, running: list[Entrant]) -> list[Entrant]:
        """Return those that may still be the fastest, and end the others' workers."""
        best = min(running, key=lambda entrant: median(entrant.seconds) if entrant.blocks else float("inf"), default=None)
        if best is None:
            return []
        hopeful: list[Entrant] = []
        for entrant in running:
            ratios = _ratios(entrant, best)
            if len(ratios) >= PROVEN_ROUNDS and min(ratios) > HOPELESS:
                entrant.is_alive = False
                self._timer.end(entrant.runner)
            else:
                hopeful.append(entrant)
        return hopeful

    def _is_comparable(self, running: Sequence[Entrant]) -> bool:
        """Return whether the fastest has run in as many rounds with each other one as a comparison needs."""
        best = self._fastest(running)
        return best is not None and all(len(_ratios(entrant, best)) >= MIN_ROUNDS for entrant in running)

    def _is_decided(self, running: Sequence[Entrant]) -> bool:
        best = self._fastest(running)
        others = [entrant for entrant in running if entrant is not best]
        return best is not None and all(_is_clear(other, best) or _is_equal(other, best) for other in others)

    def _still_in_it(self) -> list[Entrant]:
        """Return the plans of earlier heats that run again: what the incumbent does not clearly beat, two at least.

        New plans are compared with all others through these, and one of them may lose its worker.
        """
        seconds, best = self._seconds(), self._incumbent
        living = [entrant for entrant in self.entrants if entrant.is_proven and entrant.is_alive]
        living.sort(key=lambda entrant: seconds[entrant.name])
        others = [entrant for entrant in living if best is None or not _is_clear(entrant, best)]
        return others if len(others) >= N_BRIDGES else living[:N_BRIDGES]

    def _winner(self) -> Entrant | None:
        """Return the fastest plan; among those it does not clearly beat, the one of fewest clusters, then the incumbent."""
        proven = [entrant for entrant in self.entrants if entrant.is_proven]
        best = self._fastest(proven)
        if best is None:
            return None
        seconds = self._seconds()
        near = [entrant for entrant in proven if seconds[entrant.name] <= TIE * seconds[best.name]]
        tied = [entrant for entrant in near if entrant is best or _is_tied(entrant, best)]
        return min(tied, key=lambda entrant: (entrant.n_clusters, entrant is not self._incumbent, seconds[entrant.name]))

    def _fastest(self, entrants: Sequence[Entrant]) -> Entrant | None:
        seconds = self._seconds()
        return min((item for item in entrants if item.name in seconds), key=lambda item: seconds[item.name], default=None)

    def _seconds(self) -> dict[str, float]:
        return comparable({entrant.name: entrant.by_round for entrant in self.entrants if entrant.is_proven})


def comparable(blocks: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """Return seconds of each plan as if all had run in the same rounds, given seconds by round; in the given order.

    The plan with the most rounds gives the scale: its median. Each other one follows by the median ratio to one that is
    placed already, over the rounds that they share; the pair whose ratios are surest comes first. So slow phases of the
    machine cancel out, and plans of different heats are compared through those that ran in both. One that shares no round
    with anybody has its own median.
    """
    if not blocks:
        return {}
    first = max(blocks, key=lambda name: len(blocks[name]))
    placed = {first: median(list(blocks[first].values()))}
    while left := [name for name in blocks if name not in placed]:
        pairs = ((name, other, _common(blocks[name], blocks[other])) for name in left for other in placed)
        name, other, ratios = min(pairs, key=lambda pair: _doubt(pair[2]))
        placed[name] = placed[other] * median(ratios) if ratios else median(list(blocks[name].values()))
    return {name: placed[name] for name in blocks}


def _doubt(ratios: Sequence[float]) -> tuple[bool, float]:
    """Return how little ratios are to be trusted: their median distance from the median, by the root of their number."""
    if len(ratios) < PROVEN_ROUNDS:
        return True, -len(ratios)
    middle = median(ratios)
    return False, median([abs(ratio - middle) for ratio in ratios]) / middle / len(ratios) ** 0.5


def _common(slow: Mapping[int, float], fast: Mapping[int, float]) -> list[float]:
    return [seconds / fast[number] for number, seconds in slow.items() if number in fast]


def _ratios(slow: Entrant, fast: Entrant) -> list[float]:
    """Return ratios of times in the rounds that both have run."""
    return _common(slow.by_round, fast.by_round)


def _is_clear(slow: Entrant, fast: Entrant) -> bool:
    """Return whether one is slower by more than noise can make."""
    ratios = _ratios(slow, fast)
    if len(ratios) < PROVEN_ROUNDS:
        return False
    return median(ratios) > (SAME if median_interval(ratios)[0] > 1.0 else TIE)


def _is_equal(other: Entrant, best: Entrant) -> bool:
    """Return whether the difference, whatever it is, is too small to be worth more time."""
    ratios = _ratios(other, best)
    return len(ratios) >= MIN_ROUNDS and median_interval(ratios)[1] < EQUAL


def _is_tied(other: Entrant, best: Entrant) -> bool:
    """Return whether noise may have made the difference. Plans that never ran in one round are not tied."""
    return len(_ratios(other, best)) >= PROVEN_ROUNDS and not _is_clear(other, best)


def _contender(entrant: Entrant, median_s: float, *, won: bool) -> Contender:
    seconds = entrant.seconds
    low, high = median_interval(seconds)
    return Contender(
        name=entrant.name,
        median_s=median_s,
        spread_s=(high - low) / 2 * median_s / median(seconds),
        calls=sum(block.calls for block in entrant.blocks.values()),
        n_clusters=entrant.n_clusters,
        won=won,
    )
