"""The proof: noise does not make a plan look better than the reported spread, and ties go to fewer clusters."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hub.dispatch.codegen import Step
from hub.errors import RunError
from hub.pricing.proof import LEAST_ROUNDS, prove
from hub.pricing.session import Lane
from hub.pricing.timing import median

MS = 1e-3


class Blocks:
    """Stands for a session: its blocks take what a function says, by lane and round."""

    def __init__(self, block_s: Callable[[str, int], float]) -> None:
        self.block_s = block_s
        self.ended: list[str] = []
        self.asked: list[str] = []

    def time_lane(self, lane: Lane, at_least_s: float) -> None:
        """Adds one block."""
        self.asked.append(lane.name)
        lane.blocks_s.append(self.block_s(lane.name, len(lane.blocks_s)))
        lane.laps_s.append([lane.blocks_s[-1] / len(lane.steps)] * len(lane.steps))
        lane.calls += 10

    def end(self, lane: Lane) -> None:
        """Remembers who was sent home."""
        self.ended.append(lane.name)


def lane(name: str, n_clusters: int) -> Lane:
    """Gives a lane without a worker."""
    steps = [Step(f"c{number}", name, ()) for number in range(n_clusters)] or [Step("e0", "eager", (), is_eager=True)]
    no_worker: Any = None
    return Lane(name, tuple(steps), no_worker)


def proved(lanes: Sequence[Lane], block_s: Callable[[str, int], float], budget_s: float = 0.0) -> Any:
    """Proves lanes by made-up blocks, with a budget that the least number of rounds outlasts by default."""
    session: Any = Blocks(block_s)
    return prove(session, lanes, budget_s), session


def noisy(seed: int, true_s: dict[str, float], noise: float) -> Callable[[str, int], float]:
    """Gives blocks that are off by up to a share, with slow phases that last for two rounds."""
    chance = random.Random(seed)
    slow = [chance.choice((1.0, 1.0, 1.6)) for _ in range(100)]
    return lambda name, number: true_s[name] * slow[number // 2] * (1 + chance.uniform(-noise, noise))


@pytest.mark.parametrize("seed", range(20))
def test_noise_costs_no_more_than_the_spread(seed: int) -> None:
    """Under noise, the plan that wins is slower than the best single backend by no more than the spread reported."""
    true_s = {"one": 10 * MS, "two": 10.4 * MS, "one + two": 10.3 * MS, "eager": 13 * MS}
    lanes = [lane("one", 1), lane("two", 1), lane("one + two", 2), lane("eager", 0)]
    proof, _ = proved(lanes, noisy(seed, true_s, 0.05), budget_s=60.0)
    spread = max(item.spread_s / item.median_s for item in proof.contenders)
    assert true_s[proof.winner.name] <= true_s["one"] * (1 + spread)


@pytest.mark.parametrize("seed", range(10))
def test_slow_phases_cancel_out(seed: int) -> None:
    """A plan that is 5 % faster wins although everything slows down by 1.6 for a while."""
    true_s = {"one": 10 * MS, "one + two": 9.5 * MS}
    proof, _ = proved([lane("one", 1), lane("one + two", 2)], noisy(seed, true_s, 0.01), budget_s=60.0)
    assert proof.winner.name == "one + two"


def test_ties_go_to_fewer_clusters() -> None:
    """A mix whose lead does not persist loses to the single backend."""
    wobble = (0.98, 1.02, 0.97, 1.04, 0.99, 1.01)

    def block_s(name: str, number: int) -> float:
        return 10 * MS * (wobble[number % 6] if name == "one + two" else 1.0)

    proof, _ = proved([lane("one + two", 2), lane("one", 1)], block_s)
    assert proof.winner.name == "one"


def test_clear_winner_wins_with_more_clusters() -> None:
    """A mix that is faster in every round wins."""
    proof, _ = proved([lane("one", 1), lane("one + two", 2)], lambda name, _: (9 if "+" in name else 10) * MS)
    assert proof.winner.name == "one + two"
    assert [item.won for item in proof.contenders] == [False, True]


def test_hopeless_plans_go_home_early() -> None:
    """A plan that is far behind after two rounds takes no more time from the others, and stays in the evidence."""
    proof, session = proved([lane("one", 1), lane("slow", 1)], lambda name, _: (40 if name == "slow" else 10) * MS)
    assert session.ended == ["slow"]
    assert session.asked.count("slow") == 2
    assert {item.name for item in proof.contenders} == {"one", "slow"}


def test_at_least_some_rounds() -> None:
    """However small the budget, each hopeful plan is timed often enough for an interval."""
    proof, session = proved([lane("one", 1), lane("two", 1)], lambda name, _: 10 * MS)
    assert session.asked.count("one") == session.asked.count("two") == LEAST_ROUNDS
    assert proof.winner.name == "one"


@pytest.mark.parametrize(("variant_s", "winner"), [(9.99 * MS, "usual"), (9.5 * MS, "variant")])
def test_favourite_must_be_beaten_clearly(variant_s: float, winner: str) -> None:
    """A variant of the winner's settings that is no faster than noise can make it does not take its place."""
    favourite, variant = lane("usual", 1), lane("variant", 1)
    session: Any = Blocks(noisy(3, {"usual": 10 * MS, "variant": variant_s}, 0.01))
    proof = prove(session, [favourite, variant], 60.0, favourite=favourite)
    assert proof is not None
    assert proof.winner.name == winner


def test_nobody_always_follows_the_same_neighbour() -> None:
    """What ran before leaves caches and threads behind, so each plan runs after several others, first, and last."""
    names = ("a", "b", "c", "d")
    _, session = proved([lane(name, 1) for name in names], lambda name, _: 10 * MS)
    rounds = [session.asked[start : start + 4] for start in range(0, 4 * LEAST_ROUNDS, 4)]
    assert all(sorted(one) == list(names) for one in rounds)
    before = {name: {one[one.index(name) - 1] for one in rounds if one[0] != name} for name in names}
    assert all(len(found) > 1 for found in before.values())
    assert len({one[0] for one in rounds}) > 1


def test_failing_plan_is_no_contender() -> None:
    """A plan that fails while it is timed is told with its error, and the others go on."""

    def block_s(name: str, number: int) -> float:
        if name == "bad" and number == 1:
            raise RunError("it fell over", backend="bad")
        return 10 * MS

    proof, _ = proved([lane("bad", 1), lane("one", 1)], block_s)
    assert proof.winner.name == "one"
    assert [name for name, _ in proof.failures] == ["bad"]
    assert [item.name for item in proof.contenders] == ["one"]


def test_no_plan_left() -> None:
    """Where every plan fails there is no proof."""

    def block_s(name: str, number: int) -> float:
        raise RunError("it fell over", backend=name)

    assert proved([lane("one", 1), lane("two", 1)], block_s)[0] is None


def test_contender_tells_median_and_spread() -> None:
    """The evidence of a plan is the median of its blocks and half the width of its interval."""
    blocks = [10 * MS, 11 * MS, 12 * MS, 13 * MS, 14 * MS]
    proof, _ = proved([lane("one", 1)], lambda name, number: blocks[number % 5])
    contender = proof.contenders[0]
    assert contender.median_s == median(blocks)
    assert contender.spread_s == pytest.approx((max(blocks) - min(blocks)) / 2)
