"""Cost: how long one warm call takes, and where that number comes from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Source = Literal["measured", "learned", "estimated"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds and bytes of one warm call, with spread and provenance."""

    run_s: float
    """Median seconds of one warm call."""
    spread_s: float = 0.0
    """Half the width of the 95 % confidence interval of `run_s`, in seconds; 0 if unknown."""
    transfer_bytes: int = 0
    """Bytes that cross the cluster's boundary in one call, both ways."""
    source: Source = "estimated"
    detail: str = ""
    """Where the number comes from: "median of 40 calls, 2 threads" or "roofline, 80 Gflop/s, 20 GB/s"."""

    def __post_init__(self) -> None:
        for name in ("run_s", "spread_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number of at least 0 seconds, got {getattr(self, name)!r}")

    @property
    def is_measured(self) -> bool:
        """Return whether the number was measured on this machine."""
        return self.source == "measured"
