"""Race between whole plans, timed in interleaved blocks over several heats; every measurement counts.

These rules hold even if workers die, hang or answer late (`tests/planning/test_race.py` tries ten thousand schedules):

- The winner is the plan with the best paired measurements of all proven plans, eager included.
- A plan is out only if it fails by itself. If its worker is gone, it is built again; if that is impossible, it counts
  with its measurements so far.
- A plan that is faster by less than the noise replaces neither a plan with fewer clusters nor the incumbent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from hub.errors import PluginError, WorkerDied, WorkerError, WorkerGone
from hub.plan import Contender
from hub.pricing.timing import in_turn, median_interval
from hub.process.working import now
from hub.workers.runners import Block, PlanRunner

BLOCK_S = 0.15
"""Seconds per block: long enough for tens of calls, short compared to the slow phases of a shared machine."""
MIN_ROUNDS = 5
"""Minimum number of rounds that two plans share before they are compared."""
MAX_ROUNDS = 40
"""Maximum number of rounds per heat."""
PROVEN_ROUNDS = 2
"""Number of blocks after which a plan's measurements count."""
HOPELESS = 1.5
"""Factor over the best plan at which a plan is dropped, if it is slower in each of at least two shared rounds."""
SAME = 1.01
"""Factor over another plan below which a plan is tied with it, however certain the difference."""
EQUAL = 1.02
"""Factor over the best plan below which a plan, even if certainly slower, is not timed further to tell them apart."""
TIE = 1.05
"""Factor over the best plan from which a plan is not tied with it, however noisy both are."""
PATIENCE_S = 30.0
"""Seconds over budget after which a heat stops even with fewer than `MIN_ROUNDS`: a machine may slow down."""
N_BRIDGES = 2
"""Number of plans of earlier heats that run again next to new ones."""
MAX_DEATHS = 2
"""Number of worker deaths during timing that disqualify a plan; the machine may have caused the first one."""
MAX_REVIVALS = 4


class Timer(Protocol):
    """Interface that a race needs to run whole plans; `PlanRunners` implements it with workers."""

    def time_runner(self, runner: PlanRunner, at_least_s: float) -> Block:
        """Time one block. Raise PluginError if the plan fails, WorkerGone if its worker is gone."""
        ...

    def revive(self, runner: PlanRunner) -> None:
        """Build a plan again in a new worker. Raise PluginError if it fails, WorkerError if there is no worker."""
        ...

    def end(self, runner: PlanRunner) -> None:
        """End a runner's worker, so that it takes no resources from those still timed."""
        ...


@dataclass(slots=True)
class Entrant:
    """Contender in the race, with all its measurements."""

    runner: PlanRunner
    blocks: dict[int, Block] = field(default_factory=dict[int, Block])
    """Blocks by round; rounds are numbered across all heats."""
    deaths: int = 0
    revivals: int = 0
    is_alive: bool = True
    error: PluginError | None = None
    """Reason why the plan is out."""

    @property
    def name(self) -> str:
        """Return the plan's name."""
        return self.runner.name

    @property
    def is_proven(self) -> bool:
        """Return whether the plan's measurements count."""
        return self.error is None and len(self.blocks) >= PROVEN_ROUNDS

    @property
    def n_clusters(self) -> int:
        """Return the number of clusters that backends run."""
        return sum(not step.is_eager for step in self.runner.steps)

    @property
    def by_round(self) -> dict[int, float]:
        """Return the median seconds of a call in each block, by round."""
        return {number: block.seconds for number, block in self.blocks.items()}

    @property
    def seconds(self) -> list[float]:
        """Return the median seconds of a call in each block, without the rounds."""
        return [block.seconds for block in self.blocks.values()]


@dataclass(frozen=True, slots=True)
class Proof:
    """Evidence from timing whole plans."""

    winner: Entrant
    contenders: tuple[Contender, ...]

    @property
    def laps_s(self) -> tuple[float, ...]:
        """Return the median seconds of each step of the winner within the whole plan."""
        return tuple(median(laps) for laps in zip(*(block.laps_s for block in self.winner.blocks.values()), strict=True))


