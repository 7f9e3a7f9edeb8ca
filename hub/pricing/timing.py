"""Timing of calls: medians with confidence intervals, because machines are shared and noisy."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from hub.plugin.cost import Cost
from hub.process.accelerators import accelerators_of, wait_for
from hub.process.traffic import GAPS

if TYPE_CHECKING:
    import torch

_Item = TypeVar("_Item")
SLOW_S = 1.0
"""Seconds of a call from which it is timed fewer times."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of single calls, in order."""

    samples_s: tuple[float, ...]
    disturbed: int = 0
    """Number of calls during which other work took cores: calls of the user's model without gaps, or other processes."""

    @property
    def median_s(self) -> float:
        """Return the median seconds of one call."""
        return median(self.samples_s)

    @property
    def spread_s(self) -> float:
        """Return half the width of the 95 % confidence interval of the median."""
        low, high = median_interval(self.samples_s)
        return (high - low) / 2


def time_call(
    call: Callable[[], Any],
    at_least_s: float,
    *,
    warmup: int = 2,
    most: int = 2000,
    awaited: Iterable[torch.device] = (),
    is_slow: bool = False,
) -> Timing:
    """Call for at least `at_least_s` seconds (3 calls at least, `most` at most), after `warmup` uncounted calls.

    Calls of seconds get one uncounted call and one sample: noise matters less to them, and more would take minutes. A
    caller that has made the uncounted calls says with `is_slow` that they took so long.

    While a model runs, samples are taken in the gaps between its calls. Each sample ends when all work is done on the
    accelerators `awaited` and on those that hold results of the warmup calls.
    """
    devices = dict.fromkeys(awaited)
    for _ in range(warmup):
        start = time.perf_counter()
        devices |= dict.fromkeys(accelerators_of((call(),)))
        if is_slow := time.perf_counter() - start > SLOW_S:
            break
    wait_for(devices)
    samples: list[float] = []

    def sample() -> float:
        start = time.perf_counter()
        call()
        if devices:
            wait_for(devices)
        return time.perf_counter() - start

    left_s, overlaps = at_least_s, GAPS.overlaps
    while len(samples) < (1 if is_slow else 3) or (left_s > 0.0 and len(samples) < most):
        samples.append(GAPS.sample(sample))
        left_s -= samples[-1]
    return Timing(tuple(samples), GAPS.overlaps - overlaps)


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median from order statistics, which assumes no distribution.

    Source: the ranks n/2 -+ 1.96 sqrt(n)/2 of the binomial distribution (Conover, Practical Nonparametric Statistics, 3.2).
    """
    ordered = sorted(samples)
    reach = 1.96 * math.sqrt(len(ordered)) / 2
    low = max(0, math.floor(len(ordered) / 2 - reach))
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + reach))
    return ordered[low], ordered[high]


def in_turn(items: Sequence[_Item], number: int) -> list[_Item]:
    """Return the order of one round of timing: different each round, the same in every process.

    An item leaves caches and threads behind, so none may always follow the same one, as would happen if the order were
    only rotated. Every odd round reverses the one before it.
    """
    order = list(items)
    random.Random(number // 2).shuffle(order)
    return order[::-1] if number % 2 else order


def measured_cost(timing: Timing, threads: int, transfer_bytes: int = 0) -> Cost:
    """Return a timing as a cost with its provenance."""
    detail = f"median of {len(timing.samples_s)} calls, {threads} threads"
    return Cost(timing.median_s, timing.spread_s, transfer_bytes, "measured", detail)
