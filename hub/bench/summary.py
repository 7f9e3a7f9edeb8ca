"""A summary of many benchmarks: means against peers, ablation, compile times and scores. Values and pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from hub.bench.contenders import (
    DIRECT,
    EAGER,
    FROZEN,
    HUB,
    INLINE,
    ISOLATED,
    TUNED,
    TUNED_FROZEN,
    WARM,
    backend_alone,
    backend_left_out,
    is_hub,
)
from hub.bench.result import Benchmark, Interval, Result, ratios
from hub.bench.score import TOLERANCES, Sample, error_aware_score, geometric_mean, sample, speedup_score

INDUCTOR = "inductor"
"""The peer that compile times are compared with: the default of `torch.compile`."""
AT_PAR = 0.97
"""Relative speed from which the hub counts as not slower: blocks of one contender differ by as much."""


WAYS = (HUB, DIRECT, FROZEN, TUNED, TUNED_FROZEN)
"""The ways of running a model through the hub that are compared with peers."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Comparison(_Value):
    """The hub's speed relative to a contender or group, over all runs that have both."""

    who: str = HUB
    """The way of running the hub: as a backend of `torch.compile`, or frozen."""
    against: str
    geomean: float | None
    """Geometric mean of the relative speeds; above 1 the hub is faster; None if no run has both."""
    speeds: dict[str, float]
    """The hub's relative speed, by run."""
    names: dict[str, str]
    """Contender that the hub was compared with, by run."""

    @property
    def below(self) -> dict[str, float]:
        """Runs in which the hub is slower by more than noise, the worst first."""
        slow = {label: speed for label, speed in self.speeds.items() if speed < AT_PAR}
        return dict(sorted(slow.items(), key=lambda item: item[1]))


class Ablation(_Value):
    """The hub's loss of speed without one backend."""

    backend: str
    geomean: float | None
    """Time without it relative to the time with all; 1 in runs whose plan does not use it."""
    slowdowns: dict[str, float]
    """The same by run."""


class Compiling(_Value):
    """Seconds to the first result in one run; None if they were not measured."""

    inductor_s: float | None
    hub_s: float | None
    warm_s: float | None
    tuned_s: float | None
    isolated_s: float | None = None
    """The first plan considered, tried in worker processes."""
    inline_s: float | None = None
    """The same in the user's process."""
    verify_s: float | None = None
    """Part of `isolated_s` spent on comparing executables with eager."""
    share_of_tuned: float | None
    """Speed of the hub relative to the tuned hub, both frozen if both were measured so."""

    @property
    def isolation_share(self) -> float | None:
        """Extra cost of worker processes in a cold compilation, relative to one without them."""
        return self.isolated_s / self.inline_s - 1 if self.isolated_s and self.inline_s else None

    @property
    def verification_share(self) -> float | None:
        """Share of a cold compilation spent on comparing executables with eager."""
        return self.verify_s / self.isolated_s if self.isolated_s and self.verify_s is not None else None


class Curve(_Value):
    """GraphNet's scores of one contender, by tolerance."""

    name: str
    samples: int
    plain: dict[int, float]
    """S(t)."""
    error_aware: dict[int, float]
    """ES(t)."""


class Summary(_Value):
    """The whole summary."""

    runs: int
    comparisons: tuple[Comparison, ...]
    ablations: tuple[Ablation, ...]
    compiling: dict[str, Compiling]
    clusters: dict[str, int]
    """Number of clusters in the hub's plan, by run."""
    curves: tuple[Curve, ...]
    failures: dict[str, dict[str, str]]
    """Reason by contender, by run."""


def label(run: Benchmark) -> str:
    """Return the name of a run: "bert b4"."""
    return run.model if run.batch is None else f"{run.model} b{run.batch}"


def summarize(runs: Sequence[Benchmark]) -> Summary:
    """Return the summary of runs, each with another model or batch."""
    return Summary(
        runs=len(runs),
        comparisons=_comparisons(runs),
        ablations=_ablations(runs),
        compiling={label(run): compiling(run) for run in runs},
        clusters={label(run): hub.clusters for run in runs if (hub := find(run, HUB)) and hub.clusters is not None},
        curves=_curves(runs),
        failures={label(run): failed for run in runs if (failed := _failures(run))},
    )


def find(run: Benchmark, name: str) -> Result | None:
    """Return the result of a contender; None if it did not take part."""
    return next((one for one in run.results if one.name == name), None)


def timed(run: Benchmark, name: str) -> Result | None:
    """Return the result that holds a contender's times, its own or that of the same plan; None if there are no times."""
    one = find(run, name)
    if one is not None and one.same_as:
        one = find(run, one.same_as)
    return one if one is not None and one.blocks_s else None


def relative_speed(run: Benchmark, name: str, other: str) -> float | None:
    """Return how many times as fast one contender is as another, round by round; None if either has no times."""
    speed = speed_against(run, name, other)
    return None if speed is None else speed.median


def speed_against(run: Benchmark, name: str, other: str) -> Interval | None:
    """Return the same with its 95 % interval; None if either has no times."""
    ours, theirs = timed(run, name), timed(run, other)
    return None if ours is None or theirs is None else ratios(theirs.blocks_s, ours.blocks_s)


def is_peer(name: str) -> bool:
    """Return whether a contender does not go through the hub; this includes eager."""
    return not is_hub(name)


def is_alone(name: str) -> bool:
    """Return whether a contender is the hub with only one backend."""
    return bool(backend_alone(name))


