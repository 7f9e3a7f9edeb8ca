"""Which plan to try next: the one that is expected to save most for each second that trying it takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hub.planning.context import Draft

QUANTILE = 1.96
"""Standard deviations to either end of a normal distribution's 95 % interval."""
UNCALIBRATED = math.log(2.0)
"""Standard deviation of the logarithm of a price that rests on no measurement: a factor of 4 either way, 95 %."""
MIN_SECONDS = 0.1
"""Seconds that any attempt takes: what is compiled already has to be timed."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A plan that nobody has compiled yet, and what is expected of it."""

    draft: Draft
    run_s: float
    """Median seconds of one call."""
    deviation: float
    """Standard deviation of its logarithm."""
    compile_s: float
    """Seconds until it is compiled and verified."""
    is_unknown: bool = False
    """True where nothing at all is known of a backend, which is to be tried whatever its chance: else it stays so."""

    def gain_s(self, incumbent_s: float) -> float:
        """Return the expected seconds a call that it saves; what is slower than the incumbent saves nothing.

        E[max(0, incumbent - X)] of a lognormal X. Source: Black and Scholes, The Pricing of Options and Corporate
        Liabilities, 1973, of which this is the put option without interest; in Bayesian optimisation it is called
        expected improvement.
        """
        if self.deviation <= 0.0 or self.run_s <= 0.0 or incumbent_s <= 0.0:
            return max(0.0, incumbent_s - self.run_s)
        place = math.log(incumbent_s / self.run_s) / self.deviation
        mean_s = self.run_s * math.exp(self.deviation**2 / 2)
        return incumbent_s * _normal(place) - mean_s * _normal(place - self.deviation)

    def chance(self, incumbent_s: float) -> float:
        """Return the probability that it is faster than the incumbent."""
        if self.deviation <= 0.0 or self.run_s <= 0.0 or incumbent_s <= 0.0:
            return float(self.run_s < incumbent_s)
        return _normal(math.log(incumbent_s / self.run_s) / self.deviation)

    def worth(self, incumbent_s: float) -> float:
        """Return the expected gain for each second of trying."""
        return self.gain_s(incumbent_s) / max(self.compile_s, MIN_SECONDS)


def deviation_of(run_s: float, spread_s: float, *, is_estimated: bool) -> float:
    """Return the standard deviation of a price's logarithm, given half its 95 % interval; a guess has `UNCALIBRATED`."""
    deviation = math.asinh(spread_s / run_s) / QUANTILE if run_s > 0.0 else 0.0
    return max(deviation, UNCALIBRATED) if is_estimated else deviation


def most_promising(
    attempts: Iterable[Attempt], incumbent_s: float, *, min_gain: float, min_chance: float, count: int
) -> Sequence[Attempt]:
    """Return at most `count` attempts, best first, that are likely enough to win, and to save enough.

    `min_gain` is the expected share of a call, `min_chance` a probability: much may be hoped of a backend of
    which little is known, and a hundred such backends would all be tried.
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