class Race:
    """Race between whole plans, over any number of heats."""

    def __init__(self, timer: Timer, now: Callable[[], float] = now) -> None:
        """Create a race with a timer, and a clock `now` in seconds."""
        self._timer, self._now = timer, now
        self.entrants: list[Entrant] = []
        """All plans that ever took part."""
        self._round = 0
        self._busy: set[int] = set()
        """Rounds in which other work took cores from at least one plan."""
        self._incumbent: Entrant | None = None

    def heat(self, runners: Sequence[PlanRunner], budget_s: float) -> None:
        """Time new runners together with earlier ones that may still win, until one clearly is fastest or the budget ends.

        The order changes every round, so that no runner always follows the same one.
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
            over_s = self._now() - end
            running = self._hopeful([one for one in running if one.is_alive], waits=over_s < -budget_s / 2)
            if not running or (over_s > PATIENCE_S and number + 1 >= PROVEN_ROUNDS):
                break
            if self._is_comparable(running) and (over_s > 0 or (self._is_calm(running) and self._is_decided(running))):
                break
        self._incumbent = self._winner()

    def proof(self) -> Proof | None:
        """Return the winner with every contender's figures; None if no plan was proven."""
        return next(iter(self.proofs()), None)

    def proofs(self) -> tuple[Proof, ...]:
        """Return the winner's proof, then what proves each other plan if those before it turn out to be unusable."""
        winner, seconds = self._winner(), self._seconds()
        proven = [entrant for entrant in self.entrants if entrant.name in seconds]
        ranked = sorted(proven, key=lambda entrant: (entrant is not winner, seconds[entrant.name]))
        return tuple(
            Proof(best, tuple(_contender(one, seconds[one.name], won=one is best) for one in proven)) for best in ranked
        )

    @property
    def disturbed_share(self) -> float:
        """Return the share of rounds in which other work took cores."""
        return len(self._busy) / max(1, self._round)

    @property
    def failures(self) -> tuple[tuple[str, PluginError], ...]:
        """Return the names of the plans that are out, each with its error."""
        return tuple((entrant.name, entrant.error) for entrant in self.entrants if entrant.error is not None)

    @property
    def revived(self) -> tuple[str, ...]:
        """Return the names of the plans that were rebuilt because their worker was gone."""
        return tuple(entrant.name for entrant in self.entrants if entrant.revivals)

    def _time(self, entrant: Entrant) -> None:
        try:
            block = self._timer.time_runner(entrant.runner, BLOCK_S)
            entrant.blocks[self._round] = block
            if not block.is_calm:
                self._busy.add(self._round)
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
            entrant.is_alive = False  # no worker can time it any more, so it counts with its measurements so far
        except PluginError as error:
            entrant.error, entrant.is_alive = error, False

    def _hopeful(self, running: list[Entrant], *, waits: bool) -> list[Entrant]:
        """Return the contenders that may still be fastest, and end the others' workers.

        Other work slows some backends far more than others. So if it `waits`, only calm rounds count.
        """
        best = min(running, key=lambda entrant: median(entrant.seconds) if entrant.blocks else float("inf"), default=None)
        if best is None:
            return []
        hopeful: list[Entrant] = []
        for entrant in running:
            ratios = self._calm_ratios(entrant, best) if waits else self._ratios(entrant, best)
            if len(ratios) >= PROVEN_ROUNDS and min(ratios) > HOPELESS:
                entrant.is_alive = False
                self._timer.end(entrant.runner)
            else:
                hopeful.append(entrant)
        return hopeful

    def _is_comparable(self, running: Sequence[Entrant]) -> bool:
        """Return whether the fastest plan shares enough rounds with each other one for a comparison."""
        best = self._fastest(running)
        return best is not None and all(len(_common(entrant.by_round, best.by_round)) >= MIN_ROUNDS for entrant in running)

    def _is_calm(self, running: Sequence[Entrant]) -> bool:
        """Return whether enough of the rounds for a comparison were undisturbed."""
        best = self._fastest(running)
        return best is not None and all(len(self._calm_ratios(entrant, best)) >= MIN_ROUNDS for entrant in running)

    def _is_decided(self, running: Sequence[Entrant]) -> bool:
        best = self._fastest(running)
        others = [entrant for entrant in running if entrant is not best]
        return best is not None and all(self._is_clear(other, best) or self._is_equal(other, best) for other in others)

    def _ratios(self, slow: Entrant, fast: Entrant) -> list[float]:
        """Return the ratios of times in the rounds that both have run: in the calm ones if these are enough."""
        return _common(slow.by_round, fast.by_round, self._busy)

    def _calm_ratios(self, slow: Entrant, fast: Entrant) -> list[float]:
        calm = {number: seconds for number, seconds in slow.by_round.items() if number not in self._busy}
        return _common(calm, fast.by_round)

    def _is_clear(self, slow: Entrant, fast: Entrant) -> bool:
        """Return whether `slow` is slower by more than noise can explain."""
        ratios = self._ratios(slow, fast)
        if len(ratios) < PROVEN_ROUNDS:
            return False
        return median(ratios) > (SAME if median_interval(ratios)[0] > 1.0 else TIE)

    def _is_equal(self, other: Entrant, best: Entrant) -> bool:
        """Return whether the difference is certainly too small to be worth more time."""
        ratios = self._ratios(other, best)
        return len(ratios) >= MIN_ROUNDS and median_interval(ratios)[1] < EQUAL

    def _is_tied(self, other: Entrant, best: Entrant) -> bool:
        """Return whether noise may explain the difference. Plans that share too few rounds are not tied."""
        return len(self._ratios(other, best)) >= PROVEN_ROUNDS and not self._is_clear(other, best)

    def _still_in_it(self) -> list[Entrant]:
        """Return the earlier contenders that run again: those the incumbent does not clearly beat, at least two if alive.

        New plans are compared with all others through these. There are two because one may lose its worker.
        """
        seconds, best = self._seconds(), self._incumbent
        living = [entrant for entrant in self.entrants if entrant.is_proven and entrant.is_alive]
        living.sort(key=lambda entrant: seconds[entrant.name])
        others = [entrant for entrant in living if best is None or not self._is_clear(entrant, best)]
        return others if len(others) >= N_BRIDGES else living[:N_BRIDGES]

    def _winner(self) -> Entrant | None:
        """Return the fastest plan; if others are tied with it, the one with the fewest clusters, then the incumbent."""
        proven = [entrant for entrant in self.entrants if entrant.is_proven]
        best = self._fastest(proven)
        if best is None:
            return None
        seconds = self._seconds()
        near = [entrant for entrant in proven if seconds[entrant.name] <= TIE * seconds[best.name]]
        tied = [entrant for entrant in near if entrant is best or self._is_tied(entrant, best)]
        return min(tied, key=lambda entrant: (entrant.n_clusters, entrant is not self._incumbent, seconds[entrant.name]))

    def _fastest(self, entrants: Sequence[Entrant]) -> Entrant | None:
        seconds = self._seconds()
        return min((item for item in entrants if item.name in seconds), key=lambda item: seconds[item.name], default=None)

    def _seconds(self) -> dict[str, float]:
        blocks = {entrant.name: entrant.by_round for entrant in self.entrants if entrant.is_proven}
        return comparable(blocks, self._busy)


