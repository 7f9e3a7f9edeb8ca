"""The reports of a contender's process.

Separate from the worker, which is `__main__` in its process: pickled values need a module that both sides can import.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prepared:
    """The report of a contender's process once it is ready."""

    first_call_s: float
    """Seconds from the model in memory to the first result: planning, compiling, and one call."""
    max_abs_error: float
    relative_error: float
    """max|error| / max|reference| against float32 eager."""
    tolerance: int | None
    """Least t from -10 to 1 at which every output is close to eager's (`closeness.least_tolerance`), or None."""
    wrong_call_s: float | None
    """Median seconds of one call, if the result is too inaccurate for the contender to be timed with the others."""
    threads: int
    inputs: tuple[str, ...]
    note: str
    """Description of how the hub runs the model; empty for other contenders."""
    backends: tuple[str, ...]
    """Backends that run at least one cluster of the hub's plans; empty for other contenders."""
    clusters: int | None
    """Number of clusters in the hub's plan, of the graph with the most; None for other contenders."""
    verify_s: float | None
    """Seconds of the first call spent on comparing executables with eager; None for contenders other than the hub."""
    peak_bytes: int | None
    """Peak memory of the process in bytes, including the model and the eager reference; None if it is unavailable."""
    plans: tuple[str, ...] = ()
    """The hub's plans in words, with measurements; empty for other contenders."""


@dataclass(frozen=True, slots=True)
class Block:
    """One contender's turn."""

    samples_s: tuple[float, ...]
    """Seconds of each call."""
    cores: float
    """CPU seconds per second that the process used: threads that busy-wait and share one core show here."""
