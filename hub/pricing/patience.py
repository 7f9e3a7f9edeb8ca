"""Times again what other processes took the cores from.

Threads that wait for each other at every operator take a hundred times as long while two of them share one core, and they
do so for as long as anybody else has the other one (`benchmarks/behind.py`). Whoever is timed in such a moment seems
hopeless, and its price would be kept. It shows in how often the system takes a core away.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import TypeVar

from hub.process.traffic import GAPS

T = TypeVar("T")

MAX_SWITCHES_S = 150.0
"""Switches to other processes in a second: a calm machine makes far fewer, and more where two threads share a core
(`python -m benchmarks.behind`, Linux 6.18)."""
PATIENCE_S = 1.0
"""Seconds that one worker times again for one graph, in all: a machine may be busy for good."""


class Patience:
    """The patience of one worker."""

    def __init__(self, now: Callable[[], float] = time.monotonic, switches: Callable[[], int] | None = None) -> None:
        """`now` gives seconds, `switches` how often this process had to give up a core."""
        self._now = now
        self._switches = switches or _switches
        self._left_s = PATIENCE_S

    def begin(self) -> None:
        """Have patience again: another graph is timed."""
        self._left_s = PATIENCE_S

    def timed(self, take: Callable[[], T], seconds: Callable[[T], float]) -> T:
        """Return what `take` gives where nobody disturbs it; the fastest by its seconds, where patience ends first."""
        found: list[T] = []
        while True:
            start_s, before, beside = self._now(), self._switches(), GAPS.beside
            found.append(take())
            passed_s = self._now() - start_s
            if self._switches() - before <= MAX_SWITCHES_S * passed_s:
                return found[-1]
            self._left_s -= passed_s
            if self._left_s <= 0 or GAPS.beside > beside:  # beside the user's calls it would never be calm
                return min(found, key=seconds)


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


PATIENCE = Patience()
