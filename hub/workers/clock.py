"""The time budget of planning. It begins when a first whole plan is ready, and is extended for the best candidates.

A whole plan may have many clusters. Until one is whole, all backends together have as long as the best candidates.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable

from hub.process.working import now

EXPLORE_SHARE = 0.45
"""Share of the budget after which no piece is compiled any more: the rest is for the plans that their prices suggest."""
COMPILE_SHARE = 0.65
"""Share of the budget after which nothing is compiled any more: the rest is for timing, which decides."""
LAST_SHARE = 0.9
"""The same share for variants of the winner of the first round of timing."""
CAUTION = 2.0
"""Multiple of its expected time that a piece may take to compile."""
MAX_PATIENCE = 3.0
"""Multiple of the budget that the most promising backends may take if others are ready before them."""


class Clock:
    """A countdown of the budget. Compiling the most promising whole plans is not part of it: one of them is always needed.

    Thread-safe. Times are seconds of `working.now`.
    """

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self._first_s: float | None = None
        """When the first cluster of a whole plan was ready."""
        self._began_s: float | None = None
        self._compile_share = COMPILE_SHARE
        self._slowest_s: dict[str, float] = {}
        self._awaited: frozenset[str] = frozenset()
        self._lock = threading.Lock()

    def begin(self, *, is_whole: bool = True) -> None:
        """Start the budget if it has not begun: a whole plan is ready, or, without `is_whole`, a part of one."""
        with self._lock:
            if self._first_s is None:
                self._first_s = now()
            if is_whole and self._began_s is None:
                self._began_s = now()

    @property
    def awaited(self) -> frozenset[str]:
        """The backends whose whole plans are waited for."""
        return self._awaited

    def wait_for(self, backends: Iterable[str]) -> None:
        """Set the backends that are likely the fastest, as far as is known: their whole plans are worth waiting for."""
        with self._lock:
            self._awaited = frozenset(backends)

    def arrived(self, backend: str) -> None:
        """Stop waiting for this backend: its plan is ready, or never will be."""
        with self._lock:
            self._awaited -= {backend}

    def compiled(self, backend: str, compile_s: float) -> None:
        """Record how long a backend took to compile one of its clusters."""
        with self._lock:
            self._slowest_s[backend] = max(compile_s, self._slowest_s.get(backend, 0.0))

    def compile_until(self, backend: str) -> float:
        """Return the time at which a backend's last compilation must be ready; infinite before anything is ready."""
        share = MAX_PATIENCE if backend in self._awaited else self._compile_share
        return self._share_ends_s(share)

    def begin_last_compilations(self) -> None:
        """Allow compilations for longer: only a few variants of a plan that was measured already remain to be timed."""
        self._compile_share = LAST_SHARE

    @property
    def left_s(self) -> float:
        """The seconds left of the budget; all of it before it has begun, negative once it is spent."""
        return self.budget_s if self._began_s is None else self._began_s + self.budget_s - now()

    def may_start(self, backend: str, *, is_needed: bool, expected_s: float = math.inf) -> bool:
        """Return whether a compilation may start now.

        An optional one must be certain to end in time: a worker that is stopped loses what it has compiled before. A piece
        of a graph compiles no longer than the graph did, the backend's slowest compilation so far, and hardly `CAUTION`
        times as long as expected.
        """
        if is_needed:
            return now() <= self.compile_until(backend)
        longest_s = min(self._slowest_s.get(backend, 0.0), CAUTION * expected_s)
        return now() + longest_s <= self._share_ends_s(EXPLORE_SHARE)

    def _share_ends_s(self, share: float) -> float:
        if self._began_s is not None:
            return self._began_s + share * self.budget_s
        return math.inf if self._first_s is None else self._first_s + MAX_PATIENCE * self.budget_s
