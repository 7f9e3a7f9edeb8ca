"""Choice of the plan to try next: the one with the highest expected saving per second of trying it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hub.planning.context import CandidatePlan
from hub.plugin.cost import Cost
from hub.pricing.learned import REACH

UNCALIBRATED = math.log(2.0)
"""Standard deviation of the logarithm of a cost without any measurement: 95 % within a factor of 4."""
MIN_SECONDS = 0.1
"""Minimum seconds per attempt: even a compiled plan has to be timed."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A plan not compiled yet, and its expected results."""

    plan: CandidatePlan
    run_s: float
    """Median seconds of one call."""
    deviation: float
    """Standard deviation of the logarithm of `run_s`."""
    compile_s: float
    """Seconds to compile and verify the plan."""
    is_unknown: bool = False
    """True if nothing is known of a backend: it is tried regardless of its chance, or it would stay unknown."""

    def gain_s(self, incumbent_s: float) -> float:
        """Return the expected seconds saved per call; a plan slower than the incumbent saves nothing.

        This is E[max(0, incumbent - X)] of a lognormal X. Source: Black and Scholes, The Pricing of Options and Corporate
        Liabilities, 1973 (the put option without interest). In Bayesian optimisation it is called expected improvement.
        """
        if self.deviation <= 0.0 or self.run_s <= 0.0 or incumbent_s <= 0.0:
            return max(0.0, incumbent_s - self.run_s)
        place = math.log(incumbent_s / self.run_s) / self.deviation
        mean_s = self.run_s * math.exp(self.deviation**2 / 2)
        return incumbent_s * _normal(place) - mean_s * _normal(place - self.deviation)

    def chance(self, incumbent_s: float) -> float:
        """Return the probability that the plan is faster than the incumbent."""
        if self.deviation <= 0.0 or self.run_s <= 0.0 or incumbent_s <= 0.0:
            return float(self.run_s < incumbent_s)
        return _normal(math.log(incumbent_s / self.run_s) / self.deviation)

    def worth(self, incumbent_s: float) -> float:
        """Return the expected saving per second of trying."""
        return self.gain_s(incumbent_s) / max(self.compile_s, MIN_SECONDS)


def spread_of(cost: Cost) -> float:
    """Return half a cost's 95 % interval in seconds, which is as wide as `UNCALIBRATED` at least if it is estimated."""
    least_s = cost.run_s * math.sinh(REACH * UNCALIBRATED) if cost.source == "estimated" else 0.0
    return max(cost.spread_s, least_s)


def deviation_of(run_s: float, spread_s: float) -> float:
    """Return the standard deviation of a cost's logarithm from half its 95 % interval."""
    return math.asinh(spread_s / run_s) / REACH if run_s > 0.0 else 0.0


def most_promising(
    attempts: Iterable[Attempt], incumbent_s: float, *, min_gain: float, min_chance: float, count: int
) -> Sequence[Attempt]:
    """Return at most `count` attempts, best first, that are likely enough to win and to save enough.

    `min_gain` is a share of a call, `min_chance` a probability. Without `min_chance`, every backend of which little is
    known would be tried, even a hundred of them, since its possible gain is large.
    """
    worth = (
        attempt
        for attempt in attempts
        if attempt.gain_s(incumbent_s) >= min_gain * incumbent_s
        and (attempt.is_unknown or attempt.chance(incumbent_s) >= min_chance)
    )
    return sorted(worth, key=lambda attempt: -attempt.worth(incumbent_s))[:count]


def _normal(value: float) -> float:
    """Return the share of a normal distribution below a value."""
    return math.erfc(-value / math.sqrt(2.0)) / 2.0
