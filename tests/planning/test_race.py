"""The race: noise, deaths, late arrivals and slow phases do not make a slower plan win, and ties go to fewer clusters."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from hub.dispatch.codegen import Step
from hub.errors import RunError, WorkerDied, WorkerError, WorkerGone
from hub.planning.race import MIN_ROUNDS, PROVEN_ROUNDS, TIE, Race, comparable
from hub.workers.runners import Block, PlanRunner

MS = 1e-3


class Blocks:
    """A substitute for a session's plan runners: a function returns their blocks, by runner and number of blocks so far."""

    def __init__(self, block_s: Callable[[str, int], float]) -> None:
        self.block_s = block_s
        self.ended: list[str] = []
        self.asked: list[str] = []
        self.revived: list[str] = []

    def time_runner(self, runner: PlanRunner, at_least_s: float) -> Block:
        """Return one block."""
        self.asked.append(runner.name)
        seconds = self.block_s(runner.name, self.asked.count(runner.name) - 1)
        return Block(seconds, (seconds / len(runner.steps),) * len(runner.steps), 10)

    def revive(self, runner: PlanRunner) -> None:
        """Record which plan runner was rebuilt."""
        self.revived.append(runner.name)

    def end(self, runner: PlanRunner) -> None:
        """Record which plan runner was ended."""
        self.ended.append(runner.name)


def runner(name: str, n_clusters: int) -> PlanRunner:
    """Return a runner without a worker."""
    steps = [Step(f"c{number}", name, ()) for number in range(n_clusters)] or [Step("e0", "eager", (), is_eager=True)]
    no_worker: Any = None
    return PlanRunner(name, tuple(steps), (), busy_wait=False, worker=no_worker)


def raced(runners: Sequence[PlanRunner], block_s: Callable[[str, int], float], budget_s: float = 0.0) -> Any:
    """Run one heat of made-up blocks, with a budget that the least number of rounds outlasts by default."""
    blocks = Blocks(block_s)
    race = Race(blocks)
    race.heat(runners, budget_s)
    return race, blocks


