"""Which plan is tried next: the one that is expected to save most per second of trying."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from hub.planning.attempt_order import UNCALIBRATED, Attempt, deviation_of, most_promising, spread_of
from hub.plugin.cost import Cost

NOBODY: Any = None


def attempt(run_s: float, deviation: float = 0.3, compile_s: float = 1.0) -> Attempt:
    return Attempt(NOBODY, run_s, deviation, compile_s)


def promising(attempts: Sequence[Attempt], *, count: int, min_chance: float = 0.0) -> Sequence[Attempt]:
    return most_promising(attempts, 1.0, min_gain=0.02, min_chance=min_chance, count=count)


@pytest.mark.parametrize("run_s", [0.5, 0.9, 1.0, 1.5, 4.0])
@pytest.mark.parametrize("deviation", [0.01, 0.3, 1.0])
def test_the_gain_is_the_mean_of_what_is_saved(run_s: float, deviation: float) -> None:
    """The closed form is the mean over random prices of what each would save."""
    rng = random.Random(0)
    samples = [run_s * math.exp(deviation * rng.gauss(0.0, 1.0)) for _ in range(40_000)]
    mean = sum(max(0.0, 1.0 - sample) for sample in samples) / len(samples)
    assert attempt(run_s, deviation).gain_s(1.0) == pytest.approx(mean, abs=0.01)


def test_a_sure_price_saves_exactly_the_difference() -> None:
    """Without uncertainty, nothing is expected beyond the price."""
    assert attempt(0.75, 0.0).gain_s(1.0) == 0.25
    assert attempt(1.25, 0.0).gain_s(1.0) == 0.0


def test_doubt_is_hope() -> None:
    """Of two plans that look equally slow, the less certain one may save more."""
    assert attempt(1.2, 0.5).gain_s(1.0) > attempt(1.2, 0.1).gain_s(1.0)


def test_quick_compilers_come_first() -> None:
    """A plan that saves slightly less, but compiles in a tenth of the time, is tried first."""
    quick, best = attempt(0.5, compile_s=1.0), attempt(0.4, compile_s=10.0)
    assert promising([best, quick], count=2) == [quick, best]


def test_what_is_not_worth_it_is_left_out() -> None:
    """A plan that would hardly ever beat the incumbent is not tried, and no more are tried than were requested."""
    hopeless, good, better = attempt(3.0), attempt(0.9), attempt(0.8)
    assert promising([hopeless, good, better], count=3) == [better, good]
    assert promising([hopeless, good, better], count=1) == [better]


def test_a_hundred_slow_backends_cost_nothing() -> None:
    """However many there are, only those that may win are tried."""
    many = [attempt(2.5 + number / 100, 0.3) for number in range(100)]
    assert promising([*many, attempt(0.9)], count=100) == [attempt(0.9)]


def test_a_hundred_unknown_backends_cost_nothing() -> None:
    """A plan that may be three times as slow or as fast is not tried only because it could save much."""
    unknown = [attempt(2.5 + number / 100, 1.0) for number in range(100)]
    assert all(one.gain_s(1.0) > 0.02 for one in unknown)
    assert promising([*unknown, attempt(0.9)], count=100, min_chance=0.25) == [attempt(0.9)]


def test_who_is_unknown_is_tried_all_the_same() -> None:
    """A backend about which nothing is known would stay unknown; what it is expected to save still has to be worth it."""
    unknown, hopeless = Attempt(NOBODY, 2.0, 1.0, 1.0, is_unknown=True), Attempt(NOBODY, 9.0, 0.3, 1.0, is_unknown=True)
    assert unknown.chance(1.0) < 0.25
    assert promising([unknown, hopeless], count=2, min_chance=0.25) == [unknown]


@pytest.mark.parametrize(("run_s", "deviation"), [(0.5, 0.3), (1.2, 0.3), (1.2, 1.0), (3.0, 0.9)])
def test_the_chance_is_how_often_it_wins(run_s: float, deviation: float) -> None:
    """The closed form is the share of random prices below the incumbent's; a certain price wins or does not."""
    rng = random.Random(0)
    wins = sum(run_s * math.exp(deviation * rng.gauss(0.0, 1.0)) < 1.0 for _ in range(40_000))
    assert attempt(run_s, deviation).chance(1.0) == pytest.approx(wins / 40_000, abs=0.01)
    assert attempt(run_s, 0.0).chance(1.0) == float(run_s < 1.0)


def test_guesses_are_doubted() -> None:
    """A price that rests on no measurement may be off by a factor of four, even if it claims otherwise."""
    assert deviation_of(1.0, spread_of(Cost(1.0, 0.01, source="estimated"))) == pytest.approx(UNCALIBRATED)
    assert deviation_of(1.0, spread_of(Cost(1.0, 0.01, source="measured"))) < 0.01
    assert deviation_of(0.0, 0.0) == 0.0
