"""What a contender's process reports.

Apart from the worker, which is `__main__` in its process: values that travel need a module that both sides can import.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a contender's process says once it is ready."""

    first_call_s: float
    """Seconds from the model in memory to the first result: planning, compiling, and one call."""
    max_abs_error: float
    relative_error: float
    """max|error| / max|reference| against float32 eager."""
    tolerance: int | None
    """Least t from -10 to 1 at which every output is close to eager's (`closeness.least_tolerance`); None where none is."""
    wrong_call_s: float | None
    """Median seconds of one call, where the result is too far off for the contender to be timed with the others."""
    threads: int
    inputs: tuple[str, ...]
    note: str
    """How the hub runs the model, in words; empty for other contenders."""
    backends: tuple[str, ...]
    """Backends that run at least one cluster of the hub's plans; empty for other contenders."""
    clusters: int | None
    """Clusters in the hub's plan, of the graph that has most; None for other contenders."""
    verify_s: float | None
    """Seconds of the first call in which executables were compared with eager; None for other contenders than the hub."""
    peak_bytes: int | None
    """Most memory the process ever held, the model and the eager reference included; None where the system does not say."""
    plans: tuple[str, ...] = ()
    """The hub's plans in words, with what was measured; none for other contenders."""


@dataclass(frozen=True, slots=True)
class Block:
    """One contender's turn."""

    samples_s: tuple[float, ...]
    """Seconds of each call."""
    cores: float
    """Seconds of CPU time that the process took in a second: threads that spin and share one core show here."""
