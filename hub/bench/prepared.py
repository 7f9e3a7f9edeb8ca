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
    threads: int
    inputs: tuple[str, ...]
    note: str
    """How the hub runs the model, in words; empty for other contenders."""
    peak_bytes: int | None
    """Most memory the process ever held, the model and the eager reference included; None where the system does not say."""
