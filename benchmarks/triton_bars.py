"""The bars for the figures of `benchmarks.triton`, and whether they are met: computed from its rows alone, without a
GPU."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
"""One run: `program`, then `call_s` with seconds of a call by contender, or `error`."""


@dataclass(frozen=True)
class Bar:
    """A number that a part has to reach: in its worst run, or in the geometric mean of all."""

    claim: str
    least: float
    figure: Callable[[Row], float | None]
    """Figure of one run; None if a contender that it needs has no time."""
    is_mean: bool = False
    is_about: Callable[[Row], bool] = lambda _: True
    """False for runs to which the bar does not apply."""


def over(other: str, own: str) -> Callable[[Row], float | None]:
    """Return the ratio of another contender's time to our own."""

    def figure(row: Row) -> float | None:
        times: Mapping[str, float] = row["call_s"]
        return times[other] / times[own] if other in times else None

    return figure


def best_over(others: Sequence[str], own: str, *, needs_all: bool = False) -> Callable[[Row], float | None]:
    """Return the ratio of the fastest other's time to our own; with `needs_all` None if one is missing."""

    def figure(row: Row) -> float | None:
        times: Mapping[str, float] = row["call_s"]
        found = [times[other] for other in others if other in times]
        is_short = len(found) < len(others) if needs_all else not found
        return None if is_short else min(found) / times[own]

    return figure


_OTHERS = ("eager", "inductor", "max-autotune")
SDPA = ("flash", "cuDNN", "efficient")
"""Kernels behind `scaled_dot_product_attention`, by their names in rows."""

BARS: Mapping[str, tuple[Bar, ...]] = {
    "memory": (
        Bar("share of a copy's bandwidth, each program", 0.85, lambda row: row["of_copy"]),
        Bar("Inductor / Triton, geometric mean", 1.1, over("inductor", "triton"), is_mean=True),
        Bar("max-autotune / Triton, geometric mean", 1.0, over("max-autotune", "triton"), is_mean=True),
    ),
    "attention": (Bar("best of flash, cuDNN and efficient / Triton, each", 0.9, best_over(SDPA, "triton")),),
    "products": (
        Bar("cuBLAS / Triton, each product", 0.9, over("eager", "triton"), is_about=lambda row: not row["is_fused"]),
        Bar(
            "cuBLAS and a kernel of its own / Triton's one kernel, each product with GELU",
            1.0,
            over("eager", "triton"),
            is_about=lambda row: row["is_fused"],
        ),
    ),
    "models": (
        Bar("best of eager, Inductor and max-autotune / hub, each", 1.0, best_over(_OTHERS, "hub", needs_all=True)),
        Bar("Inductor / hub, geometric mean", 1.1, over("inductor", "hub"), is_mean=True),
    ),
}
"""Bars by part of the benchmark: the targets that were set for the plugin."""


def judged(part: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return a part's geometric means of each contender's time over our own, and the outcome of each bar."""
    own = "hub" if part == "models" else "triton"
    timed = [row for row in rows if "call_s" in row]
    others = dict.fromkeys(name for row in timed for name in row["call_s"] if name != own)
    means = {other: _mean(filter(None, map(over(other, own), timed))) for other in others}
    return {"means": means, "bars": [_outcome(bar, rows) for bar in BARS[part]]}


def _outcome(bar: Bar, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the outcome of one bar; a failed run, or one that lacks a contender, leaves it unproven, so not reached."""
    about = [row for row in rows if "call_s" not in row or bar.is_about(row)]
    found = {row["program"]: bar.figure(row) if "call_s" in row else None for row in about}
    figures = {program: figure for program, figure in found.items() if figure is not None}
    worst = min(figures, key=figures.__getitem__, default=None)
    value = _mean(figures.values()) if bar.is_mean else None if worst is None else figures[worst]
    lacking = [program for program, figure in found.items() if figure is None]
    return {
        "bar": bar.claim,
        "least": bar.least,
        "found": value,
        "worst": worst,
        "lacking": lacking,
        "is_reached": value is not None and not lacking and value >= bar.least,
    }


def _mean(values: Iterable[float]) -> float | None:
    """Return the geometric mean; None if there are no values."""
    found = list(values)
    return statistics.geometric_mean(found) if found else None


def told(outcome: Mapping[str, Any]) -> str:
    """Return an outcome as one line."""
    found = "nothing was measured" if outcome["found"] is None else f"{outcome['found']:.2f}"
    worst = f", worst {outcome['worst']}" if outcome["worst"] is not None else ""
    lacking = f"; not measured: {', '.join(outcome['lacking'])}" if outcome["lacking"] else ""
    word = "reached" if outcome["is_reached"] else "MISSED"
    return f"{word:7}  {outcome['bar']}: {found}, at least {outcome['least']:g}{worst}{lacking}"


def is_time(seconds: float) -> bool:
    """Return whether a number is a valid time."""
    return math.isfinite(seconds) and seconds > 0
