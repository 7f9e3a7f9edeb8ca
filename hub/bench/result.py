"""Results of a benchmark: values that convert to and from JSON, and the statistics behind them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from statistics import median
from typing import Any

from pydantic import BaseModel, ConfigDict

from hub.bench.contenders import HUB, is_hub
from hub.bench.machine import Machine
from hub.pricing.timing import median_interval

FORMAT = 3


class FailureKind(StrEnum):
    """The way in which a contender failed."""

    NONE = ""
    UNAVAILABLE = "unavailable"
    CAPTURE = "capture"
    """PyTorch captured nothing of the model."""
    COMPILE = "compile"
    """It failed before it was ready to be timed."""
    RUNTIME = "runtime"
    """It failed while it was timed."""
    ACCURACY = "accuracy"
    """Its first result was wrong."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Interval(_Value):
    """A median with its 95 % confidence interval from order statistics."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Interval:
        """Return the interval of the samples, of which there must be at least one."""
        low, high = median_interval(samples)
        return cls(median=median(samples), low=low, high=high)


class Result(_Value):
    """The result of one contender."""

    name: str
    failure: str = ""
    """Reason why there are no numbers; empty if there are, or if only the first call was requested."""
    failure_kind: FailureKind = FailureKind.NONE
    note: str = ""
    """Description of how the hub ran the model: clusters and backends."""
    plans: tuple[str, ...] = ()
    """The hub's plans in words, with measurements."""
    backends: tuple[str, ...] = ()
    """Backends in the hub's plans."""
    clusters: int | None = None
    """Number of clusters in the hub's plan, of the graph with the most."""
    same_as: str = ""
    """Contender that runs the same plan and was timed instead of this one; empty for none."""
    call_s: Interval | None = None
    """Seconds of one call: the median of the medians of blocks."""
    to_best: Interval | None = None
    """Time relative to the fastest contender's, block by block, so that slow phases of the machine cancel out."""
    blocks_s: tuple[float, ...] = ()
    """Median seconds of one call in each block, in the order of the rounds; slow contenders stop early."""
    blocks_cores: tuple[float, ...] = ()
    """CPU seconds per second that the process used in each block."""
    calls: int = 0
    first_call_s: float | None = None
    """Seconds from the model in memory to the first result, including compilation."""
    verify_s: float | None = None
    """Part of `first_call_s` spent on comparing executables with eager."""
    max_abs_error: float | None = None
    relative_error: float | None = None
    """max|error| / max|reference| against float32 eager."""
    tolerance: int | None = None
    """Least t from -10 to 1 at which every output is close to eager's; None if there is none."""
    wrong_call_s: float | None = None
    """Median seconds of one call if the result was too inaccurate to count; only the error-aware score uses it."""
    peak_bytes: int | None = None


class Benchmark(_Value):
    """A whole run."""

    format: int = FORMAT
    model: str
    batch: int | None = None
    """First dim of the inputs, if it was requested."""
    options: dict[str, Any] = {}
    """Options passed to the hub."""
    is_fresh: bool = False
    """True if every contender began with empty caches, except those that state otherwise."""
    inputs: tuple[str, ...]
    threads: int
    rounds: int
    block_s: float
    command: str
    date: str
    """UTC, ISO 8601."""
    machine: Machine
    results: tuple[Result, ...]
    """Results, the fastest first, failures last."""
    hub_to_others: Interval | None = None
    """The hub's time relative to that of the best contender other than the hub, block by block."""
    best_other: str = ""
    isolation_share: float | None = None
    """Extra cost of worker processes in a cold compilation, relative to one without them; None if it was not measured."""
    verification_share: float | None = None
    """Share of a cold compilation spent on comparing executables with eager; None if it was not measured."""

    def to_json(self) -> str:
        """Return the JSON form."""
        return self.model_dump_json(indent=2)


def ratios(blocks_s: Sequence[float], best_s: Sequence[float]) -> Interval:
    """Return the ratio of two contenders' times from their blocks, over the rounds in which both took part."""
    return Interval.of([one / other for one, other in zip(blocks_s, best_s, strict=False)])


def ranked(results: Sequence[Result]) -> tuple[Result, ...]:
    """Return results with their ratios to the fastest; the fastest comes first, failures last in their own order."""
    timed = sorted((one for one in results if one.blocks_s), key=lambda one: median(one.blocks_s))
    failed = [one for one in results if not one.blocks_s]
    return (*(one.model_copy(update={"to_best": ratios(one.blocks_s, timed[0].blocks_s)}) for one in timed), *failed)


def against_others(results: Sequence[Result]) -> tuple[Interval | None, str]:
    """Return the hub's time relative to the best contender other than the hub, and that contender's name."""
    hub = next((one for one in results if one.name == HUB and one.blocks_s), None)
    others = [one for one in results if one.blocks_s and not is_hub(one.name)]
    if hub is None or not others:
        return None, ""
    best = min(others, key=lambda one: median(one.blocks_s))
    return ratios(hub.blocks_s, best.blocks_s), best.name