def comparable(blocks: Mapping[str, Mapping[int, float]], busy: Collection[int] = ()) -> dict[str, float]:
    """Return seconds of each plan as if all had run in the same rounds, given seconds by round; keep the order.

    Rounds in which the machine was busy with other work count only between plans that share too few others.

    The plan with the most rounds sets the scale with its median. Each other plan is placed by its median ratio to a plan
    already placed, over their shared rounds; the pair with the most certain ratios comes first. So slow phases of the
    machine cancel out, and plans of different heats are compared through those that ran in both. A plan that shares no
    round with any other keeps its own median.
    """
    if not blocks:
        return {}
    first = max(blocks, key=lambda name: len(blocks[name]))
    placed = {first: median(list(_calm(blocks[first], busy).values()))}
    while left := [name for name in blocks if name not in placed]:
        pairs = ((name, other, _common(blocks[name], blocks[other], busy)) for name in left for other in placed)
        name, other, ratios = min(pairs, key=lambda pair: _doubt(pair[2]))
        placed[name] = placed[other] * median(ratios) if ratios else median(list(_calm(blocks[name], busy).values()))
    return {name: placed[name] for name in blocks}


def _doubt(ratios: Sequence[float]) -> tuple[bool, float]:
    """Return how uncertain ratios are: their median distance from the median, divided by the root of their number."""
    if len(ratios) < PROVEN_ROUNDS:
        return True, -len(ratios)
    middle = median(ratios)
    return False, median([abs(ratio - middle) for ratio in ratios]) / middle / len(ratios) ** 0.5


def _calm(seconds: Mapping[int, float], busy: Collection[int]) -> Mapping[int, float]:
    """Return the rounds that are not busy if these are enough; all otherwise."""
    calm = {number: value for number, value in seconds.items() if number not in busy}
    return calm if len(calm) >= MIN_ROUNDS else seconds


def _common(slow: Mapping[int, float], fast: Mapping[int, float], busy: Collection[int] = ()) -> list[float]:
    """Return the ratios of times in the rounds that both have run."""
    ratios = {number: seconds / fast[number] for number, seconds in slow.items() if number in fast}
    return list(_calm(ratios, busy).values())


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
