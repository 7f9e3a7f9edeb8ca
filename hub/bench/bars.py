"""The goals of the hub's planner, and whether a summary meets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hub.bench.contenders import FROZEN, HUB
from hub.bench.summary import AT_PAR, INDUCTOR, Comparison, Compiling, Summary

MOST_CLUSTERS = 12
FAST_SHARE = 0.95
FAST_EXTRA_S = 20.0
WARM_SHARE = 0.30
ISOLATION_SHARE = 0.10
VERIFICATION_SHARE = 0.15

_MEANS = (("the best peer", 1.05), ("the best fixed library", 1.2), (INDUCTOR, 1.6))
"""How the name of what is compared with begins, and the geometric mean that is asked of it."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One goal."""

    text: str
    found: str
    is_met: bool | None
    """None where nothing was measured that could tell."""


def bars(summary: Summary) -> tuple[Bar, ...]:
    """Gives every goal with what was found."""
    return (
        *_speed_bars([one for one in summary.comparisons if one.who == HUB]),
        *_speed_bars([one for one in summary.comparisons if one.who == FROZEN and one.speeds]),
        *_compile_bars(list(summary.compiling.items())),
        _all_of(f"at most {MOST_CLUSTERS} clusters", summary.clusters, lambda n: n <= MOST_CLUSTERS),
    )


def _speed_bars(comparisons: Sequence[Comparison]) -> tuple[Bar, ...]:
    """Gives the goals for speed: one for every model, and the means for those comparisons that have one."""
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
    speeds = {key: one.fast_speed for key, one in runs if one.fast_speed is not None}
    extra_s = {
        key: one.fast_s - one.inductor_s for key, one in runs if one.fast_s is not None and one.inductor_s is not None
    }
    warm = {key: one.fast_warm_s / one.fast_s for key, one in runs if one.fast_s and one.fast_warm_s is not None}
    warm_full = {key: one.warm_s / one.hub_s for key, one in runs if one.hub_s and one.warm_s is not None}
    apart = {key: share for key, one in runs if (share := one.isolation_share) is not None}
    verifying = {key: share for key, one in runs if (share := one.verification_share) is not None}
    warm_text = f"a second process takes at most {WARM_SHARE:.0%} of the first one's time to the first result"
    return (
        _all_of(f"fast reaches {FAST_SHARE:.0%} of the speed", speeds, lambda value: value >= FAST_SHARE),
        _all_of(
            f"fast compiles in Inductor's time plus {FAST_EXTRA_S:.0f} s", extra_s, lambda value: value <= FAST_EXTRA_S
        ),
        _all_of(f"fast: {warm_text}", warm, lambda value: value <= WARM_SHARE),
        _all_of(f"as benchmarked: {warm_text}", warm_full, lambda value: value <= WARM_SHARE),
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
    """Gives a bar that every run has to meet; names those that do not."""
    if not found:
        return Bar(text, "-", None)
    bad = {key: value for key, value in found.items() if not is_good(value)}
    listed = ", ".join(f"{key} {value:.3g}" for key, value in bad.items())
    return Bar(text, f"{len(found) - len(bad)} of {len(found)}" + (f"; not {listed}" if bad else ""), not bad)
