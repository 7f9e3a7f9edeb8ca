"""Results of a benchmark: values with JSON in and out, and the statistics that make them."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from hub.bench.machine import Machine
from hub.pricing.timing import median, median_interval

FORMAT = 1


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Interval(_Value):
    """A median with its 95 % confidence interval from order statistics."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Interval:
        """Gives the interval of at least one sample."""
        low, high = median_interval(samples)
        return cls(median=median(samples), low=low, high=high)


class Result(_Value):
    """What one contender did."""

    name: str
    failure: str = ""
    """Why there are no numbers; empty where there are."""
    note: str = ""
    """How the hub ran the model: clusters and backends."""
    call_s: Interval | None = None
    """Seconds of one call: the median of the medians of blocks."""
    to_best: Interval | None = None
    """Time relative to the fastest contender's, block by block, so that slow phases of the machine cancel out."""
    blocks_s: tuple[float, ...] = ()
    """Median seconds of one call in each block, in the order of the rounds."""
    calls: int = 0
    first_call_s: float | None = None
    """Seconds from the model in memory to the first result, with compiling."""
    max_abs_error: float | None = None
    relative_error: float | None = None
    """max|error| / max|reference| against float32 eager."""
    peak_bytes: int | None = None


class Benchmark(_Value):
    """A whole run."""

    format: int = FORMAT
    model: str
    inputs: tuple[str, ...]
    threads: int
    rounds: int
    block_s: float
    command: str
    date: str
    """UTC, ISO 8601."""
    machine: Machine
    results: tuple[Result, ...]
    """The fastest first, failures last."""
    hub_to_others: Interval | None = None
    """The hub's time relative to that of the best contender that is not the hub, block by block."""
    best_other: str = ""

    def to_json(self) -> str:
        """Gives the JSON form."""
        return self.model_dump_json(indent=2)


def ratios(blocks_s: Sequence[float], best_s: Sequence[float]) -> Interval:
    """Gives the ratio of two contenders' times from their blocks, round by round."""
    return Interval.of([one / other for one, other in zip(blocks_s, best_s, strict=True)])


def ranked(results: Sequence[Result]) -> tuple[Result, ...]:
    """Gives results with their ratios to the fastest, the fastest first, failures last in their own order."""
    timed = sorted((one for one in results if one.blocks_s), key=lambda one: median(one.blocks_s))
    failed = [one for one in results if not one.blocks_s]
    return (*(one.model_copy(update={"to_best": ratios(one.blocks_s, timed[0].blocks_s)}) for one in timed), *failed)


def against_others(results: Sequence[Result]) -> tuple[Interval | None, str]:
    """Gives the hub's time relative to the best contender that is not the hub, and that one's name."""
    hub = next((one for one in results if one.name == "hub" and one.blocks_s), None)
    others = [one for one in results if one.blocks_s and not one.name.startswith("hub")]
    if hub is None or not others:
        return None, ""
    best = min(others, key=lambda one: median(one.blocks_s))
    return ratios(hub.blocks_s, best.blocks_s), best.name