def names_in(runs: Iterable[Benchmark], is_wanted: Callable[[str], bool] = lambda _: True) -> tuple[str, ...]:
    """Return the names of contenders, each once, in alphabetical order after the hub and eager, which come first."""
    found = {one.name for run in runs for one in run.results if is_wanted(one.name)}
    return tuple(sorted(found, key=lambda name: (name != HUB, name != EAGER, is_hub(name), name)))


def _comparisons(runs: Sequence[Benchmark]) -> tuple[Comparison, ...]:
    library, backend = best_fixed(runs, is_library), best_fixed(runs, is_alone)
    rivals: tuple[tuple[str, Callable[[Benchmark], str]], ...] = (
        ("the best peer of each model", lambda run: fastest(run, is_peer)),
        (f"the best fixed library ({library})", lambda run: _or_eager(run, library)),
        (INDUCTOR, lambda _: INDUCTOR),
        (EAGER, lambda _: EAGER),
    )
    alone: tuple[tuple[str, Callable[[Benchmark], str]], ...] = (
        ("the best backend alone of each model", lambda run: fastest(run, is_alone)),
        (f"the best fixed backend alone ({backend})", lambda run: _or_eager(run, backend)),
    )
    return (
        *(_compare(runs, against, other_in, who) for who in WAYS for against, other_in in rivals),
        *(_compare(runs, against, other_in) for against, other_in in alone),
    )


def is_library(name: str) -> bool:
    """Return whether a contender is a compiler with its own API."""
    return is_peer(name) and name != EAGER


def best_fixed(runs: Sequence[Benchmark], is_wanted: Callable[[str], bool]) -> str:
    """Return the contender with the best mean speed over eager; eager stands in where it fails; "" if there is none."""
    means = {name: geometric_mean(_speeds_over_eager(runs, name)) or 0.0 for name in names_in(runs, is_wanted)}
    return max(means, key=lambda name: means[name], default="")


def _speeds_over_eager(runs: Sequence[Benchmark], name: str) -> list[float]:
    able = [run for run in runs if timed(run, EAGER)]
    return [relative_speed(run, name, EAGER) or 1.0 for run in able]


def _compare(runs: Sequence[Benchmark], against: str, other_in: Callable[[Benchmark], str], who: str = HUB) -> Comparison:
    names = {label(run): other_in(run) for run in runs}
    found = {label(run): relative_speed(run, who, names[label(run)]) for run in runs}
    speeds = {key: value for key, value in found.items() if value is not None}
    return Comparison(
        who=who,
        against=against,
        geomean=geometric_mean(list(speeds.values())),
        speeds=speeds,
        names={key: names[key] for key in speeds},
    )


def fastest(run: Benchmark, is_wanted: Callable[[str], bool]) -> str:
    """Return the fastest of some contenders in one run; "" if none of them was timed."""
    times_s = {one.name: one.call_s.median for one in run.results if one.call_s and is_wanted(one.name)}
    return min(times_s, key=lambda name: times_s[name], default="")


def _or_eager(run: Benchmark, name: str) -> str:
    return name if timed(run, name) else EAGER


def _ablations(runs: Sequence[Benchmark]) -> tuple[Ablation, ...]:
    names = names_in(runs, lambda name: bool(backend_left_out(name)))
    return tuple(_ablation(runs, name) for name in names)


def _ablation(runs: Sequence[Benchmark], name: str) -> Ablation:
    found = {label(run): relative_speed(run, HUB, name) for run in runs}
    slowdowns = {key: value for key, value in found.items() if value is not None}
    return Ablation(backend=backend_left_out(name), geomean=geometric_mean(list(slowdowns.values())), slowdowns=slowdowns)


def compiling(run: Benchmark) -> Compiling:
    """Return the seconds to the first result of one run."""
    first_s: Mapping[str, float | None] = {one.name: one.first_call_s for one in run.results}
    return Compiling(
        inductor_s=first_s.get(INDUCTOR),
        hub_s=first_s.get(HUB),
        warm_s=first_s.get(WARM),
        tuned_s=first_s.get(TUNED),
        isolated_s=first_s.get(ISOLATED),
        inline_s=first_s.get(INLINE),
        verify_s=isolated.verify_s if (isolated := find(run, ISOLATED)) else None,
        share_of_tuned=relative_speed(run, FROZEN, TUNED_FROZEN) or relative_speed(run, HUB, TUNED),
    )


def _curves(runs: Sequence[Benchmark]) -> tuple[Curve, ...]:
    names = names_in(runs, lambda name: name != EAGER and (name in WAYS or not is_hub(name) or is_alone(name)))
    return tuple(curve for curve in (_curve(runs, name) for name in names) if curve.samples)


def _curve(runs: Sequence[Benchmark], name: str) -> Curve:
    samples = [found for run in runs if (found := _sample(run, name)) is not None]
    plain = {t: speedup_score(samples, t) for t in TOLERANCES}
    aware = {t: error_aware_score(samples, t) for t in TOLERANCES}
    return Curve(
        name=name,
        samples=len(samples),
        plain={t: value for t, value in plain.items() if value is not None},
        error_aware={t: value for t, value in aware.items() if value is not None},
    )


def _sample(run: Benchmark, name: str) -> Sample | None:
    eager, one = timed(run, EAGER), find(run, name)
    return None if eager is None or eager.call_s is None or one is None else sample(one, eager.call_s.median)


def _failures(run: Benchmark) -> dict[str, str]:
    return {one.name: one.failure for one in run.results if one.failure}
