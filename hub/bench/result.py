"""Results of a benchmark: values with JSON in and out, and the statistics that make them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

from hub.bench.contenders import HUB, is_hub
from hub.bench.machine import Machine
from hub.pricing.timing import median, median_interval

FORMAT = 3


class FailureKind(StrEnum):
    """How a contender failed."""

    NONE = ""
    UNAVAILABLE = "unavailable"
    CAPTURE = "capture"
    """PyTorch captured nothing of the model."""
    COMPILE = "compile"
    """Before it was ready to be timed."""
    RUNTIME = "runtime"
    """While it was timed."""
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
        """Return the interval of at least one sample."""
        low, high = median_interval(samples)
        return cls(median=median(samples), low=low, high=high)


class Result(_Value):
    """What one contender did."""

    name: str
    failure: str = ""
    """Why there are no numbers; empty where there are, and where nobody asked for more than the first call."""
    failure_kind: FailureKind = FailureKind.NONE
    note: str = ""
    """How the hub ran the model: clusters and backends."""
    plans: tuple[str, ...] = ()
    """The hub's plans in words, with what was measured."""
    backends: tuple[str, ...] = ()
    """Backends in the hub's plans."""
    clusters: int | None = None
    """Clusters in the hub's plan, of the graph that has most."""
    same_as: str = ""
    """Contender that runs the very same plan and was timed in this one's place; empty for none."""
    call_s: Interval | None = None
    """Seconds of one call: the median of the medians of blocks."""
    to_best: Interval | None = None
    """Time relative to the fastest contender's, block by block, so that slow phases of the machine cancel out."""
    blocks_s: tuple[float, ...] = ()
    """Median seconds of one call in each block, in the order of the rounds; slow contenders stop after some."""
    blocks_cores: tuple[float, ...] = ()
    """Seconds of CPU time that the process took in a second of each block."""
    calls: int = 0
    first_call_s: float | None = None
    """Seconds from the model in memory to the first result, with compiling."""
    verify_s: float | None = None
    """Seconds of these in which executables were compared with eager."""
    max_abs_error: float | None = None
    relative_error: float | None = None
    """max|error| / max|reference| against float32 eager."""
    tolerance: int | None = None
    """Least t from -10 to 1 at which every output is close to eager's; None where none is."""
    wrong_call_s: float | None = None
    """Median seconds of one call, where the result was too far off to count; only the error-aware score uses it."""
    peak_bytes: int | None = None


class Benchmark(_Value):
    """A whole run."""

    format: int = FORMAT
    model: str
    batch: int | None = None
    """First dim of the inputs, where it was asked for."""
    options: dict[str, Any] = {}
    """What the hub was given."""
    is_fresh: bool = False
    """True where every contender began with empty caches, but for those that say otherwise."""
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
    isolation_share: float | None = None
    """What worker processes add to a cold compilation, relative to one without them; None where that was not measured."""
    verification_share: float | None = None
    """Share of a cold compilation in which executables were compared with eager; None where that was not measured."""

    def to_json(self) -> str:
        """Return the JSON form."""
        return self.model_dump_json(indent=2)


def ratios(blocks_s: Sequence[float], best_s: Sequence[float]) -> Interval:
    """Return the ratio of two contenders' times from their blocks, over the rounds that both were in."""
    return Interval.of([one / other for one, other in zip(blocks_s, best_s, strict=False)])


def ranked(results: Sequence[Result]) -> tuple[Result, ...]:
    """Return results with their ratios to the fastest, the fastest first, failures last in their own order."""
    timed = sorted((one for one in results if one.blocks_s), key=lambda one: median(one.blocks_s))
    failed = [one for one in results if not one.blocks_s]
    return (*(one.model_copy(update={"to_best": ratios(one.blocks_s, timed[0].blocks_s)}) for one in timed), *failed)


def against_others(results: Sequence[Result]) -> tuple[Interval | None, str]:
    """Return the hub's time relative to the best contender that is not the hub, and that one's name."""
    hub = next((one for one in results if one.name == HUB and one.blocks_s), None)
    others = [one for one in results if one.blocks_s and not is_hub(one.name)]
    if hub is None or not others:
        return None, ""
    best = min(others, key=lambda one: median(one.blocks_s))
    return ratios(hub.blocks_s, best.blocks_s), best.name
