"""The goals of the hub's planner, and whether a summary meets them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hub.bench.summary import AT_PAR, INDUCTOR, WAYS, Comparison, Compiling, Summary

MAX_CLUSTERS = 12
TUNED_SHARE = 0.95
EXTRA_S = 15.0
WARM_SHARE = 0.30
ISOLATION_SHARE = 0.10
VERIFICATION_SHARE = 0.15

_MEANS = (("the best peer", 1.02), ("the best fixed library", 1.2), (INDUCTOR, 1.6))
"""Each comparison, by the beginning of its name, with the geometric mean required of it."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One goal."""

    text: str
    found: str
    is_met: bool | None
    """None if no measurement could decide it."""


def bars(summary: Summary) -> tuple[Bar, ...]:
    """Return every goal with what was measured for it."""
    return (
        *(bar for who in WAYS for bar in _speed_bars(who, summary)),
        *_compile_bars(list(summary.compiling.items())),
        _all_of(f"at most {MAX_CLUSTERS} clusters", summary.clusters, lambda n: n <= MAX_CLUSTERS),
    )


def _speed_bars(who: str, summary: Summary) -> tuple[Bar, ...]:
    """Return the speed goals of one way of running: one for every model, and the means for comparisons that have one."""
    comparisons = [one for one in summary.comparisons if one.who == who and one.speeds]
    if not comparisons:
        return ()
    best = comparisons[0]
    text = f"{best.who}: at least {AT_PAR} x as fast as the best peer on every model"
    means = [_mean(one, goal) for one in comparisons for start, goal in _MEANS if one.against.startswith(start)]
    return (_all_of(text, best.speeds, lambda speed: speed >= AT_PAR), *means)


def _mean(comparison: Comparison, goal: float) -> Bar:
    found = "-" if comparison.geomean is None else f"{comparison.geomean:.3f}"
    is_met = None if comparison.geomean is None else comparison.geomean >= goal
    return Bar(f"{comparison.who}: geometric mean at least {goal} over {comparison.against}", found, is_met)


def _compile_bars(runs: Sequence[tuple[str, Compiling]]) -> tuple[Bar, ...]:
    speeds = {key: one.share_of_tuned for key, one in runs if one.share_of_tuned is not None}
    extra_s = [one.hub_s - one.inductor_s for _, one in runs if one.hub_s is not None and one.inductor_s is not None]
    warm = {key: one.warm_s / one.hub_s for key, one in runs if one.hub_s and one.warm_s is not None}
    apart = {key: share for key, one in runs if (share := one.isolation_share) is not None}
    verifying = {key: share for key, one in runs if (share := one.verification_share) is not None}
    return (
        _all_of(f"{TUNED_SHARE:.0%} of the speed that tuning reaches", speeds, lambda value: value >= TUNED_SHARE),
        Bar(
            f"the plan is there within Inductor's compile time and {EXTRA_S:.0f} s, in the median",
            f"{statistics.median(extra_s):+.1f} s" if extra_s else "-",
            statistics.median(extra_s) <= EXTRA_S if extra_s else None,
        ),
        _all_of(
            f"a second process takes at most {WARM_SHARE:.0%} of the first one's time to the first result",
            warm,
            lambda value: value <= WARM_SHARE,
        ),
        _all_of(
            f"worker processes cost at most {ISOLATION_SHARE:.0%} of a cold compilation",
            apart,
            lambda value: value <= ISOLATION_SHARE,
        ),
        _all_of(
            f"verification takes at most {VERIFICATION_SHARE:.0%} of a cold compilation",
            verifying,
            lambda value: value <= VERIFICATION_SHARE,
        ),
    )


def _all_of(text: str, found: dict[str, float] | dict[str, int], is_good: Callable[[float], bool]) -> Bar:
    """Return a goal that every run has to meet; it names the runs that do not."""
    if not found:
        return Bar(text, "-", None)
    bad = {key: value for key, value in found.items() if not is_good(value)}
    listed = ", ".join(f"{key} {value:.3g}" for key, value in bad.items())
    return Bar(text, f"{len(found) - len(bad)} of {len(found)}" + (f"; not {listed}" if bad else ""), not bad)
