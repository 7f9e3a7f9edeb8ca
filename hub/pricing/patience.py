"""Repetition of measurements during which other processes took cores away.

Threads that wait for each other at every operator take a hundred times as long while two of them share one core, and they
do so for as long as another process has the other core (`benchmarks/behind.py`). A candidate timed at such a moment seems
hopeless, and its cost would be stored. The number of involuntary context switches reveals it.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import TypeVar

from hub.cache.keys import available_cores
from hub.process.threads import n_releases
from hub.process.traffic import GAPS

T = TypeVar("T")

MAX_SWITCHES_S = 75.0
"""Maximum involuntary context switches per second and core of an undisturbed measurement.

A calm machine makes far fewer, and more occur if two threads share a core (`python -m benchmarks.behind`, Linux 6.18).
"""
RELEASE_SWITCHES = 4
"""Context switches that a plan of several backends is allowed for each time that it ends OpenMP's threads.

Its own threads make one or two then (`python -m benchmarks.busy_waiting`, Linux 6.18).
"""
PATIENCE_S = 1.0
"""Total seconds that one worker spends on repetitions for one graph: a machine may be busy for good."""


class Patience:
    """Repetition budget of one worker."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        switches: Callable[[], int] | None = None,
        n_cores: int | None = None,
    ) -> None:
        """Create a budget with a clock `now` in seconds; `switches` counts this process's involuntary context switches.

        Each core that its threads run on has some (`n_cores`, by default those of the machine, and two at least).
        """
        self._n_cores = max(2, n_cores or available_cores())
        self._now = now
        self._switches = switches or _switches
        self._left_s = PATIENCE_S
        self.disturbed = 0
        """Number of disturbed results that were returned because the budget had ended."""

    def begin(self) -> None:
        """Reset the budget, because another graph is timed."""
        self._left_s = PATIENCE_S

    def timed(self, take: Callable[[], T], seconds: Callable[[T], float]) -> T:
        """Return an undisturbed result of `take`; if the budget ends first, the one with the fewest seconds."""
        found: list[T] = []
        while True:
            start_s, before, overlaps = self._now(), self._switches(), GAPS.overlaps
            found.append(take())
            passed_s = self._now() - start_s
            if self._switches() - before <= MAX_SWITCHES_S * self._n_cores * passed_s:
                return found[-1]
            self._left_s -= passed_s
            if self._left_s <= 0 or GAPS.overlaps > overlaps:  # while the user's calls run it would never be calm
                self.disturbed += 1
                return min(found, key=seconds)


def _switches() -> int:
    """Return the involuntary context switches of this process that another one may have caused."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - RELEASE_SWITCHES * n_releases()


PATIENCE = Patience()