def noisy(seed: int, true_s: dict[str, float], noise: float) -> Callable[[str, int], float]:
    """Return blocks that are off by up to a share, with slow phases that last for two rounds."""
    chance = random.Random(seed)
    slow = [chance.choice((1.0, 1.0, 1.6)) for _ in range(100)]
    return lambda name, number: true_s[name] * slow[number // 2] * (1 + chance.uniform(-noise, noise))


@pytest.mark.parametrize("seed", range(20))
def test_noise_costs_no_more_than_the_spread(seed: int) -> None:
    """Under noise, the winning plan is slower than the best single backend by at most the reported spread."""
    true_s = {"one": 10 * MS, "two": 10.4 * MS, "one + two": 10.3 * MS, "eager": 13 * MS}
    runners = [runner("one", 1), runner("two", 1), runner("one + two", 2), runner("eager", 0)]
    proof = raced(runners, noisy(seed, true_s, 0.05), budget_s=60.0)[0].proof()
    spread = max(item.spread_s / item.median_s for item in proof.contenders)
    assert true_s[proof.winner.name] <= true_s["one"] * (1 + spread)


@pytest.mark.parametrize("seed", range(10))
def test_slow_phases_cancel_out(seed: int) -> None:
    """A plan that is 5 % faster wins although everything slows down by 1.6 for a while."""
    true_s = {"one": 10 * MS, "one + two": 9.5 * MS}
    race, _ = raced([runner("one", 1), runner("one + two", 2)], noisy(seed, true_s, 0.01), budget_s=60.0)
    assert race.proof().winner.name == "one + two"


def beside_others(until: int, block_s: Callable[[str, int, bool], float]) -> Any:
    """Run one heat of two plans of one cluster and eager, next to other work for the first so many rounds."""

    class Beside(Blocks):
        def time_runner(self, runner: PlanRunner, at_least_s: float) -> Block:
            block = super().time_runner(runner, at_least_s)
            return replace(block, disturbed=block.calls if self.asked.count(runner.name) <= until else 0)

    race = Race(Beside(lambda name, number: block_s(name, number, number < until)))
    race.heat([runner("pool", 1), runner("openmp", 1), runner("eager", 0)], budget_s=60.0)
    return race


def shared_s(name: str, number: int, is_shared: bool) -> float:
    """Return blocks of plans of which all but one become many times slower if they lose a core."""
    wobble = (0.99, 1.01, 1.0)[number % 3]
    return {"pool": 2 + is_shared, "openmp": 1 + 40 * is_shared, "eager": 3 + 60 * is_shared}[name] * MS * wobble


@pytest.mark.parametrize("until", [2, 5, 12])
def test_plans_are_judged_by_the_rounds_without_other_work(until: int) -> None:
    """A plan that would be dropped next to other work stays until it ends, and what it is without it counts."""
    race = beside_others(until, shared_s)
    proof = race.proof()
    assert proof.winner.name == "openmp"
    assert 0 < race.disturbed_share < 1
    assert next(item.median_s for item in proof.contenders if item.won) < 2 * MS


def test_a_machine_that_is_busy_for_good_ends_a_race_as_well() -> None:
    """Then the fastest next to other work wins."""
    race = beside_others(1000, shared_s)
    assert race.proof().winner.name == "pool"
    assert race.disturbed_share == 1.0


def test_ties_go_to_fewer_clusters() -> None:
    """A mix whose lead does not persist loses to the single backend."""
    wobble = (0.98, 1.02, 0.97, 1.04, 0.99, 1.01)

    def block_s(name: str, number: int) -> float:
        return 10 * MS * (wobble[number % 6] if name == "one + two" else 1.0)

    race, _ = raced([runner("one + two", 2), runner("one", 1)], block_s)
    assert race.proof().winner.name == "one"


def test_a_wide_interval_makes_no_tie_of_a_plan_that_is_much_slower() -> None:
    """One lucky round of five is within the interval, although the plan with fewer clusters takes 1.4 times as long."""

    def block_s(name: str, number: int) -> float:
        return 10 * MS if name == "one + two" else (9 if number == 2 else 14) * MS

    race, _ = raced([runner("one + two", 2), runner("one", 1)], block_s)
    assert race.proof().winner.name == "one + two"


def test_clear_winner_wins_with_more_clusters() -> None:
    """A mix that is faster in every round wins."""
    race, _ = raced([runner("one", 1), runner("one + two", 2)], lambda name, _: (9 if "+" in name else 10) * MS)
    assert race.proof().winner.name == "one + two"
    assert [item.won for item in race.proof().contenders] == [False, True]


def test_hopeless_plans_go_home_early() -> None:
    """A plan that is far behind after two rounds takes no more time from the others, and stays in the evidence."""
    race, blocks = raced([runner("one", 1), runner("slow", 1)], lambda name, _: (40 if name == "slow" else 10) * MS)
    assert blocks.ended == ["slow"]
    assert blocks.asked.count("slow") == 2
    assert {item.name for item in race.proof().contenders} == {"one", "slow"}


def test_a_phase_that_begins_within_a_round_sends_nobody_home() -> None:
    """A plan that was slow in one round of two, when everything was slow, is timed further."""

    def block_s(name: str, number: int) -> float:
        return 10 * MS * (10 if name == "one" and number == 1 else 1)

    race, blocks = raced([runner("one", 1), runner("two", 1)], block_s)
    assert not blocks.ended
    assert len(race.proof().contenders) == 2


def test_at_least_some_rounds() -> None:
    """However small the budget, each promising plan is timed often enough for an interval."""
    race, blocks = raced([runner("one", 1), runner("two", 1)], lambda name, _: 10 * MS)
    assert blocks.asked.count("one") == blocks.asked.count("two") == MIN_ROUNDS
    assert race.proof().winner.name == "one"


def test_what_is_surely_equal_is_not_timed_on() -> None:
    """Two plans within one percent of each other, in every round, take only the required rounds."""
    blocks = Blocks(lambda name, number: (10.0 + 0.05 * (name == "two" and number % 2)) * MS)
    race = Race(blocks)
    race.heat([runner("one", 1), runner("two", 1)], 60.0)
    assert len(blocks.asked) == 2 * MIN_ROUNDS
    assert race.proof() is not None


def test_what_may_be_better_by_more_than_noise_is_timed_on() -> None:
    """Five rounds of wide noise do not end the race: the difference could be worth having."""
    blocks = Blocks(lambda name, number: 10 * MS * (1.05 if (name == "one") == bool(number % 2) else 1.0))
    Race(blocks).heat([runner("one", 1), runner("two", 1)], 60.0)
    assert len(blocks.asked) > 2 * MIN_ROUNDS


@pytest.mark.parametrize(("variant_s", "winner"), [(9.99 * MS, "usual"), (9.5 * MS, "variant")])
def test_incumbent_must_be_beaten_clearly(variant_s: float, winner: str) -> None:
    """A variant of the winner's settings that is faster only within the noise does not replace it."""
    chance = random.Random(3)
    true_s = {"usual": 10 * MS, "variant": variant_s}
    race = Race(Blocks(lambda name, _: true_s[name] * (1 + chance.uniform(-0.01, 0.01))))
    race.heat([runner("usual", 1)], 60.0)
    race.heat([runner("variant", 1)], 60.0)
    proof = race.proof()
    assert proof is not None
    assert proof.winner.name == winner


def test_nobody_always_follows_the_same_neighbour() -> None:
    """A block leaves caches and threads behind, so each plan runs after several others, first, and last."""
    names = ("a", "b", "c", "d")
    _, blocks = raced([runner(name, 1) for name in names], lambda name, _: 10 * MS)
    rounds = [blocks.asked[start : start + 4] for start in range(0, 4 * MIN_ROUNDS, 4)]
    assert all(sorted(one) == list(names) for one in rounds)
    before = {name: {one[one.index(name) - 1] for one in rounds if one[0] != name} for name in names}
    assert all(len(found) > 1 for found in before.values())
    assert len({one[0] for one in rounds}) > 1


def test_failing_plan_is_no_contender() -> None:
    """A plan that fails while it is timed is reported with its error, and the others continue."""

    def block_s(name: str, number: int) -> float:
        if name == "bad" and number == 1:
            raise RunError("it fell over", backend="bad")
        return 10 * MS

    race, _ = raced([runner("bad", 1), runner("one", 1)], block_s)
    assert race.proof().winner.name == "one"
    assert [name for name, _ in race.failures] == ["bad"]
    assert [item.name for item in race.proof().contenders] == ["one"]


def test_no_plan_left() -> None:
    """If every plan fails, there is no evidence."""

    def block_s(name: str, number: int) -> float:
        raise RunError("it fell over", backend=name)

    race, _ = raced([runner("one", 1), runner("two", 1)], block_s)
    assert race.proof() is None
    assert {name for name, _ in race.failures} == {"one", "two"}


def test_contender_tells_median_and_spread() -> None:
    """The evidence of a plan is the median of its blocks and half the width of its interval."""
    blocks = [10 * MS, 11 * MS, 12 * MS, 13 * MS, 14 * MS]
    race, _ = raced([runner("one", 1)], lambda name, number: blocks[number % 5])
    contender = race.proof().contenders[0]
    assert contender.median_s == median(blocks)
    assert contender.spread_s == pytest.approx((max(blocks) - min(blocks)) / 2)


# --- Deaths -----------------------------------------------------------------------------------------------------------


class Mortal(Blocks):
    """Blocks of runners whose workers end: by runner, the numbers of the blocks at which they do."""

    def __init__(self, true_s: dict[str, float], ends: dict[str, tuple[int, ...]], error: type[Exception]) -> None:
        super().__init__(lambda name, _: true_s[name])
        self.ends, self.error = ends, error

    def time_runner(self, runner: PlanRunner, at_least_s: float) -> Block:
        """Return one block, or raise."""
        block = super().time_runner(runner, at_least_s)
        if self.asked.count(runner.name) in self.ends.get(runner.name, ()):
            raise self.error("killed by SIGKILL")
        return block


TRUE_S = {"fast": 5 * MS, "fast, 1 thread": 9 * MS, "slow": 8 * MS}


def two_heats(timer: Blocks) -> Race:
    """Race two plans, and then a variant of the faster one."""
    race = Race(timer)
    race.heat([runner("fast", 1), runner("slow", 1)], 0.0)
    race.heat([runner("fast, 1 thread", 1)], 0.0)
    return race


@pytest.mark.parametrize("end", range(1, MIN_ROUNDS + PROVEN_ROUNDS))
def test_losing_a_worker_lets_no_slower_plan_win(end: int) -> None:
    """The fastest plan loses its worker at any time, between two blocks, and wins nevertheless."""
    blocks = Mortal(TRUE_S, {"fast": (end,)}, WorkerGone)
    race = two_heats(blocks)
    proof = race.proof()
    assert proof is not None
    assert proof.winner.name == "fast"
    assert blocks.revived == ["fast"]
    assert race.revived == ("fast",)


@pytest.mark.parametrize("end", range(PROVEN_ROUNDS + 1, MIN_ROUNDS + PROVEN_ROUNDS))
def test_a_plan_that_nobody_can_build_again_counts_with_what_it_showed(end: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If workers become unavailable, what was measured before stays valid."""
    blocks = Mortal(TRUE_S, {"fast": (end,)}, WorkerGone)

    def revive(_: PlanRunner) -> None:
        raise WorkerError("no process can be started")

    monkeypatch.setattr(blocks, "revive", revive)
    proof = two_heats(blocks).proof()
    assert proof is not None
    assert proof.winner.name == "fast"


def test_a_plan_that_dies_twice_while_it_runs_is_out() -> None:
    """One death may be the machine's fault; two are the plan's."""
    race = two_heats(Mortal(TRUE_S, {"fast": (2, 4)}, WorkerDied))
    proof = race.proof()
    assert proof is not None
    assert proof.winner.name == "slow"
    assert [name for name, _ in race.failures] == ["fast"]


def test_plans_of_different_heats_are_compared_through_those_in_both() -> None:
    """Everything slows down ten times between two heats: a plan of only the second is not rated ten times slower for it."""
    blocks = {
        "first": {0: 1.0, 1: 1.1, 2: 1.0},
        "both": {0: 2.0, 1: 2.2, 2: 2.0, 3: 20.0, 4: 20.0, 5: 20.0},
        "second": {3: 5.0, 4: 5.0, 5: 5.0},
    }
    seconds = comparable(blocks)
    assert seconds["first"] / seconds["both"] == pytest.approx(0.5)
    assert seconds["second"] / seconds["both"] == pytest.approx(0.25)
    assert list(seconds) == list(blocks)


class World:
    """A machine with a clock, slow phases, and plans that die, fail, or cannot be rebuilt."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.noise = self.chance.choice((0.0, 0.01, 0.05))
        names = ["eager", *(f"plan {number}" for number in range(self.chance.randint(1, 7)))]
        self.true_s = {name: 10 * MS * self.chance.uniform(0.2, 3.0) for name in names}
        self.slow = self.chance.choice((1.0, 1.0, 1.6, 10.0))
        """The factor by which everything is slower from one moment on, forever or for a while."""
        self.slow_from_s = self.chance.uniform(0.0, 20.0)
        self.slow_until_s = self.slow_from_s + self.chance.choice((0.5, 5.0, 1e9))
        self.mortality = self.chance.choice((0.0, 0.02, 0.2))
        self.has_workers = self.chance.random() < 0.7
        self.seconds = 0.0
        self.bad: set[str] = set()
        """Plans that failed by themselves."""
        self.deaths: dict[str, int] = {}
        self.n_shown: Counter[str] = Counter()

    def now(self) -> float:
        """Return the time."""
        return self.seconds

    def time_runner(self, runner: PlanRunner, at_least_s: float) -> Block:
        """Return one block, later; or raise the reason that there is none."""
        fate = self.chance.random()
        if fate < self.mortality:
            raise WorkerGone("it was gone")
        if runner.name != "eager" and fate < 1.5 * self.mortality:
            self.deaths[runner.name] = self.deaths.get(runner.name, 0) + 1
            if self.deaths[runner.name] > 1:
                self.bad.add(runner.name)
            raise WorkerDied("it died")
        if runner.name != "eager" and fate < 1.6 * self.mortality:
            self.bad.add(runner.name)
            raise RunError("it fell over")
        is_slow = self.slow_from_s <= self.seconds < self.slow_until_s
        seconds = self.true_s[runner.name] * (self.slow if is_slow else 1.0)
        seconds *= 1 + self.chance.uniform(-self.noise, self.noise)
        self.seconds += max(at_least_s, 3 * seconds)
        self.n_shown[runner.name] += 1
        return Block(seconds, (seconds,), 3)

    def revive(self, runner: PlanRunner) -> None:
        """Rebuild the plan runner, or raise."""
        if not self.has_workers:
            raise WorkerError("no process can be started")

    def end(self, runner: PlanRunner) -> None:
        """Do nothing: no process is held."""

    def race(self) -> Race:
        """Race all plans, in up to three heats."""
        race = Race(self, self.now)
        names = list(self.true_s)
        cuts = sorted(self.chance.sample(range(1, len(names) + 1), k=min(len(names), self.chance.randint(1, 3))))
        for start, end in zip((0, *cuts), (*cuts, len(names)), strict=True):
            runners = [runner(name, 0 if name == "eager" else self.chance.randint(1, 3)) for name in names[start:end]]
            race.heat(runners, self.chance.choice((0.0, 2.0, 30.0)))
        return race


def test_the_chosen_plan_is_never_slower_than_the_best_that_was_proven() -> None:
    """Ten thousand schedules with noise, deaths, failures, late arrivals, slow phases and budgets that end.

    The winner is never slower, beyond noise and the width of a tie, than any plan that was proven, including eager. If
    everything became slower meanwhile, that is required only for plans that ran in enough rounds with the winner.
    """
    n_judged = 0
    for seed in range(10_000):
        world = World(seed)
        race = world.race()
        proof = race.proof()
        proven = {name for name, n_shown in world.n_shown.items() if n_shown >= PROVEN_ROUNDS} - world.bad
        assert (proof is not None) == bool(proven), seed
        if proof is None:
            continue
        winner = proof.winner.name
        evidence = {item.name: item.median_s for item in proof.contenders}
        assert evidence.keys() == proven, seed
        assert evidence[winner] <= TIE * min(evidence.values()) * (1 + 1e-9), seed
        shared = {item.name: len(proof.winner.blocks.keys() & item.blocks.keys()) for item in race.entrants}
        judged = proven if world.slow == 1.0 else {name for name in proven if shared[name] >= MIN_ROUNDS}
        n_judged += len(judged)
        best_s = min(world.true_s[name] for name in judged | {winner})
        assert world.true_s[winner] <= best_s * TIE * ((1 + world.noise) / (1 - world.noise)) ** 3, seed
    assert n_judged > 20_000
